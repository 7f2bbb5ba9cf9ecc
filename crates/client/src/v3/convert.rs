//! Attributes and errors of NFSv3, to and from the neutral ones.

use crate::protocol::ChangeSpan;
use crate::protocol::Handle;
use crate::protocol::{file_id, file_size};
use std::time::{Duration, SystemTime};
use weir_nfs::v3::types::{self, FileHandle, FileType, Time};
use weir_nfs::v3::{Error as Nfs3Error, Failure};
use weir_vfs::{Attr, Error, FileKind, SetAttr};
use weir_xdr::Opaque;

/// Failures with a status of the protocol.
pub(super) trait Status {
    fn status(&self) -> Nfs3Error;
}

impl<T> Status for Failure<T> {
    fn status(&self) -> Nfs3Error {
        self.status
    }
}

pub(super) fn handle_of(handle: &Handle) -> FileHandle {
    Opaque(handle.0.clone())
}

pub(super) fn attr_of(attr: &types::Attr, handle: &Handle) -> Attr {
    Attr {
        id: file_id(attr.fileid, attr.fsid, handle),
        kind: match attr.kind {
            FileType::Reg => FileKind::Regular,
            FileType::Dir => FileKind::Directory,
            FileType::Blk => FileKind::Block,
            FileType::Chr => FileKind::Char,
            FileType::Lnk => FileKind::Symlink,
            FileType::Sock => FileKind::Socket,
            FileType::Fifo => FileKind::Fifo,
        },
        mode: attr.mode & 0o7777,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        size: file_size(attr.size),
        allocated: attr.used,
        rdev: (attr.rdev.major, attr.rdev.minor),
        fsid: attr.fsid,
        atime: time(attr.atime),
        mtime: time(attr.mtime),
        ctime: time(attr.ctime),
        btime: None,
        change: change(attr.ctime),
    }
}

/// The protocol has no change attribute; the change time stands in for it.
fn change(ctime: Time) -> u64 {
    u64::from(ctime.seconds) * 1_000_000_000 + u64::from(ctime.nseconds)
}

/// The change attribute around a change.
pub(super) fn span_of(around: &types::WccData) -> ChangeSpan {
    ChangeSpan {
        before: around.before.map(|before| change(before.ctime)),
        after: around.after.as_ref().map(|after| change(after.ctime)),
    }
}

fn time(time: Time) -> SystemTime {
    let nanos = time.nseconds.min(999_999_999);
    SystemTime::UNIX_EPOCH + Duration::new(time.seconds.into(), nanos)
}

pub(super) fn set_attr(set: &SetAttr) -> types::SetAttr {
    let time = |time: Option<weir_vfs::SetTime>| match time {
        None => types::SetTime::Keep,
        Some(weir_vfs::SetTime::Now) => types::SetTime::Now,
        Some(weir_vfs::SetTime::To(time)) => {
            // Times before 1970 or after 2106 do not fit.
            let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            let seconds = u32::try_from(since.as_secs()).unwrap_or(u32::MAX);
            types::SetTime::To(Time { seconds, nseconds: since.subsec_nanos() })
        }
    };
    types::SetAttr {
        mode: set.mode.map(|mode| mode & !set.umask.unwrap_or(0)),
        uid: set.uid,
        gid: set.gid,
        size: set.size,
        atime: time(set.atime),
        mtime: time(set.mtime),
    }
}

pub(super) fn neutral(error: Nfs3Error) -> Error {
    match error {
        Nfs3Error::Perm => Error::NotPermitted,
        Nfs3Error::NoEnt => Error::NotFound,
        Nfs3Error::NxIo => Error::NoSuchRange,
        Nfs3Error::Access => Error::AccessDenied,
        Nfs3Error::Exist => Error::Exists,
        Nfs3Error::XDev => Error::CrossDevice,
        Nfs3Error::NoDev => Error::NoDevice,
        Nfs3Error::NotDir => Error::NotDirectory,
        Nfs3Error::IsDir => Error::IsDirectory,
        Nfs3Error::Inval | Nfs3Error::BadType | Nfs3Error::BadCookie => Error::Invalid,
        Nfs3Error::FBig => Error::TooBig,
        Nfs3Error::NoSpc => Error::NoSpace,
        Nfs3Error::RoFs => Error::ReadOnly,
        Nfs3Error::MLink => Error::TooManyLinks,
        Nfs3Error::NameTooLong => Error::NameTooLong,
        Nfs3Error::NotEmpty => Error::NotEmpty,
        Nfs3Error::DQuot => Error::Quota,
        Nfs3Error::Stale | Nfs3Error::BadHandle => Error::Stale,
        Nfs3Error::NotSupp => Error::NotSupported,
        Nfs3Error::Jukebox => Error::TimedOut,
        Nfs3Error::Io
        | Nfs3Error::Remote
        | Nfs3Error::NotSync
        | Nfs3Error::TooSmall
        | Nfs3Error::ServerFault => Error::Io,
    }
}
