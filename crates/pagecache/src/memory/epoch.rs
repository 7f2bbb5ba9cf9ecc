//! Epochs: when can memory that lock-free readers may still see be reused?
//!
//! 1. Memory that was unlinked and then tagged with [`Domain::now`] is safe to reuse once
//!    [`Domain::passed`] says so: every reader that could have found it has left since.
//! 2. Entering writes one cache line that belongs to the thread alone.
//! 3. Readers inside never wait, and no other reader waits for them; a reader that stays inside
//!    holds back reuse in its own domain, so no thread stays inside across I/O or a lock that is
//!    held across I/O.
//! 4. Each cache is a domain with its own epochs. A thread has one line for all domains, which
//!    names the domain that it is in; so entering costs the same however many there are, and a
//!    reader that is interrupted in one cache holds back nothing of another. A thread that enters a
//!    second domain while inside one is announced as everywhere, until it has left both.
//!
//! The scheme is the classic one with three epochs. It is our own rather than a crate's because
//! frames that wait for their epoch count against the budget, so any thread that is short of memory
//! must be able to count and recover them.
//!
//! 5. The destructor of a thread-local may enter after the thread's line is gone (it may drop a file, say). It
//!    gets a line for that guard alone.
//!
//! Soundness: the `unsafe` blocks are a guard's way back to its line. Guards cannot leave their thread, and do
//! not outlive its line, as no thread-local holds one; a line made for one guard is freed by that guard alone.

use crossbeam_utils::CachePadded;
use std::cell::Cell;
use weir_base::sync::atomic::{AtomicU64, Ordering, fence};
use weir_base::sync::{Arc, RwLock};

/// Inside no domain.
const OUTSIDE: u64 = 0;
/// Inside of more than one.
const EVERYWHERE: u64 = u64::MAX;
/// Low bits of a moment: the number of the domain; high bits: its epoch.
const ID_BITS: u32 = 16;
const ID_MASK: u64 = (1 << ID_BITS) - 1;
/// Difference between two consecutive epochs.
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
    /// It belongs to one guard, which frees it.
    is_for_one_guard: bool,
}

impl Local {
    fn register(is_for_one_guard: bool) -> Self {
        let entered = Arc::new(CachePadded::new(AtomicU64::new(OUTSIDE)));
        THREADS.write().push(entered.clone());
        Self { entered, depth: Cell::new(0), is_for_one_guard }
    }

    /// Enters a domain while inside one.
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
    static LOCAL: Local = Local::register(false);
}

/// While it exists, nothing that this thread finds in an index of the domain is reused.
pub(crate) struct Guard {
    /// Keeps the guard on its thread.
    local: *const Local,
}

/// A set of data that is read, unlinked and reused together: a cache.
pub(crate) struct Domain {
    /// The epoch and the domain's number.
    moment: CachePadded<AtomicU64>,
}

impl Domain {
    pub(crate) fn new() -> Self {
        // If two domains have the same number, readers of one hold back the other; nothing worse,
        // as a moment is only compared within its own domain. 0 and the mask mean none and all.
        let number = DOMAINS.fetch_add(1, Ordering::Relaxed) % (ID_MASK - 1) + 1;
        Self { moment: CachePadded::new(AtomicU64::new(STEP | number)) }
    }

    /// Enters the domain; may be nested.
    #[inline]
    pub(crate) fn enter(&self) -> Guard {
        let entered = LOCAL.try_with(|local| {
            let depth = local.depth.get();
            if depth == 0 {
                announce(&local.entered, self.moment.load(Ordering::Relaxed));
            } else {
                local.nest(self);
            }
            local.depth.set(depth + 1);
            Guard { local }
        });
        entered.unwrap_or_else(|_| self.enter_without_local())
    }

    /// Enters after the thread's line is gone.
    #[cold]
    fn enter_without_local(&self) -> Guard {
        let local = Box::new(Local::register(true));
        announce(&local.entered, self.moment.load(Ordering::Relaxed));
        local.depth.set(1);
        Guard { local: Box::into_raw(local) }
    }

    /// The tag for memory that was just unlinked.
    pub(crate) fn now(&self) -> u64 {
        fence(Ordering::SeqCst);
        self.moment.load(Ordering::SeqCst)
    }

    /// Whether all readers that could have found memory tagged `tag` have left.
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
        // Another thread may have been faster; then the epoch has advanced, too.
        let next = now + STEP;
        let _ = self.moment.compare_exchange(now, next, Ordering::SeqCst, Ordering::SeqCst);
        true
    }
}

/// Makes the entry visible before any later load of this thread. It also releases the thread's earlier
/// loads: another thread may see this entry, and never see that this one had left an earlier epoch.
#[inline]
fn announce(line: &AtomicU64, moment: u64) {
    if cfg!(all(target_arch = "x86_64", not(any(loom, shuttle, miri)))) {
        // On x86 a locked exchange is a full barrier, and cheaper than a store with `mfence`.
        line.swap(moment, Ordering::SeqCst);
    } else {
        line.store(moment, Ordering::Release);
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
            if local.is_for_one_guard {
                // SAFETY: made by `Box::into_raw` for this guard, and not used any more.
                drop(unsafe { Box::from_raw(self.local.cast_mut()) });
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::{Weak, mpsc};

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

    /// Waits: other tests' threads may be everywhere for a moment.
    fn passes_in_the_end(domain: &Domain, tag: u64) {
        while !passes(domain, tag) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_reader_delays_reuse_of_frames_unlinked_after_it_entered() {
        let domain = Domain::new();
        let mut tag = 0;
        while_inside(&[&domain, &domain], || {
            tag = domain.now();
            assert!(!passes(&domain, tag));
        });
        passes_in_the_end(&domain, tag);
    }

    #[test]
    fn a_reader_delays_reuse_until_its_outermost_guard_is_gone() {
        let domain = Domain::new();
        let outer = domain.enter();
        drop(domain.enter());
        let tag = domain.now();
        assert!(!passes(&domain, tag));
        drop(outer);
        passes_in_the_end(&domain, tag);
    }

    #[test]
    fn a_thread_is_everywhere_only_while_it_is_in_two_domains() {
        let (one, two) = (Domain::new(), Domain::new());
        let entered = || LOCAL.with(|local| local.entered.load(Ordering::Relaxed));
        let outer = one.enter();
        let inner = one.enter();
        assert_eq!(entered(), one.moment.load(Ordering::Relaxed));
        drop(two.enter());
        assert_eq!(entered(), EVERYWHERE, "until it has left both");
        drop((inner, outer));
        assert_eq!(entered(), OUTSIDE);
    }

    #[test]
    fn a_thread_that_ends_leaves_no_line() {
        let line = std::thread::spawn(|| {
            drop(Domain::new().enter());
            LOCAL.with(|local| Arc::downgrade(&local.entered))
        });
        assert_eq!(line.join().unwrap().strong_count(), 0);
    }

    /// Enters a domain when the thread ends, and reports whether that delayed reuse, and its line.
    struct Last(Arc<Domain>, mpsc::Sender<(bool, Weak<CachePadded<AtomicU64>>)>);

    impl Drop for Last {
        fn drop(&mut self) {
            let Self(domain, report) = self;
            // A panic in a destructor of a thread-local aborts the process.
            let entered = catch_unwind(AssertUnwindSafe(|| {
                let guard = domain.enter();
                // SAFETY: the guard exists.
                let line = Arc::downgrade(unsafe { &(*guard.local).entered });
                (!passes(domain, domain.now()), line)
            }));
            _ = entered.map(|entered| report.send(entered));
        }
    }

    #[test]
    fn a_thread_enters_also_after_its_line_is_gone() {
        thread_local! {
            static LAST: Cell<Option<Last>> = const { Cell::new(None) };
        }
        let domain = Arc::new(Domain::new());
        let (report, reported) = mpsc::channel();
        let last = Last(domain.clone(), report);
        let thread = std::thread::spawn(move || {
            LAST.set(Some(last));
            // Made later, so the thread's line is gone earlier.
            drop(Domain::new().enter());
        });
        let (delayed, line) = reported.recv().unwrap();
        assert!(delayed);
        thread.join().unwrap();
        assert_eq!(line.strong_count(), 0);
        passes_in_the_end(&domain, domain.now());
    }

    #[test]
    fn a_reader_delays_no_reuse_in_another_domain() {
        let (domain, other) = (Domain::new(), Domain::new());
        while_inside(&[&other], || passes_in_the_end(&domain, domain.now()));
    }

    #[test]
    fn a_reader_of_two_domains_delays_reuse_in_both() {
        let (one, two) = (Domain::new(), Domain::new());
        while_inside(&[&one, &two], || {
            assert!(!passes(&one, one.now()));
            assert!(!passes(&two, two.now()));
        });
        passes_in_the_end(&one, one.now());
        passes_in_the_end(&two, two.now());
    }

    #[test]
    fn domains_with_the_same_number_are_safe() {
        let moment = || CachePadded::new(AtomicU64::new((7 * STEP) | 3));
        let (one, two) = (Domain { moment: moment() }, Domain { moment: moment() });
        // Other tests' threads may be everywhere for a moment.
        while !two.advance() {
            std::thread::yield_now();
        }
        while_inside(&[&one], || {
            assert!(!passes(&one, one.now()));
            assert!(!passes(&two, two.now()));
        });
    }
}
