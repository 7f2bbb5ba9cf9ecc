//! Byte-range locks of one file in memory.

use parking_lot::Mutex;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Poll, Waker};
use weir_vfs::{Error, Lock, LockOwner, LockRange, RangeLocks, Result};

/// The number of an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct OpenId(u64);

impl OpenId {
    pub(super) fn new() -> Self {
        static OPENS: AtomicU64 = AtomicU64::new(1);
        Self(OPENS.fetch_add(1, Relaxed))
    }
}

type Holder = (OpenId, LockOwner);

#[derive(Debug, Default)]
pub(super) struct Locks {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    held: RangeLocks<Holder>,
    /// Waiters retry when any lock is released.
    waiting: Vec<Waker>,
}

impl Locks {
    pub(super) async fn lock(&self, holder: Holder, lock: Lock, wait: bool) -> Result<()> {
        poll_fn(|cx| {
            let mut table = self.table.lock();
            match table.held.lock(&holder, lock.range, lock.exclusive) {
                Ok(()) => {
                    // An exclusive lock may have become a shared one.
                    table.wake();
                    Poll::Ready(Ok(()))
                }
                Err(_) if wait => {
                    table.waiting.push(cx.waker().clone());
                    Poll::Pending
                }
                Err(_) => Poll::Ready(Err(Error::WouldBlock)),
            }
        })
        .await
    }

    pub(super) fn test(&self, holder: Holder, lock: Lock) -> Option<Lock> {
        let conflict = self.table.lock().held.conflict(&holder, lock.range, lock.exclusive)?;
        Some(Lock { range: conflict.range, exclusive: conflict.exclusive })
    }

    pub(super) fn unlock(&self, holder: Holder, range: LockRange) {
        let mut table = self.table.lock();
        table.held.unlock(&holder, range);
        table.wake();
    }

    /// Releases an open file's locks.
    pub(super) fn release(&self, open: OpenId) {
        let mut table = self.table.lock();
        let gone: Vec<Holder> = table.held.owners().filter(|h| h.0 == open).copied().collect();
        gone.iter().for_each(|holder| table.held.release(holder));
        table.wake();
    }
}

impl Table {
    fn wake(&mut self) {
        self.waiting.drain(..).for_each(Waker::wake);
    }
}
