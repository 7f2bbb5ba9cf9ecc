//! Probes the abilities of the process, the kernel and the file system.

use super::attr::change_of;
use super::sys::{self, proc_path};
use crate::local::changes::directories::nanos_now;
use crate::rules::MAX_FILE_BYTES;
use rustix::fs::{FallocateFlags, Mode, OFlags, StatxFlags, XattrFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use weir_base::stable_hash;
use weir_vfs::{AclKind, Capabilities, FileId, acl_xattr};

/// A quarter of the process's descriptor limit, within bounds.
pub(super) fn default_dir_fds() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(4096, |limit| (limit / 4) as usize).clamp(16, 4096)
}

/// The process's umask, read without changing it.
pub(super) fn process_umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    // Unknown: set every mode again.
    line.and_then(|octal| u32::from_str_radix(octal.trim(), 8).ok()).unwrap_or(0o777)
}

/// How a file system stamps changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamps {
    /// A change after a look gets a stamp other than that of the change before (multigrain stamps).
    pub(super) fine: bool,
    /// Stamps come from this machine's clock.
    pub(super) clock_is_ours: bool,
}

/// More than the largest step of stamps, in nanoseconds: file systems stamp in steps of up to two seconds.
const CLOCK_STEP: u64 = 3_000_000_000;

/// Probes with a nameless file: the versions of kernel and file system do not tell whether stamps
/// are fine. If no such file can be created, assumes the worst.
pub(super) fn stamps(root: BorrowedFd<'_>) -> Stamps {
    let tried = || -> Option<Stamps> {
        let file = unnamed(root).ok()?;
        let stamp_of_write = || {
            rustix::io::pwrite(&file, b"x", 0).ok()?;
            let stat = sys::stat_fd(file.as_fd(), StatxFlags::CTIME).ok()?;
            Some(change_of(&stat))
        };
        let before = nanos_now();
        let mut last = stamp_of_write()?;
        let clock_is_ours = is_between(before, last, nanos_now());
        // One pair may lie on both sides of a clock tick; all eight cannot.
        for _ in 0..8 {
            let next = stamp_of_write()?;
            if next == last {
                return Some(Stamps { fine: false, clock_is_ours });
            }
            last = next;
        }
        Some(Stamps { fine: true, clock_is_ours })
    };
    tried().unwrap_or(Stamps { fine: false, clock_is_ours: false })
}

/// Whether a stamp is of a change between two times, in nanoseconds since 1970, give or take [`CLOCK_STEP`].
fn is_between(begun: u64, stamp: u64, ended: u64) -> bool {
    (begun.saturating_sub(CLOCK_STEP)..=ended.saturating_add(CLOCK_STEP)).contains(&stamp)
}

fn unnamed(root: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    rustix::fs::openat(root, c".", flags, Mode::RUSR | Mode::WUSR)
}

/// A number for the file system that stays the same over restarts of the machine.
///
/// On XFS and others, statfs(2) derives its number from the device's, which may change. Then the
/// number is derived from the file system's UUID, or, if the kernel does not report one, from the
/// root directory's inode and creation time (`root`). FUSE and the kernel's NFS client have no number at all: then it
/// is derived from the device's, which belongs to no other file system while this one is mounted.
pub(super) fn fsid(dir: BorrowedFd<'_>, root: FileId, device: (u32, u32)) -> std::io::Result<u64> {
    let told = rustix::fs::fstatvfs(dir)?.f_fsid;
    Ok(lasting_fsid(told, root, device, || {
        // An O_PATH descriptor does not support ioctl.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(dir, c".", flags, Mode::empty()).ok()?;
        sys::file_system_uuid(opened.as_fd())
    }))
}

fn lasting_fsid(
    told: u64,
    root: FileId,
    device: (u32, u32),
    uuid: impl FnOnce() -> Option<[u8; 16]>,
) -> u64 {
    if told == 0 {
        let (major, minor) = device;
        return stable_hash(&[major.to_le_bytes(), minor.to_le_bytes()].concat());
    }
    if told != of_device(device) {
        return told;
    }
    match uuid() {
        Some(uuid) => stable_hash(&uuid),
        None => stable_hash(&[root.ino.to_le_bytes(), root.generation.to_le_bytes()].concat()),
    }
}

/// A device number as file systems derive an id from it (the kernel's `huge_encode_dev`).
fn of_device((major, minor): (u32, u32)) -> u64 {
    u64::from((minor & 0xff) | (major << 8) | ((minor & !0xff) << 12))
}

/// ext2 to ext4, XFS, btrfs, tmpfs, F2FS (statfs(2)).
pub(super) const LOCAL: [i64; 5] = [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0xf2f5_2010];

/// Whether a file system has the attributes of its files at hand, so that `AT_STATX_DONT_SYNC` changes
/// nothing for them. On others (network, FUSE), they may be those of a moment ago then.
pub(super) fn knows_its_attributes(root: BorrowedFd<'_>) -> bool {
    is_of_linux(root)
}

/// Whether a new file belongs to the user that creates it. On others (FAT, network, FUSE), it may belong to the user
/// that the mount or the server says.
pub(super) fn keeps_owners(root: BorrowedFd<'_>) -> bool {
    is_of_linux(root)
}

/// Whether a file system keeps all attributes of its files itself, as Linux knows them.
fn is_of_linux(root: BorrowedFd<'_>) -> bool {
    /// overlayfs, bcachefs, ZFS.
    const MORE: [i64; 3] = [0x794c_7630, 0xca45_1a4e, 0x2fc1_2fc1];
    rustix::fs::fstatfs(root)
        .is_ok_and(|fs| LOCAL.contains(&fs.f_type) || MORE.contains(&fs.f_type))
}

/// File systems whose server, or whose process (FUSE), a call waits for: NFS, SMB (three numbers), FUSE
/// with virtiofs, 9P, Ceph, AFS (two numbers), Coda, NCP, OCFS2, GFS2, Lustre, GPFS, OrangeFS, BeeGFS,
/// VirtualBox's shared folders (statfs(2), and their sources).
const ELSEWHERE: [u32; 18] = [
    0x6969,
    0x517b,
    0xff53_4d42,
    0xfe53_4d42,
    0x6573_5546,
    0x0102_1997,
    0x00c3_6400,
    0x5346_414f,
    0x6b41_4653,
    0x7375_7245,
    0x564c,
    0x7461_636f,
    0x0116_1970,
    0x0bd0_0bd0,
    0x4750_4653,
    0x2003_0528,
    0x1983_0326,
    0x786f_4256,
];

/// Whether calls end without the help of another machine or process, so that they may be made while
/// others wait for them. A file system of an unknown kind counts as local.
pub(super) fn is_local(root: BorrowedFd<'_>) -> bool {
    rustix::fs::fstatfs(root).is_ok_and(|fs| is_local_kind(fs.f_type as u32))
}

/// By the lower half of `f_type`: the upper half may be copies of the sign.
fn is_local_kind(kind: u32) -> bool {
    !ELSEWHERE.contains(&kind)
}

/// The largest size of a file in bytes: the file system's limit, found by trying on a nameless
/// file, or the process's limit if that is smaller.
pub(super) fn max_file_size(root: BorrowedFd<'_>) -> u64 {
    // Beyond the process's limit, a signal would kill it.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    let most = limit.map_or(MAX_FILE_BYTES, |limit| limit.min(MAX_FILE_BYTES));
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::openat(root, c".", flags, Mode::RUSR | Mode::WUSR) else {
        // FAT has no nameless files; its sizes have 32 bits.
        const FAT: u64 = 0x4d44;
        let kind = rustix::fs::fstatfs(root).map_or(0, |stat| stat.f_type as u64);
        return if kind == FAT { most.min(u32::MAX.into()) } else { most };
    };
    largest(most, |size| match rustix::fs::ftruncate(&file, size) {
        Ok(()) => true,
        // Other errors are not about the size: a write will meet them, too.
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

/// Tries what the file system supports, on a nameless file.
pub(super) fn probe(root: BorrowedFd<'_>) -> Capabilities {
    let mut can = Capabilities::FAST_READ | Capabilities::UNCACHED | Capabilities::HOLES;
    can |= Capabilities::LOCKS;
    can.set(Capabilities::POSIX_ACL, keeps_acls(root));
    let (Ok(file), Ok(other)) = (unnamed(root), unnamed(root)) else {
        // Not writable: unsupported operations fail when they are requested.
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

/// Whether the file system of a directory supports access control lists.
fn keeps_acls(dir: BorrowedFd<'_>) -> bool {
    let kept = rustix::fs::getxattr_query(proc_path(dir), acl_xattr(AclKind::Access));
    matches!(kept, Ok(_) | Err(Errno::NODATA))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_of_servers_and_of_fuse_are_not_local() {
        for local in LOCAL {
            assert!(is_local_kind(local as u32), "{local:#x}");
        }
        let smb = 0xff53_4d42_u32;
        for kind in [0x6969, 0x6573_5546, 0xff53_4d42, i64::from(smb as i32)] {
            assert!(!is_local_kind(kind as u32), "{kind:#x}");
        }
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        assert!(is_local(std::fs::File::open(dir.path()).unwrap().as_fd()));
    }

    #[test]
    fn a_stamp_is_by_our_clock_however_long_the_change_takes() {
        let second = 1_000_000_000;
        let begun = 1_700_000_000 * second;
        for (stamp, took, ours) in [(0, 0, true), (20, 20, true), (12, 20, true), (20, 1, false)] {
            let ended = begun + took * second;
            assert_eq!(is_between(begun, begun + stamp * second, ended), ours, "{stamp}, {took}");
        }
        // A coarse stamp lies before the change.
        assert!(is_between(begun, begun - 2 * second, begun));
        assert!(!is_between(begun, begun - 20 * second, begun + 20 * second));
    }

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

    #[test]
    fn a_number_derived_from_the_device_is_not_the_file_systems() {
        let root = FileId { ino: 128, generation: 77 };
        let fsid = |told, device, uuid| lasting_fsid(told, root, device, || uuid);
        assert_eq!(fsid(12345, (8, 1), Some([1; 16])), 12345, "one that lasts stays");
        let by_device = fsid(0, (0, 60), None);
        assert_eq!(fsid(0, (0, 60), Some([1; 16])), by_device);
        assert_ne!(by_device, fsid(0, (0, 61), None), "two of FUSE");
        assert_ne!(by_device, 0);
        // XFS: `huge_encode_dev` of 259:300 is 0x11032c.
        for (told, device) in [(0x801, (8, 1)), (0x0011_032c, (259, 300))] {
            assert_eq!(of_device(device), told);
            let by_uuid = fsid(told, device, Some([1; 16]));
            assert_ne!(by_uuid, told);
            let moved = (8, 33);
            assert_eq!(fsid(of_device(moved), moved, Some([1; 16])), by_uuid, "another device");
            assert_ne!(fsid(told, device, Some([2; 16])), by_uuid, "another file system");
            let by_root = fsid(told, device, None);
            assert_eq!(fsid(of_device(moved), moved, None), by_root);
        }
    }
}
