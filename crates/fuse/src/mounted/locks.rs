//! Locks of fcntl(2) and flock(2), kept in the store, so that they hold against other clients and
//! programs.
//!
//! 1. All locks of a node are on one open file of the store: the store's lock owners are per open file,
//!    but a process's locks are per file, however often it opened it.
//! 2. That file is closed when no program has the node open.

use crate::mounted::file_system::{Answer, Answered, Mounted};
use crate::session::pending::Reply;
use crate::wire::abi::{self, LkIn, LkOut};
use crate::wire::reply::Errno;
use std::sync::Arc;
use weir_vfs::{Access, Caller, Error, Lock, LockOwner, LockRange, OpenFile, TO_END};

/// Tells owners of flock(2) from those of fcntl(2): both are hashes of the kernel's.
const FLOCK: u64 = 0x9e37_79b9_7f4a_7c15;

/// The owner of a lock of flock(2).
pub(super) fn flock_owner(owner: u64) -> LockOwner {
    LockOwner(owner ^ FLOCK)
}

fn owner_of(args: &LkIn) -> LockOwner {
    if args.lk_flags & abi::LK_FLOCK != 0 { flock_owner(args.owner) } else { LockOwner(args.owner) }
}

/// The range of a lock; the kernel names the last byte.
fn range_of(args: &LkIn) -> Result<LockRange, Errno> {
    let end = if args.end >= i64::MAX as u64 { TO_END } else { args.end + 1 };
    match args.start < end {
        true => Ok(LockRange { start: args.start, end }),
        false => Err(Errno(libc::EINVAL)),
    }
}

/// The lock asked for; `None`: release.
fn lock_of(args: &LkIn) -> Result<Option<Lock>, Errno> {
    let range = range_of(args)?;
    match args.kind.cast_signed() {
        libc::F_RDLCK => Ok(Some(Lock { range, exclusive: false })),
        libc::F_WRLCK => Ok(Some(Lock { range, exclusive: true })),
        libc::F_UNLCK => Ok(None),
        _ => Err(Errno(libc::EINVAL)),
    }
}

impl Mounted {
    pub(super) async fn getlk(&self, node: u64, args: &LkIn) -> Answered {
        let lock = lock_of(args)?.ok_or(Errno(libc::EINVAL))?;
        let found = self.lock_file(node, args.fh).await?.test_lock(owner_of(args), lock).await?;
        let out = match found {
            None => LkOut { kind: libc::F_UNLCK as u32, ..LkOut::default() },
            Some(Lock { range, exclusive }) => LkOut {
                start: range.start,
                end: if range.end == TO_END { i64::MAX as u64 } else { range.end - 1 },
                kind: if exclusive { libc::F_WRLCK } else { libc::F_RDLCK } as u32,
                // The holder may be on another machine.
                pid: 0,
            },
        };
        Ok(Answer::of(&out))
    }

    pub(super) async fn setlk(
        &self,
        node: u64,
        args: &LkIn,
        wait: bool,
        reply: &Reply,
    ) -> Answered {
        let owner = owner_of(args);
        let Some(lock) = lock_of(args)? else {
            self.unlock(node, owner, range_of(args)?).await;
            return Ok(Answer::nothing());
        };
        let file = self.lock_file(node, args.fh).await?;
        tokio::select! {
            taken = file.lock(owner, lock, wait) => taken?,
            () = reply.given_up() => return Err(Error::Interrupted.into()),
        }
        self.drop_old_pages(node).await?;
        Ok(Answer::nothing())
    }

    /// Releases locks, if there are any.
    pub(super) async fn unlock(&self, node: u64, owner: LockOwner, range: LockRange) {
        if let Some(file) = self.nodes.locks(node)
            && let Err(error) = file.unlock(owner, range).await
        {
            tracing::warn!("cannot release a lock: {error}");
        }
    }

    /// The open file that holds a node's locks.
    async fn lock_file(&self, node: u64, fh: u64) -> Result<Arc<dyn OpenFile>, Errno> {
        if let Some(file) = self.nodes.locks(node) {
            return Ok(file);
        }
        let id = self.nodes.file(node)?;
        let open = self.files.get(fh as usize).map(|open| Arc::clone(&open));
        let access = open.ok_or(Errno(libc::EBADF))?.file.access();
        let store = self.fs.store();
        // With both rights, so that it serves every later lock, too.
        let both = Access::READ | Access::WRITE;
        let file = match store.open(&Caller::Own, id, both).await {
            Err(_) if access != both => store.open(&Caller::Own, id, access).await?,
            opened => opened?,
        };
        Ok(self.nodes.hold_locks(node, file))
    }
}
