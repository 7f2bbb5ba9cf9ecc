//! Waiting, for threads and futures alike.
//!
//! 1. No wake-up is lost: a [`Ticket`] taken before the condition is checked becomes invalid with
//!    the next notification, so the wait that follows returns at once.
//! 2. A dropped [`Wait`] leaves nothing behind.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use weir_base::sync::Mutex;
use weir_base::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

/// A queue of threads and tasks that wait for a change.
#[derive(Default)]
pub(crate) struct WaitQueue {
    round: AtomicU64,
    waiting: AtomicUsize,
    wakers: Mutex<Wakers>,
}

#[derive(Default)]
struct Wakers {
    next_key: u64,
    list: Vec<(u64, Waker)>,
}

/// The number of the last notification when the ticket was taken.
#[derive(Clone, Copy)]
pub(crate) struct Ticket(u64);

impl WaitQueue {
    /// Takes a ticket, before the condition is checked.
    pub(crate) fn ticket(&self) -> Ticket {
        Ticket(self.round.load(SeqCst))
    }

    /// Waits until a thread has notified since `ticket` was taken.
    pub(crate) fn wait(&self, ticket: Ticket) -> Wait<'_> {
        Wait { queue: self, ticket, key: None }
    }

    /// Wakes all waiters; the caller has changed the condition before.
    pub(crate) fn notify(&self) {
        self.round.fetch_add(1, SeqCst);
        // A waiter counts itself before it checks the number, so a waiter that is not counted here
        // sees the new number.
        if self.waiting.load(SeqCst) == 0 {
            return;
        }
        let woken = {
            let mut wakers = self.wakers.lock();
            self.waiting.store(0, SeqCst);
            std::mem::take(&mut wakers.list)
        };
        for (_, waker) in woken {
            waker.wake();
        }
    }

    /// Number of waiters.
    #[cfg(all(test, not(any(loom, shuttle))))]
    fn waiting(&self) -> usize {
        self.waiting.load(SeqCst)
    }
}

/// The future of [`WaitQueue::wait`].
pub(crate) struct Wait<'a> {
    queue: &'a WaitQueue,
    ticket: Ticket,
    key: Option<u64>,
}

impl Wait<'_> {
    fn leave(&mut self, wakers: &mut Wakers) {
        if let Some(key) = self.key.take() {
            wakers.list.retain(|(k, _)| *k != key);
            self.queue.waiting.store(wakers.list.len(), SeqCst);
        }
    }
}

impl Future for Wait<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let queue = self.queue;
        let mut wakers = queue.wakers.lock();
        self.leave(&mut wakers);
        queue.waiting.store(wakers.list.len() + 1, SeqCst);
        if queue.round.load(SeqCst) != self.ticket.0 {
            queue.waiting.store(wakers.list.len(), SeqCst);
            return Poll::Ready(());
        }
        let key = wakers.next_key;
        wakers.next_key += 1;
        wakers.list.push((key, cx.waker().clone()));
        self.key = Some(key);
        Poll::Pending
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if self.key.is_some() {
            let queue = self.queue;
            let mut wakers = queue.wakers.lock();
            self.leave(&mut wakers);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_notification_between_ticket_and_wait_is_not_lost() {
        let queue = WaitQueue::default();
        let ticket = queue.ticket();
        queue.notify();
        pollster::block_on(queue.wait(ticket));
    }

    #[test]
    fn a_waiting_thread_is_woken_and_a_dropped_wait_leaves_nothing() {
        let queue = Arc::new(WaitQueue::default());
        let ticket = queue.ticket();
        let other = queue.clone();
        let thread = std::thread::spawn(move || pollster::block_on(other.wait(ticket)));
        while queue.waiting() == 0 {
            std::thread::yield_now();
        }
        queue.notify();
        thread.join().unwrap();
        let mut wait = Box::pin(queue.wait(queue.ticket()));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(wait.as_mut().poll(&mut cx).is_pending());
        drop(wait);
        assert_eq!(queue.waiting(), 0);
    }
}
