//! What the state of clients costs in memory: each kind is bounded in number (`state::Limits`), so
//! this bounds its bytes. Handles of files are not counted; the page cache has them.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use weir_server::StateLoad;

struct Counting;

static IN_USE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: hands everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        IN_USE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's word.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's word.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes that each of `count` takes.
fn each(what: &str, count: usize, mut make: impl FnMut(usize)) -> usize {
    let before = IN_USE.load(Ordering::Relaxed);
    (0..count).for_each(&mut make);
    let bytes = (IN_USE.load(Ordering::Relaxed) - before) / count;
    println!("{count} {what}: {bytes} bytes each");
    bytes
}

#[test]
fn ten_thousand_files_a_thousand_sessions_a_hundred_thousand_locks_fit_in_their_bounds() {
    let mut load = StateLoad::default();
    let session = each("sessions, a client each", 1000, |_| assert!(load.add_session()));
    let slots = each("sessions' 64 slots in use", 1000, |number| assert!(load.use_slots(number)));
    let file = each("open files", 10_000, |_| assert!(load.open_file()));
    let lock = each("locked ranges", 100_000, |number| assert!(load.lock_range(number)));
    assert!(session < 3 << 10, "{session} bytes for a session and its client");
    assert!(slots < 8 << 10, "{slots} bytes for 64 slots in use");
    assert!(file < 1500, "{file} bytes for an open file");
    assert!(lock < 250, "{lock} bytes for a locked range");
    assert!(load.purge(), "nothing is left");
}
