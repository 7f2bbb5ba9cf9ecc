//! A limit that peers share, and each peer's share of it.
//!
//! 1. The grants of all peers together stay within the limit. Amounts that are
//!    [charged](Share::charge) because they exist already count only against their own peer: they
//!    keep it from getting more, and take nothing from other peers.
//! 2. A peer that holds something may hold at most as much as it leaves free. The first peer that
//!    takes all it can ends with half of the limit, the next with a quarter, and so on, so there is
//!    always room for another peer. A peer that holds nothing may take all that is free.
//! 3. A peer's requests are granted in order. No peer waits for another peer's requests, only for
//!    room.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use tokio::sync::Notify;

/// A limit that peers share.
#[derive(Debug)]
pub(crate) struct Quota {
    limit: usize,
    held: Mutex<Held>,
    freed: Notify,
    /// Requests that had to wait or were refused.
    refused: AtomicU64,
}

/// Amounts held. Those of a share change only under the lock of its quota.
#[derive(Debug, Default)]
struct Held {
    granted: usize,
    /// Charged without a grant.
    over: usize,
}

impl Quota {
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        let held = Mutex::default();
        Arc::new(Self { limit, held, freed: Notify::new(), refused: AtomicU64::new(0) })
    }

    /// A new, empty share.
    pub(crate) fn share(self: &Arc<Self>) -> Arc<Share> {
        let (quota, turn) = (self.clone(), tokio::sync::Mutex::new(()));
        let (granted, over) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Arc::new(Share { quota, granted, over, refused: AtomicU64::new(0), turn })
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// The amount that all peers hold.
    pub(crate) fn used(&self) -> usize {
        let held = self.held.lock();
        held.granted + held.over
    }

    /// How often a request had to wait or was refused.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

/// How much more a peer that holds `own` may take when all peers together hold `used` of `limit`.
pub(crate) fn allowance(limit: usize, used: usize, own: usize) -> usize {
    let free = limit.saturating_sub(used);
    if own == 0 { free } else { free.saturating_sub(own) / 2 }
}

/// What a peer that holds `own` holds once it has taken all that it may, or has returned the
/// excess.
pub(crate) fn fair_share(limit: usize, used: usize, own: usize) -> usize {
    own.saturating_add(limit.saturating_sub(used)) / 2
}

/// The share of one peer in a [`Quota`].
#[derive(Debug)]
pub(crate) struct Share {
    quota: Arc<Quota>,
    granted: AtomicUsize,
    over: AtomicUsize,
    /// Requests of this peer that had to wait or were refused.
    refused: AtomicU64,
    turn: tokio::sync::Mutex<()>,
}

impl Share {
    /// How much more the peer may take.
    fn allowance(&self, all: &Held) -> usize {
        let own = self.granted.load(Ordering::Relaxed);
        match self.over.load(Ordering::Relaxed) {
            0 => allowance(self.quota.limit, all.granted, own),
            _ => 0,
        }
    }

    /// Takes `amount` without waiting; `None` if the share is too small now.
    pub(crate) fn try_take(self: &Arc<Self>, amount: usize) -> Option<Taken> {
        let taken = self.grant(amount);
        if taken.is_none() {
            self.count_refused();
        }
        taken
    }

    fn count_refused(&self) {
        self.quota.refused.fetch_add(1, Ordering::Relaxed);
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// How often a request of this peer had to wait or was refused.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    fn grant(self: &Arc<Self>, amount: usize) -> Option<Taken> {
        let mut all = self.quota.held.lock();
        if amount > self.allowance(&all) {
            return None;
        }
        all.granted += amount;
        self.granted.fetch_add(amount, Ordering::Relaxed);
        Some(Taken { share: self.clone(), granted: amount, over: 0 })
    }

    /// Takes `amount`, at most the whole limit, and waits until the peer may have it.
    pub(crate) async fn take(self: &Arc<Self>, amount: usize) -> Taken {
        let amount = amount.min(self.quota.limit);
        if let Ok(_turn) = self.turn.try_lock()
            && let Some(taken) = self.grant(amount)
        {
            return taken;
        }
        self.count_refused();
        let _turn = self.turn.lock().await;
        loop {
            // Registered before the attempt, so that no release in between is missed.
            let mut freed = std::pin::pin!(self.quota.freed.notified());
            freed.as_mut().enable();
            if let Some(taken) = self.grant(amount) {
                return taken;
            }
            freed.await;
        }
    }

    /// Counts `amount` that exists already, even if the share is too small.
    pub(crate) fn charge(self: &Arc<Self>, amount: usize) -> Taken {
        let mut taken = Taken { share: self.clone(), granted: 0, over: 0 };
        taken.resize(amount);
        taken
    }

    /// Whether the peer may take `amount` more.
    pub(crate) fn allows(&self, amount: usize) -> bool {
        amount <= self.allowance(&self.quota.held.lock())
    }

    /// The amount that the peer holds.
    pub(crate) fn held(&self) -> usize {
        self.granted.load(Ordering::Relaxed) + self.over.load(Ordering::Relaxed)
    }

    /// Whether less than an eighth of the limit is free.
    pub(crate) fn is_short_for_all(&self) -> bool {
        let limit = self.quota.limit;
        limit - self.quota.held.lock().granted.min(limit) < limit / 8
    }

    /// Whether the peer may take nothing more.
    pub(crate) fn is_full(&self) -> bool {
        !self.allows(1)
    }
}

/// An amount taken from a [`Share`], returned on drop.
#[derive(Debug)]
pub(crate) struct Taken {
    share: Arc<Share>,
    granted: usize,
    over: usize,
}

impl Taken {
    /// Returns what exceeds `amount`.
    pub(crate) fn shrink(&mut self, amount: usize) {
        if amount < self.granted + self.over {
            self.resize(amount);
        }
    }

    /// Changes the amount, even if the share is too small.
    pub(crate) fn resize(&mut self, amount: usize) {
        let (share, before) = (&self.share, self.granted + self.over);
        let mut all = share.quota.held.lock();
        if let Some(more) = amount.checked_sub(before) {
            let granted = more.min(share.allowance(&all));
            all.granted += granted;
            share.granted.fetch_add(granted, Ordering::Relaxed);
            self.granted += granted;
            all.over += more - granted;
            share.over.fetch_add(more - granted, Ordering::Relaxed);
            self.over += more - granted;
            return;
        }
        let less = before - amount;
        let over = less.min(self.over);
        all.over -= over;
        share.over.fetch_sub(over, Ordering::Relaxed);
        self.over -= over;
        all.granted -= less - over;
        share.granted.fetch_sub(less - over, Ordering::Relaxed);
        self.granted -= less - over;
        drop(all);
        share.quota.freed.notify_waiters();
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.resize(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn fill(share: &Arc<Share>) -> Vec<Taken> {
        std::iter::from_fn(|| share.try_take(1)).collect()
    }

    #[test]
    fn greedy_peers_leave_room_for_the_next() {
        let quota = Quota::new(120);
        let (first, second, third) = (quota.share(), quota.share(), quota.share());
        let first = fill(&first);
        assert_eq!(first.len(), 60);
        let second = fill(&second);
        assert_eq!(second.len(), 30);
        assert_eq!(fill(&third).len(), 15);
        drop(first);
        assert_eq!(fill(&third).len(), 45, "as many as are left free");
        assert_eq!(quota.used(), 30);
    }

    #[test]
    fn a_first_request_may_take_all_free_room() {
        let quota = Quota::new(10);
        let share = quota.share();
        let all = share.try_take(10).unwrap();
        assert!(share.try_take(1).is_none() && quota.share().try_take(1).is_none());
        assert_eq!(quota.refused(), 2);
        drop(all);
        assert!(share.try_take(11).is_none());
        assert!(!share.is_full());
    }

    #[tokio::test]
    async fn requests_are_granted_in_order_for_each_peer() {
        let quota = Quota::new(100);
        let (greedy, modest) = (quota.share(), quota.share());
        let held = greedy.take(50).await;
        let mut large = Box::pin(greedy.take(30));
        let mut small = Box::pin(greedy.take(1));
        assert!((&mut large).now_or_never().is_none());
        assert!((&mut small).now_or_never().is_none(), "it is its peer's second");
        let other = modest.take(20).now_or_never().expect("another peer does not wait");
        drop(held);
        let large = large.await;
        let small = small.await;
        assert_eq!(quota.used(), 51);
        drop((large, small, other));
        assert_eq!(quota.used(), 0);
    }

    #[test]
    fn existing_use_is_charged_beyond_the_limit() {
        let quota = Quota::new(10);
        let share = quota.share();
        let mut charged = share.charge(25);
        assert!(
            share.is_full() && quota.share().try_take(1).is_none(),
            "the first ten are granted"
        );
        charged.resize(2);
        assert_eq!(quota.used(), 2);
        let beside = share.charge(25);
        assert!(share.is_full());
        assert!(
            quota.share().try_take(5).is_some(),
            "beyond its share it takes nothing from others"
        );
        drop(beside);
        assert!(share.try_take(3).is_some());
    }
}
