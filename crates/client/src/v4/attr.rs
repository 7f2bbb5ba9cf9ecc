//! Attributes and errors of NFSv4, to and from the neutral ones.

use crate::protocol::{Handle, Limits, file_id, file_size};
use std::collections::HashMap;
use std::time::{Duration, SystemTime};
use weir_nfs::v4::attr::{
    CHANGE, CLONE_BLKSIZE, FILEHANDLE, FILEID, FILES_FREE, FILES_TOTAL, FSID, LEASE_TIME,
    MAXFILESIZE, MAXLINK, MAXNAME, MAXREAD, MAXWRITE, MODE, NUMLINKS, OWNER, OWNER_GROUP, RAWDEV,
    RDATTR_ERROR, SIZE, SPACE_AVAIL, SPACE_FREE, SPACE_TOTAL, SPACE_USED, SUPPATTR_EXCLCREAT,
    SUPPORTED_ATTRS, TIME_ACCESS, TIME_CREATE, TIME_METADATA, TIME_MODIFY, TYPE,
};
use weir_nfs::v4::types::{FileType, NfsTime, SetTime};
use weir_nfs::v4::{Attrs, Bitmap, Error as Nfs4Error};
use weir_vfs::{Attr, Error, FileKind, FsStat, SetAttr};

/// The attributes from which a file's neutral ones are derived.
pub(super) const WANTED: Bitmap = Bitmap::of(&[
    TYPE,
    CHANGE,
    SIZE,
    FSID,
    FILEID,
    MODE,
    NUMLINKS,
    OWNER,
    OWNER_GROUP,
    RAWDEV,
    SPACE_USED,
    TIME_ACCESS,
    TIME_CREATE,
    TIME_METADATA,
    TIME_MODIFY,
]);
/// The same for a directory's entries, plus those for the handle table.
pub(super) const IN_DIRECTORY: Bitmap = WANTED.union(Bitmap::of(&[RDATTR_ERROR, FILEHANDLE]));
/// Only the file numbers of a directory's entries.
pub(super) const NUMBER: Bitmap = Bitmap::of(&[RDATTR_ERROR, FILEID]);
/// Only what shows whether a file has changed.
pub(super) const CHANGES: Bitmap = Bitmap::of(&[CHANGE]);
/// Space and files of a file system.
pub(super) const SPACE: Bitmap = Bitmap::of(&[
    FILES_FREE,
    FILES_TOTAL,
    MAXFILESIZE,
    MAXLINK,
    MAXNAME,
    SPACE_AVAIL,
    SPACE_FREE,
    SPACE_TOTAL,
]);
/// Further attributes of it in minor version 2.
pub(super) const SHARED: Bitmap = Bitmap::of(&[CLONE_BLKSIZE]);
/// What a server that has restarted is asked again.
pub(super) const LEASE: Bitmap = Bitmap::of(&[LEASE_TIME]);
/// Requested once, of the mount's root.
pub(super) const ABOUT: Bitmap = Bitmap::of(&[SUPPORTED_ATTRS, LEASE_TIME, MAXREAD, MAXWRITE]);
/// The same from minor version 1 on.
pub(super) const ABOUT_WITH_SESSION: Bitmap = ABOUT.union(Bitmap::of(&[SUPPATTR_EXCLCREAT]));

/// `None` if a mandatory attribute is missing.
pub(super) fn attr_of(attrs: &Attrs, handle: &Handle, owners: &Owners) -> Option<Attr> {
    let fsid = attrs.fsid.unwrap_or_default();
    // One number for both parts: it only has to distinguish file systems.
    let fsid = fsid.major.rotate_left(32) ^ fsid.minor;
    let time = |t: Option<NfsTime>| t.map_or(SystemTime::UNIX_EPOCH, time);
    let rdev = attrs.rawdev.unwrap_or_default();
    Some(Attr {
        id: file_id(attrs.fileid?, fsid, handle),
        kind: match attrs.kind? {
            FileType::Regular | FileType::NamedAttr => FileKind::Regular,
            FileType::Directory | FileType::AttrDir => FileKind::Directory,
            FileType::Block => FileKind::Block,
            FileType::Char => FileKind::Char,
            FileType::Symlink => FileKind::Symlink,
            FileType::Socket => FileKind::Socket,
            FileType::Fifo => FileKind::Fifo,
        },
        mode: attrs.mode.unwrap_or(0) & 0o7777,
        nlink: attrs.numlinks.unwrap_or(1),
        uid: attrs.owner.as_deref().map_or(UNKNOWN_ID, |o| number(o, &owners.users)),
        gid: attrs.owner_group.as_deref().map_or(UNKNOWN_ID, |o| number(o, &owners.groups)),
        size: file_size(attrs.size?),
        allocated: attrs.space_used.or(attrs.size)?,
        rdev: (rdev.major, rdev.minor),
        fsid,
        atime: time(attrs.time_access),
        mtime: time(attrs.time_modify),
        ctime: time(attrs.time_metadata),
        // Servers that do not support it have been seen to return zero.
        btime: attrs.time_create.filter(|t| *t != NfsTime::default()).map(self::time),
        change: attrs.change?,
    })
}

fn time(time: NfsTime) -> SystemTime {
    let nanos = Duration::from_nanos(time.nseconds.min(999_999_999).into());
    let whole = Duration::from_secs(time.seconds.unsigned_abs());
    let at = match time.seconds {
        0.. => SystemTime::UNIX_EPOCH.checked_add(whole),
        _ => SystemTime::UNIX_EPOCH.checked_sub(whole),
    };
    // A time that the machine cannot express is treated as none.
    at.and_then(|at| at.checked_add(nanos)).unwrap_or(SystemTime::UNIX_EPOCH)
}

fn nfs_time(time: SystemTime) -> NfsTime {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => NfsTime {
            seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
            nseconds: since.subsec_nanos(),
        },
        Err(before) => {
            let (seconds, nanos) = (before.duration().as_secs(), before.duration().subsec_nanos());
            let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
            match nanos {
                0 => NfsTime { seconds: -seconds, nseconds: 0 },
                // The fraction counts forward from the whole second before it.
                _ => NfsTime { seconds: -seconds - 1, nseconds: 1_000_000_000 - nanos },
            }
        }
    }
}

pub(super) fn set_attrs(set: &SetAttr) -> Attrs {
    let time = |time: Option<weir_vfs::SetTime>| {
        time.map(|time| match time {
            weir_vfs::SetTime::Now => SetTime::ToServerTime,
            weir_vfs::SetTime::To(time) => SetTime::ToClientTime(nfs_time(time)),
        })
    };
    let name = |id: Option<u32>| id.map(|id| id.to_string().as_str().into());
    Attrs {
        mode: set.mode.map(|mode| mode & !set.umask.unwrap_or(0)),
        size: set.size,
        owner: name(set.uid),
        owner_group: name(set.gid),
        time_access_set: time(set.atime),
        time_modify_set: time(set.mtime),
        ..Attrs::default()
    }
}

pub(super) fn space(attrs: &Attrs) -> FsStat {
    FsStat {
        total_bytes: attrs.space_total.unwrap_or(0),
        free_bytes: attrs.space_free.unwrap_or(0),
        available_bytes: attrs.space_avail.unwrap_or(0),
        total_files: attrs.files_total.unwrap_or(0),
        free_files: attrs.files_free.unwrap_or(0),
        max_name: attrs.maxname.unwrap_or(255),
        max_file_size: attrs.maxfilesize.unwrap_or(i64::MAX as u64),
        max_links: attrs.maxlink.unwrap_or(1),
        clone_bytes: attrs.clone_blksize.unwrap_or(0),
    }
}

/// `fit` combines the server's `maxread` and `maxwrite` with this client's limits.
pub(super) fn about(
    attrs: &Attrs,
    fit: impl Fn(Option<u64>, Option<u64>) -> Limits,
) -> ServerLimits {
    ServerLimits {
        limits: fit(attrs.maxread, attrs.maxwrite),
        xattrs: attrs.xattr_support.unwrap_or(false),
        supported: attrs.supported_attrs,
        exclusive: attrs.suppattr_exclcreat,
        clones: attrs.supported_attrs.is_some_and(|s| s.contains(CLONE_BLKSIZE)),
    }
}

/// How long the server keeps state without renewal.
pub(super) fn lease_of(attrs: &Attrs) -> Duration {
    attrs
        .lease_time
        .map_or(USUAL_LEASE, |seconds| Duration::from_secs(seconds.into()))
        .clamp(SHORTEST_LEASE, LONGEST_LEASE)
}

const USUAL_LEASE: Duration = Duration::from_secs(90);
/// Shorter ones would have the client do little else than renew them.
pub(super) const SHORTEST_LEASE: Duration = Duration::from_secs(5);
const LONGEST_LEASE: Duration = Duration::from_secs(3600);

/// What the server reports about itself and the exported file system.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServerLimits {
    pub(super) limits: Limits,
    pub(super) xattrs: bool,
    pub(super) clones: bool,
    /// The attributes that the server supports.
    pub(super) supported: Option<Bitmap>,
    /// Those that it sets in an exclusive create (RFC 8881 section 5.8.1.14).
    pub(super) exclusive: Option<Bitmap>,
}

/// Users and groups of this machine, for servers that send names rather than numbers.
#[derive(Default)]
pub(super) struct Owners {
    users: HashMap<Vec<u8>, u32>,
    groups: HashMap<Vec<u8>, u32>,
}

/// The user and group for owners unknown to this machine.
const UNKNOWN_ID: u32 = 65534;

impl Owners {
    pub(super) fn of_this_machine() -> Self {
        Self { users: ids("/etc/passwd"), groups: ids("/etc/group") }
    }
}

/// Names and numbers from a file such as passwd(5); empty if it cannot be read.
fn ids(path: &str) -> HashMap<Vec<u8>, u32> {
    let lines = std::fs::read_to_string(path).unwrap_or_default();
    let id = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?.as_bytes().to_vec();
        Some((name, fields.nth(1)?.parse().ok()?))
    };
    lines.lines().filter_map(id).collect()
}

/// The number of an owner such as `1000`, `root@localdomain` or `1000@localdomain` (RFC 8881
/// section 5.9).
fn number(owner: &[u8], known: &HashMap<Vec<u8>, u32>) -> u32 {
    let name = owner.split(|b| *b == b'@').next().unwrap_or(owner);
    let number = std::str::from_utf8(name).ok().and_then(|n| n.parse().ok());
    number.or_else(|| known.get(name).copied()).unwrap_or(UNKNOWN_ID)
}

pub(crate) fn neutral(error: Nfs4Error) -> Error {
    match error {
        Nfs4Error::Perm => Error::NotPermitted,
        Nfs4Error::NoEnt => Error::NotFound,
        Nfs4Error::NxIo => Error::NoSuchRange,
        Nfs4Error::Access | Nfs4Error::WrongSec | Nfs4Error::WrongCred => Error::AccessDenied,
        Nfs4Error::Exist => Error::Exists,
        Nfs4Error::XDev => Error::CrossDevice,
        Nfs4Error::NotDir => Error::NotDirectory,
        Nfs4Error::IsDir => Error::IsDirectory,
        Nfs4Error::Inval
        | Nfs4Error::BadName
        | Nfs4Error::BadChar
        | Nfs4Error::BadOwner
        | Nfs4Error::BadType
        | Nfs4Error::WrongType
        | Nfs4Error::BadCookie
        | Nfs4Error::UnionNotSupp => Error::Invalid,
        Nfs4Error::FBig => Error::TooBig,
        Nfs4Error::NoSpc => Error::NoSpace,
        Nfs4Error::RoFs => Error::ReadOnly,
        Nfs4Error::MLink => Error::TooManyLinks,
        Nfs4Error::Deadlock => Error::Deadlock,
        Nfs4Error::NameTooLong => Error::NameTooLong,
        Nfs4Error::NotEmpty => Error::NotEmpty,
        Nfs4Error::DQuot => Error::Quota,
        Nfs4Error::Stale | Nfs4Error::BadHandle | Nfs4Error::FhExpired => Error::Stale,
        Nfs4Error::NotSupp
        | Nfs4Error::OpIllegal
        | Nfs4Error::AttrNotSupp
        | Nfs4Error::OffloadNoReqs => Error::NotSupported,
        Nfs4Error::Symlink => Error::Loop,
        Nfs4Error::FileOpen | Nfs4Error::ShareDenied | Nfs4Error::Locked => Error::Busy,
        Nfs4Error::OpenMode => Error::BadFile,
        Nfs4Error::NoXattr => Error::NoAttribute,
        Nfs4Error::Xattr2Big => Error::TooLong,
        Nfs4Error::Delay | Nfs4Error::Grace => Error::TimedOut,
        _ => Error::Io,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_round_trip_also_before_1970() {
        for (seconds, nseconds) in [(0, 0), (5, 7), (-1, 0), (-1, 999_999_999), (-90_000, 1)] {
            let wire = NfsTime { seconds, nseconds };
            assert_eq!(nfs_time(time(wire)), wire);
        }
        // Times outside the range become the closest ones that can be expressed.
        for (seconds, nearest) in [(i64::MIN, -i64::MAX), (i64::MAX, i64::MAX)] {
            assert_eq!(nfs_time(time(NfsTime { seconds, nseconds: 0 })).seconds, nearest);
        }
    }

    #[test]
    fn no_file_is_larger_than_the_largest_offset() {
        let attrs = Attrs {
            kind: Some(FileType::Regular),
            fileid: Some(7),
            size: Some(u64::MAX),
            change: Some(1),
            ..Attrs::default()
        };
        let handle = Handle(weir_xdr::Bytes::from_static(b"file"));
        let found = attr_of(&attrs, &handle, &Owners::default()).map(|attr| attr.size);
        assert_eq!(found, Some(i64::MAX as u64));
    }

    #[test]
    fn a_deadlock_is_reported_as_one() {
        assert_eq!(neutral(Nfs4Error::Deadlock), Error::Deadlock);
    }

    #[test]
    fn owners_are_numbers_or_names() {
        let known = HashMap::from([(b"root".to_vec(), 0), (b"me".to_vec(), 1000)]);
        let cases = [
            ("1234", 1234),
            ("root@localdomain", 0),
            ("me", 1000),
            ("77@x", 77),
            ("who@x", UNKNOWN_ID),
        ];
        for (owner, id) in cases {
            assert_eq!(number(owner.as_bytes(), &known), id, "{owner}");
        }
    }
}
