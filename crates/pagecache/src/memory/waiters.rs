//! The queue of operations that wait for memory: cached operations first, each kind in order of
//! arrival. Uncached operations come last, since they wait for each other.
//!
//! A waiter takes its turn when its future is polled. A task may hold several futures and poll only
//! one of them: while it waits for that one, the others do not see their turn. So a waiter that was
//! woken and has not looked for [`ABSENT_AFTER`] is passed over until it looks again. Otherwise two
//! operations of one task could wait for each other for ever.

use crate::cache_policy::CachePolicy;
use crate::wait::WaitQueue;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use weir_base::sync::Mutex;
use weir_base::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

/// Time after which a waiter that was woken and does not look is passed over: long for a task that is
/// ready to run, and short beside the wait of those behind it.
const ABSENT_AFTER: Duration = Duration::from_millis(50);

/// Operations that wait for memory.
#[derive(Default)]
pub(crate) struct Waiters {
    queue: Mutex<Queue>,
    /// Number of operations in the queue that are not absent.
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
    waiting: BTreeMap<(CachePolicy, u64), Waiter>,
}

/// Whether a waiter takes its turns.
#[derive(Default)]
enum Waiter {
    /// It has looked since the background last woke it.
    #[default]
    Here,
    /// The background has woken it at this time, and it has not looked since.
    Woken(Instant),
    /// It is passed over.
    Absent,
}

impl Queue {
    /// The first waiter that is not absent.
    fn first(&self) -> Option<(CachePolicy, u64)> {
        let is_here = |waiter: &Waiter| !matches!(waiter, Waiter::Absent);
        self.waiting.iter().find(|(_, waiter)| is_here(waiter)).map(|(number, _)| *number)
    }

    /// The number of waiters that are not absent.
    fn here(&self) -> usize {
        self.waiting.values().filter(|waiter| !matches!(waiter, Waiter::Absent)).count()
    }
}

impl Waiters {
    /// Whether any operation waits that takes its turns.
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::SeqCst) > 0
    }

    /// Whether a new operation need not wait behind others.
    pub(crate) fn lets_pass(&self, policy: CachePolicy) -> bool {
        self.count.load(Ordering::Relaxed) == 0
            || self.queue.lock().first().is_none_or(|(first, _)| policy < first)
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
        queue.waiting.insert(number, Waiter::Here);
        self.count.store(queue.here(), Ordering::SeqCst);
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

    /// Wakes the waiters on behalf of the background, and passes over those that have not looked since
    /// an earlier call.
    pub(crate) fn wake(&self, now: Instant) {
        let mut queue = self.queue.lock();
        for waiter in queue.waiting.values_mut() {
            match *waiter {
                Waiter::Here => *waiter = Waiter::Woken(now),
                Waiter::Woken(at) if now.saturating_duration_since(at) >= ABSENT_AFTER => {
                    *waiter = Waiter::Absent;
                }
                Waiter::Woken(_) | Waiter::Absent => {}
            }
        }
        self.count.store(queue.here(), Ordering::SeqCst);
        drop(queue);
        self.freed.notify();
    }
}

/// A place in the queue; left on drop.
pub(crate) struct QueuePlace<'a> {
    waiters: &'a Waiters,
    number: (CachePolicy, u64),
}

impl QueuePlace<'_> {
    /// Whether it is this operation's turn. One that was passed over takes part again.
    pub(crate) fn is_first(&self) -> bool {
        let mut queue = self.waiters.queue.lock();
        if let Some(waiter) = queue.waiting.get_mut(&self.number)
            && matches!(std::mem::take(waiter), Waiter::Absent)
        {
            self.waiters.count.store(queue.here(), Ordering::SeqCst);
            self.waiters.moved.fetch_add(1, Ordering::SeqCst);
        }
        queue.first() == Some(self.number)
    }
}

impl Drop for QueuePlace<'_> {
    fn drop(&mut self) {
        let mut queue = self.waiters.queue.lock();
        queue.waiting.remove(&self.number);
        self.waiters.count.store(queue.here(), Ordering::SeqCst);
        drop(queue);
        self.waiters.notify();
    }
}
