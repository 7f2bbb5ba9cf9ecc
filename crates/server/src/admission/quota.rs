//! A limit that peers share, and what one of them may take of it.
//!
//! 1. What all peers were granted together stays within the limit. What is [charged](Share::charge) because it
//!    is there already, and was not granted, takes nothing from other peers: it keeps its own peer from more.
//! 2. A peer may hold at most as much as it leaves free. The first that takes what it can gets half of the
//!    limit, the next one a quarter, and so on: there is always room for the next peer.
//!    A peer that holds nothing may take all that is free.
//! 3. Requests of one peer are granted in their order; none waits for the turn of another peer.

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
    /// How often a share was too small.
    refused: AtomicU64,
}

/// What is held. That of a share changes under the lock of its quota.
#[derive(Debug, Default)]
struct Held {
    granted: usize,
    /// Charged, and not granted.
    over: usize,
}

impl Quota {
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        let held = Mutex::default();
        Arc::new(Self { limit, held, freed: Notify::new(), refused: AtomicU64::new(0) })
    }

    /// The share of a peer that holds nothing yet.
    pub(crate) fn share(self: &Arc<Self>) -> Arc<Share> {
        let (quota, turn) = (self.clone(), tokio::sync::Mutex::new(()));
        Arc::new(Share { quota, granted: AtomicUsize::new(0), over: AtomicUsize::new(0), turn })
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// What all peers hold.
    pub(crate) fn used(&self) -> usize {
        let held = self.held.lock();
        held.granted + held.over
    }

    /// How often a peer had to wait, or was refused.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

/// How much more a peer may have that holds `own` of what all hold (`used` of `limit`).
pub(crate) fn allowance(limit: usize, used: usize, own: usize) -> usize {
    let free = limit.saturating_sub(used);
    if own == 0 { free } else { free.saturating_sub(own) / 2 }
}

/// What a peer that holds `own` comes to hold if it takes all that it may, or gives back what it holds beyond that.
pub(crate) fn fair_share(limit: usize, used: usize, own: usize) -> usize {
    own.saturating_add(limit.saturating_sub(used)) / 2
}

/// What one peer holds of a [`Quota`].
#[derive(Debug)]
pub(crate) struct Share {
    quota: Arc<Quota>,
    granted: AtomicUsize,
    over: AtomicUsize,
    turn: tokio::sync::Mutex<()>,
}

impl Share {
    /// How much more the peer may have.
    fn allowance(&self, all: &Held) -> usize {
        let own = self.granted.load(Ordering::Relaxed);
        match self.over.load(Ordering::Relaxed) {
            0 => allowance(self.quota.limit, all.granted, own),
            _ => 0,
        }
    }

    /// Takes `amount` if the peer may have it now.
    pub(crate) fn try_take(self: &Arc<Self>, amount: usize) -> Option<Taken> {
        let taken = self.grant(amount);
        if taken.is_none() {
            self.quota.refused.fetch_add(1, Ordering::Relaxed);
        }
        taken
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

    /// Waits until the peer may have `amount`, of which more than the limit counts as the limit.
    pub(crate) async fn take(self: &Arc<Self>, amount: usize) -> Taken {
        let amount = amount.min(self.quota.limit);
        if let Ok(_turn) = self.turn.try_lock()
            && let Some(taken) = self.grant(amount)
        {
            return taken;
        }
        self.quota.refused.fetch_add(1, Ordering::Relaxed);
        let _turn = self.turn.lock().await;
        loop {
            // Before the look, so that nothing is freed unnoticed in between.
            let mut freed = std::pin::pin!(self.quota.freed.notified());
            freed.as_mut().enable();
            if let Some(taken) = self.grant(amount) {
                return taken;
            }
            freed.await;
        }
    }

    /// Counts `amount` that is there already, whether the peer may have it or not.
    pub(crate) fn charge(self: &Arc<Self>, amount: usize) -> Taken {
        let mut taken = Taken { share: self.clone(), granted: 0, over: 0 };
        taken.resize(amount);
        taken
    }

    /// Whether the peer may have `amount` more.
    pub(crate) fn allows(&self, amount: usize) -> bool {
        amount <= self.allowance(&self.quota.held.lock())
    }

    /// What the peer holds.
    pub(crate) fn held(&self) -> usize {
        self.granted.load(Ordering::Relaxed) + self.over.load(Ordering::Relaxed)
    }

    /// Whether less than an eighth of the limit is free.
    pub(crate) fn is_short_for_all(&self) -> bool {
        let limit = self.quota.limit;
        limit - self.quota.held.lock().granted.min(limit) < limit / 8
    }

    /// Whether the peer holds all that it may.
    pub(crate) fn is_full(&self) -> bool {
        !self.allows(1)
    }
}

/// A part of a [`Share`], given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Taken {
    share: Arc<Share>,
    granted: usize,
    over: usize,
}

impl Taken {
    /// Gives back what is more than this.
    pub(crate) fn shrink(&mut self, amount: usize) {
        if amount < self.granted + self.over {
            self.resize(amount);
        }
    }

    /// Makes it this much, whether the peer may have it or not.
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
    fn peers_that_take_what_they_can_leave_room_for_the_next() {
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
    fn a_peer_that_holds_nothing_may_take_all_that_is_free() {
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
    async fn requests_of_a_peer_are_granted_in_order_and_beside_those_of_others() {
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
    fn what_is_there_already_is_charged_beyond_the_limit() {
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
