//! The limit on the bytes of the replies that sessions cache.
//!
//! 1. The cached replies of all sessions share the limit, and the actual size of each reply counts. A request whose
//!    reply is to be cached begins only if the largest reply that its session caches fits the client's share
//!    ([`Tally`]); otherwise the client has to retry later. For a slot that already holds a reply, the share is
//!    computed from twice the limit. The first slot of a session is exempt, so that every session makes progress.
//! 2. The server asks a client with a small share to use fewer slots ([`KeptReplies::target_slots`]).
//! 3. A request that neither caches a reply nor replaces a cached one takes no lock here, unless so much is cached that
//!    the client's share decides how many slots it should use.

use crate::admission::LimitUse;
use crate::state::channel::Channel;
use crate::state::error::StateError;
use crate::state::tally::{Account, Removable, Tally};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The limit on the bytes of the replies that sessions cache.
#[derive(Debug)]
pub(in crate::state) struct KeptReplies {
    max: usize,
    held: Mutex<Held>,
    /// The total of `held`, for readers without the lock.
    total: AtomicUsize,
}

#[derive(Debug, Default)]
struct Held {
    tally: Tally,
    /// How many requests were refused.
    refused: u64,
}

impl KeptReplies {
    /// A limit of `max` bytes.
    pub(in crate::state) fn new(max: u64) -> Self {
        let max = usize::try_from(max).unwrap_or(usize::MAX);
        Self { max, held: Mutex::default(), total: AtomicUsize::new(0) }
    }

    /// Counts `after` bytes for a slot that holds `before`, if they fit the client's share, or if the slot is `exempt`.
    ///
    /// # Errors
    /// [`StateError::TooMany`].
    pub(in crate::state) fn reserve(
        &self,
        account: Account,
        before: usize,
        after: usize,
        exempt: bool,
    ) -> Result<(), StateError> {
        if before == after {
            return Ok(());
        }
        let mut held = self.held.lock();
        if !exempt && after > before {
            let twice = self.max.saturating_mul(2);
            let limit = if before > 0 { twice } else { self.max };
            let allowed = held.tally.allowance(limit, account, &Removable::default());
            if after > allowed + before {
                held.refused += 1;
                return Err(StateError::TooMany);
            }
        }
        self.count(&mut held, account, before, after);
        Ok(())
    }

    /// Counts `after` bytes where there were `before`.
    pub(in crate::state) fn replace(&self, account: Account, before: usize, after: usize) {
        if before != after {
            self.count(&mut self.held.lock(), account, before, after);
        }
    }

    fn count(&self, held: &mut Held, account: Account, before: usize, after: usize) {
        held.tally.add(account, after.saturating_sub(before));
        held.tally.subtract(account.client, before.saturating_sub(after));
        self.total.store(held.tally.total(), Ordering::Relaxed);
    }

    /// How many slots a client with `sessions` sessions should use of one with the channel `fore`: so many that their
    /// largest cached replies fit its share; at least one, at most all.
    pub(in crate::state) fn target_slots(
        &self,
        account: Account,
        fore: Channel,
        sessions: usize,
    ) -> u32 {
        // A quarter of what the limit exceeds twice the total is at most the share (see `Tally::fair_share`). If that
        // suffices for all slots, the exact share does not matter.
        let total = self.total.load(Ordering::Relaxed);
        let least = self.max.saturating_sub(total.saturating_mul(2)) / 4;
        let target = slots_in(fore, least / sessions.max(1));
        if target == fore.slots {
            return target;
        }
        slots_in(fore, self.share(account) / sessions.max(1))
    }

    fn share(&self, account: Account) -> usize {
        self.held.lock().tally.fair_share(self.max, account)
    }

    /// The use of the limit, in bytes.
    pub(in crate::state) fn in_use(&self) -> LimitUse {
        let held = self.held.lock();
        LimitUse {
            name: "kept_reply_bytes",
            limit: self.max as u64,
            used: held.tally.total() as u64,
            refused: held.refused,
        }
    }
}

/// How many of the largest cached replies fit `bytes`; at least one slot, at most all.
fn slots_in(fore: Channel, bytes: usize) -> u32 {
    let fitting = bytes / fore.max_cached.max(1) as usize;
    u32::try_from(fitting).unwrap_or(u32::MAX).clamp(1, fore.slots)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::channel::tests::CHANNEL;
    use crate::state::client::ClientId;
    use proptest::prelude::*;
    use std::net::IpAddr;

    fn account(client: u8) -> Account {
        // The first is counted alone, the others at two addresses.
        let address = (client > 0).then(|| IpAddr::from([192, 0, 2, 1 + client % 2]));
        Account { client: ClientId(client.into()), address }
    }

    proptest! {
        #[test]
        fn target_slots_are_those_that_fit_the_share(
            held in prop::collection::vec((0..5_u8, 0..2000_usize), 0..10),
            slots in 1..6_u32,
            sessions in 1..4_usize,
            client in 0..5_u8,
        ) {
            let kept = KeptReplies::new(64 << 10);
            for (client, thousandth) in held {
                kept.replace(account(client), 0, thousandth * 10);
            }
            let fore = Channel { slots, ..CHANNEL };
            let exact = slots_in(fore, kept.share(account(client)) / sessions);
            prop_assert_eq!(kept.target_slots(account(client), fore, sessions), exact);
        }
    }
}
