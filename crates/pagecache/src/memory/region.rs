//! The arena's memory.

pub(crate) use imp::{commit, map, release, unmap};

#[cfg(not(any(miri, loom, shuttle)))]
mod imp {
    //! The arena's memory, from the kernel: committed only as far as it is touched, in huge pages
    //! where the machine allows it.

    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
    use std::ptr::NonNull;

    pub(crate) fn map(len: usize) -> std::io::Result<NonNull<u8>> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh anonymous mapping at an address that the kernel chooses.
        let at = unsafe {
            mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags)
        }?;
        // SAFETY: advice on the mapping just made; refusal is harmless.
        let _ = unsafe { madvise(at, len, Advice::LinuxHugepage) };
        NonNull::new(at.cast()).ok_or_else(|| std::io::ErrorKind::OutOfMemory.into())
    }

    /// # Safety
    /// Mapped by [`map`] with this length, and no longer referenced.
    pub(crate) unsafe fn unmap(at: NonNull<u8>, len: usize) {
        // SAFETY: guaranteed by the caller.
        let _ = unsafe { munmap(at.as_ptr().cast(), len) };
    }

    /// Takes memory from the system for pages that have none; the bytes of the others stay.
    ///
    /// # Safety
    /// Whole pages of a mapping made by [`map`].
    pub(crate) unsafe fn commit(at: *mut u8, len: usize) {
        // SAFETY: guaranteed by the caller. The kernel changes no byte, so other threads may use the
        // pages meanwhile. If it refuses (before Linux 5.14, or for lack of memory), a page gets its
        // memory with its first use.
        let _ = unsafe { madvise(at.cast(), len, Advice::LinuxPopulateWrite) };
    }

    /// Returns memory to the system; the bytes read as zero afterwards.
    ///
    /// # Safety
    /// Whole pages of a mapping made by [`map`], and not referenced.
    pub(crate) unsafe fn release(at: *mut u8, len: usize) {
        // SAFETY: guaranteed by the caller. If the kernel refuses, the memory stays as it is.
        let _ = unsafe { madvise(at.cast(), len, Advice::LinuxDontNeed) };
    }
}

#[cfg(any(miri, loom, shuttle))]
mod imp {
    //! The arena's memory, from the allocator: for model checkers without system calls.

    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::ptr::NonNull;
    use weir_base::PAGE_SIZE;

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len, PAGE_SIZE).expect("an arena is smaller than the address space")
    }

    pub(crate) fn map(len: usize) -> std::io::Result<NonNull<u8>> {
        // SAFETY: the length is not zero, as an arena has at least one frame.
        NonNull::new(unsafe { alloc_zeroed(layout(len)) })
            .ok_or_else(|| std::io::ErrorKind::OutOfMemory.into())
    }

    /// # Safety
    /// Mapped by [`map`] with this length, and no longer referenced.
    pub(crate) unsafe fn unmap(at: NonNull<u8>, len: usize) {
        // SAFETY: guaranteed by the caller.
        unsafe { dealloc(at.as_ptr(), layout(len)) };
    }

    /// Does nothing.
    ///
    /// # Safety
    /// Whole pages of a mapping made by [`map`].
    pub(crate) unsafe fn commit(_at: *mut u8, _len: usize) {}

    /// Does nothing.
    ///
    /// # Safety
    /// Whole pages of a mapping made by [`map`], and not referenced.
    pub(crate) unsafe fn release(_at: *mut u8, _len: usize) {}
}

/// A table of `len` zeros, in memory that is committed only where it is touched.
///
/// # Safety
/// All zeros is a valid value of the type.
#[cfg(not(any(loom, shuttle)))]
pub(crate) unsafe fn zeroed_table<T: Default>(len: usize) -> Box<[T]> {
    // SAFETY: guaranteed by the caller.
    unsafe { Box::new_zeroed_slice(len).assume_init() }
}

/// The same for checkers whose atomics are more than their value.
///
/// # Safety
/// As above.
#[cfg(any(loom, shuttle))]
pub(crate) unsafe fn zeroed_table<T: Default>(len: usize) -> Box<[T]> {
    (0..len).map(|_| T::default()).collect()
}
