//! What users may reclaim after a restart of the server, if the superuser has changed the mode, access control list or
//! owner of their file since they opened it: the answers of the server over NFSv4.0 to 4.2, compared with those of the
//! kernel.
//!
//! The server does not remember who had opened a file for what. So each user may reclaim what the kernel lets the user
//! open now, with the exceptions of I/O: the owner may have opened the file before its mode changed, and a user who may
//! execute a file may read it (RFC 8881 sections 8.4.2.1 and 18.22.4).

use super::delegated_permissions::{
    BOTH, IO, Machine, READ, SUPERUSER, Served, State, access_of, of_delegation, opened, report,
    try_rows,
};
use super::*;
use crate::export::Durability;
use crate::kernel_rights::{Change, MayOpen, OWNER, User, user};
use std::sync::LazyLock;
use weir_base::ManualClock;
use weir_nfs::v4::op::lock;
use weir_nfs::v4::op::open::{Claim, DelegationType, ShareAccess};
use weir_nfs::v4::types::LockType;
use weir_vfs::Access;

/// The clock does not advance, so that the grace period does not end.
static CLOCK: LazyLock<Arc<ManualClock>> = LazyLock::new(Arc::default);

const ADJUST: [fn(&mut ServerConfig); 2] = [
    |config| {
        config.clock = CLOCK.clone();
        config.exports[0].options.durability = Durability::Relaxed;
    },
    |config| {
        config.clock = CLOCK.clone();
        config.exports[0].options.durability = Durability::Relaxed;
        config.exports[0].options.squash = Squash::Root;
    },
];

/// What clients reclaim: the access, the delegation, and the first minor version that has it.
const RECLAIMS: [(ShareAccess, DelegationType, u32); 9] = [
    (ShareAccess::READ, DelegationType::None, 0),
    (ShareAccess::WRITE, DelegationType::None, 0),
    (ShareAccess::BOTH, DelegationType::None, 0),
    (ShareAccess::READ, DelegationType::Read, 0),
    (ShareAccess::READ, DelegationType::Write, 1),
    (ShareAccess::WRITE, DelegationType::Write, 1),
    (ShareAccess::BOTH, DelegationType::Write, 1),
    (ShareAccess::READ, DelegationType::ReadAttrs, 2),
    (ShareAccess::BOTH, DelegationType::WriteAttrs, 2),
];

/// The access of a delegation.
fn delegated(kind: DelegationType) -> Option<Access> {
    match kind {
        DelegationType::Read | DelegationType::ReadAttrs => Some(READ),
        DelegationType::Write | DelegationType::WriteAttrs => Some(BOTH),
        DelegationType::None | DelegationType::NoneExt => None,
    }
}

/// The LOCK with which a user reclaims a lock of its own bytes under an open.
fn reclaims_lock(state: &State, by: User) -> Vec<Op> {
    let name = by.uid.to_string();
    let new = lock::NewLocker {
        open_seqid: state.seqid,
        open_stateid: state.stateid,
        lock_seqid: 0,
        lock_owner: StateOwner { client_id: state.client_id, owner: name.as_str().into() },
    };
    let kind = if state.access == READ { LockType::Read } else { LockType::Write };
    let (offset, length, locker) = (by.uid.into(), 1, lock::Locker::New(new));
    let lock = lock::Args { kind, reclaim: true, offset, length, locker };
    vec![Op::Putfh(state.file.clone()), Op::Lock(lock)]
}

/// Has each user reclaim locks under the open of the owner. A lock excludes others, and grants no right: in minor
/// version 0 the user that opened the file may lock it, or the one that established the client; later, any of them.
async fn try_locks(m: &mut Machine, state: &mut State, users: &[User]) -> Vec<String> {
    let mut wrong = Vec::new();
    for &by in users {
        m.act_as(by);
        state.seqid = m.seqid;
        let expected = match state.minor > 0 || [OWNER, SUPERUSER.uid].contains(&by.uid) {
            true => Ok(()),
            false => Err(Error::Access),
        };
        let got = m.send(reclaims_lock(state, by)).await.status;
        if got != expected {
            wrong.push(format!("LOCK by {by:?} over 4.{}: {got:?}", state.minor));
        }
    }
    wrong
}

/// Has one user reclaim all of [`RECLAIMS`], and all users use what it gets.
async fn try_reclaims(
    m: &mut Machine,
    state: &mut State,
    by: (User, MayOpen),
    (users, change): (&[User], &(Change, Vec<MayOpen>)),
) -> Vec<String> {
    let mut wrong = Vec::new();
    let (by, may) = by;
    let owns = by.acts_as.0 == change.0.owner;
    for (share, kind, since) in RECLAIMS {
        if state.minor < since {
            continue;
        }
        m.act_as(by);
        state.seqid = m.seqid;
        let reply = m.send(state.opens(share, Claim::Previous(kind))).await;
        let again = |access| owns || may.or_executes(access);
        let opens = again(access_of(share));
        let expected_kind = delegated(kind).filter(|&access| opens && again(access));
        let given = opened(&reply).and_then(|opened| of_delegation(&opened.delegation));
        let given_kind = given.map(|(writes, _)| if writes { BOTH } else { READ });
        let expected = if opens { Ok(()) } else { Err(Error::Access) };
        let what = format!("{share:?}, {kind:?} by {by:?} over 4.{}", state.minor);
        if (reply.status, given_kind) != (expected, expected_kind) {
            let change = change.0;
            wrong.push(format!("{what}, {change:?}: {:?}, {given_kind:?}", reply.status));
        }
        let Some(res) = opened(&reply).cloned() else { continue };
        // The state of one user is enough: the answers do not depend on whose it is.
        if by.uid == OWNER || users.len() == 1 {
            state.is_delegated = given.is_some();
            let writes = access_of(share).union(given_kind.unwrap_or(READ));
            state.writes = writes.contains(Access::WRITE);
            // Under the delegation, if there is one to test beside an open that allows less or the same.
            let held = given.zip(given_kind).map(|((_, held), access)| (held, access));
            (state.stateid, state.access) = held.unwrap_or((res.stateid, access_of(share)));
            if kind == DelegationType::None || share == ShareAccess::READ {
                let found = try_rows(m, state, IO.iter(), (users, change)).await;
                wrong.extend(found.into_iter().map(|one| format!("under {what}: {one}")));
            }
            (state.stateid, state.access) = (res.stateid, access_of(share));
            wrong.extend(try_locks(m, state, users).await);
        }
        m.give_back(&state.file, &res).await;
    }
    wrong
}

#[tokio::test]
async fn users_reclaim_what_the_kernel_would_open_for_them() {
    if !weir_skip::is_root("it runs processes of several users") {
        return;
    }
    let mut wrong = Vec::new();
    for squash in [false, true] {
        let mut served = Served::new(squash, ADJUST).await;
        let name = |minor: u32, at: usize| format!("file-{minor}-{at}");
        let mut files = Vec::new();
        for minor in 0..3 {
            let mut m = Machine::introduce(&served.f, minor).await;
            if minor > 0 {
                m.c.ok(vec![Op::ReclaimComplete(reclaim_complete::Args { one_fs: false })]).await;
            }
            for at in 0..served.changes.len() {
                let name = name(minor, at);
                served.make(&name);
                let state = State::find(&mut m, &name).await;
                m.act_as(user(OWNER, OWNER));
                let claim = Claim::Null(state.name.as_str().into());
                assert_eq!(m.send(state.opens(ShareAccess::BOTH, claim)).await.status, Ok(()));
                files.push(state);
            }
        }
        served.f.restart().await;
        for minor in 0..3 {
            let mut m = Machine::introduce(&served.f, minor).await;
            let of_it = files.iter_mut().filter(|state| state.minor == minor);
            for (state, change) in of_it.zip(&served.changes) {
                state.client_id = m.client_id;
                change.0.make(&served.path(&state.name));
                for by in served.users.iter().copied().zip(change.1.iter().copied()) {
                    let found = try_reclaims(&mut m, state, by, (served.users, change)).await;
                    wrong.extend(found);
                }
            }
        }
    }
    report(&wrong);
}
