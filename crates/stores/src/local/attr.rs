//! Attributes from statx(2), and times for utimensat(2).

use super::{probe, sys};
use crate::local::sys::proc_path;
use rustix::fs::{
    AtFlags, FileType, Mode, Statx, StatxFlags, StatxTimestamp, Timespec, Timestamps,
};
use rustix::io::Errno;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use weir_vfs::{Attr, Caller, FileId, FileKind, Result, SetAttr, SetTime};

/// The statx fields that an [`Attr`] needs.
pub(super) const ATTR_MASK: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME);

pub(super) fn attr_of(id: FileId, fsid: u64, stat: &Statx) -> Attr {
    let known_birth = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
    Attr {
        id,
        kind: kind_of(stat),
        mode: u32::from(stat.stx_mode) & 0o7777,
        nlink: stat.stx_nlink,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        size: stat.stx_size,
        allocated: stat.stx_blocks * 512,
        rdev: (stat.stx_rdev_major, stat.stx_rdev_minor),
        fsid,
        atime: time_of(&stat.stx_atime),
        mtime: time_of(&stat.stx_mtime),
        ctime: time_of(&stat.stx_ctime),
        btime: known_birth.then(|| time_of(&stat.stx_btime)),
        change: change_of(stat),
    }
}

pub(super) fn kind_of(stat: &Statx) -> FileKind {
    match FileType::from_raw_mode(u32::from(stat.stx_mode)) {
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::BlockDevice => FileKind::Block,
        FileType::CharacterDevice => FileKind::Char,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::RegularFile | FileType::Unknown => FileKind::Regular,
    }
}

/// The change attribute: the time of the last change, in nanoseconds.
pub(super) fn change_of(stat: &Statx) -> u64 {
    nanos_of(&stat.stx_ctime)
}

/// The creation time in nanoseconds, 0 where the file system keeps none.
pub(super) fn birth_of(stat: &Statx) -> u64 {
    let known = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
    if known { nanos_of(&stat.stx_btime) } else { 0 }
}

pub(super) fn time_of(time: &StatxTimestamp) -> SystemTime {
    let nanos = Duration::from_nanos(u64::from(time.tv_nsec));
    let seconds = Duration::from_secs(time.tv_sec.unsigned_abs());
    let whole = if time.tv_sec < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(seconds)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(seconds)
    };
    whole.and_then(|t| t.checked_add(nanos)).unwrap_or(SystemTime::UNIX_EPOCH)
}

fn nanos_of(time: &StatxTimestamp) -> u64 {
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(u64::from(time.tv_nsec))
}

/// Sets the permission bits of a file according to `set`. The kernel has no call that sets some of
/// them, but chown(2), even without a new owner, clears set-user-ID of a regular file, and
/// set-group-ID if its group may execute it: in one step, and leaving the other bits as other
/// programs set them. Masked bits that already have the wanted value are left, unless the kernel
/// has to decide whether `caller` may set them.
///
/// chown(2) also removes a file's capabilities (capabilities(7)). That is right where the program
/// itself clears the bits, because a change of the data removes them, too; a caller that sets a
/// mode keeps them.
pub(super) fn set_mode(file: BorrowedFd<'_>, set: &SetAttr, caller: &Caller) -> Result<()> {
    let Some(mut mode) = set.mode else { return Ok(()) };
    if let Some(mask) = set.mode_mask {
        let found = || sys::stat_fd(file, ATTR_MASK).map_err(io::Error::from);
        let mut before = found()?;
        if *caller == Caller::Own
            && set.mode_of(before.stx_mode.into()) == Some(before.stx_mode.into())
        {
            return Ok(());
        }
        let may_chown = *caller == Caller::Own || !has_capabilities(file);
        if mode & mask == 0 && kind_of(&before) == FileKind::Regular && may_chown {
            for _ in 0..CHOWNS {
                let taken = taken_by_chown(u32::from(before.stx_mode));
                if taken == 0 || taken & !mask != 0 {
                    break;
                }
                rustix::fs::chownat(file, c"", None, None, AtFlags::EMPTY_PATH)
                    .map_err(io::Error::from)?;
                let all_taken = u32::from(before.stx_mode) & mask & !taken == 0;
                if all_taken && chown_clears(file) {
                    // If the bits are set now, another program has set them since.
                    return Ok(());
                }
                before = found()?;
                if u32::from(before.stx_mode) & mask == 0 {
                    return Ok(());
                }
            }
        }
        mode = u32::from(before.stx_mode) & !mask | mode & mask;
    }
    rustix::fs::chmod(&*proc_path(file), Mode::from_raw_mode(mode & 0o7777))
        .map_err(|error| io::Error::from(error).into())
}

fn has_capabilities(file: BorrowedFd<'_>) -> bool {
    let found = rustix::fs::getxattr_query(&*proc_path(file), c"security.capability");
    found.is_ok_and(|bytes| bytes > 0)
}

/// Attempts of chown(2) before its file system counts as one where it clears no bits: other
/// programs may set the bits again meanwhile.
const CHOWNS: usize = 32;

/// Whether chown(2) is known to clear the bits on the file's file system. On others (network, FUSE)
/// the mode read afterwards does not tell whether chown or the file's owner cleared them.
fn chown_clears(file: BorrowedFd<'_>) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|fs| probe::LOCAL.contains(&fs.f_type))
}

fn taken_by_chown(mode: u32) -> u32 {
    const GROUP_EXECUTE: u32 = 0o0010;
    let group = if mode & GROUP_EXECUTE == 0 { 0 } else { 0o2000 };
    mode & (0o4000 | group)
}

/// Sets the times that are given (utimensat(2)).
pub(super) fn set_times(
    file: BorrowedFd<'_>,
    atime: Option<SetTime>,
    mtime: Option<SetTime>,
) -> Result<()> {
    if atime.is_none() && mtime.is_none() {
        return Ok(());
    }
    let times = Timestamps { last_access: timespec(atime), last_modification: timespec(mtime) };
    match rustix::fs::utimensat(file, c"", &times, AtFlags::EMPTY_PATH) {
        // Kernels before 5.8.
        Err(Errno::INVAL) => {
            let path = proc_path(file);
            rustix::fs::utimensat(rustix::fs::CWD, &*path, &times, AtFlags::empty())
        }
        result => result,
    }
    .map_err(|error| io::Error::from(error).into())
}

fn timespec(time: Option<SetTime>) -> Timespec {
    match time {
        None => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
        Some(SetTime::Now) => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW },
        Some(SetTime::To(time)) => match time.duration_since(UNIX_EPOCH) {
            Ok(after) => {
                Timespec { tv_sec: after.as_secs() as i64, tv_nsec: after.subsec_nanos().into() }
            }
            Err(before) => {
                let before = before.duration();
                // Seconds downwards, nanoseconds upwards.
                let up = u64::from(before.subsec_nanos() != 0);
                let nanos = (1_000_000_000 - before.subsec_nanos()) % 1_000_000_000;
                Timespec { tv_sec: -((before.as_secs() + up) as i64), tv_nsec: nanos.into() }
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_the_epoch() {
        let file = tempfile::tempfile().unwrap();
        let before = SystemTime::UNIX_EPOCH - Duration::new(5, 250_000_000);
        file.set_modified(before).unwrap();
        let stat = super::super::sys::stat_fd(std::os::fd::AsFd::as_fd(&file), ATTR_MASK).unwrap();
        assert_eq!(time_of(&stat.stx_mtime), before);
    }
}
