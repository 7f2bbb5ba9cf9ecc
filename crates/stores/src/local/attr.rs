//! Attributes out of what statx(2) says.

use rustix::fs::{FileType, Statx, StatxFlags, StatxTimestamp};
use std::time::{Duration, SystemTime};
use weir_vfs::{Attr, FileId, FileKind};

/// What is asked of statx for an [`Attr`].
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

/// The time of creation in nanoseconds, 0 where the file system keeps none.
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
