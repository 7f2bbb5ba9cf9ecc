//! Epochs: when may memory that lock-free readers can still see be used again?
//!
//! 1. What was unlinked and then tagged with [`now`] is safe to reuse once [`passed`] says so:
//!    every reader that could have found it has left since.
//! 2. Entering writes one cache line that belongs to the thread alone.
//! 3. Readers inside never wait and are never waited for by other readers; one that stays inside
//!    holds back reuse, so nobody stays inside across I/O or a lock that is held across I/O.
//!
//! The scheme is the classic one with three epochs. It is our own rather than a crate's because
//! the budget counts frames that wait for their epoch, so they have to be countable, and
//! recoverable by whichever thread is short of memory.
//!
//! Soundness: the one `unsafe` block is a guard's way back to its thread's line. Guards cannot
//! leave their thread, and do not outlive it, as no thread-local holds one.

use crossbeam_utils::CachePadded;
use std::cell::Cell;
use weir_base::sync::atomic::{AtomicU64, Ordering, fence};
use weir_base::sync::{Arc, Mutex};

/// Not inside.
const OUTSIDE: u64 = 0;

struct Domain {
    epoch: AtomicU64,
    threads: Mutex<Vec<Arc<CachePadded<AtomicU64>>>>,
}

weir_base::sync::lazy_global! {
    static DOMAIN: Domain =
        Domain { epoch: AtomicU64::new(1), threads: Mutex::new(Vec::new()) };
}

/// This thread's line: the epoch in which it entered, or [`OUTSIDE`].
struct Local {
    entered: Arc<CachePadded<AtomicU64>>,
    depth: Cell<u32>,
}

impl Local {
    fn register() -> Self {
        let entered = Arc::new(CachePadded::new(AtomicU64::new(OUTSIDE)));
        DOMAIN.threads.lock().push(entered.clone());
        Self { entered, depth: Cell::new(0) }
    }
}

// Loom ends its globals before the last thread's locals; there each run starts with new ones.
#[cfg(not(loom))]
impl Drop for Local {
    fn drop(&mut self) {
        DOMAIN.threads.lock().retain(|t| !Arc::ptr_eq(t, &self.entered));
    }
}

weir_base::sync::thread_local! {
    static LOCAL: Local = Local::register();
}

/// While it lives, nothing that this thread finds in an index is used again.
pub(crate) struct Guard {
    /// Keeps the guard on its thread.
    local: *const Local,
}

/// Enters; nests.
#[inline]
pub(crate) fn enter() -> Guard {
    LOCAL.with(|local| {
        let depth = local.depth.get();
        if depth == 0 {
            announce(&local.entered, DOMAIN.epoch.load(Ordering::Relaxed));
        }
        local.depth.set(depth + 1);
        Guard { local }
    })
}

/// Makes the entry visible before any later load of this thread.
#[inline]
fn announce(line: &AtomicU64, epoch: u64) {
    if cfg!(all(target_arch = "x86_64", not(any(loom, shuttle, miri)))) {
        // On x86 a locked exchange is a full barrier, and cheaper than a store with `mfence`.
        line.swap(epoch, Ordering::SeqCst);
    } else {
        line.store(epoch, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
}

impl Drop for Guard {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: a guard stays on its thread, and on its stack, so it is gone before the thread's
        // line is.
        let local = unsafe { &*self.local };
        let depth = local.depth.get() - 1;
        local.depth.set(depth);
        if depth == 0 {
            local.entered.store(OUTSIDE, Ordering::Release);
        }
    }
}

/// The tag for something that has just been unlinked.
pub(crate) fn now() -> u64 {
    fence(Ordering::SeqCst);
    DOMAIN.epoch.load(Ordering::SeqCst)
}

/// Whether everybody who could have found what was tagged `tag` has left.
pub(crate) fn passed(tag: u64) -> bool {
    DOMAIN.epoch.load(Ordering::SeqCst) >= tag + 2
}

/// Moves the epoch forward if every thread inside entered in the current one.
pub(crate) fn advance() -> bool {
    let Some(threads) = DOMAIN.threads.try_lock() else { return false };
    let epoch = DOMAIN.epoch.load(Ordering::SeqCst);
    fence(Ordering::SeqCst);
    for thread in threads.iter() {
        let entered = thread.load(Ordering::SeqCst);
        if entered != OUTSIDE && entered != epoch {
            return false;
        }
    }
    // The lock keeps others from advancing meanwhile.
    DOMAIN.epoch.store(epoch + 1, Ordering::SeqCst);
    true
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_reader_inside_holds_back_what_was_unlinked_after_it_entered() {
        let (inside, is_inside) = mpsc::channel();
        let (leave, may_leave) = mpsc::channel::<()>();
        let reader = std::thread::spawn(move || {
            let _guard = enter();
            let _nested = enter();
            inside.send(()).unwrap();
            may_leave.recv().unwrap();
        });
        is_inside.recv().unwrap();
        let tag = now();
        for _ in 0..10 {
            advance();
        }
        assert!(!passed(tag));
        leave.send(()).unwrap();
        reader.join().unwrap();
        // Other tests' threads may be inside for a moment.
        while !passed(tag) {
            advance();
        }
    }
}
