//! Conversions between file system values and NFSv3 types.

use crate::export::HandleError;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use weir_nfs::v3::Error;
use weir_nfs::v3::types::{self, Device, FileType, Time, WccAttr};
use weir_vfs::{Attr, FileKind, SetAttr, SetTime};

/// Permission bits with set-id and sticky.
const MODE_BITS: u32 = 0o7777;

/// Converts a file system error.
pub(super) fn error(error: weir_vfs::Error) -> Error {
    use weir_vfs::Error as E;
    match error {
        E::NotPermitted => Error::Perm,
        E::NotFound => Error::NoEnt,
        E::NoSuchRange => Error::NxIo,
        E::AccessDenied | E::BadFile => Error::Access,
        E::Exists => Error::Exist,
        E::CrossDevice => Error::XDev,
        E::NoDevice => Error::NoDev,
        E::NotDirectory => Error::NotDir,
        E::IsDirectory => Error::IsDir,
        // ELOOP here means that the file is a symbolic link, which cannot be read or written.
        E::Invalid | E::Loop => Error::Inval,
        E::TooBig => Error::FBig,
        E::NoSpace => Error::NoSpc,
        E::ReadOnly => Error::RoFs,
        E::TooManyLinks => Error::MLink,
        E::Range => Error::TooSmall,
        E::NameTooLong => Error::NameTooLong,
        E::NotEmpty => Error::NotEmpty,
        E::NotSupported => Error::NotSupp,
        E::Stale => Error::Stale,
        E::Quota => Error::DQuot,
        // These are transient: the client retries.
        E::WouldBlock
        | E::Interrupted
        | E::TimedOut
        | E::OutOfMemory
        | E::TooManyOpen
        | E::Busy
        | E::TextBusy => Error::Jukebox,
        _ => Error::Io,
    }
}

/// Converts the error of an invalid filehandle.
pub(super) fn handle_error(error: HandleError) -> Error {
    match error {
        HandleError::Bad => Error::BadHandle,
        HandleError::Stale => Error::Stale,
    }
}

/// Converts attributes to the wire type.
pub(super) fn attr(attr: &Attr) -> types::Attr {
    types::Attr {
        kind: file_type(attr.kind),
        mode: attr.mode & MODE_BITS,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        size: attr.size,
        used: attr.allocated,
        rdev: Device { major: attr.rdev.0, minor: attr.rdev.1 },
        fsid: attr.fsid,
        fileid: attr.id.ino,
        atime: time(attr.atime),
        mtime: time(attr.mtime),
        ctime: time(attr.ctime),
    }
}

/// The attributes for weak cache consistency.
pub(super) fn wcc_attr(attr: &Attr) -> WccAttr {
    WccAttr { size: attr.size, mtime: time(attr.mtime), ctime: time(attr.ctime) }
}

fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::Reg,
        FileKind::Directory => FileType::Dir,
        FileKind::Symlink => FileType::Lnk,
        FileKind::Block => FileType::Blk,
        FileKind::Char => FileType::Chr,
        FileKind::Fifo => FileType::Fifo,
        FileKind::Socket => FileType::Sock,
    }
}

/// Converts a time to the wire type, clamped to its range from 1970 to 2106.
pub(super) fn time(time: SystemTime) -> Time {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    Time {
        seconds: u32::try_from(since.as_secs()).unwrap_or(u32::MAX),
        nseconds: since.subsec_nanos(),
    }
}

/// Converts a time from the wire type.
fn system_time(time: Time) -> Result<SystemTime, Error> {
    if time.nseconds >= 1_000_000_000 {
        return Err(Error::Inval);
    }
    Ok(UNIX_EPOCH + Duration::new(time.seconds.into(), time.nseconds))
}

fn set_time(time: types::SetTime) -> Result<Option<SetTime>, Error> {
    Ok(match time {
        types::SetTime::Keep => None,
        types::SetTime::Now => Some(SetTime::Now),
        types::SetTime::To(time) => Some(SetTime::To(system_time(time)?)),
    })
}

/// Converts the attributes to set.
///
/// # Errors
/// [`Error::Inval`] for invalid times and owners. chown(2) reserves 2^32 - 1 to leave an owner
/// unchanged.
pub(super) fn set_attr(set: &types::SetAttr) -> Result<SetAttr, Error> {
    if set.uid == Some(u32::MAX) || set.gid == Some(u32::MAX) {
        return Err(Error::Inval);
    }
    Ok(SetAttr {
        mode: set.mode.map(|mode| mode & MODE_BITS),
        mode_mask: None,
        // The client has applied it already.
        umask: None,
        uid: set.uid,
        gid: set.gid,
        size: set.size,
        atime: set_time(set.atime)?,
        mtime: set_time(set.mtime)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn every_error_has_a_status() {
        use weir_vfs::Error as E;
        let mut count = HashMap::new();
        for &vfs in weir_vfs::Error::ALL {
            let status = error(vfs);
            assert!(Error::ALL.contains(&status));
            *count.entry(status).or_insert(0) += 1;
            // NFSv3's low status numbers are the classic Unix errno values.
            if (status as u32) < 32 {
                let alike = vfs.errno() as u32 == status as u32;
                // NFSv3 has none for these.
                let stands_in = [E::BadFile, E::Loop, E::NoAttribute, E::TooLong, E::Deadlock];
                assert!(alike || stands_in.contains(&vfs), "{vfs:?} is {status:?}");
            }
        }
        assert_eq!(count[&Error::Jukebox], 7);
        assert_eq!(count[&Error::Io], 4);
    }

    #[test]
    fn times_are_clipped_to_what_the_wire_holds() {
        let at = |seconds, nseconds| Time { seconds, nseconds };
        assert_eq!(time(UNIX_EPOCH - Duration::from_secs(9)), at(0, 0));
        assert_eq!(time(UNIX_EPOCH + Duration::new(5, 6)), at(5, 6));
        assert_eq!(time(UNIX_EPOCH + Duration::from_secs(1 << 33)), at(u32::MAX, 0));
        assert_eq!(system_time(at(1, 1_000_000_000)), Err(Error::Inval));
        assert_eq!(system_time(at(5, 6)), Ok(UNIX_EPOCH + Duration::new(5, 6)));
    }
}
