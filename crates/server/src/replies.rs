//! Memory of the replies to one connection's calls, from before they are encoded until they are
//! sent.
//!
//! 1. A call that may produce a large reply reserves the memory first ([`ReplyMemory::reserve`]).
//!    It waits only while it holds none; so two calls that each hold a part cannot deadlock.
//! 2. Memory that was not reserved is charged once it is in use; a small reply only if the socket
//!    does not accept it at once, so that most calls touch no counter that connections share. A
//!    connection that exceeds its limit in this way executes no further call
//!    ([`ReplyBudget::may_serve`]).
//! 3. The memory counts against the connection and against its address until the reply is sent.

use crate::admission::{Share, Taken};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes that a call may encode beyond its reservation before they are charged. A call that exceeds
/// this when no memory is free gets no further large result.
const OVERDRAFT_BYTES: usize = 16 << 10;

/// No memory is free for a further large result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoRoom;

/// The memory limit of one connection's replies.
#[derive(Debug)]
pub(crate) struct ReplyBudget {
    bytes: usize,
    free: Arc<Semaphore>,
    /// Bytes that were charged beyond the limit.
    over: AtomicUsize,
    /// The share of the connection's address.
    share: Arc<Share>,
}

impl ReplyBudget {
    /// A limit of `bytes` for the connection; they also count against `share`, that of its address.
    pub(crate) fn new(bytes: usize, share: Arc<Share>) -> Arc<Self> {
        let bytes = bytes.clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize));
        let free = Arc::new(Semaphore::new(bytes));
        Arc::new(Self { bytes, free, over: AtomicUsize::new(0), share })
    }

    /// Whether the connection may execute another call. `is_idle`: no call is executing, and no
    /// reply waits to be sent.
    pub(crate) fn may_serve(&self, is_idle: bool) -> bool {
        is_idle || (self.over.load(Ordering::Relaxed) <= self.bytes / 8 && !self.share.is_full())
    }

    /// Bytes that the connection's replies hold.
    #[cfg(test)]
    pub(crate) fn used_bytes(&self) -> usize {
        self.bytes - self.free.available_permits() + self.over.load(Ordering::Relaxed)
    }
}

/// The memory that the reply to one call holds.
#[derive(Debug)]
pub struct ReplyMemory {
    budget: Arc<ReplyBudget>,
    held: Mutex<HeldBytes>,
}

#[derive(Debug, Default)]
struct HeldBytes {
    /// Bytes encoded so far.
    made: usize,
    /// Bytes requested by [`ReplyMemory::reserve`], and those encoded before it.
    reserved: usize,
    permit: Option<OwnedSemaphorePermit>,
    /// Bytes charged beyond the connection's limit.
    over: usize,
    taken: Option<Taken>,
}

impl HeldBytes {
    fn permits(&self) -> usize {
        self.permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits)
    }

    /// Bytes charged for the reply.
    fn counted(&self) -> usize {
        self.permits() + self.over
    }

    fn add(&mut self, permit: OwnedSemaphorePermit) {
        match &mut self.permit {
            Some(before) => before.merge(permit),
            none => *none = Some(permit),
        }
    }
}

impl ReplyMemory {
    pub(crate) fn new(budget: Arc<ReplyBudget>) -> Arc<Self> {
        Arc::new(Self { budget, held: Mutex::default() })
    }

    /// Reserves memory for a result of `bytes` more bytes. Waits for it if the call holds none yet.
    ///
    /// # Errors
    /// [`NoRoom`]: none is free, and the call already holds some, so it must not wait for more.
    pub(crate) async fn reserve(&self, bytes: usize) -> Result<(), NoRoom> {
        let (more, holds_none) = {
            let held = self.held.lock();
            if held.made + bytes <= OVERDRAFT_BYTES {
                return Ok(());
            }
            let more = (held.made + bytes).saturating_sub(held.permits());
            (more.min(self.budget.bytes), held.counted() == 0)
        };
        if more == 0 {
            return Ok(());
        }
        let (free, share) = (self.budget.free.clone(), &self.budget.share);
        let (permit, taken) = if holds_none {
            // The semaphore is never closed.
            let permit = free.acquire_many_owned(more as u32).await.map_err(|_| NoRoom)?;
            (permit, share.take(more).await)
        } else {
            let permit = free.try_acquire_many_owned(more as u32).map_err(|_| NoRoom)?;
            (permit, share.try_take(more).ok_or(NoRoom)?)
        };
        let mut held = self.held.lock();
        held.reserved = held.made + bytes;
        // The reservation includes these bytes.
        self.budget.over.fetch_sub(std::mem::take(&mut held.over), Ordering::Relaxed);
        held.add(permit);
        let counted = held.counted();
        match &mut held.taken {
            Some(before) => {
                drop(taken);
                before.resize(counted);
            }
            none => *none = Some(taken),
        }
        Ok(())
    }

    /// Records that the reply has `bytes` bytes so far.
    pub(crate) fn set_made(&self, bytes: usize) {
        let mut held = self.held.lock();
        held.made = bytes;
        if bytes > held.reserved + OVERDRAFT_BYTES {
            self.count(&mut held);
        }
    }

    /// Records that the reply is complete with `bytes` bytes, and releases what was reserved beyond
    /// them.
    pub(crate) fn settle(&self, bytes: usize) {
        let mut held = self.held.lock();
        held.made = bytes;
        self.count(&mut held);
        let extra = held.counted().saturating_sub(bytes);
        let from_over = extra.min(held.over);
        held.over -= from_over;
        self.budget.over.fetch_sub(from_over, Ordering::Relaxed);
        if let Some(permit) = &mut held.permit {
            drop(permit.split(extra - from_over));
        }
        if let Some(taken) = &mut held.taken {
            taken.resize(bytes);
        }
    }

    /// Whether a complete reply of `bytes` bytes is charged only if it has to wait for the socket.
    pub(crate) fn counts_late(&self, bytes: usize) -> bool {
        bytes <= OVERDRAFT_BYTES && self.held.lock().counted() == 0
    }

    /// Whether the call has encoded more than it reserved, and no memory is free for that.
    pub(crate) fn is_overdrawn(&self) -> bool {
        let held = self.held.lock();
        let beyond = held.made > held.reserved + OVERDRAFT_BYTES;
        beyond && (held.over > 0 || self.budget.share.is_full())
    }

    /// Charges all that was encoded, even beyond the limit.
    fn count(&self, held: &mut HeldBytes) {
        let Some(more) = held.made.checked_sub(held.counted()).filter(|&more| more > 0) else {
            return;
        };
        let permits = u32::try_from(more).unwrap_or(u32::MAX);
        match self.budget.free.clone().try_acquire_many_owned(permits) {
            Ok(permit) => held.add(permit),
            Err(_) => {
                held.over += more;
                self.budget.over.fetch_add(more, Ordering::Relaxed);
            }
        }
        let counted = held.counted();
        match &mut held.taken {
            Some(taken) => taken.resize(counted),
            none => *none = Some(self.budget.share.charge(counted)),
        }
    }
}

impl Drop for ReplyMemory {
    fn drop(&mut self) {
        self.budget.over.fetch_sub(self.held.get_mut().over, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::Quota;
    use futures_util::FutureExt;

    const CONNECTION: usize = 4 << 20;
    const MEGABYTE: usize = 1 << 20;

    fn budget(quota: &Arc<Quota>) -> Arc<ReplyBudget> {
        ReplyBudget::new(CONNECTION, quota.share())
    }

    #[test]
    fn a_call_waits_for_room_unless_it_holds_some() {
        let budget = budget(&Quota::new(64 << 20));
        let calls: Vec<_> = (0..5).map(|_| ReplyMemory::new(budget.clone())).collect();
        let reserve = |i: usize| calls[i].reserve(MEGABYTE);
        calls[4].set_made(200);
        for i in 0..4 {
            assert_eq!(reserve(i).now_or_never(), Some(Ok(())));
        }
        assert_eq!(reserve(0).now_or_never(), Some(Ok(())), "none of it was made yet");
        calls[0].set_made(MEGABYTE);
        assert_eq!(reserve(0).now_or_never(), Some(Err(NoRoom)));
        let mut waits = Box::pin(calls[4].reserve(MEGABYTE - 200));
        assert_eq!((&mut waits).now_or_never(), None);
        calls[1].settle(0);
        assert_eq!(waits.now_or_never(), Some(Ok(())));
        drop(calls);
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn unreserved_replies_are_charged_and_stop_the_connection() {
        let quota = Quota::new(64 << 20);
        let budget = budget(&quota);
        let replies: Vec<_> = std::iter::from_fn(|| {
            let reply = ReplyMemory::new(budget.clone());
            reply.settle(MEGABYTE);
            budget.may_serve(false).then_some(reply)
        })
        .collect();
        assert_eq!(replies.len(), 4, "one more goes beyond the limit");
        assert!(budget.may_serve(false), "that one is gone");
        assert_eq!((budget.used_bytes(), quota.used()), (CONNECTION, CONNECTION));
        let over = ReplyMemory::new(budget.clone());
        over.set_made(OVERDRAFT_BYTES);
        assert!(!over.is_overdrawn());
        over.set_made(OVERDRAFT_BYTES + 1);
        assert!(over.is_overdrawn());
        over.settle(100);
        assert_eq!(quota.used(), CONNECTION + 100);
        drop((replies, over));
        assert_eq!((budget.used_bytes(), quota.used()), (0, 0));
    }

    #[test]
    fn an_address_is_charged_for_all_its_connections() {
        let quota = Quota::new(8 << 20);
        let share = quota.share();
        let first = ReplyBudget::new(CONNECTION, share.clone());
        let second = ReplyBudget::new(CONNECTION, share);
        let reply = ReplyMemory::new(first.clone());
        assert_eq!(reply.reserve(CONNECTION).now_or_never(), Some(Ok(())));
        assert!(!second.may_serve(false) && second.may_serve(true));
        let waits = ReplyMemory::new(second.clone());
        assert_eq!(waits.reserve(MEGABYTE).now_or_never(), None);
        let other = ReplyMemory::new(budget(&quota));
        assert_eq!(other.reserve(MEGABYTE).now_or_never(), Some(Ok(())), "of another address");
        drop(reply);
        assert_eq!(waits.reserve(MEGABYTE).now_or_never(), Some(Ok(())));
    }
}
