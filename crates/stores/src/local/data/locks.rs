//! Byte-range locks of local files: the kernel's open file description locks (fcntl(2),
//! F_OFD_SETLK), so that they hold against every program on the machine.
//!
//! 1. Each owner has its own open file description, as the kernel's locks belong to those; it is
//!    closed when the owner has no lock left, or with the open file.
//! 2. The kernel's own wait would block a thread without a way to cancel it, so a waiting request
//!    asks again after pauses. Only its future asks, which then returns the lock: one that is
//!    dropped has acquired nothing.
//! 3. The kernel is asked under the lock of the table, so that a lock is never acquired on a
//!    description that has left the table.

use crate::local::calls::Calls;
use crate::local::sys::proc_path;
use crate::local::sys::{self, LockCommand};
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use weir_vfs::{Access, Error, Lock, LockOwner, LockRange, RangeLocks, Result};

/// Pauses between attempts.
const PAUSE: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(5)..=Duration::from_millis(200);

/// The owners of locks in an open file.
#[derive(Debug, Default)]
pub(in crate::local) struct Locks {
    owners: Mutex<HashMap<LockOwner, Owner>>,
}

/// An owner that has locks.
#[derive(Debug)]
struct Owner {
    description: OwnedFd,
    held: RangeLocks<()>,
}

impl Locks {
    pub(in crate::local) async fn lock(
        &self,
        calls: &Calls,
        file: BorrowedFd<'_>,
        access: Access,
        owner: LockOwner,
        lock: Lock,
        wait: bool,
    ) -> Result<()> {
        let take = || calls.make(|| self.take(file, access, owner, lock));
        if take().await? {
            return Ok(());
        }
        if !wait {
            return Err(Error::WouldBlock);
        }
        let again = attempts()?;
        loop {
            again.notified().await;
            if take().await? {
                return Ok(());
            }
        }
    }

    /// Acquires a lock, unless another one conflicts.
    fn take(
        &self,
        file: BorrowedFd<'_>,
        access: Access,
        owner: LockOwner,
        lock: Lock,
    ) -> Result<bool> {
        let mut owners = self.owners.lock();
        let mut new = None;
        let entry = match owners.get_mut(&owner) {
            Some(entry) => entry,
            None => new.insert(Owner {
                description: describe(file, access)?,
                held: RangeLocks::default(),
            }),
        };
        match sys::lock(entry.description.as_fd(), LockCommand::Take, lock) {
            Err(error) if is_denied(&error) => return Ok(false),
            taken => taken.map(drop)?,
        }
        // The only owner in its own table has no conflict.
        drop(entry.held.lock(&(), lock.range, lock.exclusive));
        if let Some(new) = new {
            owners.insert(owner, new);
        }
        Ok(true)
    }

    pub(in crate::local) fn test(
        &self,
        file: BorrowedFd<'_>,
        access: Access,
        owner: LockOwner,
        lock: Lock,
    ) -> Result<Option<Lock>> {
        let owners = self.owners.lock();
        let found = match owners.get(&owner) {
            Some(owner) => sys::lock(owner.description.as_fd(), LockCommand::Test, lock),
            None => sys::lock(describe(file, access)?.as_fd(), LockCommand::Test, lock),
        };
        Ok(found?)
    }

    pub(in crate::local) fn unlock(&self, owner: LockOwner, range: LockRange) -> Result<()> {
        let mut owners = self.owners.lock();
        let Some(entry) = owners.get_mut(&owner) else { return Ok(()) };
        let lock = Lock { range, exclusive: false };
        sys::lock(entry.description.as_fd(), LockCommand::Free, lock)?;
        entry.held.unlock(&(), range);
        if entry.held.is_empty() {
            owners.remove(&owner);
        }
        Ok(())
    }
}

/// Another open file description of a file.
fn describe(file: BorrowedFd<'_>, access: Access) -> Result<OwnedFd> {
    let mode = if access == Access::READ {
        OFlags::RDONLY
    } else if access == Access::WRITE {
        OFlags::WRONLY
    } else {
        OFlags::RDWR
    };
    let opened = rustix::fs::open(proc_path(file), mode | OFlags::CLOEXEC, Mode::empty());
    Ok(opened.map_err(io::Error::from)?)
}

fn is_denied(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES))
}

/// Tells when to ask for a lock again, as long as the caller keeps it.
fn attempts() -> Result<Arc<Notify>> {
    let again = Arc::new(Notify::new());
    let waiting = Arc::downgrade(&again);
    let pauses = move || {
        let mut pause = *PAUSE.start();
        loop {
            std::thread::sleep(pause);
            let Some(again) = waiting.upgrade() else { return };
            again.notify_one();
            pause = (pause * 2).min(*PAUSE.end());
        }
    };
    std::thread::Builder::new().name("weir-lock".into()).spawn(pauses)?;
    Ok(again)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{Future, poll_fn};
    use std::pin::pin;
    use std::task::Poll;

    const BOTH: Access = Access::READ.union(Access::WRITE);
    static CALLS: Calls = Calls::new(|call| call());
    const ONE: LockOwner = LockOwner(1);
    const TWO: LockOwner = LockOwner(2);

    fn lock(exclusive: bool) -> Lock {
        Lock { range: LockRange { start: 0, end: 10 }, exclusive }
    }

    /// Polls a future once, which must not be ready.
    async fn begin(future: &mut (impl Future<Output = Result<()>> + Unpin)) {
        let mut future = pin!(future);
        poll_fn(|cx| {
            assert!(future.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
    }

    #[tokio::test]
    async fn a_wait_that_is_given_up_acquires_nothing_and_keeps_what_was_held() {
        let file = tempfile::tempfile().unwrap();
        let file = file.as_fd();
        let locks = Locks::default();
        locks.lock(&CALLS, file, BOTH, ONE, lock(false), false).await.unwrap();
        locks.lock(&CALLS, file, BOTH, TWO, lock(false), false).await.unwrap();
        let mut upgrade = Box::pin(locks.lock(&CALLS, file, BOTH, ONE, lock(true), true));
        begin(&mut upgrade).await;
        locks.unlock(TWO, LockRange::ALL).unwrap();
        // The lock is free by now; what is not polled does not get it.
        std::thread::sleep(4 * *PAUSE.start());
        drop(upgrade);
        locks.lock(&CALLS, file, BOTH, TWO, lock(false), false).await.unwrap();
        let denied = locks.lock(&CALLS, file, BOTH, TWO, lock(true), false).await;
        assert_eq!(denied, Err(Error::WouldBlock), "the first owner still has its own");
    }

    #[tokio::test]
    async fn a_lock_that_is_granted_after_its_owner_released_all_is_kept() {
        let file = tempfile::tempfile().unwrap();
        let file = file.as_fd();
        let locks = Locks::default();
        let early = Lock { range: LockRange { start: 20, end: 30 }, exclusive: true };
        locks.lock(&CALLS, file, BOTH, ONE, early, false).await.unwrap();
        locks.lock(&CALLS, file, BOTH, TWO, lock(true), false).await.unwrap();
        let mut waiting = Box::pin(locks.lock(&CALLS, file, BOTH, ONE, lock(true), true));
        begin(&mut waiting).await;
        locks.unlock(ONE, LockRange::ALL).unwrap();
        assert_eq!(locks.test(file, BOTH, TWO, early), Ok(None));
        locks.unlock(TWO, LockRange::ALL).unwrap();
        waiting.await.unwrap();
        assert_eq!(locks.test(file, BOTH, TWO, lock(false)), Ok(Some(lock(true))));
    }

    #[tokio::test]
    async fn an_owner_without_locks_keeps_no_descriptor() {
        let file = tempfile::tempfile().unwrap();
        let file = file.as_fd();
        let locks = Locks::default();
        locks.lock(&CALLS, file, BOTH, ONE, lock(true), false).await.unwrap();
        for owner in 10..20 {
            let owner = LockOwner(owner);
            assert_eq!(locks.test(file, BOTH, owner, lock(true)), Ok(Some(lock(true))));
            assert!(locks.lock(&CALLS, file, BOTH, owner, lock(true), false).await.is_err());
            begin(&mut Box::pin(locks.lock(&CALLS, file, BOTH, owner, lock(true), true))).await;
        }
        assert_eq!(locks.owners.lock().len(), 1);
        locks.unlock(ONE, LockRange { start: 0, end: 5 }).unwrap();
        assert_eq!(locks.owners.lock().len(), 1);
        locks.unlock(ONE, LockRange { start: 5, end: 10 }).unwrap();
        assert!(locks.owners.lock().is_empty());
    }
}
