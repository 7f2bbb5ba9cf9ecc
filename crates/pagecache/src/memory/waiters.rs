//! The queue of operations that wait for memory: cached operations first, each kind in order of
//! arrival. Uncached operations come last, since they wait for each other.

use crate::cache_policy::CachePolicy;
use crate::wait::WaitQueue;
use std::collections::BTreeSet;
use weir_base::sync::Mutex;
use weir_base::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

/// Operations that wait for memory.
#[derive(Default)]
pub(crate) struct Waiters {
    queue: Mutex<Queue>,
    /// Number of operations in the queue.
    count: AtomicUsize,
    /// Counts events that may have freed memory or made it reclaimable while an operation waited,
    /// and arrivals in the queue.
    moved: AtomicU64,
    /// Notified when memory was freed or has become reclaimable.
    pub(crate) freed: WaitQueue,
}

#[derive(Default)]
struct Queue {
    next: u64,
    waiting: BTreeSet<(CachePolicy, u64)>,
}

impl Waiters {
    /// Whether any operation waits.
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::SeqCst) > 0
    }

    /// Whether a new operation need not wait behind others.
    pub(crate) fn lets_pass(&self, policy: CachePolicy) -> bool {
        self.count.load(Ordering::Relaxed) == 0
            || match self.queue.lock().waiting.first() {
                None => true,
                Some(&(first, _)) => policy < first,
            }
    }

    /// A counter that advances with each chance for a waiter to get memory.
    pub(crate) fn moved(&self) -> u64 {
        self.moved.load(Ordering::SeqCst)
    }

    /// Enters the queue.
    pub(crate) fn enter(&self, policy: CachePolicy) -> QueuePlace<'_> {
        let mut queue = self.queue.lock();
        let number = (policy, queue.next);
        queue.next += 1;
        queue.waiting.insert(number);
        self.count.store(queue.waiting.len(), Ordering::SeqCst);
        self.moved.fetch_add(1, Ordering::SeqCst);
        drop(queue);
        QueuePlace { waiters: self, number }
    }

    /// Wakes the waiters: frames are free, or have become reclaimable.
    pub(crate) fn notify(&self) {
        // An operation that enters the queue after this also looks for memory after it.
        fence(Ordering::SeqCst);
        if self.any() {
            self.moved.fetch_add(1, Ordering::SeqCst);
            self.freed.notify();
        }
    }
}

/// A place in the queue; left on drop.
pub(crate) struct QueuePlace<'a> {
    waiters: &'a Waiters,
    number: (CachePolicy, u64),
}

impl QueuePlace<'_> {
    /// Whether it is this operation's turn.
    pub(crate) fn is_first(&self) -> bool {
        self.waiters.queue.lock().waiting.first() == Some(&self.number)
    }
}

impl Drop for QueuePlace<'_> {
    fn drop(&mut self) {
        let mut queue = self.waiters.queue.lock();
        queue.waiting.remove(&self.number);
        self.waiters.count.store(queue.waiting.len(), Ordering::SeqCst);
        drop(queue);
        self.waiters.notify();
    }
}
