//! A thread that notifies the kernel, with a connection of its own.
//!
//! A notification may wait for a page that is being read, and nothing interrupts it. The kernel closes the descriptors
//! of a process that was killed when all threads that use them have ended: if this thread used the same ones, the
//! connection on which requests are received would stay open, nothing would fail the READ for which the thread waits,
//! and neither the process nor the program that reads would ever end. So the thread has a table of descriptors of its
//! own (unshare(2), CLONE_FILES), and in it nothing but a second connection to the same mount (FUSE_DEV_IOC_CLONE):
//! when the process ends, the first one is closed, and the requests that were received on it fail. Requests that were
//! not received fail when a guard answers them ([`crate::guard`]), or when this thread ends.
//!
//! What runs there must use no descriptor: it must not log, and not wake tasks of a runtime.
//!
//! Where the kernel refuses that, the thread uses the first connection.
//!
//! Soundness: `unshare` changes the calling thread's table alone, which is a copy, so numbers mean the same in it as
//! before. The thread owns no descriptor from before, and uses no other than the one that it is left with.
#![allow(unsafe_code, reason = "a table of descriptors of its own")]

use crate::session::device::{self, Device};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::mpsc::sync_channel;

/// FUSE_DEV_IOC_CLONE of linux/fuse.h: `_IOR(229, 0, uint32_t)`.
const CLONE: libc::c_ulong = 0x8004_e500;

/// Starts a thread that runs `run` with a connection to the same mount as `device`.
///
/// # Errors
/// There are no more threads or descriptors.
pub(crate) fn start(
    name: &str,
    device: &Device,
    run: impl FnOnce(Device) + Send + 'static,
) -> io::Result<()> {
    let number = device.as_fd().as_raw_fd();
    let (report, ready) = sync_channel(1);
    std::thread::Builder::new().name(name.into()).spawn(move || match connection(number) {
        Ok(own) => {
            let _ = report.send(Ok(()));
            run(Device::new(own));
        }
        Err(error) => {
            let _ = report.send(Err(error));
        }
    })?;
    // Until then, `number` stays open.
    ready.recv().map_err(|_| io::Error::other("a thread panicked"))?
}

/// The calling thread's own connection to the mount that `number` is a connection to.
fn connection(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: see the header; `start` keeps it open.
    let first = unsafe { BorrowedFd::borrow_raw(number) };
    // SAFETY: see the header.
    if unsafe { unshare_unsafe(UnshareFlags::FILES) }.is_err() {
        return first.try_clone_to_owned();
    }
    let own = match clone_of(first) {
        Ok(own) => own,
        Err(error) => {
            tracing::debug!("one connection to the kernel for all: {error}");
            first.try_clone_to_owned()?
        }
    };
    close_all_but(own.as_raw_fd())?;
    Ok(own)
}

/// A second connection to the same mount.
///
/// # Errors
/// This user may not open the device, or `first` is none.
pub(crate) fn clone_of(first: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let own = device::open()?;
    let number = first.as_raw_fd().cast_unsigned();
    // SAFETY: the kernel reads a number of 32 bits.
    match unsafe { libc::ioctl(own.as_raw_fd(), CLONE, &raw const number) } {
        0 => Ok(own),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Closes all descriptors in the calling thread's table but one.
fn close_all_but(kept: RawFd) -> io::Result<()> {
    let kept_number = kept.cast_unsigned();
    let below = kept_number.checked_sub(1).map(|last| (0, last));
    let ranges = below.into_iter().chain([(kept_number + 1, u32::MAX)]);
    // SAFETY: see the header: nothing in this thread uses them.
    let close = |(first, last)| unsafe { libc::close_range(first, last, 0) } == 0;
    if ranges.into_iter().all(close) {
        return Ok(());
    }
    // Before Linux 5.9.
    let open = std::fs::read_dir("/proc/thread-self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect::<Vec<RawFd>>();
    for number in open.into_iter().filter(|&number| number != kept) {
        // SAFETY: see the header. The one that listed them is closed already.
        unsafe { libc::close(number) };
    }
    Ok(())
}
