//! The slots of a session (RFC 8881 section 2.10.6): each carries one numbered call at a time, so
//! that the server executes it exactly once, however often it is sent.
//!
//! 1. A slot has one call at a time, whose number is one higher than that of the last call that the
//!    server executed.
//! 2. A slot whose call was sent without a known outcome is never reused; its session is killed. A
//!    slot that is dropped before the call was sent is free again.
//! 3. Waiting calls get slots in order of arrival.

use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::{Notify, oneshot};
use weir_base::sync::Mutex;

/// The slots of one session.
pub(in crate::v4) struct Slots {
    table: Mutex<Table>,
    /// Notified when a call has ended of a session that was killed.
    ended: Notify,
}

struct Table {
    slots: Vec<State>,
    /// Slots from this number on must not be used at the moment.
    limit: usize,
    waiting: VecDeque<oneshot::Sender<Slot>>,
    /// The session is unusable.
    dead: bool,
}

#[derive(Clone, Copy)]
struct State {
    sequence: u32,
    busy: bool,
}

/// A slot in use; to be returned with [`Slot::release`].
pub(in crate::v4) struct Slot {
    slots: Arc<Slots>,
    /// Its number.
    pub(in crate::v4) id: u32,
    /// The number of the call.
    pub(in crate::v4) sequence: u32,
    /// The highest slot in use.
    pub(in crate::v4) highest: u32,
    released: bool,
    /// Whether the server may have its call.
    sent: bool,
}

/// Most slots that a client uses, even if the server offers more.
pub(in crate::v4) const MAX_SLOTS: usize = 256;

impl Slots {
    /// `count` unused slots.
    pub(in crate::v4) fn new(count: usize) -> Arc<Self> {
        let count = count.clamp(1, MAX_SLOTS);
        let slots = vec![State { sequence: 1, busy: false }; count];
        let table = Table { slots, limit: count, waiting: VecDeque::new(), dead: false };
        Arc::new(Self { table: Mutex::new(table), ended: Notify::new() })
    }

    /// Waits for a slot; `None` if the session was killed.
    pub(in crate::v4) async fn acquire(self: &Arc<Self>) -> Option<Slot> {
        let waiting = {
            let mut table = self.table.lock();
            if table.dead {
                return None;
            }
            if let Some(slot) = table.take(self) {
                return Some(slot);
            }
            let (give, waiting) = oneshot::channel();
            table.waiting.push_back(give);
            waiting
        };
        waiting.await.ok()
    }

    /// Applies the server's target for the highest slot.
    pub(in crate::v4) fn set_target(self: &Arc<Self>, highest: u32) {
        let mut table = self.table.lock();
        table.limit = (highest as usize).saturating_add(1).min(MAX_SLOTS);
        let new = State { sequence: 1, busy: false };
        if table.limit > table.slots.len() {
            let limit = table.limit;
            table.slots.resize(limit, new);
        }
        self.serve(&mut table);
    }

    /// Kills the session: waiting and later calls get no slot.
    pub(in crate::v4) fn kill(&self) {
        let mut table = self.table.lock();
        table.dead = true;
        table.waiting.clear();
    }

    /// Waits for the end of the calls in progress of a session that was killed. One task waits for it.
    pub(in crate::v4) async fn calls_ended(&self) {
        while self.table.lock().slots.iter().any(|slot| slot.busy) {
            self.ended.notified().await;
        }
    }

    /// Assigns free slots to waiters.
    fn serve(self: &Arc<Self>, table: &mut Table) {
        while !table.dead
            && !table.waiting.is_empty()
            && let Some(mut slot) = table.take(self)
        {
            // If a waiter has been dropped, the slot goes to the next one.
            while let Some(waiting) = table.waiting.pop_front() {
                match waiting.send(slot) {
                    Ok(()) => break,
                    Err(unwanted) => slot = unwanted,
                }
                if table.waiting.is_empty() {
                    slot.released = true;
                    table.slots[slot.id as usize].busy = false;
                    return;
                }
            }
        }
    }
}

impl Table {
    /// Takes the lowest free slot.
    fn take(&mut self, slots: &Arc<Slots>) -> Option<Slot> {
        let limit = self.limit.min(self.slots.len());
        let id = self.slots[..limit].iter().position(|slot| !slot.busy)?;
        self.slots[id].busy = true;
        let highest = self.slots.iter().rposition(|slot| slot.busy).unwrap_or(id);
        Some(Slot {
            slots: Arc::clone(slots),
            id: id as u32,
            sequence: self.slots[id].sequence,
            highest: highest as u32,
            released: false,
            sent: false,
        })
    }
}

impl Slot {
    /// Its call is about to be sent.
    pub(in crate::v4) fn begin(&mut self) {
        self.sent = true;
    }

    /// Returns the slot; `executed`: the server has counted the call.
    pub(in crate::v4) fn release(mut self, executed: bool) {
        self.free(executed);
    }

    fn free(&mut self, executed: bool) {
        self.released = true;
        let mut table = self.slots.table.lock();
        let slot = &mut table.slots[self.id as usize];
        slot.sequence = slot.sequence.wrapping_add(executed.into());
        slot.busy = false;
        self.slots.serve(&mut table);
        if table.dead {
            self.slots.ended.notify_one();
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.released {
            return;
        }
        // Else the waiter was dropped after it had been assigned this slot.
        if self.sent {
            self.slots.kill();
        }
        self.free(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn slots_are_numbered_reused_and_waited_for() {
        let slots = Slots::new(2);
        let take = || slots.acquire().now_or_never();
        let (a, b) = (take().flatten().unwrap(), take().flatten().unwrap());
        assert_eq!((a.id, a.sequence, b.id, b.highest), (0, 1, 1, 1));
        let mut waiting = Box::pin(slots.acquire());
        assert!(waiting.as_mut().now_or_never().is_none());
        a.release(true);
        let c = waiting.now_or_never().flatten().unwrap();
        assert_eq!((c.id, c.sequence), (0, 2));
        b.release(false);
        let mut d = take().flatten().unwrap();
        assert_eq!((d.id, d.sequence), (1, 1));
        slots.set_target(2);
        assert_eq!(take().flatten().map(|slot| slot.release(true)), Some(()));
        c.release(true);
        d.begin();
        drop(d);
        assert!(take().flatten().is_none());
    }

    #[test]
    fn a_killed_sessions_calls_in_progress_are_waited_for() {
        let slots = Slots::new(3);
        let take = || slots.acquire().now_or_never().flatten().unwrap();
        let (mut lost, answered) = (take(), take());
        lost.begin();
        drop(lost);
        let mut ended = Box::pin(slots.calls_ended());
        assert!(ended.as_mut().now_or_never().is_none());
        answered.release(true);
        assert!(ended.now_or_never().is_some());
    }

    #[test]
    fn an_abandoned_waiter_costs_no_slot() {
        let slots = Slots::new(1);
        let held = slots.acquire().now_or_never().flatten().unwrap();
        let mut abandoned = Box::pin(slots.acquire());
        assert!(abandoned.as_mut().now_or_never().is_none());
        drop(abandoned);
        held.release(true);
        assert_eq!(slots.acquire().now_or_never().flatten().map(|s| s.sequence), Some(2));
    }

    #[test]
    fn a_slot_granted_to_an_abandoned_waiter_is_freed() {
        let slots = Slots::new(1);
        let held = slots.acquire().now_or_never().flatten().unwrap();
        let mut abandoned = Box::pin(slots.acquire());
        assert!(abandoned.as_mut().now_or_never().is_none());
        let mut next = Box::pin(slots.acquire());
        assert!(next.as_mut().now_or_never().is_none());
        held.release(true);
        drop(abandoned);
        assert_eq!(next.now_or_never().flatten().map(|slot| slot.sequence), Some(2));
    }
}
