//! What the process may do, and what kernel and file system can.

use super::{sys, xattr};
use crate::rules::MAX_FILE_BYTES;
use rustix::fs::{FallocateFlags, Mode, OFlags, XattrFlags};
use rustix::io::Errno;
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

/// The largest size of a file in bytes: that of the file system, found by trying on a file without a
/// name, or a smaller one that the process is limited to.
pub(super) fn max_file_size(root: BorrowedFd<'_>) -> u64 {
    // Beyond the process's limit, a try would end the process by a signal.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    let most = limit.map_or(MAX_FILE_BYTES, |limit| limit.min(MAX_FILE_BYTES));
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::openat(root, c".", flags, Mode::RUSR | Mode::WUSR) else {
        // FAT, where no file is without a name, has 32 bits for a size.
        const FAT: u64 = 0x4d44;
        let kind = rustix::fs::fstatfs(root).map_or(0, |stat| stat.f_type as u64);
        return if kind == FAT { most.min(u32::MAX.into()) } else { most };
    };
    largest(most, |size| match rustix::fs::ftruncate(&file, size) {
        Ok(()) => true,
        // Any other error says nothing of the size: a write will meet it, too.
        Err(error) => !matches!(error, Errno::FBIG | Errno::INVAL),
    })
}

/// The largest number up to `most` that `fits`, where every smaller one does, too.
fn largest(most: u64, fits: impl Fn(u64) -> bool) -> u64 {
    if fits(most) {
        return most;
    }
    let (mut fitting, mut too_large) = (0, most);
    while too_large - fitting > 1 {
        let middle = fitting + (too_large - fitting) / 2;
        if fits(middle) {
            fitting = middle;
        } else {
            too_large = middle;
        }
    }
    fitting
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_found_by_halving() {
        for limit in [1, 4095, (1 << 44) - 4096, MAX_FILE_BYTES - 1, MAX_FILE_BYTES] {
            assert_eq!(largest(MAX_FILE_BYTES, |size| size <= limit), limit);
        }
        assert_eq!(largest(100, |_| true), 100);
    }

    #[test]
    fn the_largest_size_is_taken_and_the_next_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let root = std::fs::File::open(dir.path()).unwrap();
        let largest = max_file_size(root.as_fd());
        let file = tempfile::tempfile_in(dir.path()).unwrap();
        file.set_len(largest).unwrap();
        if largest < MAX_FILE_BYTES {
            assert_eq!(file.set_len(largest + 1).unwrap_err().raw_os_error(), Some(libc::EFBIG));
        }
    }
}
