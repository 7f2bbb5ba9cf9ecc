//! I6: what the hit path does not do.

mod common;

use common::{Rig, write_all};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use weir_vfs::IoFlags;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: forwards all calls to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: guaranteed by the caller.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn i6_a_hit_allocates_nothing() {
    let rig = Rig::new(1024);
    let file = rig.create("f");
    write_all(&file, &vec![1; 2 << 20], 0);
    file.sync(true).unwrap();
    let mut buf = vec![0; 1 << 20];
    for len in [512, 4096, 65536, 1 << 20] {
        // A thread's first read registers the thread.
        file.read_at(&mut buf[..len], 4096, IoFlags::empty()).unwrap();
        let before = ALLOCATIONS.get();
        for n in 0..100 {
            let done = file.read_at(&mut buf[..len], n * 1000, IoFlags::empty());
            assert_eq!(done, Ok(len));
        }
        assert_eq!(ALLOCATIONS.get() - before, 0, "reads of {len} bytes");
    }
    assert!(rig.cache.stats().fast_reads >= 400);
}
