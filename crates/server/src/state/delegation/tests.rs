//! Delegations given, recalled, given back and taken away.

use super::*;
use crate::state::client::OwnerName;
use crate::state::share::Share;
use crate::state::tests::{
    LEASE, NODE, READ, T0, WRITE, lock_under, owner, principal, ready, request, state_after,
};
use crate::state::{Answer, CallbackCred, CallbackService, Channel, Claim, Ids};
use crate::state::{OpenRequest, Owner, StateRef, Times, Use};
use std::collections::HashSet;
use std::time::SystemTime;
use weir_nfs::v4::types::MAX_OWNER_BYTES;
use weir_vfs::{Attr, FileKind, SetAttr, SetTime};

const SEC: Duration = Duration::from_secs(1);

/// A client with a session that can be called back over a connection.
fn callable(state: &mut State<char>, name: &'static str) -> ClientId {
    let id = ready(state, name, T0);
    let channel = Channel {
        max_request: 4096,
        max_response: 4096,
        max_cached: 512,
        max_operations: 8,
        slots: 4,
    };
    let session = state.create_session(id, channel, channel, 2).unwrap();
    session.callback_cred = Some(CallbackCred::AuthNone);
    let session = session.id;
    state.sessions.bind_back(session, id.0).unwrap();
    state.sessions.answered(id.0);
    id
}

fn ask(client: ClientId, share: Share, wanted: Wanted) -> DelegationRequest {
    DelegationRequest { client, node: NODE, share, wanted }
}

fn give(
    state: &mut State<char>,
    client: ClientId,
    share: Share,
    now: Duration,
) -> Result<StateId, WhyNot> {
    let ask = ask(client, share, Wanted::Any);
    let kind = state.may_delegate(ask, now)?;
    state.delegate(grant_of(ask), kind, now)
}

/// A grant of a file that was changed at second 10.
fn grant_of(ask: DelegationRequest) -> Grant<char> {
    Grant {
        request: ask,
        file: 'd',
        change: 5,
        times: Times { atime: at(10), mtime: at(10) },
        keeps_times: true,
        referring: None,
        by: principal(),
        made: false,
    }
}

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

/// A client with an open and a delegation of it.
fn delegate(state: &mut State<char>, name: &'static str, share: Share) -> (ClientId, StateId) {
    let client = callable(state, name);
    state.open(request(client, share), T0).unwrap();
    let id = give(state, client, share, T0).unwrap();
    (client, id)
}

#[test]
fn a_delegate_reads_under_its_delegation_and_returns_it() {
    let mut state = state_after(&[]);
    let (a, id) = delegate(&mut state, "a", READ);
    assert!(state.filter().may_conflict(NODE, Touch::Change));
    assert_eq!(state.io(Some(a), id, NODE, Access::READ).unwrap().file, 'd');
    assert_eq!(state.io(Some(a), id, NODE, Access::WRITE).unwrap_err(), StateError::OpenMode);
    assert_eq!(state.test_stateid(a, id), Ok(()));
    assert_eq!(state.free_stateid(a, id), Err(StateError::LocksHeld));
    assert_eq!(state.destroy_client(a), Err(StateError::ClientBusy));
    let b = ready(&mut state, "b", T0);
    assert_eq!(state.return_delegation(b, id, NODE), Err(StateError::BadStateId));
    assert_eq!(state.return_delegation(a, id, NODE), Ok(()));
    assert_eq!(state.return_delegation(a, id, NODE), Err(StateError::BadStateId));
    assert!(!state.filter().any() && state.delegations.by_node.is_empty());
    assert_eq!(state.io(Some(a), id, NODE, Access::READ).unwrap_err(), StateError::BadStateId);
}

#[test]
fn readers_share_read_delegations_and_writers_recall_them() {
    let mut state = state_after(&[]);
    let (a, of_a) = delegate(&mut state, "a", READ);
    let (_, of_b) = delegate(&mut state, "b", READ);
    let c = ready(&mut state, "c", T0);
    assert!(state.open(request(c, READ), T0).is_ok());
    assert_eq!(state.open(request(c, WRITE), T0), Err(StateError::Delegated));
    let denies = Share { access: Access::READ, deny: Access::READ };
    assert_eq!(state.open(request(c, denies), T0), Err(StateError::Delegated));

    assert_eq!(state.recall(NODE, Touch::Read, Some(c), T0), Recalled::default());
    let recalled = state.recall(NODE, Touch::Change, Some(c), T0);
    let (told, both) = (HashSet::from_iter(recalled.tell), HashSet::from([of_a.key, of_b.key]));
    assert_eq!((told, recalled.pending), (both, true));
    let again = state.recall(NODE, Touch::Change, Some(c), T0);
    assert_eq!(again, Recalled { tell: vec![], pending: true });
    assert_eq!(state.order(of_a.key).unwrap().client, a);
    state.return_delegation(a, of_a, NODE).unwrap();
    assert_eq!(state.order(of_a.key), None);
    let b_alone = state.recall(NODE, Touch::Change, Some(c), T0);
    assert!(b_alone.pending);
    // Its own delegation is not in its client's own way.
    let b = state.order(of_b.key).unwrap().client;
    assert!(state.open(request(b, WRITE), T0).is_ok());
}

#[test]
fn a_write_delegation_is_exclusive_and_recalled_by_readers() {
    let mut state = state_after(&[]);
    let (a, id) = delegate(&mut state, "a", WRITE);
    assert_eq!(state.io(Some(a), id, NODE, Access::WRITE).unwrap().file, 'd');
    assert_eq!(state.io(Some(a), id, NODE, Access::READ).unwrap().file, 'd');
    assert_eq!(state.recall(NODE, Touch::Change, Some(a), T0), Recalled::default());
    let b = ready(&mut state, "b", T0);
    assert_eq!(state.open(request(b, READ), T0), Err(StateError::Delegated));
    assert!(state.recall(NODE, Touch::Read, Some(b), T0).pending);
    state.return_delegation(a, id, NODE).unwrap();
    state.open(request(b, READ), T0).unwrap();
    assert_eq!(give(&mut state, a, WRITE, LEASE), Err(WhyNot::Contention), "b reads");
}

#[test]
fn files_in_use_or_recently_recalled_are_not_delegated() {
    let mut state = state_after(&[]);
    let (a, b) = (callable(&mut state, "a"), callable(&mut state, "b"));
    let by_b = state.open(request(b, WRITE), T0).unwrap();
    state.open(request(a, READ), T0).unwrap();
    assert_eq!(give(&mut state, a, READ, T0), Err(WhyNot::Contention));
    state.close(b, by_b, NODE).unwrap();
    let changing = state.filter().begin_change(NODE);
    assert_eq!(give(&mut state, a, READ, T0), Err(WhyNot::Contention));
    drop(changing);
    let id = give(&mut state, a, READ, T0).unwrap();
    assert_eq!(give(&mut state, a, READ, T0), Err(WhyNot::HasOne));
    assert_eq!(give(&mut state, a, WRITE, T0), Err(WhyNot::Upgrade));
    state.recall(NODE, Touch::Change, None, T0);
    state.return_delegation(a, id, NODE).unwrap();
    assert_eq!(give(&mut state, a, READ, CONTENDED - SEC), Err(WhyNot::Contention));
    assert!(give(&mut state, a, READ, CONTENDED).is_ok());
}

#[test]
fn a_file_is_delegated_unasked_at_its_second_open() {
    let mut state = state_after(&[]);
    let (a, b) = (callable(&mut state, "a"), callable(&mut state, "b"));
    let no_preference = |client| ask(client, READ, Wanted::NoPreference);
    assert_eq!(state.may_delegate(no_preference(a), T0), Err(WhyNot::NotYet));
    assert_eq!(state.may_delegate(no_preference(b), T0), Err(WhyNot::NotYet));
    assert_eq!(state.may_delegate(no_preference(a), T0), Ok(DelegationKind::Read));
}

#[test]
fn a_client_without_callbacks_gets_no_delegation() {
    let mut state = state_after(&[]);
    let deaf = ready(&mut state, "deaf", T0);
    assert_eq!(give(&mut state, deaf, READ, T0), Err(WhyNot::Resource));
    let a = callable(&mut state, "a");
    state.sessions.unbind(a.0);
    assert_eq!(give(&mut state, a, READ, T0), Err(WhyNot::Resource));
}

#[test]
fn a_v40_client_with_a_callback_address_gets_read_delegations() {
    let mut state = state_after(&[]);
    let owner = Owner { sessions: false, name: bytes::Bytes::from_static(b"old") };
    let (id, _) = state.clients.introduce(owner, [0; 8], principal(), None, T0).unwrap();
    state.confirm(id, &principal(), T0).unwrap();
    assert_eq!(give(&mut state, id, READ, T0), Err(WhyNot::Resource));
    let addr = "192.0.2.2:1000".parse().unwrap();
    let service = CallbackService { addr, program: 1, ident: 2, is_up: false };
    state.clients.get_mut(id).unwrap().callback = Some(service);
    assert_eq!(give(&mut state, id, READ, T0), Err(WhyNot::Resource), "not tested yet");
    state.clients.get_mut(id).unwrap().callback = Some(CallbackService { is_up: true, ..service });
    assert_eq!(give(&mut state, id, WRITE, T0), Err(WhyNot::Resource));
    let held = give(&mut state, id, READ, T0).unwrap();
    assert!(state.holds_delegation(id));
    // It cannot acknowledge, so nothing is kept for that.
    state.recall(NODE, Touch::Change, None, T0);
    state.clients.renew(id, LEASE + SEC);
    state.sweep(LEASE + SEC);
    assert_eq!(state.delegation_count(), 0);
    assert_eq!(state.test_stateid(id, held), Err(StateError::BadStateId));
}

#[test]
fn a_delegation_not_returned_in_a_lease_is_revoked_until_freed() {
    let mut state = state_after(&[]);
    let (a, id) = delegate(&mut state, "a", READ);
    let b = ready(&mut state, "b", T0);
    state.recall(NODE, Touch::Change, Some(b), T0);
    state.clients.renew(a, LEASE + SEC);
    assert!(state.recall(NODE, Touch::Change, Some(b), LEASE).pending);
    assert!(!state.recall(NODE, Touch::Change, Some(b), LEASE + SEC).pending);
    assert!(!state.filter().any());

    assert_eq!(
        state.clients.get(a).unwrap().revoked,
        [Revoked { key: id.key, kind: Kind::Delegation, node: NODE, why: Why::Recalled }]
    );
    assert_eq!(state.test_stateid(a, id), Err(StateError::Revoked));
    assert_eq!(state.io(Some(a), id, NODE, Access::READ).unwrap_err(), StateError::Revoked);
    assert_eq!(state.return_delegation(a, id, NODE), Err(StateError::Revoked));
    assert_eq!(state.free_stateid(b, id), Err(StateError::BadStateId));
    assert_eq!(state.free_stateid(a, id), Ok(()));
    assert_eq!(state.test_stateid(a, id), Err(StateError::BadStateId));
    assert!(state.clients.get(a).unwrap().revoked.is_empty());
    assert_eq!(state.delegation_count(), 0);
}

#[test]
fn a_delegation_is_not_revoked_before_the_writes_under_it_are_done() {
    let mut state = state_after(&[]);
    let (a, id) = delegate(&mut state, "a", WRITE);
    let b = ready(&mut state, "b", T0);
    let writing = state.io(Some(a), id, NODE, Access::WRITE).unwrap();
    let reading = state.io(Some(a), id, NODE, Access::READ).unwrap();
    assert!(state.recall(NODE, Touch::Read, Some(b), T0).pending);
    for now in [LEASE + SEC, LEASE * 2] {
        state.clients.renew(a, now);
        assert!(state.recall(NODE, Touch::Read, Some(b), now).pending);
        assert!(!state.revoke_overdue(now));
        assert_eq!(state.delegation_count(), 1);
        // It can be returned, but nothing more is written under it.
        let more = state.io(Some(a), id, NODE, Access::WRITE).map(|_| ());
        assert_eq!(more, Err(StateError::Revoked));
        let used = Use { under: StateRef::Of(id), node: NODE, access: Access::WRITE };
        assert_eq!(state.check_use(a, &used), Err(StateError::Revoked), "nor by a copy");
        assert_eq!(state.open(request(b, READ), now), Err(StateError::Delegated));
    }
    drop(writing);
    assert!(!state.recall(NODE, Touch::Read, Some(b), LEASE * 2).pending);
    assert_eq!(state.test_stateid(a, id), Err(StateError::Revoked));
    assert_eq!(state.write_records(), [owner("a")]);
    assert!(state.open(request(b, READ), LEASE * 2).is_ok());
    drop(reading);
}

#[test]
fn a_silent_client_loses_its_delegation_at_once_on_a_conflicting_open() {
    let mut state = state_after(&[]);
    let (a, id) = delegate(&mut state, "a", READ);
    let later = LEASE + SEC;
    assert_eq!(state.recall(NODE, Touch::Change, None, later), Recalled::default());
    assert_eq!(state.test_stateid(a, id), Err(StateError::Expired));
    assert_eq!((state.delegation_count(), state.counts()), (0, (1, 0)));
    assert!(!state.unwritten.is_empty());
}

#[test]
fn delegations_are_bounded() {
    let limits = crate::state::Limits { delegations: 1, ..Default::default() };
    let mut state = State::new(Ids::new(1, [7; 32]), limits, crate::state::Grace::default());
    let (a, _) = delegate(&mut state, "a", READ);
    let b = callable(&mut state, "b");
    assert_eq!(give(&mut state, b, READ, T0), Err(WhyNot::Resource));
    state.recall(NODE, Touch::Change, None, T0);
    for client in [a, b] {
        state.clients.renew(client, LEASE + SEC);
    }
    state.sweep(LEASE + SEC);
    assert!(give(&mut state, b, READ, LEASE * 2).is_ok());
}

#[test]
fn a_conflicting_reclaimed_delegation_is_recalled() {
    let mut state = state_after(&[]);
    let (a, b) = (callable(&mut state, "a"), callable(&mut state, "b"));
    let grant = |client| grant_of(ask(client, READ, Wanted::NoPreference));
    let read = DelegationKind::Read;
    let (_, recall) = state.reclaim_delegation(grant(a), read, T0).unwrap();
    assert!(!recall);
    let write = DelegationKind::Write;
    let (id, recall) = state.reclaim_delegation(grant(b), write, T0).unwrap();
    assert!(recall && state.order(id.key).is_some());
}

#[test]
fn unwritten_changes_of_the_delegate_raise_the_change_attribute() {
    let mut state = state_after(&[]);
    let (a, id) = delegate(&mut state, "a", WRITE);
    assert_eq!(state.writer_elsewhere(NODE, Some(a)), None);
    let writer = state.writer_elsewhere(NODE, None).unwrap();
    assert_eq!((writer.key, writer.client, writer.keeps_times), (id.key, a, true));
    let mut told = |theirs, ours| {
        let answer = Answer { change: theirs, size: 99, atime: None, mtime: None };
        let told = state.attrs_for_others(id.key, answer, attr(ours), at(30));
        (told.change, told.size)
    };
    assert_eq!(told(5, 5), (5, 0), "it has changed nothing");
    assert_eq!(told(6, 5), (6, 99));
    assert_eq!(told(6, 5), (7, 99), "it may have gone on");
    assert_eq!(told(5, 6), (7, 0), "what was told does not go back");
    assert_eq!(told(6, 90), (91, 99));
}

#[test]
fn revoking_a_delegation_revokes_its_locks() {
    for locks_first in [false, true] {
        let mut state = state_after(&[]);
        let (a, id) = delegate(&mut state, "a", WRITE);
        let locked = state.lock(lock_under(id, a, true), T0).unwrap();
        assert_eq!(state.tallies.opens.of(a), 2, "its own, and that for the locks");
        let stand_in = state.delegations.by_key[&id.key].stand_in.unwrap();
        if locks_first {
            state.revoke(stand_in, Why::Removed);
        }
        state.revoke_delegation(id.key, Why::Recalled);
        assert!(state.locks.len() == 0 && state.tallies.opens.of(a) == 1);
        let told: Vec<_> = [locked.key, id.key, stand_in]
            .map(|key| state.revoked.contains_key(&key))
            .into_iter()
            .collect();
        assert_eq!(told, [true, true, false]);
    }
}

#[test]
fn no_open_owner_has_the_name_of_the_open_that_stands_for_a_delegation() {
    let mut state = state_after(&[]);
    let (a, id) = delegate(&mut state, "a", WRITE);
    state.lock(lock_under(id, a, true), T0).unwrap();
    let name = state.stand_in_owner(a, NODE).unwrap();
    assert!(name.len() > MAX_OWNER_BYTES, "a client can send it");
    // An earlier name of such opens.
    let name = OwnerName::copy_from_slice(&id.key.to_wire());
    let own = state.open(OpenRequest { owner: name, ..request(a, READ) }, T0).unwrap();
    state.opens.check();
    assert_eq!(state.opens.of_client(a, NODE).count(), 3);
    state.return_delegation(a, id, NODE).unwrap();
    state.opens.check();
    assert_eq!(state.close(a, own, NODE), Ok(()));
    assert_eq!(state.opens.of_client(a, NODE).count(), 1);
}

#[test]
fn an_open_that_is_undone_leaves_no_locks_of_a_returned_delegation() {
    let mut state = state_after(&[]);
    let a = callable(&mut state, "a");
    let first = state.open(request(a, WRITE), T0).unwrap();
    let id = give(&mut state, a, WRITE, T0).unwrap();
    state.close(a, first, NODE).unwrap();
    state.lock(lock_under(id, a, true), T0).unwrap();
    // An OPEN of another owner is in progress when the client returns the delegation, and then fails.
    let other = OpenRequest { owner: "other".into(), ..request(a, WRITE) };
    let opened = state.open(other, T0).unwrap();
    state.return_delegation(a, id, NODE).unwrap();
    assert!(state.locks.iter().all(|(_, lock)| lock.open == opened.key));
    state.undo_open(opened);
    assert!(state.locks.len() == 0 && state.files.is_empty());
}

#[test]
fn delegated_times_are_reported_and_set_within_their_range() {
    let mut state = state_after(&[]);
    let (a, id) = delegate(&mut state, "a", WRITE);
    let mut told = |mtime, ours| {
        let answer = Answer { change: 5, size: 99, atime: Some(at(21)), mtime: Some(at(mtime)) };
        let told =
            state.attrs_for_others(id.key, answer, Attr { mtime: at(ours), ..attr(5) }, at(30));
        assert_eq!(told.size, 0);
        (told.atime, told.mtime, told.ctime, told.change)
    };
    assert_eq!(told(9, 10), (at(10), at(10), at(10), 5), "before the original");
    assert_eq!(told(20, 10), (at(21), at(20), at(20), 6));
    assert_eq!(told(20, 10), (at(21), at(20), at(20), 6), "nothing new");
    assert_eq!(told(40, 10), (at(21), at(30), at(30), 7), "in the future");
    // Its data was written back later than it was written.
    assert_eq!(told(20, 25), (at(21), at(20), at(20), 7));

    let set = |state: &State<char>, atime, mtime| {
        state.delegated_times(a, id, NODE, (atime, mtime), at(30)).unwrap()
    };
    let to = |seconds| Some(SetTime::To(at(seconds)));
    let SetAttr { atime, mtime, .. } = set(&state, Some(at(21)), Some(at(40)));
    assert_eq!((atime, mtime), (to(21), to(30)));
    assert!(set(&state, Some(at(9)), Some(at(9))).is_empty());
    assert!(set(&state, Some(at(21)), None).is_empty(), "of access alone");
    let explicit = SetAttr { mtime: to(3), ..SetAttr::default() };
    state.times_set(a, NODE, &explicit, at(25));
    assert!(set(&state, None, Some(at(24))).is_empty(), "from before it was set");
    assert_eq!(set(&state, None, Some(at(26))).mtime, to(26));
    let b = ready(&mut state, "b", T0);
    let of_b = state.delegated_times(b, id, NODE, (None, Some(at(20))), at(30));
    assert_eq!(of_b, Err(StateError::BadStateId));
}

fn attr(change: u64) -> Attr {
    Attr {
        id: NODE.id,
        kind: FileKind::Regular,
        mode: 0,
        nlink: 1,
        uid: 0,
        gid: 0,
        size: 0,
        allocated: 0,
        rdev: (0, 0),
        fsid: 0,
        atime: at(10),
        mtime: at(10),
        ctime: at(10),
        btime: None,
        change,
    }
}

#[test]
fn the_watch_visits_all_delegated_files_in_turn() {
    let mut state = state_after(&[]);
    let (a, id) = delegate(&mut state, "a", READ);
    let (_, of_b) = delegate(&mut state, "b", READ);
    // In the order of their names, which is no client's.
    let mut in_turn = [id.key, of_b.key];
    in_turn.sort_unstable();
    for key in in_turn {
        assert_eq!(state.delegations_to_look_at(1), [(key, NODE, Some(5))]);
    }
    assert_eq!(state.delegations_to_look_at(1), []);
    state.return_delegation(state.delegations.client_of(of_b.key).unwrap(), of_b, NODE).unwrap();

    let mut writes = request(a, WRITE);
    writes.owner = bytes::Bytes::from_static(b"writer");
    let open = state.open(writes, T0).unwrap();
    assert_eq!(state.delegations_to_look_at(9), [(id.key, NODE, None)]);
    state.close(a, open, NODE).unwrap();
    assert_eq!(state.delegations_to_look_at(9), [(id.key, NODE, None)]);
}

/// It may be given while a host is put on disk, say, between the look for delegations and the lock.
#[test]
fn a_host_gets_no_lock_while_a_delegation_conflicts() {
    use crate::state::{NlmError, NlmLock, NlmOwner, Range};
    use weir_vfs::TO_END;
    let mut state = state_after(&[]);
    let (a, id) = delegate(&mut state, "a", WRITE);
    let host = std::net::IpAddr::from([192, 0, 2, 7]);
    state.nlm_remembered(host, T0);
    let owner = NlmOwner { host, user: None, handle: bytes::Bytes::new(), process: 1 };
    let lock = |exclusive| NlmLock {
        owner: owner.clone(),
        node: NODE,
        range: Range { start: 0, end: TO_END },
        exclusive,
        reclaim: false,
        wait: None,
    };
    assert_eq!(state.nlm_lock(lock(false), T0), Err(NlmError::Delegated));
    assert_eq!(state.nlm_share(&owner, NODE, READ, false, T0), Err(NlmError::Delegated));
    state.return_delegation(a, id, NODE).unwrap();
    state.nlm_lock(lock(false), T0).unwrap();

    // A read delegation is in the way of writers only.
    let mut state = state_after(&[]);
    delegate(&mut state, "a", READ);
    state.nlm_remembered(host, T0);
    assert_eq!(state.nlm_lock(lock(true), T0), Err(NlmError::Delegated));
    state.nlm_lock(lock(false), T0).unwrap();
}

#[test]
fn an_open_claimed_under_a_delegation_has_the_creator_of_its_file() {
    let mut state = state_after(&[]);
    let client = callable(&mut state, "a");
    state.open(OpenRequest { made: true, ..request(client, WRITE) }, T0).unwrap();
    let ask = ask(client, WRITE, Wanted::Any);
    let kind = state.may_delegate(ask, T0).unwrap();
    state.delegate(Grant { made: true, ..grant_of(ask) }, kind, T0).unwrap();
    let open = |state: &mut State<char>, claim, owner: &'static str| {
        let request = OpenRequest { claim, owner: owner.into(), ..request(client, WRITE) };
        let id = state.open(request, T0).unwrap();
        state.io(Some(client), id, NODE, Access::WRITE).unwrap().made_by
    };
    assert_eq!(open(&mut state, Claim::Delegated, "claims"), Some(principal()));
    assert_eq!(open(&mut state, Claim::New, "opens"), None);
}
