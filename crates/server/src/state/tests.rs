//! Tests of transitions that involve several tables.

use super::table::IDLE;
use super::*;
use crate::handle::Node;
use bytes::Bytes;
use std::time::Duration;
use weir_vfs::{Access, FileId};

pub(super) const LEASE: Duration = Duration::from_secs(90);
pub(super) const T0: Duration = Duration::ZERO;
pub(super) const READ: Share = Share { access: Access::READ, deny: Access::empty() };
pub(super) const WRITE: Share = Share { access: Access::WRITE, deny: Access::empty() };
pub(super) const NODE: Node = Node { export: 0, id: FileId { ino: 1, generation: 0 } };

pub(super) fn state_after(earlier: &[&'static str]) -> State<char> {
    let owners = earlier.iter().map(|name| (owner(name), record(ReclaimDenied::default())));
    State::new(Ids::new(1, [7; 32]), Limits::default(), Grace::new(LEASE, owners))
}

pub(super) fn state_denying<const N: usize>(
    earlier: [(&'static str, ReclaimDenied); N],
) -> State<char> {
    let owners = earlier.map(|(name, reclaim_denied)| (owner(name), record(reclaim_denied)));
    State::new(Ids::new(1, [7; 32]), Limits::default(), Grace::new(LEASE, owners))
}

/// The disk record of a client.
pub(super) fn record(reclaim_denied: ReclaimDenied) -> Record {
    Record { reclaim_denied, principal: Some(principal()) }
}

pub(super) fn owner(name: &'static str) -> Owner {
    Owner { sessions: true, name: Bytes::from_static(name.as_bytes()) }
}

pub(super) fn principal() -> Principal {
    Principal { flavor: 1, uid: 0 }
}

/// A confirmed client.
pub(super) fn client(state: &mut State<char>, name: &'static str, now: Duration) -> ClientId {
    let exchanged =
        state.clients.exchange_id(owner(name), [0; 8], principal(), false, now).unwrap();
    assert_eq!(state.confirm(exchanged.id, &principal(), now), Ok(()));
    state.clients.get_mut(exchanged.id).unwrap().is_recorded = true;
    exchanged.id
}

/// A confirmed client that has sent RECLAIM_COMPLETE.
pub(super) fn ready(state: &mut State<char>, name: &'static str, now: Duration) -> ClientId {
    let id = client(state, name, now);
    state.reclaim_complete(id).unwrap();
    id
}

pub(super) fn request(client: ClientId, share: Share) -> OpenRequest<char> {
    let owner = Bytes::from_static(b"process");
    OpenRequest {
        client,
        owner,
        node: NODE,
        share,
        claim: Claim::New,
        confirm: false,
        by: principal(),
        made: false,
        truncates: false,
        file: 'f',
    }
}

pub(super) fn lock_under(open: StateId, client: ClientId, exclusive: bool) -> LockRequest {
    let target = LockTarget::Open(open, Bytes::from_static(b"thread"));
    let range = Range { start: 0, end: 10 };
    LockRequest {
        client,
        target,
        node: NODE,
        range,
        exclusive,
        reclaim: false,
        wait: false,
        listens: false,
    }
}

#[test]
fn opens_by_one_owner_are_one_state() {
    let mut state = state_after(&[]);
    let a = ready(&mut state, "a", T0);
    let first = state.open(request(a, READ), T0).unwrap();
    assert_eq!(state.io(Some(a), first, NODE, Access::WRITE).unwrap_err(), StateError::OpenMode);
    let second = state.open(request(a, WRITE), T0).unwrap();
    assert_eq!((second.key, second.seq), (first.key, 2));
    assert_eq!(state.io(Some(a), first, NODE, Access::READ).unwrap_err(), StateError::OldStateId);
    assert_eq!(state.io(Some(a), second, NODE, Access::WRITE).unwrap().file, 'f');

    let third = state.downgrade(a, second, NODE, READ).unwrap();
    assert_eq!(state.downgrade(a, third, NODE, WRITE), Err(StateError::NotASubset));
    assert_eq!(state.io(Some(a), third, NODE, Access::WRITE).unwrap_err(), StateError::OpenMode);
    state.close(a, third, NODE).unwrap();
    assert_eq!(state.io(Some(a), third, NODE, Access::READ).unwrap_err(), StateError::BadStateId);
    assert!(!state.is_open(NODE) && state.files.is_empty());
}

#[test]
fn an_open_that_truncates_conflicts_like_one_that_writes() {
    let mut state = state_after(&[]);
    let (a, b) = (ready(&mut state, "a", T0), ready(&mut state, "b", T0));
    let alone = Share { access: Access::READ, deny: Access::WRITE };
    let denies = state.open(request(a, alone), T0).unwrap();
    let truncates = OpenRequest { truncates: true, ..request(b, READ) };
    assert_eq!(state.open(truncates.clone(), T0), Err(StateError::ShareDenied));
    state.open(request(b, READ), T0).unwrap();
    assert_eq!(state.open(truncates.clone(), T0), Err(StateError::ShareDenied), "an upgrade, too");
    state.close(a, denies, NODE).unwrap();
    let opened = state.open(truncates, T0).unwrap();
    assert_eq!(state.open(request(a, alone), T0), Err(StateError::ShareDenied), "until it is done");
    state.truncated(opened);
    state.open(request(a, alone), T0).unwrap();
    let write = state.io(Some(b), opened, NODE, Access::WRITE);
    assert_eq!(write.unwrap_err(), StateError::OpenMode, "it does not become one for writing");
}

#[test]
fn a_truncation_does_not_prolong_what_its_owner_gives_up_meanwhile() {
    let mut state = state_after(&[]);
    let (a, b) = (ready(&mut state, "a", T0), ready(&mut state, "b", T0));
    let alone = Share { access: Access::READ, deny: Access::WRITE };
    let truncates = OpenRequest { truncates: true, ..request(b, READ) };
    let truncating = state.open(truncates.clone(), T0).unwrap();
    // An OPEN for writing that is undone, and one that is given up.
    let undone = state.open(request(b, WRITE), T0).unwrap();
    state.undo_open(undone);
    let write = |state: &mut State<_>, id| state.io(Some(b), id, NODE, Access::WRITE).map(drop);
    assert_eq!(write(&mut state, truncating), Err(StateError::OpenMode));
    let both = state.open(request(b, WRITE), T0).unwrap();
    write(&mut state, both).unwrap();
    let reads = state.downgrade(b, both, NODE, READ).unwrap();
    assert_eq!(write(&mut state, reads), Err(StateError::OpenMode));
    assert_eq!(state.open(request(a, alone), T0), Err(StateError::ShareDenied));
    state.truncated(truncating);
    assert_eq!(write(&mut state, reads), Err(StateError::OpenMode));
    state.open(request(a, alone), T0).unwrap();
}

#[test]
fn an_open_that_is_undone_after_a_truncation_does_not_count_as_writing() {
    let mut state = state_after(&[]);
    let (a, b) = (ready(&mut state, "a", T0), ready(&mut state, "b", T0));
    let alone = Share { access: Access::READ, deny: Access::WRITE };
    let opens = request(b, READ);
    let truncates = OpenRequest { truncates: true, ..opens.clone() };
    let first = state.open(truncates.clone(), T0).unwrap();
    // Its owner opens the file twice more meanwhile.
    let second = state.open(truncates, T0).unwrap();
    state.truncated(first);
    assert_eq!(state.open(request(a, alone), T0), Err(StateError::ShareDenied), "the second");
    state.truncated(second);
    state.undo_open(second);
    state.open(request(a, alone), T0).unwrap();
}

#[test]
fn an_unconfirmed_open_conflicts_for_one_lease() {
    let mut state = state_after(&[]);
    let a = ready(&mut state, "a", T0);
    let b = ready(&mut state, "b", T0);
    let alone = Share { access: Access::READ, deny: Access::WRITE };
    let provisional = OpenRequest { confirm: true, ..request(a, alone) };
    let first = state.open(provisional.clone(), T0).unwrap();
    assert_eq!(state.io(Some(a), first, NODE, Access::READ).unwrap_err(), StateError::BadStateId);
    assert_eq!(state.close(a, first, NODE), Err(StateError::BadStateId));
    assert_eq!(state.open(request(b, WRITE), T0), Err(StateError::ShareDenied));
    state.sweep(LEASE);
    assert_eq!(state.open(request(b, WRITE), LEASE), Err(StateError::ShareDenied));
    state.sweep(LEASE + Duration::from_secs(1));
    assert_eq!(state.confirm_open(a, first, NODE), Err(StateError::BadStateId));
    assert!(state.files.is_empty() && state.opens.len() == 0);

    let second = state.open(provisional, LEASE).unwrap();
    assert_eq!(state.confirm_open(b, second, NODE), Err(StateError::BadStateId));
    let confirmed = state.confirm_open(a, second, NODE).unwrap();
    assert_eq!(confirmed.seq, 2);
    assert!(state.io(Some(a), confirmed, NODE, Access::READ).is_ok());
    state.sweep(LEASE * 2);
    state.cancel_unconfirmed(confirmed.key);
    state.close(a, confirmed, NODE).unwrap();
}

#[test]
fn stateids_of_another_file_client_or_run_are_refused() {
    let mut state = state_after(&[]);
    let a = ready(&mut state, "a", T0);
    let b = ready(&mut state, "b", T0);
    let id = state.open(request(a, READ), T0).unwrap();
    let io = |state: &State<char>, client, id, node| {
        state.io(Some(client), id, node, Access::READ).map(|io| io.file)
    };
    let other_file = Node { export: 1, ..NODE };
    let other_run = StateId { key: StateKey { run: 9, ..id.key }, ..id };
    assert_eq!(io(&state, a, id, NODE), Ok('f'));
    assert_eq!(io(&state, b, id, NODE), Err(StateError::BadStateId));
    assert_eq!(io(&state, a, id, other_file), Err(StateError::BadStateId));
    assert_eq!(io(&state, a, other_run, NODE), Err(StateError::StaleStateId));
}

#[test]
fn share_reservations_apply_to_other_owners_and_to_io_without_open() {
    let mut state = state_after(&[]);
    let a = ready(&mut state, "a", T0);
    let b = ready(&mut state, "b", T0);
    let alone = Share { access: Access::READ, deny: Access::WRITE };
    state.open(request(a, alone), T0).unwrap();
    assert_eq!(state.open(request(b, WRITE), T0), Err(StateError::ShareDenied));
    assert_eq!(state.anonymous_io(NODE, Access::WRITE, T0), Err(StateError::Locked));
    assert_eq!(state.anonymous_io(NODE, Access::READ, T0), Ok(()));
    assert!(state.open(request(b, READ), T0).is_ok());
}

#[test]
fn a_silent_client_keeps_its_state_until_a_conflict() {
    let mut state = state_after(&[]);
    let a = ready(&mut state, "a", T0);
    let b = ready(&mut state, "b", T0);
    let open_a = state.open(request(a, WRITE), T0).unwrap();
    let open_b = state.open(request(b, WRITE), T0).unwrap();
    let locked = state.lock(lock_under(open_a, a, true), T0).unwrap();

    let later = LEASE + Duration::from_secs(1);
    state.sweep(later);
    state.clients.renew(b, later);
    assert!(state.io(Some(a), open_a, NODE, Access::WRITE).is_ok());
    state.clients.renew(a, Duration::from_secs(2));
    let denied = state.lock(lock_under(open_b, b, true), later).unwrap_err();
    let LockError::Denied(Conflict { owner: Holder::V4(holder), .. }) = denied else { panic!() };
    assert_eq!(holder.client, a);

    let later = LEASE + Duration::from_secs(3);
    let lock_b = lock_under(open_b, b, true);
    let unsettled = Err(LockError::State(StateError::Unsettled));
    assert_eq!(state.lock(lock_b.clone(), later), unsettled);
    assert_eq!(state.write_records(), [owner("a")]);
    state.lock(lock_b, later).unwrap();
    assert_eq!(state.test_stateid(a, locked), Err(StateError::Expired));
    assert_eq!(state.counts(), (1, 1));
}

#[test]
fn a_silent_client_without_conflicts_is_forgotten_after_the_courtesy() {
    let mut state = state_after(&[]);
    let a = ready(&mut state, "a", T0);
    state.open(request(a, READ), T0).unwrap();
    state.sweep(Limits::default().courtesy);
    assert_eq!(state.counts(), (1, 0));
    state.sweep(Limits::default().courtesy + Duration::from_secs(1));
    assert_eq!(state.counts(), (0, 0));
    assert!(!state.unwritten.is_empty());
}

#[test]
fn a_courtesy_shorter_than_the_lease_does_not_shorten_the_lease() {
    let limits = Limits { courtesy: Duration::ZERO, ..Limits::default() };
    let mut state = State::new(Ids::new(1, [7; 32]), limits, Grace::default());
    let a = ready(&mut state, "a", T0);
    state.open(request(a, READ), T0).unwrap();
    state.sweep(LEASE);
    assert_eq!(state.counts(), (1, 0));
    state.sweep(LEASE + Duration::from_secs(1));
    assert_eq!(state.counts(), (0, 0));
}

#[test]
fn confirming_a_restarted_client_frees_its_earlier_state() {
    let mut state = state_after(&[]);
    let a = ready(&mut state, "a", T0);
    state.open(request(a, READ), T0).unwrap();
    let again = state.clients.exchange_id(owner("a"), [1; 8], principal(), false, T0).unwrap().id;
    assert!(state.is_open(NODE));
    state.confirm(again, &principal(), T0).unwrap();
    assert!(!state.is_open(NODE));
    assert!(state.unwritten.is_empty(), "the record of the new run denies nothing");
}

#[test]
fn close_frees_locks_and_free_stateid_fails_while_locks_are_held() {
    let mut state = state_after(&[]);
    let a = ready(&mut state, "a", T0);
    let open = state.open(request(a, WRITE), T0).unwrap();
    assert_eq!(
        state.lock(lock_under(open, a, false), T0),
        Err(LockError::State(StateError::OpenMode))
    );
    let lock = state.lock(lock_under(open, a, true), T0).unwrap();
    assert_eq!(state.io(Some(a), lock, NODE, Access::WRITE).unwrap().file, 'f');
    assert_eq!(state.free_stateid(a, lock), Err(StateError::LocksHeld));
    assert_eq!(state.free_stateid(a, open), Err(StateError::LocksHeld));
    let unlocked = state.unlock(a, lock, NODE, Range { start: 0, end: weir_vfs::TO_END }).unwrap();
    assert_eq!(state.test_stateid(a, lock), Err(StateError::OldStateId));
    state.free_stateid(a, unlocked).unwrap();

    state.lock(lock_under(open, a, true), T0).unwrap();
    state.close(a, open, NODE).unwrap();
    assert_eq!(state.counts(), (0, 0));
    assert!(state.files.is_empty());
    assert!(state.clients.get(a).unwrap().states.is_empty());
}

#[test]
fn grace_admits_reclaims_and_refuses_new_state() {
    let mut state = state_after(&["a"]);
    let a = client(&mut state, "a", T0);
    let b = ready(&mut state, "b", T0);
    let reclaim = |client| OpenRequest { claim: Claim::Reclaim, ..request(client, WRITE) };
    assert_eq!(state.open(request(b, READ), T0), Err(StateError::Grace));
    assert_eq!(state.open(reclaim(b), T0), Err(StateError::NoGrace));
    let open = state.open(reclaim(a), T0).unwrap();
    state.lock(LockRequest { reclaim: true, ..lock_under(open, a, true) }, T0).unwrap();

    state.reclaim_complete(a).unwrap();
    assert_eq!(state.reclaim_complete(a), Err(StateError::CompleteAlready));
    assert_eq!(state.open(reclaim(a), T0), Err(StateError::NoGrace));
    assert!(state.open(request(b, READ), T0).is_ok(), "all clients are back: grace is over");
}

#[test]
fn a_reclaim_changes_no_lock_that_was_reclaimed() {
    let both = Share { access: Access::READ | Access::WRITE, deny: Access::empty() };
    for exclusive in [false, true] {
        let mut state = state_after(&["a"]);
        let a = client(&mut state, "a", T0);
        let open = OpenRequest { claim: Claim::Reclaim, ..request(a, both) };
        let open = state.open(open, T0).unwrap();
        let first = LockRequest { reclaim: true, ..lock_under(open, a, exclusive) };
        state.lock(first.clone(), T0).unwrap();
        // Repeated, and for more bytes.
        state.lock(first.clone(), T0).unwrap();
        let range = Range { start: 5, end: 20 };
        let locks = state.lock(LockRequest { range, ..first.clone() }, T0).unwrap();
        for target in [first.target.clone(), LockTarget::Locks(locks)] {
            let other = LockRequest { target, exclusive: !exclusive, range, ..first.clone() };
            let denied = Err(LockError::State(StateError::ReclaimDenied));
            assert_eq!(state.lock(other, T0), denied);
        }
        let name = OwnerName::from_static(b"thread");
        let owner = Holder::V4(LockOwner { client: a, name });
        let held: Vec<_> = state.files[&NODE].ranges.of(&owner).collect();
        let range = Range { start: 0, end: 20 };
        assert_eq!(held, [weir_vfs::Lock { range, exclusive }]);
        // Bytes of its own that it has not reclaimed yet.
        let range = Range { start: 20, end: 30 };
        let other = LockRequest { exclusive: !exclusive, range, ..first };
        state.lock(other, T0).unwrap();
    }
}

#[test]
fn a_client_needs_reclaim_complete_before_new_state() {
    let mut state = state_after(&[]);
    let a = client(&mut state, "a", T0);
    assert_eq!(state.open(request(a, READ), T0), Err(StateError::Grace));
    state.reclaim_complete(a).unwrap();
    assert!(state.open(request(a, READ), T0).is_ok());
}

#[test]
fn a_client_record_stays_on_disk_as_long_as_its_state() {
    let mut state = state_after(&[]);
    let a = ready(&mut state, "a", T0);
    state.clients.get_mut(a).unwrap().is_recorded = false;
    assert_eq!(state.open(request(a, READ), T0), Err(StateError::Unrecorded));
    state.clients.get_mut(a).unwrap().is_recorded = true;
    let open = state.open(request(a, READ), T0).unwrap();
    state.sweep(IDLE * 2);
    assert!(state.unwritten.is_empty());
    state.close(a, open, NODE).unwrap();
    state.sweep(IDLE * 2);
    state.sweep(IDLE * 3 - Duration::from_secs(1));
    assert!(!state.has_idle());
    state.sweep(IDLE * 3);
    assert!(state.unwritten.is_empty(), "no reply waits for the removal");
    assert_eq!(state.take_idle(), [owner("a")]);
    assert_eq!(state.open(request(a, READ), T0), Err(StateError::Unrecorded));
    state.purge(a);
    assert!(state.unwritten.is_empty(), "the record is already removed");
}

#[test]
fn clients_that_may_reclaim_stay_on_disk_until_grace_ends() {
    let mut state = state_after(&["a", "b"]);
    let a = client(&mut state, "a", T0);
    state.sweep(T0);
    state.sweep(IDLE * 2);
    assert!(state.unwritten.is_empty());
    // Its new run inherits the record.
    let again = state.clients.exchange_id(owner("a"), [1; 8], principal(), false, T0).unwrap().id;
    state.clients.get_mut(a).unwrap().may_reclaim = false;
    state.confirm(again, &principal(), LEASE).unwrap();
    assert!(state.clients.get(again).unwrap().is_recorded);
}

#[test]
fn a_use_ends_with_its_access_or_by_a_share_reservation() {
    let mut state = state_after(&[]);
    let (a, b) = (ready(&mut state, "a", T0), ready(&mut state, "b", T0));
    let of = |under, access| Use { under, node: NODE, access };
    state.open(request(a, READ), T0).unwrap();
    let both = state.open(request(a, READ.union(WRITE)), T0).unwrap();
    let writes = of(StateRef::Of(both), Access::WRITE);
    let reads = of(StateRef::Of(both), Access::READ);
    assert_eq!(state.check_use(a, &writes), Ok(()));
    assert_eq!(state.check_use(b, &writes), Err(StateError::BadStateId));
    let reader = state.downgrade(a, both, NODE, READ).unwrap();
    assert_eq!(state.check_use(a, &writes), Err(StateError::OpenMode));
    assert_eq!(state.check_use(a, &reads), Ok(()));
    state.close(a, reader, NODE).unwrap();
    assert_eq!(state.check_use(a, &reads), Err(StateError::BadStateId));

    let specials = [StateRef::Anonymous, StateRef::Bypass];
    let ends = |state: &State<char>, access| {
        specials.map(|under| state.check_use(a, &of(under, access)).is_err())
    };
    assert_eq!(ends(&state, Access::WRITE), [false; 2]);
    let deny = |deny| Share { access: Access::READ, deny };
    let denying = state.open(request(b, deny(Access::WRITE)), T0).unwrap();
    assert_eq!(ends(&state, Access::WRITE), [true; 2]);
    assert_eq!(ends(&state, Access::READ), [false; 2]);
    state.close(b, denying, NODE).unwrap();
    state.open(request(b, deny(Access::READ)), T0).unwrap();
    assert_eq!(ends(&state, Access::READ), [true, false]);
}

#[test]
fn a_client_that_leaves_in_grace_and_returns_is_recorded_again() {
    let mut state = state_after(&["a", "b"]);
    let a = client(&mut state, "a", T0);
    state.destroy_client(a).unwrap();
    assert_eq!(state.write_records(), [owner("a")]);
    assert_eq!(state.record_of(&owner("a")), None, "the record is removed");
    let again = state.clients.exchange_id(owner("a"), [1; 8], principal(), false, T0).unwrap().id;
    state.confirm(again, &principal(), T0).unwrap();
    let reclaim = OpenRequest { claim: Claim::Reclaim, ..request(again, READ) };
    assert_eq!(state.open(reclaim.clone(), T0), Err(StateError::Unsettled));
    assert_eq!(state.write_records(), [owner("a")], "before the client gets its state");
    assert!(state.open(reclaim, T0).is_ok() && state.record_of(&owner("a")).is_some());
}

#[test]
fn io_without_an_open_revokes_a_silent_clients_share_reservation() {
    let mut state = state_after(&[]);
    let a = ready(&mut state, "a", T0);
    let alone = Share { access: Access::READ, deny: Access::READ | Access::WRITE };
    let open = state.open(request(a, alone), T0).unwrap();
    for access in [Access::READ, Access::WRITE] {
        assert_eq!(state.anonymous_io(NODE, access, LEASE), Err(StateError::Locked));
    }
    assert_eq!(state.anonymous_io(NODE, Access::READ, LEASE + Duration::from_secs(1)), Ok(()));
    assert_eq!(state.test_stateid(a, open), Err(StateError::Expired));
    assert_eq!(state.write_records(), [owner("a")], "it may not reclaim the revoked state");
}

#[test]
fn undoing_an_open_restores_the_earlier_open() {
    let mut state = state_after(&[]);
    let a = ready(&mut state, "a", T0);
    let first = state.open(request(a, READ), T0).unwrap();
    state.undo_open(first);
    assert!(!state.is_open(NODE) && state.files.is_empty());

    let first = state.open(request(a, READ), T0).unwrap();
    state.keep_open(first);
    let alone = Share { access: Access::WRITE, deny: Access::WRITE };
    let opener =
        |state: &State<char>| state.io(Some(a), first, NODE, Access::READ).unwrap().opened_by;
    let first_opener = opener(&state);
    let another =
        OpenRequest { by: Principal { uid: 7, ..principal() }, made: true, ..request(a, alone) };
    let second = state.open(another, T0).unwrap();
    state.undo_open(second);
    assert_eq!(opener(&state), first_opener, "a refused principal does not become the opener");
    assert_eq!(state.io(Some(a), first, NODE, Access::READ).unwrap().made_by, None);
    assert_eq!(state.io(Some(a), first, NODE, Access::WRITE).unwrap_err(), StateError::OpenMode);
    assert_eq!(state.anonymous_io(NODE, Access::WRITE, T0), Ok(()), "nothing is denied");
    assert_eq!(state.downgrade(a, first, NODE, alone), Err(StateError::NotASubset));
}

#[test]
fn undoing_an_open_takes_back_nothing_of_later_opens() {
    let both = READ.union(WRITE);
    let other = Principal { uid: 7, ..principal() };
    for keeps in [[true, true, false], [true, false, false], [false, false, true], [false; 3]] {
        for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2], [1, 2, 0]] {
            let mut state = state_after(&[]);
            let a = ready(&mut state, "a", T0);
            let shares = [(READ, false), (WRITE, true), (both, false)];
            let ids = shares.map(|(share, truncates)| {
                let by = if truncates { other.clone() } else { principal() };
                let opens = OpenRequest { truncates, by, ..request(a, share) };
                state.open(opens, T0).unwrap()
            });
            for at in order {
                match keeps[at] {
                    true => {
                        state.truncated(ids[at]);
                        state.keep_open(ids[at]);
                    }
                    false => state.undo_open(ids[at]),
                }
            }
            let kept =
                shares.iter().zip(keeps).filter(|(_, keeps)| *keeps).map(|(share, _)| share.0);
            let union = kept.fold(Share::default(), |all, share| all.union(share));
            let newest = keeps.iter().rposition(|keeps| *keeps);
            let found =
                state.opens.get(ids[0].key).map(|open| (open.share, open.seq, open.by.clone()));
            let by = |at| if at == 1 { other.clone() } else { principal() };
            let expected = newest.map(|at| (union, ids[at].seq, by(at)));
            assert_eq!(found, expected, "{keeps:?} in order {order:?}");
        }
    }
}

#[test]
fn a_downgrade_gives_up_the_share_mode_of_an_open_in_progress() {
    let mut state = state_after(&[]);
    let a = ready(&mut state, "a", T0);
    let first = state.open(request(a, READ), T0).unwrap();
    state.keep_open(first);
    let second = state.open(request(a, WRITE), T0).unwrap();
    let reads = state.downgrade(a, StateId { seq: 0, ..second }, NODE, READ).unwrap();
    state.keep_open(second);
    assert_eq!(state.io(Some(a), reads, NODE, Access::WRITE).unwrap_err(), StateError::OpenMode);
    assert!(state.io(Some(a), reads, NODE, Access::READ).is_ok());
}

#[test]
fn a_client_that_returns_keeps_its_name() {
    let mut state = state_after(&[]);
    let a = ready(&mut state, "a", T0);
    state.open(request(a, READ), T0).unwrap();
    let (over, thief) = (LEASE * 2, Principal { flavor: 1, uid: 9 });
    let other = state.exchange_id(owner("a"), [9; 8], thief.clone(), false, over).unwrap().id;
    // A request of the client begins after EXCHANGE_ID has found its lease expired.
    let call = state.clients.begin_call(a, over).unwrap();
    assert_eq!(state.confirm(other, &thief, over), Err(StateError::ClientInUse));
    call.lease.end_call(over);
    assert_eq!(state.confirm(other, &thief, over), Err(StateError::ClientInUse));
    assert!(!call.lease.has_ended(), "refusing the other one costs it nothing");
    assert_eq!(state.confirm(other, &thief, over * 2), Ok(()));
    assert!(!call.lease.begin_call(over * 2) && state.clients.get(a).is_err());
}
