//! Tests of NLM state: grants in the order of the queue, reclaims, and what frees locks.

use super::super::tests::{LEASE, NODE, READ, T0, WRITE, lock_under, ready, request, state_after};
use super::super::{Claim, Grace, Limits, LockOwner, LockTarget, OpenRequest};
use super::*;
use crate::admission::Refusals;
use crate::state::tables::nlm::{Hosts, ReplyTo};
use crate::state::{Ids, StateError};
use bytes::Bytes;
use weir_vfs::Access;
use weir_vfs::TO_END;

const HOST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 7));
const ALL: Range = Range { start: 0, end: TO_END };

fn owner(process: i32) -> NlmOwner {
    NlmOwner { host: HOST, user: None, handle: Bytes::from_static(b"p@host"), process }
}

fn lock(process: i32, exclusive: bool) -> NlmLock {
    let range = Range { start: 5, end: 15 };
    let (owner, wait) = (owner(process), None);
    NlmLock { owner, node: NODE, range, exclusive, reclaim: false, wait }
}

fn waiting(process: i32, exclusive: bool) -> NlmLock {
    let to = ReplyTo { cookie: Bytes::new(), caller: Bytes::new(), server: HOST };
    NlmLock { wait: Some(to), ..lock(process, exclusive) }
}

/// State with one host in the table.
fn state() -> State<char> {
    let mut state = state_after(&[]);
    assert_eq!(state.nlm_lock(lock(1, true), T0), Err(NlmError::Unknown));
    state.nlm_remembered(HOST, T0);
    state
}

fn taken(state: &mut State<char>) -> Vec<i32> {
    state.nlm_take_granted().iter().map(|g| g.owner.process).collect()
}

/// Asserts that all tables are empty.
fn assert_empty(state: &State<char>) {
    assert!(state.files.is_empty() && state.tallies.ranges.total() == 0, "{state:?}");
    let Hosts { hosts, queues, waits, granting, logs, .. } = &state.nlm;
    assert!(hosts.values().all(|h| h.files.is_empty()), "{state:?}");
    assert!(queues.is_empty() && granting.is_empty() && state.tallies.nlm_waiting.total() == 0);
    assert_eq!(state.tallies.opens.total(), 0);
    assert!(waits.is_empty() && logs.is_empty());
}

#[test]
fn both_protocols_lock_in_one_table() {
    let mut state = state();
    let a = ready(&mut state, "a", T0);
    let open = state.open(request(a, WRITE), T0).unwrap();
    let v4 = state.lock(lock_under(open, a, true), T0).unwrap();
    let name = Bytes::from_static(b"thread");
    let holder = Holder::V4(LockOwner { client: a, name });
    let theirs = Conflict { owner: holder, range: Range { start: 0, end: 10 }, exclusive: true };
    assert_eq!(state.nlm_lock(lock(1, true), T0), Err(NlmError::Denied(theirs.clone())));
    assert_eq!(state.nlm_test(&owner(1), NODE, ALL, false, T0), Ok(Some(theirs)));

    state.unlock(a, v4, NODE, ALL).unwrap();
    state.nlm_lock(lock(1, true), T0).unwrap();
    let ours = Conflict {
        owner: Holder::Nlm(owner(1)),
        range: Range { start: 5, end: 15 },
        exclusive: true,
    };
    let again = state.lock(lock_under(open, a, true), T0);
    assert_eq!(again, Err(LockError::Denied(ours)));
    state.nlm_unlock(&owner(1), NODE, Range { start: 5, end: 10 }).unwrap();
    assert!(state.lock(lock_under(open, a, true), T0).is_ok());
    state.nlm_unlock(&owner(1), NODE, ALL).unwrap();
    state.close(a, open, NODE).unwrap();
    assert_empty(&state);
}

#[test]
fn waiters_are_granted_a_freed_lock_in_order() {
    let mut state = state();
    let a = ready(&mut state, "a", T0);
    let open = state.open(request(a, WRITE), T0).unwrap();
    let v4 = state.lock(lock_under(open, a, true), T0).unwrap();
    for (process, exclusive) in [(1, false), (2, true), (3, false), (1, false)] {
        assert_eq!(state.nlm_lock(waiting(process, exclusive), T0), Err(NlmError::Blocked));
    }
    assert_eq!(taken(&mut state), []);
    // The owner that retried went to the end of the queue.
    state.unlock(a, v4, NODE, ALL).unwrap();
    let granted = state.nlm_take_granted();
    assert_eq!(granted.iter().map(|g| g.owner.process).collect::<Vec<_>>(), [2]);
    // It is held before the host is told.
    assert!(matches!(state.nlm_lock(lock(9, false), T0), Err(NlmError::Denied(_))));
    state.nlm_acknowledged(granted[0].number, true);
    state.nlm_unlock(&owner(2), NODE, ALL).unwrap();
    assert_eq!(taken(&mut state), [3, 1]);
    state.nlm_unlock(&owner(1), NODE, ALL).unwrap();
    state.nlm_unlock(&owner(3), NODE, ALL).unwrap();
    state.close(a, open, NODE).unwrap();
    assert_empty(&state);
}

#[test]
fn a_refused_grant_goes_to_the_next_waiter() {
    let mut state = state();
    state.nlm_lock(lock(1, true), T0).unwrap();
    for process in [2, 3, 4] {
        assert_eq!(state.nlm_lock(waiting(process, true), T0), Err(NlmError::Blocked));
    }
    state.nlm_unlock(&owner(1), NODE, ALL).unwrap();
    let two = state.nlm_take_granted().remove(0);
    assert!(state.nlm_is_granting(two.number));
    state.nlm_acknowledged(two.number, false);
    let three = state.nlm_take_granted().remove(0);
    assert_eq!(three.owner.process, 3);
    // The host cancels while the grant is on its way.
    state.nlm_cancel(&owner(3), NODE, Range { start: 5, end: 15 }, true);
    assert!(!state.nlm_is_granting(three.number));
    state.nlm_acknowledged(three.number, true);
    let four = state.nlm_take_granted().remove(0);
    assert_eq!(four.owner.process, 4);
    // The host retries before it is told, so the reply tells it.
    state.nlm_lock(waiting(4, true), T0).unwrap();
    state.nlm_acknowledged(four.number, false);
    assert!(matches!(state.nlm_lock(lock(9, false), T0), Err(NlmError::Denied(_))));
    state.nlm_free(HOST);
    assert_empty(&state);
}

#[test]
fn a_cancelled_waiter_is_granted_nothing() {
    let mut state = state();
    state.nlm_lock(lock(1, true), T0).unwrap();
    assert_eq!(state.nlm_lock(waiting(2, true), T0), Err(NlmError::Blocked));
    state.nlm_cancel(&owner(2), NODE, Range { start: 5, end: 15 }, true);
    state.nlm_unlock(&owner(1), NODE, ALL).unwrap();
    assert_eq!(taken(&mut state), []);
    assert_empty(&state);
}

#[test]
fn locks_of_a_restarted_host_go_to_waiters() {
    let mut state = state();
    let a = ready(&mut state, "a", T0);
    state.nlm_lock(lock(1, true), T0).unwrap();
    assert_eq!(state.nlm_lock(waiting(2, true), T0), Err(NlmError::Blocked));
    let other = IpAddr::from([192, 0, 2, 8]);
    state.nlm_remembered(other, T0);
    let theirs = NlmOwner { host: other, ..owner(1) };
    let wants = NlmLock { owner: theirs.clone(), ..waiting(1, true) };
    assert_eq!(state.nlm_lock(wants, T0), Err(NlmError::Blocked));
    let deny = Share { access: Access::READ, deny: Access::WRITE };
    state.nlm_share(&owner(1), NODE, deny, false, T0).unwrap();
    assert_eq!(state.open(request(a, WRITE), T0), Err(StateError::ShareDenied));

    state.nlm_free(HOST);
    assert_eq!(state.nlm_take_granted().remove(0).owner, theirs);
    let open = state.open(request(a, WRITE), T0).unwrap();
    state.close(a, open, NODE).unwrap();
    state.nlm_free(other);
    assert_empty(&state);
}

#[test]
fn removing_an_export_frees_the_locks_of_hosts() {
    let mut state = state();
    let a = ready(&mut state, "a", T0);
    let open = state.open(request(a, WRITE), T0).unwrap();
    state.lock(lock_under(open, a, true), T0).unwrap();
    assert_eq!(state.nlm_lock(waiting(1, true), T0), Err(NlmError::Blocked));
    let elsewhere = NlmLock { node: Node { export: 1, ..NODE }, ..lock(2, true) };
    state.nlm_lock(elsewhere.clone(), T0).unwrap();
    let apart = NlmLock { range: Range { start: 20, end: 30 }, ..lock(3, true) };
    state.nlm_lock(apart, T0).unwrap();
    let read = Share { access: Access::READ, deny: Access::empty() };
    state.nlm_share(&owner(1), NODE, read, false, T0).unwrap();
    state.drop_export(NODE.export);
    assert_eq!(taken(&mut state), [], "nothing is granted in an export that is gone");
    let again = NlmLock { owner: owner(9), ..elsewhere.clone() };
    assert!(matches!(state.nlm_lock(again, T0), Err(NlmError::Denied(_))), "the other lock stays");
    state.nlm_unlock(&owner(2), elsewhere.node, ALL).unwrap();
    assert_empty(&state);
}

#[test]
fn share_reservations_hold_in_both_directions() {
    let mut state = state();
    let a = ready(&mut state, "a", T0);
    let write = Share { access: Access::WRITE, deny: Access::empty() };
    let alone = Share { access: Access::READ, deny: Access::WRITE };
    let open = state.open(request(a, WRITE), T0).unwrap();
    let share = |state: &mut State<char>, process, share| {
        state.nlm_share(&owner(process), NODE, share, false, T0)
    };
    assert_eq!(share(&mut state, 1, alone), Err(NlmError::ShareDenied));
    state.close(a, open, NODE).unwrap();
    share(&mut state, 1, alone).unwrap();
    assert_eq!(share(&mut state, 2, write), Err(NlmError::ShareDenied));
    assert_eq!(state.anonymous_io(NODE, Access::WRITE, T0), Err(StateError::Locked));
    share(&mut state, 1, write).unwrap();
    assert!(state.open(request(a, WRITE), T0).is_ok());
    state.nlm_unshare(&owner(1), NODE);
    state.purge(a);
    assert_empty(&state);
}

#[test]
fn a_silent_clients_lock_goes_to_a_waiting_host() {
    let mut state = state();
    let a = ready(&mut state, "a", T0);
    let open = state.open(request(a, WRITE), T0).unwrap();
    state.lock(lock_under(open, a, true), T0).unwrap();
    assert_eq!(state.nlm_lock(waiting(1, true), T0), Err(NlmError::Blocked));
    state.sweep(LEASE);
    assert_eq!(taken(&mut state), []);
    state.sweep(LEASE + Duration::from_secs(1));
    assert_eq!(taken(&mut state), [1]);
    assert!(!state.unwritten.is_empty());
}

#[test]
fn grace_admits_reclaims_and_refuses_new_locks() {
    let grace = Grace::new(LEASE, []).with_hosts([HOST]);
    let mut state: State<char> = State::new(Ids::new(1, [7; 32]), Limits::default(), grace);
    let other = IpAddr::from([192, 0, 2, 8]);
    for host in [HOST, other] {
        state.nlm_remembered(host, T0);
    }
    let a = ready(&mut state, "a", T0);
    assert_eq!(state.open(request(a, WRITE), T0), Err(StateError::Grace));
    let reclaim = OpenRequest { claim: Claim::Reclaim, ..request(a, WRITE) };
    assert_eq!(state.open(reclaim, T0), Err(StateError::NoGrace));
    let mine = NlmLock { reclaim: true, ..lock(1, true) };
    let theirs = NlmLock { owner: NlmOwner { host: other, ..owner(1) }, ..mine.clone() };
    assert_eq!(state.nlm_lock(lock(1, true), T0), Err(NlmError::Grace));
    assert_eq!(state.nlm_test(&owner(1), NODE, ALL, true, T0), Err(NlmError::Grace));
    assert_eq!(state.nlm_lock(theirs, T0), Err(NlmError::NoGrace));
    state.nlm_lock(mine.clone(), T0).unwrap();

    state.grace.end(LEASE);
    let open = state.open(request(a, WRITE), LEASE).unwrap();
    let target = LockTarget::Open(open, Bytes::from_static(b"thread"));
    let v4 = super::super::LockRequest { target, ..lock_under(open, a, true) };
    assert!(matches!(state.lock(v4, LEASE), Err(LockError::Denied(_))));
    assert_eq!(state.nlm_lock(mine, LEASE), Err(NlmError::NoGrace));
    assert_eq!(state.nlm_drop_idle(LEASE + Duration::from_secs(1)), [other]);
    assert!(state.nlm_drop_idle(LEASE * 9).is_empty());
}

#[test]
fn lines_and_ranges_are_bounded() {
    let limits = Limits { locks: 4, nlm_waiting: 8, nlm_hosts: 4, ..Limits::default() };
    let mut state: State<char> = State::new(Ids::new(1, [7; 32]), limits, Grace::default());
    state.nlm_remembered(HOST, T0);
    for process in [1, 2] {
        state.nlm_lock(lock(process, false), T0).unwrap();
    }
    assert_eq!(state.nlm_lock(lock(3, false), T0), Err(NlmError::TooMany), "half is its share");
    let part = Range { start: 7, end: 9 };
    assert_eq!(state.nlm_unlock(&owner(1), NODE, part), Err(NlmError::TooMany), "it would split");
    for process in 10..14 {
        assert_eq!(state.nlm_lock(waiting(process, true), T0), Err(NlmError::Blocked));
    }
    assert_eq!(state.nlm_lock(waiting(14, true), T0), Err(NlmError::TooMany), "half is its share");
    assert_eq!(state.nlm_lock(waiting(10, true), T0), Err(NlmError::Blocked), "it waits already");
    // Another address still gets a turn.
    let other = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 8));
    let by_other = |process| {
        let lock = waiting(process, true);
        NlmLock { owner: NlmOwner { host: other, ..lock.owner }, ..lock }
    };
    state.nlm_remembered(other, T0);
    for process in [1, 2] {
        assert_eq!(state.nlm_lock(by_other(process), T0), Err(NlmError::Blocked));
    }
    assert_eq!(state.nlm_lock(by_other(3), T0), Err(NlmError::TooMany));
    let refused = |limit, address| Refusals { limit, address, count: 1 };
    for address in [HOST, other] {
        assert!(state.refusals().contains(&refused("nlm_waiting", address)));
    }
    state.nlm_free(HOST);
    assert_eq!(state.tallies.nlm_waiting.total(), 2, "granted and not acknowledged, or waiting");
    state.nlm_free(other);
    assert_empty(&state);
}

#[test]
fn hosts_of_one_network_leave_room_for_others() {
    let limits = Limits { nlm_hosts: 8, ..Limits::default() };
    let mut state: State<char> = State::new(Ids::new(1, [7; 32]), limits, Grace::default());
    // The last 64 bits of an IPv6 address are the host's to choose.
    let crowd = |n: u16| IpAddr::from([0x2001, 0xdb8, 0, 7, 0, 0, 0, n]);
    let mut kept = 0;
    for n in 0..100 {
        if state.nlm_has_room_for(crowd(n)) {
            state.nlm_remembered(crowd(n), T0);
            kept += 1;
        }
    }
    assert_eq!(kept, 4);
    assert!(state.nlm_has_room_for(crowd(0)), "it is in the table");
    let other = IpAddr::from([0x2001, 0xdb8, 0, 8, 0, 0, 0, 1]);
    assert!(state.nlm_has_room_for(other));
    state.nlm_remembered(other, T0);
    state.nlm_remembered(other, T0);
    let use_of = |state: &State<char>| {
        let uses = state.limit_uses();
        let hosts = uses.iter().find(|limit| limit.name == "nlm_hosts").unwrap();
        (hosts.used, hosts.limit, hosts.refused)
    };
    assert_eq!(use_of(&state), (5, 8, 96));
    assert_eq!(state.nlm_drop_idle(LEASE + Duration::from_secs(1)).len(), 5);
    assert_eq!(use_of(&state), (0, 8, 96));
}

#[test]
fn share_reservations_count_as_opens_of_the_address() {
    let limits = Limits { opens: 4, ..Limits::default() };
    let mut state: State<char> = State::new(Ids::new(1, [7; 32]), limits, Grace::default());
    state.nlm_remembered(HOST, T0);
    let share = Share { access: Access::READ, deny: Access::empty() };
    let mut reserve = |process| state.nlm_share(&owner(process), NODE, share, false, T0);
    assert_eq!((reserve(1), reserve(2), reserve(2)), (Ok(()), Ok(()), Ok(())));
    assert_eq!(reserve(3), Err(NlmError::TooMany));
    let [a, b] = ["a", "b"].map(|name| ready(&mut state, name, T0));
    state.clients.get_mut(a).unwrap().address = Some(HOST);
    assert_eq!(state.open(request(a, share), T0), Err(StateError::TooMany), "the same address");
    assert!(state.open(request(b, share), T0).is_ok());
    state.nlm_free(HOST);
    assert_eq!(state.tallies.opens.total(), 1);
}

#[test]
fn a_failed_upgrade_keeps_the_earlier_lock() {
    let range = Range { start: 5, end: 15 };
    type End = fn(&mut State<char>, u64);
    let ends: [End; 3] = [
        // The host rejects the grant, a CANCEL crosses it, and both.
        |state, number| state.nlm_acknowledged(number, false),
        |state, _| state.nlm_cancel(&owner(1), NODE, Range { start: 5, end: 15 }, true),
        |state, number| {
            state.nlm_cancel(&owner(1), NODE, Range { start: 5, end: 15 }, true);
            state.nlm_acknowledged(number, false);
        },
    ];
    for end in ends {
        let mut state = state();
        state.nlm_lock(lock(1, false), T0).unwrap();
        state.nlm_lock(lock(2, false), T0).unwrap();
        assert_eq!(state.nlm_lock(waiting(1, true), T0), Err(NlmError::Blocked));
        // Cancelling a queued request frees nothing.
        state.nlm_cancel(&owner(1), NODE, range, true);
        assert!(state.nlm_test(&owner(9), NODE, ALL, true, T0).unwrap().is_some());
        assert_eq!(state.nlm_lock(waiting(1, true), T0), Err(NlmError::Blocked));
        state.nlm_unlock(&owner(2), NODE, ALL).unwrap();
        let granted = state.nlm_take_granted().remove(0);
        assert_eq!(state.tallies.ranges.total(), 2, "the earlier lock, and the grant");
        end(&mut state, granted.number);
        let held: Vec<_> = state.files[&NODE].ranges.of(&Holder::Nlm(owner(1))).collect();
        assert_eq!(held, [Lock { range, exclusive: false }]);
        assert_eq!(state.tallies.ranges.total(), 1);
        // It is the earlier lock, a shared one.
        state.nlm_lock(lock(3, false), T0).unwrap();
        state.nlm_free(HOST);
        assert_empty(&state);
    }
}

#[test]
fn a_lock_taken_during_a_grant_survives_the_failed_grant() {
    let mut state = state();
    state.nlm_lock(lock(2, true), T0).unwrap();
    assert_eq!(state.nlm_lock(waiting(1, true), T0), Err(NlmError::Blocked));
    state.nlm_unlock(&owner(2), NODE, ALL).unwrap();
    let granted = state.nlm_take_granted().remove(0);
    let part = Range { start: 8, end: 10 };
    for exclusive in [true, false] {
        state.nlm_lock(NlmLock { range: part, ..lock(1, exclusive) }, T0).unwrap();
    }
    state.nlm_acknowledged(granted.number, false);
    let held: Vec<_> = state.files[&NODE].ranges.of(&Holder::Nlm(owner(1))).collect();
    assert_eq!(held, [Lock { range: part, exclusive: false }]);
    assert_eq!(state.tallies.ranges.total(), 1);
    state.nlm_free(HOST);
    assert_empty(&state);
}

#[test]
fn a_failed_grant_restores_nothing_that_was_unlocked_meanwhile() {
    let mut state = state();
    let whole = Range { start: 0, end: 100 };
    state.nlm_lock(NlmLock { range: whole, ..lock(1, false) }, T0).unwrap();
    state.nlm_lock(lock(2, false), T0).unwrap();
    assert_eq!(state.nlm_lock(waiting(1, true), T0), Err(NlmError::Blocked));
    state.nlm_unlock(&owner(2), NODE, ALL).unwrap();
    let granted = state.nlm_take_granted().remove(0);
    state.nlm_unlock(&owner(1), NODE, Range { start: 50, end: 100 }).unwrap();
    state.nlm_acknowledged(granted.number, false);
    let held: Vec<_> = state.files[&NODE].ranges.of(&Holder::Nlm(owner(1))).collect();
    assert_eq!(held, [Lock { range: Range { start: 0, end: 50 }, exclusive: false }]);
    state.nlm_free(HOST);
    assert_empty(&state);
}

#[test]
fn a_grant_goes_on_when_a_part_of_it_is_unlocked() {
    let range = |start, end| Range { start, end };
    for has_shared in [false, true] {
        for wants in [false, true] {
            let mut state = state();
            if has_shared {
                let shared = NlmLock { range: range(0, 100), ..lock(1, false) };
                state.nlm_lock(shared, T0).unwrap();
            }
            state.nlm_lock(lock(2, false), T0).unwrap();
            assert_eq!(state.nlm_lock(waiting(1, true), T0), Err(NlmError::Blocked));
            state.nlm_unlock(&owner(2), NODE, ALL).unwrap();
            let granted = state.nlm_take_granted().remove(0);
            state.nlm_unlock(&owner(1), NODE, range(8, 12)).unwrap();
            assert!(state.nlm_is_granting(granted.number));
            // The host knows the grant by the range that it asked for.
            match wants {
                true => state.nlm_acknowledged(granted.number, true),
                false => state.nlm_cancel(&owner(1), NODE, granted.range, true),
            }
            assert!(!state.nlm_is_granting(granted.number));
            let ranges = state.files.get(&NODE).map(|file| &file.ranges);
            let holder = Holder::Nlm(owner(1));
            let ranges = ranges.into_iter().flat_map(|held| held.of(&holder));
            let mut held: Vec<_> =
                ranges.map(|l| (l.range.start, l.range.end, l.exclusive)).collect();
            held.sort_unstable();
            let expected: &[_] = match (has_shared, wants) {
                (false, false) => &[],
                (false, true) => &[(5, 8, true), (12, 15, true)],
                (true, false) => &[(0, 8, false), (12, 100, false)],
                (true, true) => &[(0, 5, false), (5, 8, true), (12, 15, true), (15, 100, false)],
            };
            assert_eq!(held, expected, "shared before: {has_shared}, wanted: {wants}");
            assert_eq!(state.tallies.ranges.total(), expected.len());
            state.nlm_free(HOST);
            assert_empty(&state);
        }
    }
}

#[test]
fn overlapping_grants_to_one_owner_end_independently() {
    let ranges = [Range { start: 0, end: 10 }, Range { start: 5, end: 15 }];
    for (has_shared, swapped) in [(false, false), (false, true), (true, false), (true, true)] {
        for wants in [[false; 2], [false, true], [true, false], [true; 2]] {
            let mut state = state();
            if has_shared {
                let shared = NlmLock { range: Range { start: 4, end: 20 }, ..lock(1, false) };
                state.nlm_lock(shared, T0).unwrap();
            }
            state.nlm_lock(NlmLock { range: ALL, ..lock(2, false) }, T0).unwrap();
            for range in ranges {
                let waits = NlmLock { range, ..waiting(1, true) };
                assert_eq!(state.nlm_lock(waits, T0), Err(NlmError::Blocked));
            }
            state.nlm_unlock(&owner(2), NODE, ALL).unwrap();
            let granted: Vec<u64> = state.nlm_take_granted().iter().map(|g| g.number).collect();
            for at in if swapped { [1, 0] } else { [0, 1] } {
                state.nlm_acknowledged(granted[at], wants[at]);
            }
            let wanted = |byte: u64| {
                let mut wanted = ranges.iter().zip(wants).filter(|(_, wants)| *wants);
                wanted.any(|(range, _)| (range.start..range.end).contains(&byte))
            };
            let expected = |byte| match wanted(byte) {
                true => Some(true),
                false => (has_shared && (4..20).contains(&byte)).then_some(false),
            };
            let held = |byte: u64| {
                let ranges = &state.files.get(&NODE)?.ranges;
                let byte = Range { start: byte, end: byte + 1 };
                let held = ranges.within(&Holder::Nlm(owner(1)), byte);
                held.first().map(|held| held.exclusive)
            };
            let bytes = |of: &dyn Fn(u64) -> Option<bool>| (0..25).map(of).collect::<Vec<_>>();
            let case = format!("{has_shared} {swapped} {wants:?}");
            assert_eq!(bytes(&held), bytes(&expected), "{case}");
            state.nlm_free(HOST);
            assert_empty(&state);
        }
    }
}

#[test]
fn a_reclaim_neither_waits_nor_changes_what_was_reclaimed() {
    let grace = Grace::new(LEASE, []).with_hosts([HOST]);
    let mut state: State<char> = State::new(Ids::new(1, [7; 32]), Limits::default(), grace);
    state.nlm_remembered(HOST, T0);
    let reclaim = |lock| NlmLock { reclaim: true, ..lock };
    let held = |state: &State<char>, process| {
        state.files[&NODE].ranges.of(&Holder::Nlm(owner(process))).collect::<Vec<_>>()
    };
    for exclusive in [false, true] {
        let process = 1 + i32::from(exclusive);
        let range = Range { start: 5 + 100 * u64::from(exclusive), end: 205 };
        let (range, end) = (Range { end: range.start + 10, ..range }, range.start + 20);
        let first = NlmLock { range, ..reclaim(lock(process, exclusive)) };
        state.nlm_lock(first.clone(), T0).unwrap();
        // Repeated, and for more bytes.
        state.nlm_lock(first.clone(), T0).unwrap();
        let range = Range { end, ..range };
        state.nlm_lock(NlmLock { range, ..first.clone() }, T0).unwrap();
        let other = NlmLock { exclusive: !exclusive, range, ..first };
        assert_eq!(state.nlm_lock(other, T0), Err(NlmError::NoGrace));
        assert_eq!(held(&state, process), [Lock { range, exclusive }]);
    }
    // It would be granted before the hosts that held the range have reclaimed it.
    let waits = state.nlm_lock(reclaim(waiting(3, true)), T0);
    assert!(matches!(waits, Err(NlmError::Denied(_))), "{waits:?}");
    state.nlm_unlock(&owner(1), NODE, ALL).unwrap();
    assert_eq!(taken(&mut state), []);
}

#[test]
fn a_reclaim_changes_no_share_that_was_reclaimed() {
    let grace = Grace::new(LEASE, []).with_hosts([HOST]);
    let mut state: State<char> = State::new(Ids::new(1, [7; 32]), Limits::default(), grace);
    state.nlm_remembered(HOST, T0);
    let both = Share { access: Access::READ | Access::WRITE, deny: Access::empty() };
    let denying = Share { deny: Access::WRITE, ..READ };
    let mut reclaim = |share| state.nlm_share(&owner(1), NODE, share, true, T0);
    assert_eq!(reclaim(READ), Ok(()));
    assert_eq!(reclaim(READ), Ok(()), "repeated");
    for other in [WRITE, both, denying] {
        assert_eq!(reclaim(other), Err(NlmError::NoGrace), "{other:?}");
    }
    assert_eq!(state.files[&NODE].shares, [(owner(1), READ)]);
    assert_eq!(state.tallies.opens.total(), 1);
}

#[test]
fn locks_during_a_grant_count_against_the_share() {
    const LOCKS: usize = 16;
    let limits = Limits { locks: LOCKS, ..Limits::default() };
    let mut state: State<char> = State::new(Ids::new(1, [7; 32]), limits, Grace::default());
    state.nlm_remembered(HOST, T0);
    state.nlm_lock(lock(2, true), T0).unwrap();
    let all = NlmLock { range: ALL, ..waiting(1, true) };
    assert_eq!(state.nlm_lock(all, T0), Err(NlmError::Blocked));
    state.nlm_unlock(&owner(2), NODE, ALL).unwrap();
    let granted = state.nlm_take_granted().remove(0);
    let parts = (0..100).map(|at| Range { start: at * 10, end: at * 10 + 5 });
    let taken = parts
        .map(|range| state.nlm_lock(NlmLock { range, ..lock(1, true) }, T0))
        .take_while(Result::is_ok)
        .count();
    assert_eq!(taken, LOCKS / 2 - 1, "half of the limit, less the grant itself");
    assert_eq!(state.tallies.ranges.total(), LOCKS / 2);
    state.nlm_acknowledged(granted.number, true);
    assert_eq!(state.tallies.ranges.total(), 1);
    state.nlm_free(HOST);
    assert_empty(&state);
}

#[test]
fn a_host_without_a_run_number_is_asked_again_later() {
    let mut state = state();
    let soon = T0 + ASK_AGAIN - Duration::from_secs(1);
    assert!(state.nlm_asks_run(HOST, T0));
    assert!(!state.nlm_asks_run(HOST, soon), "the server has just asked");
    assert!(state.nlm_asks_run(HOST, T0 + ASK_AGAIN));
    assert!(!state.nlm_asks_run(HOST, T0 + ASK_AGAIN));
    state.nlm_note_run(HOST, Some(3));
    assert!(!state.nlm_asks_run(HOST, T0 + ASK_AGAIN * 9), "the number is known");
    state.nlm_note_run(HOST, None);
    assert!(state.nlm_asks_run(HOST, T0 + ASK_AGAIN * 9));
}
