//! Delegations with scripted calls and callbacks, without a server.

use super::*;
use weir_nfs::v4::acl::{Ace, AceFlags, AceMask, AceType};
use weir_nfs::v4::cb::{recall, recall_any};
use weir_nfs::v4::op::open::{ReadDelegation, SpaceLimit, WriteDelegation};
use weir_nfs::v4::types::StateOwner;
use weir_rpc::{OpaqueAuth, ReplyBody, ReplyHeader};
use weir_xdr::Encoder;

const SESSION: SessionId = [7; 16];
const LEASE: Duration = Duration::from_secs(90);
const NOW: Duration = Duration::from_secs(1000);

fn handle(number: u32) -> Handle {
    Handle(Bytes::copy_from_slice(&number.to_be_bytes()))
}

fn stateid(number: u32) -> StateId {
    let mut other = [0; 12];
    other[..4].copy_from_slice(&number.to_be_bytes());
    StateId { seqid: 1, other }
}

fn no_ace() -> Ace {
    let (flags, mask) = (AceFlags::empty(), AceMask::empty());
    Ace { kind: AceType::Deny, flags, mask, who: "EVERYONE@".into() }
}

fn read(number: u32) -> Delegation {
    let (stateid, permissions) = (stateid(number), no_ace());
    Delegation::Read(ReadDelegation { stateid, recall: false, permissions })
}

fn with(files: u32) -> Delegations {
    let delegations = Delegations::default();
    delegations.begin_session(SESSION);
    delegations.renewed(NOW, StatusFlags::empty());
    (0..files).for_each(|number| delegations.take(&handle(number), &read(number), 0));
    delegations
}

fn relied_on(delegations: &Delegations, number: u32) -> bool {
    delegations.grant(&handle(number), 0, LEASE, NOW).is_some()
}

fn due(delegations: &Delegations) -> Vec<StateId> {
    std::iter::from_fn(|| delegations.take_due()).map(|(_, stateid)| stateid).collect()
}

/// Calls the service like a server; returns the results.
fn called(delegations: &Delegations, sequence_id: u32, op: CbOp) -> Vec<CbOpRes> {
    let begin = CbOp::Sequence(sequence::Args {
        session: SESSION,
        sequence_id,
        slot: 0,
        highest_slot: 0,
        cache_this: false,
        referring_calls: Vec::new().into(),
    });
    let mut e = Encoder::new();
    let (program, version, procedure) = (CALLBACK_PROGRAM, CB_VERSION, PROC_CB_COMPOUND);
    let (cred, verf) = (OpaqueAuth::NONE, OpaqueAuth::NONE);
    e.put(&CallHeader { xid: 1, program, version, procedure, cred, verf });
    let head =
        CbCompoundHeader { tag: "".into(), minor_version: 2, callback_ident: 0, operations: 2 };
    e.put(&head);
    e.put(&begin);
    e.put(&op);
    let reply = delegations.answer(e.finish().to_bytes()).unwrap();
    let mut d = Decoder::new(reply.to_bytes().slice(4..));
    let header: ReplyHeader = d.get().unwrap();
    assert!(matches!(header.body, ReplyBody::Accepted(_)));
    let head: CompoundResHeader = d.get().unwrap();
    (0..head.results).map(|_| CbOpRes::decode_next(&mut d).unwrap()).collect()
}

#[test]
fn a_delegation_is_not_used_once_it_is_recalled() {
    let delegations = with(2);
    assert!(relied_on(&delegations, 0));
    let args = recall::Args { stateid: stateid(0), truncate: false, file: "fh".into() };
    let results = called(&delegations, 1, CbOp::Recall(args.clone()));
    assert_eq!(results[1], CbOpRes::Recall(Ok(())));
    assert!(!relied_on(&delegations, 0) && relied_on(&delegations, 1));
    assert_eq!(due(&delegations), [stateid(0)]);
    let again = called(&delegations, 2, CbOp::Recall(args));
    assert_eq!(again[1], CbOpRes::Recall(Err(Nfs4Error::BadStateId)));
}

#[test]
fn recall_any_keeps_the_recently_used_delegations() {
    let delegations = with(5);
    assert!(relied_on(&delegations, 0) && relied_on(&delegations, 3));
    let any = |kinds| CbOp::RecallAny(recall_any::Args { keep: 2, kinds });
    let other_kinds = [2].into_iter().collect();
    assert_eq!(called(&delegations, 1, any(other_kinds))[1], CbOpRes::RecallAny(Ok(())));
    assert_eq!(due(&delegations), []);
    let reads = [recall_any::READ_DELEGATIONS].into_iter().collect();
    assert_eq!(called(&delegations, 2, any(reads))[1], CbOpRes::RecallAny(Ok(())));
    let mut gone = due(&delegations);
    gone.sort_unstable_by_key(|stateid| stateid.other);
    assert_eq!(gone, [1, 2, 4].map(stateid));
    assert!(relied_on(&delegations, 0) && relied_on(&delegations, 3));
}

#[test]
fn delegations_are_bounded_and_the_least_recently_used_returned() {
    let delegations = with(MOST as u32);
    assert!(relied_on(&delegations, 0));
    delegations.take(&handle(9999), &read(9999), 0);
    assert_eq!(due(&delegations), [stateid(1)]);
    assert_eq!(delegations.table.lock().held.len(), MOST);
}

#[test]
fn a_missed_callback_ends_all_delegations() {
    for (flag, down) in [
        (StatusFlags::CB_PATH_DOWN, true),
        (StatusFlags::CB_PATH_DOWN_SESSION, true),
        (StatusFlags::BACKCHANNEL_FAULT, true),
        (StatusFlags::RECALLABLE_STATE_REVOKED, false),
        (StatusFlags::EXPIRED_ALL_STATE_REVOKED, false),
        (StatusFlags::EXPIRED_SOME_STATE_REVOKED, false),
        (StatusFlags::ADMIN_STATE_REVOKED, false),
    ] {
        let delegations = with(1);
        delegations.renewed(NOW, flag);
        assert!(!relied_on(&delegations, 0), "{flag:?}");
        assert_eq!(delegations.table.lock().unbound, down, "{flag:?}: the channel is bound again");
    }
    // A reconnect, or a lease that may have expired.
    let delegations = with(2);
    assert_eq!(delegations.grant(&handle(0), 1, LEASE, NOW), None);
    assert_eq!(due(&delegations), [stateid(0)]);
    assert_eq!(delegations.grant(&handle(1), 0, Duration::ZERO, NOW), None);
}

/// Recalls may have been missed while the machine was suspended.
#[test]
fn a_delegation_is_not_used_when_its_lease_may_have_expired() {
    let delegations = with(1);
    let grant = |now| delegations.grant(&handle(0), 0, LEASE, now);
    assert!(grant(NOW + LEASE - Duration::from_millis(1)).is_some());
    assert_eq!(grant(NOW + LEASE), None);
    delegations.renewed(NOW + LEASE, StatusFlags::empty());
    assert!(grant(NOW + LEASE).is_some());
    // An answer that comes late renews no more than its request did.
    delegations.renewed(NOW, StatusFlags::empty());
    assert!(grant(NOW + LEASE).is_some());
}

/// Which the clock of `Instant` does not count.
#[test]
fn time_that_the_machine_was_suspended_counts() {
    let boot = || Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap();
    let (before, now, after) = (boot(), since_boot(), boot());
    assert!(before <= now && now <= after);
}

#[test]
fn an_unrequested_delegation_is_returned_unused() {
    let delegations = with(1);
    let write = Delegation::Write(WriteDelegation {
        stateid: stateid(5),
        recall: false,
        space_limit: SpaceLimit::Size(1 << 20),
        permissions: no_ace(),
    });
    delegations.take(&handle(5), &write, 0);
    delegations.refuse(&handle(6), &read(6));
    // Replaces one that is held: the server knows both.
    delegations.take(&handle(0), &read(7), 0);
    assert!(!relied_on(&delegations, 5) && !relied_on(&delegations, 6));
    let mut back = due(&delegations);
    back.sort_unstable_by_key(|stateid| stateid.other);
    assert_eq!(back, [0, 5, 6].map(stateid));
    assert!(relied_on(&delegations, 0));
    // However many arrive, memory is bounded.
    (0..2000).for_each(|number| delegations.refuse(&handle(number), &write));
    assert_eq!(due(&delegations).len(), MOST);
}

#[test]
fn callbacks_of_another_session_or_out_of_order_are_refused() {
    let delegations = with(1);
    let owner = StateOwner { client_id: 0, owner: "another client".into() };
    let notify = weir_nfs::v4::cb::notify_lock::Args { file: "fh".into(), lock_owner: owner };
    let notify = CbOp::NotifyLock(notify);
    assert_eq!(called(&delegations, 1, notify.clone())[1], CbOpRes::NotifyLock(Ok(())));
    let refused = |results: Vec<CbOpRes>| results[0].status().unwrap_err();
    assert_eq!(refused(called(&delegations, 1, notify.clone())), Nfs4Error::RetryUncachedRep);
    assert_eq!(refused(called(&delegations, 3, notify.clone())), Nfs4Error::SeqMisordered);
    delegations.begin_session([8; 16]);
    assert_eq!(refused(called(&delegations, 1, notify)), Nfs4Error::BadSession);
    assert!(delegations.answer(Bytes::from_static(b"noise")).is_none());
}
