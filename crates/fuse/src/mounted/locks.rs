//! Locks of fcntl(2) and flock(2), kept in the store, so that they hold against other clients and
//! programs.
//!
//! 1. All locks of a node are on one open file of the store: the store's lock owners are per open file,
//!    but a process's locks are per file, however often it opened it.
//! 2. That file is closed when no program has the node open.
//! 3. A lock of fcntl(2) ends when its process closes the file (FLUSH names the owner), one of flock(2) with
//!    its open file (RELEASE names the owner), and so does one of F_OFD_SETLK. The kernel does not tell those
//!    from the first ones, nor does RELEASE name their owners: so it ends the locks of all owners that have
//!    asked through the open file, whose processes, if they are processes, have closed it.
//! 4. Data is written out before a lock is released, and what others have written is seen once a lock is
//!    granted.
//! 5. A wait that is interrupted is answered when the request for the lock is withdrawn. A lock that is
//!    granted to a thread that was killed meanwhile is released. One of flock(2) belongs to all processes that have
//!    the open file: it is released unless one of them knows that it has it, or asks for it.

use crate::mounted::file_system::{Answer, Answered, Granted, Mounted};
use crate::mounted::handles::OpenFile;
use crate::session::pending::Reply;
use crate::wire::abi::{self, LkIn, LkOut};
use crate::wire::reply::Errno;
use std::sync::Arc;
use weir_vfs::{
    Access, Caller, Error, FileId, Lock, LockOwner, LockRange, OpenFile as StoreFile, TO_END,
};

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
        let file = self.lock_file(node, &*self.file(args.fh)?).await?;
        let found = file.test_lock(owner_of(args), lock).await?;
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
        let open = self.file(args.fh)?;
        let Some(lock) = lock_of(args)? else {
            self.write_out(open.file.id()).await;
            self.unlock(node, owner, range_of(args)?).await;
            return Ok(Answer::nothing());
        };
        let is_flock = args.lk_flags & abi::LK_FLOCK != 0;
        let mut has_begun = false;
        let request = async {
            // The lock may replace an exclusive one by a shared one. And pages that are not written yet would
            // hide what others have written.
            self.write_out(open.file.id()).await;
            let file = self.lock_file(node, &open).await?;
            self.nodes.lock_owners(node, |owners| owners.note(owner, args.fh));
            if is_flock {
                let may_hold = {
                    let turn = self.nodes.flock_turn(node);
                    let _turn = match &turn {
                        Some(turn) => Some(turn.lock().await),
                        None => None,
                    };
                    self.nodes.lock_owners(node, |owners| owners.flock_begins(owner, args.fh))
                };
                has_begun = true;
                if may_hold == Some(true) {
                    match file.lock(owner, lock, false).await {
                        // Two that upgrade do not wait for each other: the old lock ends first (flock(2)).
                        Err(Error::WouldBlock) => self.unlock(node, owner, LockRange::ALL).await,
                        taken => return Ok(taken?),
                    }
                }
            }
            Ok::<_, Errno>(file.lock(owner, lock, wait).await?)
        };
        let taken = tokio::select! {
            // In this order, so that no lock is granted after a signal.
            biased;
            () = reply.given_up(), if wait => Err(Error::Interrupted.into()),
            taken = request => taken,
        };
        if let Err(error) = taken {
            if has_begun {
                self.end_flock(node, owner, None).await;
            }
            return Err(error);
        }
        // Again: its process may have closed the file in another thread while it waited.
        let releases = self.nodes.lock_owners(node, |owners| match is_flock {
            true => owners.flock_granted(owner, args.fh),
            false => {
                owners.note(owner, args.fh);
                0
            }
        });
        self.see_others(node, &open).await;
        let flock_releases = is_flock.then_some(releases.unwrap_or(0));
        let granted = Granted { node, owner, range: lock.range, flock_releases };
        Ok(Answer { lock: Some(granted), ..Answer::nothing() })
    }

    /// A program has got the answer that it has a lock.
    pub(super) async fn keep_lock(&self, granted: Granted) {
        if let told @ Some(_) = granted.flock_releases {
            self.end_flock(granted.node, granted.owner, told).await;
        }
    }

    /// The program that asked for a lock was killed before the answer.
    pub(super) async fn take_back_lock(&self, granted: Granted) {
        let Granted { node, owner, range, flock_releases } = granted;
        match flock_releases {
            Some(_) => self.end_flock(node, owner, None).await,
            None => self.unlock(node, owner, range).await,
        }
    }

    /// Ends a request of flock(2); `told`: its program knows that it has the lock, which was released that often
    /// before.
    async fn end_flock(&self, node: u64, owner: LockOwner, told: Option<u64>) {
        let Some(turn) = self.nodes.flock_turn(node) else { return };
        let _turn = turn.lock().await;
        let is_left = self.nodes.lock_owners(node, |owners| {
            if let Some(releases) = told {
                owners.flock_told(owner, releases);
            }
            owners.flock_ends(owner)
        });
        if is_left == Some(true) {
            self.unlock(node, owner, LockRange::ALL).await;
        }
    }

    /// Whether an owner may have locks.
    pub(super) fn may_have_locks(&self, node: u64, owner: LockOwner) -> bool {
        self.nodes.lock_owners(node, |owners| owners.may_have_locks(owner)) == Some(true)
    }

    /// Releases locks, if there are any.
    pub(super) async fn unlock(&self, node: u64, owner: LockOwner, range: LockRange) {
        if !self.may_have_locks(node, owner) {
            return;
        }
        if let Ok(id) = self.nodes.file(node) {
            self.fs.write_back(id).await;
        }
        // Before the store releases them, so that a lock that it grants after that is not taken for released.
        let begins = || self.nodes.lock_owners(node, |owners| owners.release_begins(owner));
        let note = if range == LockRange::ALL { begins().flatten() } else { None };
        if let Some(file) = self.nodes.locks(node)
            && let Err(error) = file.unlock(owner, range).await
        {
            tracing::warn!("cannot release a lock: {error}");
        }
        if let Some(note) = note {
            self.nodes.lock_owners(node, |owners| owners.release_ends(owner, note));
        }
    }

    /// Writes a file's data to the store, where others see it, as [`publish`](Self::publish) does. The open files
    /// get the error of what is lost when they ask for it (fsync(2), close(2)), or else the file that is opened next.
    pub(super) async fn write_out(&self, id: FileId) {
        // First: a sync ends when something is lost, while other data may still be dirty.
        self.fs.write_back(id).await;
        if !self.fs.store().names_change_here()
            && let Err(error) = self.fs.sync_node(id).await
        {
            tracing::debug!("cannot write out {id:?} before a change of its locks: {error}");
        }
    }

    /// Makes both caches drop what others have changed.
    async fn see_others(&self, node: u64, open: &OpenFile) {
        let is_proof = self.fs.revalidate(open.file.id()).await;
        match open.file.getattr().await {
            Ok(attr) if is_proof && self.nodes.has_pages_of(node, attr.change) => {}
            // Noted when they are dropped: who asks meanwhile drops them, too, and waits for it.
            Ok(attr) => {
                self.kernel_pages.drop_now(node).await;
                self.nodes.pages_are_of(node, attr.change);
            }
            Err(error) => {
                tracing::debug!("cannot look at node {node} under its lock: {error}");
                self.kernel_pages.drop_now(node).await;
            }
        }
    }

    /// The open file that holds a node's locks.
    async fn lock_file(&self, node: u64, open: &OpenFile) -> Result<Arc<dyn StoreFile>, Errno> {
        if let Some(file) = self.nodes.locks(node) {
            return Ok(file);
        }
        let (id, access) = (self.nodes.file(node)?, open.file.access());
        let store = self.fs.store();
        // With both rights, so that it serves every later lock, too.
        let both = Access::READ | Access::WRITE;
        let file = match store.open(&Caller::Own, id, both).await {
            Err(_) if access != both => store.open(&Caller::Own, id, access).await,
            opened => opened,
        };
        let file = match file {
            // Its last name was removed; or a server lets only its users open it, not this process.
            Err(Error::Stale | Error::NotFound | Error::AccessDenied) => open.file.stored(),
            opened => opened?,
        };
        Ok(self.nodes.hold_locks(node, file))
    }
}
