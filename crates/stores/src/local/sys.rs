//! System calls that `rustix` does not offer.
//!
//! Sound because every call passes the kernel only pointers to live, initialised memory of the
//! stated length, and descriptors borrowed for the duration of the call.

use rustix::fs::{AtFlags, Statx};
use std::ffi::CStr;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use weir_base::stable_hash;
use weir_vfs::{Lock, LockRange, Permissions, TO_END};

/// Size of `name_to_handle_at`'s result without its header.
const MAX_HANDLE_BYTES: usize = 128;

#[repr(C)]
struct FileHandle {
    bytes: u32,
    kind: i32,
    handle: [u8; MAX_HANDLE_BYTES],
}

/// The part of the kernel's file handle besides the inode number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Generation {
    /// The inode's generation, from which a handle can be built.
    Number(Shape, u32),
    /// A hash of a handle that only its file system can interpret.
    Hash(u64),
}

/// The layout of handles that can be built here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// FILEID_INO32_GEN: ext4 and others that use the generic encoding.
    Ino32,
    /// The same kind, but generation first and a 64-bit inode number: tmpfs.
    Shm,
    /// 64-bit inode number and generation: XFS.
    Ino64,
}

/// Distinguishes files that use one inode one after the other, by the kernel's file handle; `None`
/// where the file system provides none.
///
/// # Errors ESTALE: by now the name refers to an inode other than `ino`.
pub(super) fn inode_generation(
    dir: BorrowedFd<'_>,
    name: &CStr,
    ino: u64,
) -> io::Result<Option<Generation>> {
    let mut handle =
        FileHandle { bytes: MAX_HANDLE_BYTES as u32, kind: 0, handle: [0; MAX_HANDLE_BYTES] };
    let mut mount = 0i32;
    let flags = if name.is_empty() { libc::AT_EMPTY_PATH } else { 0 };
    // SAFETY: `handle` has room for as many bytes as it says; `name` is NUL-terminated.
    let result = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            dir.as_raw_fd(),
            name.as_ptr(),
            &raw mut handle,
            &raw mut mount,
            flags,
        )
    };
    if result < 0 {
        return match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ENOENT) => {
                Err(io::Error::from_raw_os_error(libc::ESTALE))
            }
            _ => Ok(None),
        };
    }
    let Some(bytes) = handle.handle.get(..handle.bytes as usize) else { return Ok(None) };
    let word = |at: usize| {
        let word = bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        u32::from_ne_bytes(word.unwrap_or_default())
    };
    let shape = match (handle.kind, bytes.len()) {
        (1, 8) => (Shape::Ino32, u64::from(word(0)), word(4)),
        (1, 12) => (Shape::Shm, u64::from(word(4)) | u64::from(word(8)) << 32, word(0)),
        (0x81, 12) => {
            let first = bytes.first_chunk::<8>().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
            // FUSE has the same layout with its halves swapped, and its own numbers, which do not
            // outlive its cache.
            let fuse = first.rotate_left(32);
            if first != ino && (fuse == ino || word(0) == 0) {
                return Ok(None);
            }
            (Shape::Ino64, first, word(8))
        }
        // Opaque; the name may have moved between two looks, which later verification detects.
        _ => return Ok(Some(Generation::Hash(stable_hash(bytes)))),
    };
    let (shape, of, number) = shape;
    let same = match shape {
        Shape::Ino32 => of == ino & 0xFFFF_FFFF,
        Shape::Shm | Shape::Ino64 => of == ino,
    };
    if !same {
        return Err(io::Error::from_raw_os_error(libc::ESTALE));
    }
    Ok(Some(Generation::Number(shape, number)))
}

/// Opens a file (O_PATH) by a handle built from its inode number and generation, on the file system
/// of `mount` (open_by_handle_at(2)).
///
/// # Errors ESTALE: there is no such file. EPERM without CAP_DAC_READ_SEARCH.
pub(super) fn open_by_inode(
    mount: BorrowedFd<'_>,
    shape: Shape,
    ino: u64,
    generation: u32,
) -> io::Result<OwnedFd> {
    let (low, high) = ((ino as u32).to_ne_bytes(), ((ino >> 32) as u32).to_ne_bytes());
    let generation = generation.to_ne_bytes();
    let (kind, words) = match shape {
        Shape::Ino32 => (1, [low, generation, [0; 4]]),
        Shape::Shm => (1, [generation, low, high]),
        Shape::Ino64 => {
            let ino = ino.to_ne_bytes();
            let half = |at: usize| [ino[at], ino[at + 1], ino[at + 2], ino[at + 3]];
            (0x81, [half(0), half(4), generation])
        }
    };
    let len = if shape == Shape::Ino32 { 8 } else { 12 };
    let mut handle = FileHandle { bytes: len, kind, handle: [0; MAX_HANDLE_BYTES] };
    for (to, from) in handle.handle.chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&from);
    }
    let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: `handle` is as long as it says.
    let opened = unsafe {
        libc::syscall(libc::SYS_open_by_handle_at, mount.as_raw_fd(), &raw mut handle, flags)
    };
    match i32::try_from(opened) {
        // SAFETY: the kernel has just opened it for us.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A lock operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LockCommand {
    Take,
    Free,
    /// Find a conflicting lock.
    Test,
}

/// Open file description locks (F_OFD_SETLK, F_OFD_GETLK). EAGAIN: a lock conflicts.
pub(super) fn lock(
    file: BorrowedFd<'_>,
    command: LockCommand,
    lock: Lock,
) -> io::Result<Option<Lock>> {
    let too_far = |_| io::Error::from_raw_os_error(libc::EOVERFLOW);
    let start = libc::off_t::try_from(lock.range.start).map_err(too_far)?;
    // The kernel counts up to the largest `off_t`, which means the end of file.
    let len = match libc::off_t::try_from(lock.range.end) {
        Ok(end) if lock.range.end != TO_END => end - start,
        _ => 0,
    };
    let kind = match command {
        LockCommand::Free => libc::F_UNLCK,
        _ if lock.exclusive => libc::F_WRLCK,
        _ => libc::F_RDLCK,
    };
    let mut asked = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: len,
        l_pid: 0,
    };
    let number = if command == LockCommand::Test { libc::F_OFD_GETLK } else { libc::F_OFD_SETLK };
    // SAFETY: `asked` is a lock structure that these commands read and write.
    if unsafe { libc::fcntl(file.as_raw_fd(), number, &raw mut asked) } < 0 {
        return Err(io::Error::last_os_error());
    }
    if command != LockCommand::Test || i32::from(asked.l_type) == libc::F_UNLCK {
        return Ok(None);
    }
    let start = asked.l_start.cast_unsigned();
    let end = if asked.l_len == 0 { TO_END } else { start + asked.l_len.cast_unsigned() };
    let exclusive = i32::from(asked.l_type) == libc::F_WRLCK;
    Ok(Some(Lock { range: LockRange { start, end }, exclusive }))
}

/// The permissions of a mask that the effective identity has on an open file. The mode suggests
/// what is `likely`, the kernel decides (lists, privileges): usually in two calls, one for the
/// granted permissions and one for the others.
pub(super) fn granted(
    file: BorrowedFd<'_>,
    mask: Permissions,
    likely: Permissions,
) -> io::Result<Permissions> {
    let mut granted = Permissions::empty();
    for part in [mask & likely, mask - likely].into_iter().filter(|part| !part.is_empty()) {
        if may_access(file, part)? {
            granted |= part;
        } else if part.iter().count() > 1 {
            for one in part.iter() {
                granted.set(one, may_access(file, one)?);
            }
        }
    }
    Ok(granted)
}

/// faccessat2(2) with the effective identity, on an open file.
pub(super) fn may_access(file: BorrowedFd<'_>, mask: Permissions) -> io::Result<bool> {
    // SAFETY: the path is a constant C string.
    let result = unsafe {
        libc::syscall(
            libc::SYS_faccessat2,
            file.as_raw_fd(),
            c"".as_ptr(),
            mask.bits(),
            libc::AT_EACCESS | libc::AT_EMPTY_PATH,
        )
    };
    if result == 0 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        error if matches!(error.raw_os_error(), Some(libc::EACCES | libc::EROFS | libc::EPERM)) => {
            Ok(false)
        }
        error => Err(error),
    }
}

/// FICLONERANGE (ioctl_ficlonerange(2)).
pub(super) fn clone_range(
    to: BorrowedFd<'_>,
    to_offset: u64,
    from: BorrowedFd<'_>,
    offset: u64,
    len: u64,
) -> io::Result<()> {
    let range = libc::file_clone_range {
        src_fd: i64::from(from.as_raw_fd()),
        src_offset: offset,
        src_length: len,
        dest_offset: to_offset,
    };
    // SAFETY: the argument is the structure that this request reads.
    match unsafe { libc::ioctl(to.as_raw_fd(), libc::FICLONERANGE, &raw const range) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Extents of one FIEMAP call.
const EXTENTS: usize = 64;

/// A part of a file with allocated space (`struct fiemap_extent`).
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct FiemapExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    reserved_too: [u32; 3],
}

/// A request and its reply (`struct fiemap`).
#[repr(C)]
struct Fiemap {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [FiemapExtent; EXTENTS],
}

/// The parts of a range without space, for data or reserved (FS_IOC_FIEMAP); `None` if there are
/// more than `most`.
pub(super) fn gaps(
    file: BorrowedFd<'_>,
    range: Range<u64>,
    most: usize,
) -> io::Result<Option<Vec<Range<u64>>>> {
    /// `_IOWR('f', 11, struct fiemap)`.
    const FS_IOC_FIEMAP: u32 = 0xC020_660B;
    let (mut at, mut gaps) = (range.start, Vec::new());
    while at < range.end {
        let mut map = Fiemap {
            start: at,
            length: range.end - at,
            flags: 0,
            mapped: 0,
            count: EXTENTS as u32,
            reserved: 0,
            extents: [FiemapExtent::default(); EXTENTS],
        };
        // SAFETY: the argument is the structure that this request reads and fills in, with room for
        // as many extents as it states.
        let done =
            unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP as libc::Ioctl, &raw mut map) };
        if done < 0 {
            return Err(io::Error::last_os_error());
        }
        let before = at;
        for extent in map.extents.iter().take(map.mapped as usize) {
            if extent.logical > at {
                gaps.push(at..extent.logical.min(range.end));
            }
            at = at.max(extent.logical.saturating_add(extent.length));
        }
        if (map.mapped as usize) < EXTENTS || at == before {
            break;
        }
        if gaps.len() > most {
            return Ok(None);
        }
    }
    if at < range.end {
        gaps.push(at..range.end);
    }
    Ok((gaps.len() <= most).then_some(gaps))
}

/// The UUID of an open file's file system: FS_IOC_GETFSUUID (Linux 6.9), or from XFS's geometry.
/// `None` if the kernel reports none, or only zeros.
pub(super) fn file_system_uuid(file: BorrowedFd<'_>) -> Option<[u8; 16]> {
    /// `_IOR(0x15, 0, struct fsuuid2)`.
    const FS_IOC_GETFSUUID: libc::c_ulong = 0x8011_1500;
    /// `_IOR('X', 100, struct xfs_fsop_geom_v1)`, and the offset of the UUID in that.
    const XFS_IOC_FSGEOMETRY_V1: libc::c_ulong = 0x8070_5864;
    const GEOMETRY_UUID: usize = 64;
    #[repr(C)]
    struct FsUuid {
        len: u8,
        uuid: [u8; 16],
    }
    let known = |uuid: [u8; 16]| (uuid != [0; 16]).then_some(uuid);
    let mut told = FsUuid { len: 0, uuid: [0; 16] };
    // SAFETY: the argument is the structure that this request fills in.
    let asked = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_GETFSUUID as _, &raw mut told) };
    if asked == 0 && told.len == 16 {
        return known(told.uuid);
    }
    let mut geometry = [0u64; 14];
    // SAFETY: the request fills in 112 bytes, the size of the array.
    let asked =
        unsafe { libc::ioctl(file.as_raw_fd(), XFS_IOC_FSGEOMETRY_V1 as _, &raw mut geometry) };
    if asked != 0 {
        return None;
    }
    let mut uuid = [0; 16];
    uuid[..8].copy_from_slice(&geometry[GEOMETRY_UUID / 8].to_ne_bytes());
    uuid[8..].copy_from_slice(&geometry[GEOMETRY_UUID / 8 + 1].to_ne_bytes());
    known(uuid)
}

/// statx(2) of an open file, as in `rustix` but by the shortest path.
pub(super) fn stat_fd(
    file: BorrowedFd<'_>,
    mask: rustix::fs::StatxFlags,
) -> rustix::io::Result<Statx> {
    rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, mask)
}

/// A path for reopening an open file, or for calls that only take paths.
pub(super) fn proc_path(file: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}
