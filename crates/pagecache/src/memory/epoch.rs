//! Epochs: when may memory that lock-free readers can still see be used again?
//!
//! 1. What was unlinked and then tagged with [`Domain::now`] is safe to reuse once
//!    [`Domain::passed`] says so: every reader that could have found it has left since.
//! 2. Entering writes one cache line that belongs to the thread alone.
//! 3. Readers inside never wait and are never waited for by other readers; one that stays inside
//!    holds back reuse in its own domain, so no thread stays inside across I/O or a lock that is held
//!    across I/O.
//! 4. Each cache is a domain, with epochs of its own. A thread has one line for all domains, and its
//!    announcement names the domain that it is in; so entering costs the same however many there
//!    are, and a reader who is interrupted in one cache holds back nothing of another. Who enters a
//!    second domain while inside of one is announced as being everywhere, until it has left both.
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
use weir_base::sync::{Arc, RwLock};

/// Not inside of any domain.
const OUTSIDE: u64 = 0;
/// Inside of more than one.
const EVERYWHERE: u64 = u64::MAX;
/// Low bits of a moment: which domain; the others: which epoch of it.
const ID_BITS: u32 = 16;
const ID_MASK: u64 = (1 << ID_BITS) - 1;
/// From one epoch to the next.
const STEP: u64 = 1 << ID_BITS;

weir_base::sync::lazy_global! {
    // The lines of all threads.
    static THREADS: RwLock<Vec<Arc<CachePadded<AtomicU64>>>> = RwLock::new(Vec::new());
}

weir_base::sync::lazy_global! {
    // Domains made so far.
    static DOMAINS: AtomicU64 = AtomicU64::new(0);
}

/// This thread's line: the moment at which it entered, or [`OUTSIDE`], or [`EVERYWHERE`].
struct Local {
    entered: Arc<CachePadded<AtomicU64>>,
    depth: Cell<u32>,
}

impl Local {
    fn register() -> Self {
        let entered = Arc::new(CachePadded::new(AtomicU64::new(OUTSIDE)));
        THREADS.write().push(entered.clone());
        Self { entered, depth: Cell::new(0) }
    }

    /// Enters a domain, being inside of one already.
    #[cold]
    fn nest(&self, domain: &Domain) {
        let entered = self.entered.load(Ordering::Relaxed);
        if (entered ^ domain.moment.load(Ordering::Relaxed)) & ID_MASK != 0 {
            announce(&self.entered, EVERYWHERE);
        }
    }
}

// Loom ends its globals before the last thread's locals; there each run starts with new ones.
#[cfg(not(loom))]
impl Drop for Local {
    fn drop(&mut self) {
        THREADS.write().retain(|t| !Arc::ptr_eq(t, &self.entered));
    }
}

weir_base::sync::thread_local! {
    static LOCAL: Local = Local::register();
}

/// While it lives, nothing that this thread finds in an index of the domain is used again.
pub(crate) struct Guard {
    /// Keeps the guard on its thread.
    local: *const Local,
}

/// What is read, unlinked and used again together: a cache.
pub(crate) struct Domain {
    /// The epoch, and which domain it is.
    moment: CachePadded<AtomicU64>,
}

impl Domain {
    pub(crate) fn new() -> Self {
        // Where two have the same number, readers of one hold back the other, and that is all: a
        // moment is compared with those of its own domain. 0 and the mask stand for none and all.
        let number = DOMAINS.fetch_add(1, Ordering::Relaxed) % (ID_MASK - 1) + 1;
        Self { moment: CachePadded::new(AtomicU64::new(STEP | number)) }
    }

    /// Enters; nests.
    #[inline]
    pub(crate) fn enter(&self) -> Guard {
        LOCAL.with(|local| {
            let depth = local.depth.get();
            if depth == 0 {
                announce(&local.entered, self.moment.load(Ordering::Relaxed));
            } else {
                local.nest(self);
            }
            local.depth.set(depth + 1);
            Guard { local }
        })
    }

    /// The tag for something that has just been unlinked.
    pub(crate) fn now(&self) -> u64 {
        fence(Ordering::SeqCst);
        self.moment.load(Ordering::SeqCst)
    }

    /// Whether everybody who could have found what was tagged `tag` has left.
    pub(crate) fn passed(&self, tag: u64) -> bool {
        self.moment.load(Ordering::SeqCst) >= tag + 2 * STEP
    }

    /// Moves the epoch forward if every thread inside of this domain entered in the current one.
    pub(crate) fn advance(&self) -> bool {
        let now = self.moment.load(Ordering::SeqCst);
        fence(Ordering::SeqCst);
        for thread in THREADS.read().iter() {
            let entered = thread.load(Ordering::SeqCst);
            let here = (entered ^ now) & ID_MASK == 0 || entered == EVERYWHERE;
            if here && entered != now {
                return false;
            }
        }
        // Another thread may have come first; then it has moved, too.
        let next = now + STEP;
        let _ = self.moment.compare_exchange(now, next, Ordering::SeqCst, Ordering::SeqCst);
        true
    }
}

/// Makes the entry visible before any later load of this thread.
#[inline]
fn announce(line: &AtomicU64, moment: u64) {
    if cfg!(all(target_arch = "x86_64", not(any(loom, shuttle, miri)))) {
        // On x86 a locked exchange is a full barrier, and cheaper than a store with `mfence`.
        line.swap(moment, Ordering::SeqCst);
    } else {
        line.store(moment, Ordering::Relaxed);
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

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// Runs `meanwhile` while another thread has entered `domains`, in this order.
    fn while_inside(domains: &[&Domain], meanwhile: impl FnOnce()) {
        let (inside, is_inside) = mpsc::channel();
        let (leave, may_leave) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let _guards: Vec<_> = domains.iter().map(|domain| domain.enter()).collect();
                inside.send(()).unwrap();
                may_leave.recv().unwrap();
            });
            is_inside.recv().unwrap();
            meanwhile();
            leave.send(()).unwrap();
        });
    }

    fn passes(domain: &Domain, tag: u64) -> bool {
        for _ in 0..10 {
            domain.advance();
        }
        domain.passed(tag)
    }

    /// Waits: threads of other tests may be everywhere for a moment.
    fn passes_in_the_end(domain: &Domain, tag: u64) {
        while !passes(domain, tag) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_reader_inside_holds_back_what_was_unlinked_after_it_entered() {
        let domain = Domain::new();
        let mut tag = 0;
        while_inside(&[&domain, &domain], || {
            tag = domain.now();
            assert!(!passes(&domain, tag));
        });
        passes_in_the_end(&domain, tag);
    }

    #[test]
    fn a_reader_inside_holds_back_nothing_of_another_domain() {
        let (domain, other) = (Domain::new(), Domain::new());
        while_inside(&[&other], || passes_in_the_end(&domain, domain.now()));
    }

    #[test]
    fn a_reader_inside_of_two_domains_holds_back_both() {
        let (one, two) = (Domain::new(), Domain::new());
        while_inside(&[&one, &two], || {
            assert!(!passes(&one, one.now()));
            assert!(!passes(&two, two.now()));
        });
        passes_in_the_end(&one, one.now());
        passes_in_the_end(&two, two.now());
    }

    #[test]
    fn domains_of_the_same_number_are_safe_though_not_apart() {
        let moment = || CachePadded::new(AtomicU64::new((7 * STEP) | 3));
        let (one, two) = (Domain { moment: moment() }, Domain { moment: moment() });
        // Threads of other tests may be everywhere for a moment.
        while !two.advance() {
            std::thread::yield_now();
        }
        while_inside(&[&one], || {
            assert!(!passes(&one, one.now()));
            assert!(!passes(&two, two.now()));
        });
    }
}
