//! Waiting for writeback: callers that need dirty pages in the store, or know that they are lost.
//!
//! 1. A caller waits for the pages that are dirty when it asks, not for those that are written to
//!    meanwhile.
//! 2. It looks at the pages in order, and begins as many writes as may be in flight each time. So the
//!    work is proportional to the number of writes, however scattered the pages are.

use super::Mapping;
use super::writeback::Ask;
use crate::ranges::RangeSet;
use crate::writeback::failing::Failing;
use std::ops::Range;
use std::sync::Arc;
use weir_vfs::Result;

/// What a caller that waits for writeback does after a permanent failure.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OnLoss {
    Stop,
    GoOn,
}

impl Mapping {
    /// Writes back the pages of `pages` that are dirty now, and waits until the store has them.
    /// Stops when a write of the file fails permanently: other pages may then still be dirty.
    ///
    /// # Errors
    /// That of the last permanent failure meanwhile.
    pub(crate) async fn write_back(self: &Arc<Self>, pages: Range<u64>) -> Result<()> {
        self.write_what_is_dirty(pages, OnLoss::Stop).await
    }

    /// Writes back the pages of `pages` that are dirty now, and waits until each is in the store,
    /// or lost. Does not wait for pages that are written to meanwhile.
    ///
    /// # Errors
    /// That of the last permanent failure meanwhile.
    pub(crate) async fn write_or_lose(self: &Arc<Self>, pages: Range<u64>) -> Result<()> {
        self.write_what_is_dirty(pages, OnLoss::GoOn).await
    }

    async fn write_what_is_dirty(
        self: &Arc<Self>,
        pages: Range<u64>,
        on_loss: OnLoss,
    ) -> Result<()> {
        let within = |run: &Range<u64>| run.start.max(pages.start)..run.end.min(pages.end);
        let (mut asked, mut todo, mut writes, mut errors) = {
            let state = self.state.lock();
            let mut todo = RangeSet::default();
            state.dirty.iter().for_each(|run| _ = todo.insert(within(&run)));
            let mut asked = todo.clone();
            // Pages under writeback count as well.
            state.writeback.values().for_each(|run| _ = asked.insert(within(run)));
            (asked, todo, state.next_write, state.errors.count())
        };
        let mut result = Ok(());
        // Pages of `asked` whose writes have failed, and since when.
        let mut retried = Failing::default();
        let mut ask = Ask::Now;
        loop {
            let ticket = self.changed.ticket();
            let some_left = !todo.is_empty();
            self.begin_first(&mut todo, ask);
            {
                let state = self.state.lock();
                if state.errors.count() != errors {
                    errors = state.errors.count();
                    result = Err(state.errors.last());
                    if on_loss == OnLoss::Stop {
                        return result;
                    }
                }
                // Also where another thread has started the write.
                if some_left {
                    writes = state.next_write;
                }
                // Failed pages are retried, here or by the flusher. A page that fails for the first
                // time now was written or lost in between, and then written to again: no caller of
                // this waits for that.
                retried.move_from(&mut asked, &state.failing);
                for run in retried.still_in(&state.failing).iter() {
                    ask = Ask::Background;
                    writes = state.next_write;
                    todo.insert(run);
                }
                let pending = state
                    .writeback
                    .iter()
                    .any(|(&n, r)| n < writes && r.start < pages.end && pages.start < r.end);
                if todo.is_empty() && !pending {
                    return result;
                }
            }
            self.changed.wait(ticket).await;
        }
    }

    /// Begins writes of the first pages of `todo`, as many as may be in flight. Takes out the pages of
    /// which a write has begun, and those before them that other threads have written or dropped.
    ///
    /// The cost depends on the writes that begin, not on what is left.
    fn begin_first(self: &Arc<Self>, todo: &mut RangeSet, ask: Ask) {
        // Earlier versions of these are being written.
        let mut busy = RangeSet::default();
        while let Some(run) = todo.first_from(0) {
            let mut begun = RangeSet::default();
            let stopped = self.start_writeback(run.clone(), ask, &mut begun).is_some();
            todo.remove(run.clone());
            let mut left = RangeSet::default();
            left.insert(run);
            begun.iter().for_each(|run| _ = left.remove(run));
            let left = left.intersection(&self.state.lock().dirty);
            let ends = stopped && !left.is_empty();
            let to = if stopped { &mut *todo } else { &mut busy };
            left.iter().for_each(|run| _ = to.insert(run));
            if ends {
                break;
            }
        }
        busy.iter().for_each(|run| _ = todo.insert(run));
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::mapping::writeback::MAX_IN_FLIGHT;
    use crate::testing::{Rig, poll_once};
    use std::pin::{Pin, pin};
    use weir_stores::fault::{Call, Rule, What, When};
    use weir_vfs::{Caller, Error, FileId, IoFlags, UNCACHED_MARK, UNCACHED_XATTR, XattrMode};

    type Asked = for<'a> fn(&'a Rig, FileId) -> Pin<Box<dyn Future<Output = ()> + 'a>>;

    #[test]
    fn other_pages_of_a_file_are_written_after_a_loss() {
        let calls: [Asked; 3] = [
            |rig, _| Box::pin(async { assert_eq!(rig.fs.unmount().await, Err(Error::Quota)) }),
            |rig, _| {
                Box::pin(async { assert_eq!(rig.fs.cache().flush().await, Err(Error::Quota)) })
            },
            |rig, id| {
                Box::pin(async move {
                    let mode = XattrMode::Either;
                    let set = (UNCACHED_XATTR, UNCACHED_MARK);
                    rig.fs.set_xattr(&Caller::Own, id.xattr(set.0), set.1, mode).await.unwrap();
                })
            },
        ];
        for call in calls {
            let rig = Rig::without_threads();
            let file = rig.create("f");
            let first = When::Touching(0..4096);
            let fail = What::Fail(Error::Quota);
            rig.store.add(Rule { call: Call::Write, when: first, what: fail });
            rig.always(Call::Write, What::Hold);
            for page in [0, 2] {
                file.write_at(&[1; 4096], page * 4096, IoFlags::empty()).unwrap();
            }
            let mut call = call(&rig, file.id());
            assert!(poll_once(&mut call).is_pending());
            assert_eq!((file.write_errors(), rig.store.held()), (1, 1));
            rig.store.release();
            pollster::block_on(call);
            assert!(file.open.mapping.state.lock().is_clean());
            assert_eq!(
                pollster::block_on(rig.fs.store().getattr(file.id())).unwrap().size,
                3 * 4096
            );
        }
    }

    #[test]
    fn a_sync_waits_for_a_write_that_another_thread_begins() {
        let rig = Rig::without_threads();
        let file = rig.create("f");
        rig.always(Call::Write, What::Hold);
        // One run more than may be in flight.
        for run in 0..=MAX_IN_FLIGHT as u64 {
            file.write_at(&[1; 4096], run * 8192, IoFlags::empty()).unwrap();
        }
        let mapping = &file.open.mapping;
        let mut sync = pin!(mapping.write_back(0..u64::MAX));
        assert!(poll_once(sync.as_mut()).is_pending());
        assert_eq!(rig.store.held(), MAX_IN_FLIGHT);
        rig.store.release_one();
        // As the flusher does.
        mapping.start_writeback(0..u64::MAX, Ask::Background, &mut RangeSet::default());
        for left in (1..=MAX_IN_FLIGHT).rev() {
            assert!(poll_once(sync.as_mut()).is_pending(), "{left} writes are not in the store");
            rig.store.release_one();
        }
        assert_eq!(poll_once(sync.as_mut()), std::task::Poll::Ready(Ok(())));
    }

    #[test]
    fn a_sync_writes_scattered_pages_once_and_not_those_that_are_written_to_meanwhile() {
        const RUNS: u64 = 3 * MAX_IN_FLIGHT as u64;
        let rig = Rig::without_threads();
        let file = rig.create("f");
        rig.always(Call::Write, What::Hold);
        let write = |run: u64| file.write_at(&[1; 4096], run * 8192, IoFlags::empty()).unwrap();
        (0..RUNS).for_each(|run| _ = write(run));
        let mapping = &file.open.mapping;
        let mut sync = pin!(mapping.write_back(0..u64::MAX));
        assert!(poll_once(sync.as_mut()).is_pending());
        // The last one is written by another thread meanwhile, and one is dropped.
        let begun = &mut RangeSet::default();
        assert!(rig.store.release_one());
        mapping.start_writeback(2 * RUNS - 2..2 * RUNS, Ask::Now, begun);
        assert_eq!(begun.len(), 1);
        // In the store already.
        write(0);
        let mut polls = 0;
        while poll_once(sync.as_mut()).is_pending() {
            assert!(rig.store.release_one(), "it waits for a write");
            polls += 1;
        }
        assert_eq!(polls, RUNS - 1);
        assert_eq!(file.stats().writeback_ops, RUNS);
        assert_eq!(mapping.state.lock().dirty.iter().collect::<Vec<_>>(), [0..1]);
    }
}
