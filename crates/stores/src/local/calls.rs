//! Calls that the store makes on the thread of its caller: those of metadata.
//!
//! Such a call takes less time than a switch to another thread, as long as the disk answers. On a slow or dead disk it
//! holds its thread up.
//!
//! 1. At most [`MOST`] calls of a store hold threads at any time. Others wait without a thread.
//! 2. The program says, by [`InPlace`], how a thread that may be held up hands on what else it had to do.

use super::options::InPlace;
use tokio::sync::{Semaphore, SemaphorePermit};
use weir_vfs::{Error, Result};

/// Most threads that the calls of one store hold.
const MOST: usize = 256;

/// The calls of a store on its callers' threads.
pub(in crate::local) struct Calls {
    places: Semaphore,
    in_place: InPlace,
}

impl Calls {
    pub(in crate::local) const fn new(in_place: InPlace) -> Self {
        Self { places: Semaphore::const_new(MOST), in_place }
    }

    /// Makes a call on the thread that polls the future, once the call has a place.
    pub(in crate::local) async fn make<T>(
        &self,
        call: impl FnOnce() -> Result<T> + Send,
    ) -> Result<T> {
        let _place = match self.places.try_acquire() {
            Ok(place) => place,
            // The semaphore is never closed.
            Err(_) => self.places.acquire().await.map_err(|_| Error::WouldBlock)?,
        };
        self.run(call)
    }

    /// A place for a call that cannot wait for one.
    ///
    /// # Errors
    ///
    /// [`Error::WouldBlock`]: there is none now.
    pub(in crate::local) fn place(&self) -> Result<SemaphorePermit<'_>> {
        self.places.try_acquire().map_err(|_| Error::WouldBlock)
    }

    /// Makes a call that has a place, or is not worth one.
    pub(in crate::local) fn run<T>(&self, call: impl FnOnce() -> T) -> T {
        let (mut call, mut result) = (Some(call), None);
        (self.in_place)(&mut || result = call.take().map(|call| call()));
        result.expect("`InPlace` makes the call once")
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
        assert_eq!(calls.place().map(drop), Err(Error::WouldBlock));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (tx, made) = channel();
        runtime.block_on(async {
            let call = calls.make(|| tx.send(()).map_err(|_| Error::Io));
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
        assert!(calls.place().is_ok());
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
