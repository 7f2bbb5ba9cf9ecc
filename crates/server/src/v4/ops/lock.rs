//! LOCK, LOCKT, LOCKU, FREE_STATEID, TEST_STATEID, DELEGRETURN (RFC 8881 sections 18.10 to 18.12,
//! 18.38, 18.48, 18.6).

use crate::locks::store_locks::open_store_locks;
use crate::state::{
    self, ClientId, Conflict, Holder, LockError, LockOwner, LockRequest, LockTarget, Range,
    StateError, StateRef, Touch,
};
use crate::storage::client_tracking::SETTLE_ATTEMPTS;
use crate::v4::context::Context;
use crate::v4::ops::v40::{SequencedRequest, begin_sequenced};
use crate::v4::owner_seqid::{Numbered, OwnerKind};
use crate::v4::status::{of_state, of_vfs};
use weir_nfs::v4::Detailed;
use weir_nfs::v4::op::{delegreturn, free_stateid, lock, lockt, locku, test_stateid};
use weir_nfs::v4::types::{LockDenied, LockType, StateOwner};
use weir_nfs::v4::{Error, OpCode};
use weir_vfs::FileKind;
use weir_xdr::{Bytes, Opaque};

/// The owner name that a conflict reports for programs on the server's machine.
const LOCAL_PROGRAM: Bytes = Bytes::from_static(b"a program of the server's machine");

/// The conflicting lock, with the name of its holder that `asker` may learn.
fn denied(cx: &Context, asker: ClientId, conflict: Conflict<Holder>) -> LockDenied {
    let Conflict { owner, range, exclusive } = conflict;
    let (client_id, owner) = match owner {
        Holder::V4(owner) => (cx.state().name_to(asker, owner.client), owner.name),
        // No NFSv4 client has the ID 0.
        Holder::Nlm(owner) => (0, owner.handle),
        Holder::LocalProgram => (0, LOCAL_PROGRAM),
    };
    LockDenied {
        offset: range.start,
        length: range.wire_length(),
        kind: if exclusive { LockType::Write } else { LockType::Read },
        owner: StateOwner { client_id, owner: Opaque(owner) },
    }
}

fn range(offset: u64, length: u64) -> Result<Range, Error> {
    Range::from_wire(offset, length).ok_or(Error::Inval)
}

/// Checks that the current file is a regular one; only those have locks.
async fn check_lockable(cx: &Context) -> Result<(), Error> {
    let target = cx.current()?;
    match target.attr().await?.kind {
        FileKind::Regular => Ok(()),
        _ => Err(cx.wrong_type(&target).await),
    }
}

pub(crate) async fn lock(cx: &mut Context, args: lock::Args) -> lock::Res {
    let sequenced = match begin_by_lock(cx, &args.locker).await {
        Ok(sequenced) => sequenced,
        Err(result) => return result,
    };
    let result = lock_sequenced(cx, args).await;
    match sequenced {
        Some(sequenced) => sequenced.done(cx, result),
        None => result,
    }
}

/// In minor version 0, waits until no other request of the owner runs, and checks the seqid. For
/// the first request of a new lock-owner, the owner is the open-owner.
async fn begin_by_lock(
    cx: &mut Context,
    locker: &lock::Locker,
) -> Result<Option<SequencedRequest>, lock::Res> {
    if cx.minor > 0 {
        return Ok(None);
    }
    let plain = |error| Err(Detailed::Plain(error));
    let (owner, kind, seqid) = match locker {
        lock::Locker::New(new) => {
            let named = cx.client_of(new.lock_owner.client_id).map_err(plain)?;
            let id = cx.state_of(new.open_stateid).map_err(plain)?;
            let owner = cx.state().owner_of_open(id.key, &cx.principal);
            let owner = owner.map_err(|e| plain(of_state(e)))?;
            if owner.client != named {
                return Err(plain(Error::BadStateId));
            }
            (owner, OwnerKind::Open, new.open_seqid)
        }
        lock::Locker::Existing(old) => {
            let id = cx.state_of(old.lock_stateid).map_err(plain)?;
            let owner = cx.state().owner_of_lock(id.key, &cx.principal);
            let owner = owner.map_err(|e| plain(of_state(e)))?;
            (owner, OwnerKind::Lock, old.lock_seqid)
        }
    };
    begin_sequenced(cx, owner, kind, (OpCode::Lock, seqid)).await.map(Some)
}

async fn lock_sequenced(cx: &mut Context, args: lock::Args) -> lock::Res {
    let first_seqid = match &args.locker {
        lock::Locker::New(new) => Some((new.lock_owner.owner.0.clone(), new.lock_seqid)),
        lock::Locker::Existing(_) => None,
    };
    let request = lock_request(cx, args).await.map_err(Detailed::Plain)?;
    let (now, client) = (cx.now(), request.client);
    // Taken before the lock: an owner that the server cannot remember gets none.
    let first = match first_seqid.filter(|_| cx.minor == 0) {
        Some((name, seqid)) => {
            let owner = LockOwner { client, name };
            let address = cx.state().account(client).address;
            let cell = cx.nfs.owners.cell(owner, OwnerKind::Lock, address, now);
            Some((cell.ok_or(Detailed::Plain(Error::Resource))?, seqid))
        }
        None => None,
    };
    let fs = cx.current().map_err(Detailed::Plain)?.fs().clone();
    let node = request.node;
    let by = cx.state().account(client).address;
    let locks = open_store_locks(&cx.services.state, &fs, node, by).await;
    let lock = || {
        let request = request.clone();
        cx.state().with_store_locks(node, locks.clone(), |state| state.lock(request, cx.now()))
    };
    let mut locked = lock();
    for _ in 0..SETTLE_ATTEMPTS {
        if locked != Err(LockError::State(StateError::Unsettled)) {
            break;
        }
        cx.settle().await.map_err(Detailed::Plain)?;
        locked = lock();
    }
    match locked {
        Ok(id) => {
            let node = cx.current().map_err(Detailed::Plain)?.node;
            cx.services.copies.quiesce(node).await;
            if let Some((cell, seqid)) = first {
                // The next request of this owner has the number after.
                let digest = cx.arguments_digest;
                let request = Numbered { op: OpCode::Lock, seqid, digest, current: None };
                cell.lock().await.executed(request, Default::default(), cx.current);
            }
            Ok(cx.set_stateid(id))
        }
        Err(LockError::State(error)) => Err(Detailed::Plain(of_state(error))),
        Err(LockError::Deadlock) => Err(Detailed::Plain(Error::Deadlock)),
        Err(LockError::Denied(conflict)) => Err(Detailed::Detail(denied(cx, client, conflict))),
    }
}

async fn lock_request(cx: &Context, args: lock::Args) -> Result<LockRequest, Error> {
    check_lockable(cx).await?;
    let (id, target) = match args.locker {
        lock::Locker::New(new) => {
            let id = cx.state_of(new.open_stateid)?;
            (id, LockTarget::Open(id, new.lock_owner.owner.0))
        }
        lock::Locker::Existing(old) => {
            let id = cx.state_of(old.lock_stateid)?;
            (id, LockTarget::Locks(id))
        }
    };
    let client = cx.client_of_state(id)?;
    let listens = cx.minor > 0 && cx.state().can_call(client);
    Ok(LockRequest {
        client,
        target,
        node: cx.current()?.node,
        range: range(args.offset, args.length)?,
        exclusive: args.kind.is_write(),
        reclaim: args.reclaim,
        wait: args.kind.is_waiting(),
        listens,
    })
}

pub(crate) async fn lockt(cx: &mut Context, args: lockt::Args) -> lockt::Res {
    check_lockable(cx).await.map_err(Detailed::Plain)?;
    // A client with a delegation may hold locks that the server does not know of.
    let touch = if args.kind.is_write() { Touch::Change } else { Touch::Read };
    let node = cx.current().map_err(Detailed::Plain)?.node;
    let by = cx.client_of(args.owner.client_id).map_err(Detailed::Plain)?;
    let cleared = cx.services.recalls.claim(node, touch, Some(by)).await;
    cleared.map_err(|error| Detailed::Plain(of_vfs(error)))?;
    let found = test(cx, args).await.map_err(Detailed::Plain)?;
    match found {
        Some(conflict) => Err(Detailed::Detail(denied(cx, by, conflict))),
        None => Ok(()),
    }
}

async fn test(cx: &Context, args: lockt::Args) -> Result<Option<Conflict<Holder>>, Error> {
    let owner = LockOwner { client: cx.client_of(args.owner.client_id)?, name: args.owner.owner.0 };
    let (node, range) = (cx.current()?.node, range(args.offset, args.length)?);
    let now = cx.now();
    let (fs, exclusive) = (cx.current()?.fs().clone(), args.kind.is_write());
    let by = cx.state().account(owner.client).address;
    let locks = open_store_locks(&cx.services.state, &fs, node, by).await;
    let found = cx.state().with_store_locks(node, locks, |state| {
        state.test_lock(&owner, node, range, exclusive, now)
    });
    found.map_err(of_state)
}

pub(crate) async fn locku(cx: &mut Context, args: locku::Args) -> locku::Res {
    let id = cx.state_of(args.lock_stateid)?;
    let sequenced = if cx.minor > 0 {
        None
    } else {
        let owner = cx.state().owner_of_lock(id.key, &cx.principal).map_err(of_state)?;
        match begin_sequenced(cx, owner, OwnerKind::Lock, (OpCode::Locku, args.seqid)).await {
            Ok(sequenced) => Some(sequenced),
            Err(result) => return result,
        }
    };
    let result = unlock_sequenced(cx, id, &args);
    match sequenced {
        Some(sequenced) => sequenced.done(cx, result),
        None => result,
    }
}

fn unlock_sequenced(cx: &mut Context, id: state::StateId, args: &locku::Args) -> locku::Res {
    let (client, node) = (cx.client_of_state(id)?, cx.current_to_release()?);
    let range = range(args.offset, args.length)?;
    let id = cx.state().unlock(client, id, node, range).map_err(of_state)?;
    Ok(cx.set_stateid(id))
}

pub(crate) async fn free_stateid(cx: &mut Context, args: free_stateid::Args) -> free_stateid::Res {
    let client = cx.client()?;
    let id = cx.state_of(args)?;
    cx.state().free_stateid(client, id).map_err(of_state)
}

pub(crate) async fn test_stateid(cx: &mut Context, args: test_stateid::Args) -> test_stateid::Res {
    let client = cx.client()?;
    let state = cx.state();
    let test = |wire| match cx.stateid(wire)? {
        StateRef::Of(id) => state.test_stateid(client, id).map_err(of_state),
        _ => Err(Error::BadStateId),
    };
    Ok(args.iter().map(|&wire| test(wire)).collect::<Vec<_>>().into())
}

pub(crate) async fn delegreturn(cx: &mut Context, args: delegreturn::Args) -> delegreturn::Res {
    let id = cx.state_of(args)?;
    let (client, node) = (cx.client_of_state(id)?, cx.current_to_release()?);
    cx.state().return_delegation(client, id, node).map_err(of_state)?;
    cx.services.recalls.look_again();
    Ok(())
}
