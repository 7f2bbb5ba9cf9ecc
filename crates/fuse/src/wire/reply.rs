//! Replies to the kernel, encoded.

use crate::wire::abi::{self, NodeAttr, OpenFlags};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use weir_vfs::{Attr, Error, FileKind, FsStat};

/// An error number of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

impl Errno {
    /// The kernel does not ask for this kind of request again.
    pub(crate) const NO_SYSTEM_CALL: Self = Self(libc::ENOSYS);
}

impl From<Error> for Errno {
    fn from(error: Error) -> Self {
        Self(error.errno())
    }
}

/// A node that a name refers to. The kernel counts one more use of it.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) node: u64,
    pub(crate) attr: Attr,
    pub(crate) valid: Duration,
}

/// The seconds and nanoseconds of a time.
fn parts(time: SystemTime) -> (u64, u32) {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => (after.as_secs(), after.subsec_nanos()),
        // Before 1970: whole seconds towards the past, as in struct timespec.
        Err(before) => {
            let before = before.duration();
            let up = u64::from(before.subsec_nanos() > 0);
            let seconds = (before.as_secs() + up).wrapping_neg();
            (seconds, ((1_000_000_000 - before.subsec_nanos()) % 1_000_000_000))
        }
    }
}

/// A time of SETATTR.
pub(crate) fn time(seconds: u64, nanos: u32) -> SystemTime {
    let nanos = Duration::from_nanos(nanos.min(999_999_999).into());
    let seconds = seconds.cast_signed();
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let base =
        if seconds < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    base.and_then(|base| base.checked_add(nanos)).unwrap_or(UNIX_EPOCH)
}

/// The type bits of a mode.
pub(crate) fn type_bits(kind: FileKind) -> u32 {
    match kind {
        FileKind::Regular => libc::S_IFREG,
        FileKind::Directory => libc::S_IFDIR,
        FileKind::Symlink => libc::S_IFLNK,
        FileKind::Block => libc::S_IFBLK,
        FileKind::Char => libc::S_IFCHR,
        FileKind::Fifo => libc::S_IFIFO,
        FileKind::Socket => libc::S_IFSOCK,
    }
}

/// A device number as the kernel encodes it in 32 bits.
fn device((major, minor): (u32, u32)) -> u32 {
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// The (major, minor) device number of 32 encoded bits.
pub(crate) fn device_parts(encoded: u32) -> (u32, u32) {
    ((encoded & 0xf_ff00) >> 8, (encoded & 0xff) | ((encoded >> 12) & 0xf_ff00))
}

/// The size of blocks that is shown.
const BLOCK: u32 = 4096;

/// Attributes.
pub(crate) fn attributes(attr: &Attr) -> NodeAttr {
    let (atime, atimensec) = parts(attr.atime);
    let (mtime, mtimensec) = parts(attr.mtime);
    let (ctime, ctimensec) = parts(attr.ctime);
    NodeAttr {
        ino: attr.id.ino,
        size: attr.size,
        blocks: attr.allocated.div_ceil(512),
        atime,
        mtime,
        ctime,
        atimensec,
        mtimensec,
        ctimensec,
        mode: type_bits(attr.kind) | attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: device(attr.rdev),
        blksize: BLOCK,
        flags: 0,
    }
}

/// Reply to GETATTR and SETATTR.
pub(crate) fn attr_out(attr: &Attr, valid: Duration) -> abi::AttrOut {
    abi::AttrOut {
        attr_valid: valid.as_secs(),
        attr_valid_nsec: valid.subsec_nanos(),
        dummy: 0,
        attr: attributes(attr),
    }
}

/// Reply to LOOKUP and to what creates a name.
pub(crate) fn entry_out(entry: &Entry) -> abi::EntryOut {
    let (seconds, nanos) = (entry.valid.as_secs(), entry.valid.subsec_nanos());
    abi::EntryOut {
        nodeid: entry.node,
        // A node number is never used again, so a generation is not needed.
        generation: 0,
        entry_valid: seconds,
        attr_valid: seconds,
        entry_valid_nsec: nanos,
        attr_valid_nsec: nanos,
        attr: attributes(&entry.attr),
    }
}

/// Reply to OPEN and OPENDIR.
pub(crate) fn open_out(fh: u64, flags: OpenFlags) -> abi::OpenOut {
    abi::OpenOut { fh, open_flags: flags.bits(), backing_id: 0 }
}

/// Reply to STATFS.
pub(crate) fn statfs_out(stat: &FsStat) -> abi::StatfsOut {
    let block = u64::from(BLOCK);
    abi::StatfsOut {
        blocks: stat.total_bytes / block,
        bfree: stat.free_bytes / block,
        bavail: stat.available_bytes / block,
        files: stat.total_files,
        ffree: stat.free_files,
        bsize: BLOCK,
        namelen: stat.max_name,
        frsize: BLOCK,
        padding: 0,
        spare: [0; 6],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_keep_their_nanoseconds() {
        let half_before = UNIX_EPOCH - Duration::from_millis(1500);
        assert_eq!(parts(half_before), (2u64.wrapping_neg(), 500_000_000));
        for at in [half_before, UNIX_EPOCH, UNIX_EPOCH + Duration::new(9, 8)] {
            let (seconds, nanos) = parts(at);
            assert_eq!(time(seconds, nanos), at);
        }
        // What no clock shows does not end the program.
        let _ = (time(u64::MAX, u32::MAX), time(i64::MAX as u64, 0), time(1 << 63, 0));
    }

    #[test]
    fn device_numbers_survive_their_encoding() {
        for parts in [(0, 0), (8, 1), (4095, 0xf_ffff), (259, 256)] {
            assert_eq!(device_parts(device(parts)), parts);
        }
    }
}
