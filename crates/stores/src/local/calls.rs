//! Calls that the store makes on the thread of its caller: those of metadata.
//!
//! Such a call takes less time than a switch to another thread, as long as the disk answers. On a slow or dead disk it
//! holds its thread up.
//!
//! 1. At most [`MOST`] calls that can wait hold threads at any time. The others wait without a thread, and none of them
//!    is given a place that it has not asked for: its future may not be polled.
//! 2. The program says, by [`InPlace`], how a thread that may be held up hands on what else it had to do.

use super::options::InPlace;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::Notify;
use weir_vfs::Result;

/// Most threads that calls of one store hold, without those that cannot wait.
const MOST: usize = 256;

/// The calls of a store on its callers' threads.
pub(in crate::local) struct Calls {
    taken: AtomicUsize,
    freed: Notify,
    in_place: InPlace,
}

/// A call's place; free again when dropped.
struct Place<'a>(&'a Calls);

impl Calls {
    pub(in crate::local) const fn new(in_place: InPlace) -> Self {
        Self { taken: AtomicUsize::new(0), freed: Notify::const_new(), in_place }
    }

    /// Makes a call on the thread that polls the future, once there is a place for it.
    pub(in crate::local) async fn make<T>(
        &self,
        call: impl FnOnce() -> Result<T> + Send,
    ) -> Result<T> {
        let _place = match self.place() {
            Some(place) => place,
            None => self.freed_place().await,
        };
        self.run(call)
    }

    async fn freed_place(&self) -> Place<'_> {
        loop {
            let mut freed = pin!(self.freed.notified());
            // Before the look, which may miss a place that is freed after it.
            freed.as_mut().enable();
            if let Some(place) = self.place() {
                return place;
            }
            freed.await;
        }
    }

    fn place(&self) -> Option<Place<'_>> {
        let more = |taken| (taken < MOST).then_some(taken + 1);
        let took = self.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        took.ok().map(|_| Place(self))
    }

    /// Makes a call that must not wait for a place.
    pub(in crate::local) fn run<T>(&self, call: impl FnOnce() -> T) -> T {
        let (mut call, mut result) = (Some(call), None);
        (self.in_place)(&mut || result = call.take().map(|call| call()));
        result.expect("`InPlace` makes the call once")
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if self.0.taken.fetch_sub(1, Ordering::AcqRel) == MOST {
            self.0.freed.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn calls_beyond_the_most_wait_without_a_thread() {
        let calls = Calls::new(|call| call());
        let held: Vec<_> = (0..MOST).map(|_| calls.place().unwrap()).collect();
        assert!(calls.place().is_none());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (tx, made) = channel();
        runtime.block_on(async {
            let call = calls.make(|| tx.send(()).map_err(|_| weir_vfs::Error::Io));
            tokio::pin!(call);
            tokio::select! {
                biased;
                _ = &mut call => panic!("there is no place"),
                () = std::future::ready(()) => {}
            }
            assert!(made.try_recv().is_err());
            drop(held);
            assert_eq!(call.await, Ok(()));
        });
        assert_eq!(made.try_iter().count(), 1);
        assert_eq!(calls.taken.load(Ordering::Acquire), 0);
    }

    #[test]
    fn the_program_decides_how_a_call_is_made() {
        thread_local!(static WITHIN: std::cell::Cell<bool> = const { std::cell::Cell::new(false) });
        let calls = Calls::new(|call| {
            WITHIN.set(true);
            call();
            WITHIN.set(false);
        });
        assert!(calls.run(|| WITHIN.get()));
        assert!(!WITHIN.get());
    }
}
