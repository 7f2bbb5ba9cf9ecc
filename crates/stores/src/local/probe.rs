//! What the process may do, and what kernel and file system can.

use super::{sys, xattr};
use rustix::fs::{FallocateFlags, Mode, OFlags, XattrFlags};
use std::os::fd::{AsFd, BorrowedFd};
use weir_vfs::Capabilities;

/// A quarter of the descriptors that the process may have, within reason.
pub(super) fn default_dir_fds() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(4096, |limit| (limit / 4) as usize).clamp(16, 4096)
}

/// The process's umask, without changing it.
pub(super) fn process_umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    // Unknown: set every mode again.
    line.and_then(|octal| u32::from_str_radix(octal.trim(), 8).ok()).unwrap_or(0o777)
}

/// Whether the kernel stamps every change with a time of its own (multigrain time stamps, Linux
/// 6.13).
pub(super) fn has_fine_stamps() -> bool {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy();
    let mut numbers = release.split('.').map_while(|part| {
        let digits = part.split(|c: char| !c.is_ascii_digit()).next()?;
        digits.parse::<u32>().ok()
    });
    (numbers.next(), numbers.next()) >= (Some(6), Some(13))
}

/// Tries what the file system can do on a file without a name.
pub(super) fn probe(root: BorrowedFd<'_>) -> Capabilities {
    let mut can = Capabilities::FAST_READ | Capabilities::UNCACHED | Capabilities::HOLES;
    can |= Capabilities::LOCKS;
    can.set(Capabilities::POSIX_ACL, xattr::keeps_acls(root));
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let tmpfile = || rustix::fs::openat(root, c".", flags, Mode::RUSR | Mode::WUSR);
    let (Ok(file), Ok(other)) = (tmpfile(), tmpfile()) else {
        // Not writable, then: what it could do otherwise will be refused when it is asked for.
        return can;
    };
    let block = 65536;
    if rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, block).is_ok() {
        can |= Capabilities::ALLOCATE;
    }
    if sys::clone_range(other.as_fd(), 0, file.as_fd(), 0, block).is_ok() {
        can |= Capabilities::CLONE;
    }
    if rustix::fs::fsetxattr(&file, c"user.weir", b"", XattrFlags::empty()).is_ok() {
        can |= Capabilities::XATTR;
    }
    can
}
