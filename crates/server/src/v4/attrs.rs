//! Attributes: from a file's to the protocol's, and from the protocol's to what is to be set.
//!
//! [`SUPPORTED`] says the truth: every attribute in it is answered where it applies, and every
//! one outside it is refused.

use super::context::{Context, Target};
use super::idmap::{self, Kind};
use crate::handle::Node;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use weir_nfs::v4::attr::{self as number, Attrs, Fattr, FsLocations};
use weir_nfs::v4::types::{FileType, FsId, NfsTime, SetTime as WireTime, SpecData};
use weir_nfs::v4::{Bitmap, Error};
use weir_vfs::{Attr, Capabilities, FileKind, FsStat, SetAttr, SetTime};

/// Largest READ and WRITE, in bytes.
pub(crate) const MAX_IO_BYTES: u64 = 1 << 20;

/// Attributes that can be set.
const SETTABLE: Bitmap = Bitmap::of(&[
    number::SIZE,
    number::MODE,
    number::OWNER,
    number::OWNER_GROUP,
    number::TIME_ACCESS_SET,
    number::TIME_MODIFY_SET,
    number::MODE_UMASK,
]);

/// Where an exclusive create keeps its verifier.
pub(crate) const VERIFIER: Bitmap = Bitmap::of(&[number::TIME_ACCESS_SET, number::TIME_MODIFY_SET]);

/// Attributes that may go with an exclusive create: all but those that hold its verifier.
pub(crate) const EXCLUSIVE: Bitmap = SETTABLE.difference(VERIFIER);

pub(crate) const SIZE: Bitmap = Bitmap::of(&[number::SIZE]);

/// Attributes of the file system, which take a call of their own.
const OF_FILE_SYSTEM: Bitmap = Bitmap::of(&[
    number::FILES_AVAIL,
    number::FILES_FREE,
    number::FILES_TOTAL,
    number::MAXFILESIZE,
    number::MAXLINK,
    number::MAXNAME,
    number::SPACE_AVAIL,
    number::SPACE_FREE,
    number::SPACE_TOTAL,
]);

/// Attributes that can be read.
const READABLE: Bitmap = Bitmap::of(&[
    number::SUPPORTED_ATTRS,
    number::TYPE,
    number::FH_EXPIRE_TYPE,
    number::CHANGE,
    number::SIZE,
    number::LINK_SUPPORT,
    number::SYMLINK_SUPPORT,
    number::NAMED_ATTR,
    number::FSID,
    number::UNIQUE_HANDLES,
    number::LEASE_TIME,
    number::RDATTR_ERROR,
    number::ACLSUPPORT,
    number::CANSETTIME,
    number::CASE_INSENSITIVE,
    number::CASE_PRESERVING,
    number::CHOWN_RESTRICTED,
    number::FILEHANDLE,
    number::FILEID,
    number::FS_LOCATIONS,
    number::HOMOGENEOUS,
    number::MAXREAD,
    number::MAXWRITE,
    number::MODE,
    number::NO_TRUNC,
    number::NUMLINKS,
    number::OWNER,
    number::OWNER_GROUP,
    number::RAWDEV,
    number::SPACE_USED,
    number::TIME_ACCESS,
    number::TIME_CREATE,
    number::TIME_DELTA,
    number::TIME_METADATA,
    number::TIME_MODIFY,
    number::MOUNTED_ON_FILEID,
    number::SUPPATTR_EXCLCREAT,
    number::CLONE_BLKSIZE,
    number::SPACE_FREED,
    number::CHANGE_ATTR_TYPE,
    number::XATTR_SUPPORT,
])
.union(OF_FILE_SYSTEM);

/// Attributes that the server knows.
pub(crate) const SUPPORTED: Bitmap = READABLE.union(SETTABLE);

/// The first attribute of each later minor version.
const FIRST_OF_1: u32 = 56;
const FIRST_OF_2: u32 = 77;

/// The supported attributes that a minor version has.
pub(crate) fn supported(minor: u32) -> Bitmap {
    let below = |first: u32| Bitmap(SUPPORTED.0 & ((1 << first) - 1));
    match minor {
        0 => below(FIRST_OF_1),
        1 => below(FIRST_OF_2),
        _ => SUPPORTED,
    }
}

/// Whether these attributes take a look at the file system.
pub(crate) fn of_file_system(asked: Bitmap) -> bool {
    !asked.intersection(OF_FILE_SYSTEM).is_empty()
}

/// The attributes asked for of one file.
pub(crate) fn of_file(
    cx: &Context,
    target: &Target<'_>,
    attr: &Attr,
    stat: Option<&FsStat>,
    asked: Bitmap,
) -> Attrs {
    let has = |attribute| asked.contains(attribute);
    let can = |capability| target.fs().store().capabilities().contains(capability);
    let node = Node { id: attr.id, ..target.node };
    let mounted_on = cx.exports.leave(node);
    let stat_of = |attribute, value: fn(&FsStat) -> u64| match stat {
        Some(stat) if has(attribute) => Some(value(stat)),
        _ => None,
    };
    let freed = if attr.nlink > 1 { 0 } else { attr.allocated };
    let clamp = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    Attrs {
        supported_attrs: has(number::SUPPORTED_ATTRS).then(|| supported(cx.minor)),
        kind: has(number::TYPE).then(|| file_type(attr.kind)),
        fh_expire_type: has(number::FH_EXPIRE_TYPE).then_some(0),
        change: has(number::CHANGE).then_some(attr.change),
        size: has(number::SIZE).then_some(attr.size),
        link_support: has(number::LINK_SUPPORT).then_some(true),
        symlink_support: has(number::SYMLINK_SUPPORT).then_some(true),
        named_attr: has(number::NAMED_ATTR).then_some(false),
        fsid: has(number::FSID)
            .then(|| FsId { major: attr.fsid, minor: u64::from(target.node.export) }),
        unique_handles: has(number::UNIQUE_HANDLES).then_some(true),
        lease_time: has(number::LEASE_TIME).then_some(cx.core.lease_seconds),
        aclsupport: has(number::ACLSUPPORT).then_some(0),
        cansettime: has(number::CANSETTIME).then_some(true),
        case_insensitive: has(number::CASE_INSENSITIVE).then_some(false),
        case_preserving: has(number::CASE_PRESERVING).then_some(true),
        chown_restricted: has(number::CHOWN_RESTRICTED).then_some(true),
        filehandle: has(number::FILEHANDLE).then(|| cx.core.exports.seal(node)[..].into()),
        fileid: has(number::FILEID).then_some(attr.id.ino),
        files_avail: stat_of(number::FILES_AVAIL, |s| s.free_files),
        files_free: stat_of(number::FILES_FREE, |s| s.free_files),
        files_total: stat_of(number::FILES_TOTAL, |s| s.total_files),
        fs_locations: has(number::FS_LOCATIONS).then(FsLocations::default),
        homogeneous: has(number::HOMOGENEOUS).then_some(true),
        maxfilesize: stat_of(number::MAXFILESIZE, |s| s.max_file_size),
        maxlink: stat_of(number::MAXLINK, |s| u64::from(s.max_links)).map(clamp),
        maxname: stat_of(number::MAXNAME, |s| u64::from(s.max_name)).map(clamp),
        maxread: has(number::MAXREAD).then_some(MAX_IO_BYTES),
        maxwrite: has(number::MAXWRITE).then_some(MAX_IO_BYTES),
        mode: has(number::MODE).then_some(attr.mode),
        no_trunc: has(number::NO_TRUNC).then_some(true),
        numlinks: has(number::NUMLINKS).then_some(attr.nlink),
        owner: has(number::OWNER).then(|| attr.uid.to_string().as_bytes().into()),
        owner_group: has(number::OWNER_GROUP).then(|| attr.gid.to_string().as_bytes().into()),
        rawdev: has(number::RAWDEV).then_some(SpecData { major: attr.rdev.0, minor: attr.rdev.1 }),
        space_avail: stat_of(number::SPACE_AVAIL, |s| s.available_bytes),
        space_free: stat_of(number::SPACE_FREE, |s| s.free_bytes),
        space_total: stat_of(number::SPACE_TOTAL, |s| s.total_bytes),
        space_used: has(number::SPACE_USED).then_some(attr.allocated),
        time_access: has(number::TIME_ACCESS).then(|| to_wire(attr.atime)),
        time_create: attr.btime.filter(|_| has(number::TIME_CREATE)).map(to_wire),
        time_delta: has(number::TIME_DELTA).then_some(NfsTime { seconds: 0, nseconds: 1 }),
        time_metadata: has(number::TIME_METADATA).then(|| to_wire(attr.ctime)),
        time_modify: has(number::TIME_MODIFY).then(|| to_wire(attr.mtime)),
        mounted_on_fileid: has(number::MOUNTED_ON_FILEID).then_some(mounted_on.id.ino),
        suppattr_exclcreat: has(number::SUPPATTR_EXCLCREAT).then_some(EXCLUSIVE),
        clone_blksize: (has(number::CLONE_BLKSIZE) && can(Capabilities::CLONE)).then_some(4096),
        space_freed: has(number::SPACE_FREED).then_some(freed),
        change_attr_type: has(number::CHANGE_ATTR_TYPE).then_some(CHANGE_UNDEFINED),
        xattr_support: has(number::XATTR_SUPPORT).then(|| can(Capabilities::XATTR)),
        ..Attrs::default()
    }
}

/// `change_attr_type4`: a change attribute that moves, and says nothing by how much.
const CHANGE_UNDEFINED: u32 = 4;

fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::Regular,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Block => FileType::Block,
        FileKind::Char => FileType::Char,
        FileKind::Fifo => FileType::Fifo,
        FileKind::Socket => FileType::Socket,
    }
}

const NANOS_IN_SECOND: u32 = 1_000_000_000;

fn to_wire(time: SystemTime) -> NfsTime {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => NfsTime { seconds: after.as_secs() as i64, nseconds: after.subsec_nanos() },
        Err(before) => {
            let before = before.duration();
            let seconds = i64::try_from(before.as_secs()).map_or(i64::MIN, |s| -s);
            match before.subsec_nanos() {
                0 => NfsTime { seconds, nseconds: 0 },
                nanos => NfsTime {
                    seconds: seconds.saturating_sub(1),
                    nseconds: NANOS_IN_SECOND - nanos,
                },
            }
        }
    }
}

fn from_wire(time: NfsTime) -> Result<SystemTime, Error> {
    if time.nseconds >= NANOS_IN_SECOND {
        return Err(Error::Inval);
    }
    let seconds = Duration::from_secs(time.seconds.unsigned_abs());
    let whole = if time.seconds < 0 {
        UNIX_EPOCH.checked_sub(seconds)
    } else {
        UNIX_EPOCH.checked_add(seconds)
    };
    let time = whole.and_then(|t| t.checked_add(Duration::from_nanos(time.nseconds.into())));
    time.ok_or(Error::Inval)
}

/// What a client wants to set, and the attributes that this takes.
pub(crate) fn to_set(wire: &Fattr) -> Result<(SetAttr, Bitmap), Error> {
    let asked = wire.asked();
    if !asked.difference(SUPPORTED).is_empty() {
        return Err(Error::AttrNotSupp);
    }
    if !asked.difference(SETTABLE).is_empty() {
        return Err(Error::Inval);
    }
    let attrs = wire.attrs()?;
    let mode = match (attrs.mode, attrs.mode_umask) {
        (Some(_), Some(_)) => return Err(Error::Inval),
        (Some(mode), None) => Some(mode),
        (None, Some(both)) => Some(both.mode & !both.umask),
        (None, None) => None,
    };
    if mode.is_some_and(|mode| mode & !0o7777 != 0) {
        return Err(Error::Inval);
    }
    let id = |kind, name: &Option<weir_nfs::v4::types::Name>| match name {
        Some(name) => idmap::number(kind, name).map(Some).ok_or(Error::BadOwner),
        None => Ok(None),
    };
    let time = |time: Option<WireTime>| match time {
        Some(WireTime::ToServerTime) => Ok(Some(SetTime::Now)),
        Some(WireTime::ToClientTime(time)) => from_wire(time).map(|t| Some(SetTime::To(t))),
        None => Ok(None),
    };
    let set = SetAttr {
        mode,
        uid: id(Kind::User, &attrs.owner)?,
        gid: id(Kind::Group, &attrs.owner_group)?,
        size: attrs.size,
        atime: time(attrs.time_access_set)?,
        mtime: time(attrs.time_modify_set)?,
    };
    Ok((set, asked))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_go_there_and_back_also_before_1970() {
        for (seconds, nseconds) in [(0, 0), (5, 7), (-1, 999_999_999), (-7, 0), (1 << 33, 1)] {
            let time = NfsTime { seconds, nseconds };
            assert_eq!(to_wire(from_wire(time).unwrap()), time);
        }
        let bad = NfsTime { seconds: 0, nseconds: NANOS_IN_SECOND };
        assert_eq!(from_wire(bad), Err(Error::Inval));
        // Whether the machine has such times or not, none is too much.
        for (seconds, nseconds) in [(i64::MIN, 0), (i64::MIN, 1), (i64::MAX, 999_999_999)] {
            if let Ok(time) = from_wire(NfsTime { seconds, nseconds }) {
                to_wire(time);
            }
        }
    }

    #[test]
    fn what_can_be_set() {
        let set = |attrs: Attrs| to_set(&attrs.into());
        let owner = |name: &str| Attrs { owner: Some(name.as_bytes().into()), ..Attrs::default() };
        assert_eq!(set(owner("17")).unwrap().0.uid, Some(17));
        assert_eq!(set(owner("nobody at all")), Err(Error::BadOwner));
        assert_eq!(set(Attrs { fileid: Some(1), ..Attrs::default() }), Err(Error::Inval));
        assert_eq!(set(Attrs { hidden: Some(true), ..Attrs::default() }), Err(Error::AttrNotSupp));
        let umask = number::ModeUmask { mode: 0o666, umask: 0o027 };
        let (set, done) = set(Attrs { mode_umask: Some(umask), ..Attrs::default() }).unwrap();
        assert_eq!((set.mode, done), (Some(0o640), Bitmap::of(&[number::MODE_UMASK])));
    }

    #[test]
    fn minor_versions_know_their_own() {
        assert!(!supported(0).contains(number::SUPPATTR_EXCLCREAT));
        assert!(supported(1).contains(number::SUPPATTR_EXCLCREAT));
        assert!(!supported(1).contains(number::XATTR_SUPPORT));
        assert!(supported(2).contains(number::XATTR_SUPPORT));
    }
}
