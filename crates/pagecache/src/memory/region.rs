//! The arena's memory.

pub(crate) use imp::{map, release, unmap};

#[cfg(not(any(miri, loom, shuttle)))]
mod imp {
    //! The arena's memory, from the kernel: committed only as far as it is touched, in huge pages
    //! where the machine allows it.

    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
    use std::ptr::NonNull;

    pub(crate) fn map(len: usize) -> std::io::Result<NonNull<u8>> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice.
        let at = unsafe {
            mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags)
        }?;
        // SAFETY: advice on the mapping just made; refusal is harmless.
        let _ = unsafe { madvise(at, len, Advice::LinuxHugepage) };
        NonNull::new(at.cast()).ok_or_else(|| std::io::ErrorKind::OutOfMemory.into())
    }

    /// # Safety
    /// Mapped by [`map`] with this length, and not referred to any more.
    pub(crate) unsafe fn unmap(at: NonNull<u8>, len: usize) {
        // SAFETY: the caller's word.
        let _ = unsafe { munmap(at.as_ptr().cast(), len) };
    }

    /// Gives memory back to the system; the bytes are zero when they are touched again.
    ///
    /// # Safety
    /// Within a mapping made by [`map`], at whole pages, and not referred to.
    pub(crate) unsafe fn release(at: *mut u8, len: usize) {
        // SAFETY: the caller's word. Refusal leaves the memory as it is.
        let _ = unsafe { madvise(at.cast(), len, Advice::LinuxDontNeed) };
    }
}

#[cfg(any(miri, loom, shuttle))]
mod imp {
    //! The arena's memory, from the allocator: for checkers that know no system calls.

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
    /// Mapped by [`map`] with this length, and not referred to any more.
    pub(crate) unsafe fn unmap(at: NonNull<u8>, len: usize) {
        // SAFETY: the caller's word.
        unsafe { dealloc(at.as_ptr(), layout(len)) };
    }

    /// Does nothing.
    ///
    /// # Safety
    /// Within a mapping made by [`map`], at whole pages, and not referred to.
    pub(crate) unsafe fn release(_at: *mut u8, _len: usize) {}
}

/// A table of `len` zeroes, in memory that is committed only as far as it is touched.
///
/// # Safety
/// All zeroes is a value of the type.
#[cfg(not(any(loom, shuttle)))]
pub(crate) unsafe fn zeroed_table<T: Default>(len: usize) -> Box<[T]> {
    // SAFETY: the caller's word.
    unsafe { Box::new_zeroed_slice(len).assume_init() }
}

/// The same for atomics that are more than their value.
///
/// # Safety
/// As above.
#[cfg(any(loom, shuttle))]
pub(crate) unsafe fn zeroed_table<T: Default>(len: usize) -> Box<[T]> {
    (0..len).map(|_| T::default()).collect()
}
