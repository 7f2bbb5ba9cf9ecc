//! File attributes: encoding them for clients, and decoding those that a client sets.
//!
//! The server answers each attribute in [`supported`] for each file that has it, and refuses all
//! others.

use super::acl::{self, Acls};
use super::context::{Context, Target};
use super::idmap::{IdKind, IdMap};
use super::open_arguments;
use super::status::of_vfs;
use crate::handle::Node;
use std::time::{SystemTime, UNIX_EPOCH};
use weir_nfs::v4::acl::{Ace, Acl as WireAcl, AclFlags};
use weir_nfs::v4::attr::{self as number, Attrs, Fattr, FsLocations};
use weir_nfs::v4::types::{FileType, FsId, Name, NfsTime, SetTime as WireTime, SpecData};
use weir_nfs::v4::{Bitmap, Error};
use weir_pagecache::CachedFs;
use weir_vfs::{
    Acl, AclKind, Attr, Caller, Capabilities, FileId, FileKind, FsStat, SetAttr, SetTime,
    UNCACHED_MARK, UNCACHED_XATTR, XattrMode,
};
use weir_xdr::List;

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
    number::MODE_SET_MASKED,
    number::MODE_UMASK,
    number::ACL,
    number::DACL,
    number::UNCACHEABLE_FILE_DATA,
])
.union(number::OF_DELEGATES);

/// The attributes in which an exclusive create keeps its verifier.
pub(crate) const VERIFIER: Bitmap = Bitmap::of(&[number::TIME_ACCESS_SET, number::TIME_MODIFY_SET]);

pub(crate) const SIZE: Bitmap = Bitmap::of(&[number::SIZE]);

/// Attributes of the file system; these need a `statfs` call.
const OF_FILE_SYSTEM: Bitmap = Bitmap::of(&[
    number::FILES_AVAIL,
    number::FILES_FREE,
    number::FILES_TOTAL,
    number::MAXFILESIZE,
    number::MAXLINK,
    number::MAXNAME,
    number::SPACE_AVAIL,
    number::CLONE_BLKSIZE,
    number::SPACE_FREE,
    number::SPACE_TOTAL,
]);

/// Access control lists; these are long, and need a call for each file.
pub(crate) const LISTS: Bitmap = Bitmap::of(&[number::ACL, number::DACL]);

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
    number::FS_CHARSET_CAP,
    number::CLONE_BLKSIZE,
    number::SPACE_FREED,
    number::CHANGE_ATTR_TYPE,
    number::XATTR_SUPPORT,
    number::OPEN_ARGUMENTS,
])
.union(OF_FILE_SYSTEM);

/// Attributes that the server supports.
const SUPPORTED: Bitmap = READABLE.union(SETTABLE);

/// The number of the first attribute that each later minor version adds.
const FIRST_OF_1: u32 = 56;
const FIRST_OF_2: u32 = 77;

/// Attributes that need a capability of the store.
const OF_STORE: [(Capabilities, Bitmap); 3] = [
    (Capabilities::POSIX_ACL, LISTS.union(Bitmap::of(&[number::ACLSUPPORT]))),
    (Capabilities::CLONE, Bitmap::of(&[number::CLONE_BLKSIZE])),
    // Stored in an extended attribute.
    (Capabilities::XATTR, Bitmap::of(&[number::UNCACHEABLE_FILE_DATA])),
];

/// The attributes that are supported in a minor version and by a store.
pub(crate) fn supported(minor: u32, store: Capabilities) -> Bitmap {
    let below = |first: u32| Bitmap(SUPPORTED.0 & ((1 << first) - 1));
    let of_version = match minor {
        0 => below(FIRST_OF_1),
        1 => below(FIRST_OF_2),
        _ => SUPPORTED,
    };
    let lacking = OF_STORE.iter().filter(|(capability, _)| !store.contains(*capability));
    lacking.fold(of_version, |all, (_, attributes)| all.difference(*attributes))
}

/// Attributes that an exclusive create may set: all but those that keep its verifier.
pub(crate) fn exclusive(minor: u32, store: Capabilities) -> Bitmap {
    supported(minor, store)
        .intersection(SETTABLE)
        .difference(VERIFIER)
        .difference(number::OF_DELEGATES)
}

/// Whether any of these attributes needs a `statfs` call.
fn of_file_system(asked: Bitmap) -> bool {
    !asked.intersection(OF_FILE_SYSTEM).is_empty()
}

/// Values of requested attributes that [`Attr`] does not contain.
#[derive(Clone, Debug, Default)]
pub(crate) struct Besides {
    stat: Option<FsStat>,
    lists: Option<Vec<Ace>>,
    uncacheable: Option<bool>,
    owner: Option<Name>,
    owner_group: Option<Name>,
}

impl Besides {
    /// The values that are the same for all files of a file system.
    pub(crate) async fn of_file_system(target: &Target<'_>, asked: Bitmap) -> Result<Self, Error> {
        let stat = match of_file_system(asked) {
            true => Some(target.fs().statfs().await.map_err(of_vfs)?),
            false => None,
        };
        Ok(Self { stat, ..Self::default() })
    }

    /// Adds the values of one file.
    pub(crate) async fn of_file(
        &self,
        ids: &IdMap,
        target: &Target<'_>,
        attr: &Attr,
        asked: Bitmap,
    ) -> Result<Self, Error> {
        let asked = asked.intersection(supported(u32::MAX, target.capabilities()));
        let lists = match asked.intersection(LISTS).is_empty() {
            true => None,
            false => Some(lists(ids, target, attr).await?),
        };
        let uncacheable = match asked.contains(number::UNCACHEABLE_FILE_DATA) {
            true => Some(is_uncacheable(target, attr).await?),
            false => None,
        };
        let owner = match asked.contains(number::OWNER) {
            true => Some(ids.name(IdKind::User, attr.uid).await),
            false => None,
        };
        let owner_group = match asked.contains(number::OWNER_GROUP) {
            true => Some(ids.name(IdKind::Group, attr.gid).await),
            false => None,
        };
        Ok(Self { stat: self.stat, lists, uncacheable, owner, owner_group })
    }
}

/// Whether a file is marked as one whose data must not be cached. Only regular files can be.
async fn is_uncacheable(target: &Target<'_>, attr: &Attr) -> Result<bool, Error> {
    if attr.kind != FileKind::Regular {
        return Ok(false);
    }
    // A caller without read access sees the mark, too: it is an attribute, not data.
    match target.fs().get_xattr(&Caller::Own, attr.id.xattr(UNCACHED_XATTR)).await {
        Ok(value) => Ok(value == UNCACHED_MARK),
        Err(weir_vfs::Error::NoAttribute) => Ok(false),
        Err(error) => Err(of_vfs(error)),
    }
}

async fn lists(ids: &IdMap, target: &Target<'_>, attr: &Attr) -> Result<Vec<Ace>, Error> {
    let by_mode = || Acl::of_mode(attr.mode);
    let is_dir = attr.kind == FileKind::Directory;
    let get = async |kind| target.fs().get_acl(attr.id.acl(kind)).await;
    let access = match attr.kind {
        FileKind::Symlink => by_mode(),
        _ => get(AclKind::Access).await.map_err(of_vfs)?.unwrap_or_else(by_mode),
    };
    let default = match is_dir {
        true => get(AclKind::Default).await.map_err(of_vfs)?,
        false => None,
    };
    acl::to_wire(ids, &Acls { access, default }, is_dir).await
}

/// The requested attributes of one file.
pub(crate) fn of_file(
    cx: &Context,
    target: &Target<'_>,
    attr: &Attr,
    besides: &Besides,
    asked: Bitmap,
) -> Attrs {
    let store = target.capabilities();
    let asked = asked.intersection(supported(cx.minor, store));
    let has = |attribute| asked.contains(attribute);
    let lists = |attribute| besides.lists.clone().filter(|_| has(attribute)).map(List);
    let node = Node { id: attr.id, ..target.node };
    let mounted_on = cx.exports.leave(node);
    let stat_of = |attribute, value: fn(&FsStat) -> u64| {
        besides.stat.as_ref().filter(|_| has(attribute)).map(value)
    };
    let freed = if attr.nlink > 1 { 0 } else { attr.allocated };
    let clamp = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    Attrs {
        supported_attrs: has(number::SUPPORTED_ATTRS)
            .then(|| supported(cx.minor, store).difference(cx.nfs.refused_attributes())),
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
        lease_time: has(number::LEASE_TIME).then(|| lease_seconds(cx)),
        acl: lists(number::ACL),
        aclsupport: has(number::ACLSUPPORT).then_some(acl::SUPPORT),
        cansettime: has(number::CANSETTIME).then_some(true),
        case_insensitive: has(number::CASE_INSENSITIVE).then_some(false),
        case_preserving: has(number::CASE_PRESERVING).then_some(true),
        chown_restricted: has(number::CHOWN_RESTRICTED).then_some(true),
        filehandle: has(number::FILEHANDLE).then(|| cx.services.exports.seal(node)[..].into()),
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
        owner: besides.owner.clone(),
        owner_group: besides.owner_group.clone(),
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
        dacl: lists(number::DACL).map(|aces| WireAcl { flags: AclFlags::empty(), aces }),
        suppattr_exclcreat: has(number::SUPPATTR_EXCLCREAT).then(|| exclusive(cx.minor, store)),
        fs_charset_cap: has(number::FS_CHARSET_CAP).then_some(CONTAINS_NON_UTF8),
        clone_blksize: stat_of(number::CLONE_BLKSIZE, |s| s.clone_bytes.into()).map(clamp),
        space_freed: has(number::SPACE_FREED).then_some(freed),
        change_attr_type: has(number::CHANGE_ATTR_TYPE).then_some(CHANGE_UNDEFINED),
        uncacheable_file_data: besides.uncacheable,
        open_arguments: has(number::OPEN_ARGUMENTS)
            .then(|| open_arguments::supported(cx.nfs.delegated_times)),
        xattr_support: has(number::XATTR_SUPPORT).then(|| store.contains(Capabilities::XATTR)),
        ..Attrs::default()
    }
}

/// The lease time that clients are told, in seconds.
fn lease_seconds(cx: &Context) -> u32 {
    u32::try_from(cx.state().limits().lease.as_secs()).unwrap_or(u32::MAX)
}

/// `FSCHARSET_CAP4_CONTAINS_NON_UTF8`: names are byte strings.
const CONTAINS_NON_UTF8: u32 = 1;

/// `NFS4_CHANGE_TYPE_IS_UNDEFINED`: the value differs after each change, with no defined order.
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
    time.to_system().ok_or(Error::Inval)
}

/// The attributes that a client asks to set.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ToSet {
    /// Those that a store sets in one call.
    pub(crate) set: SetAttr,
    /// The attributes in the request.
    pub(crate) asked: Bitmap,
    /// The mode bits to set; the others keep their value.
    pub(crate) masked: Option<u32>,
    /// Times from the holder of a delegation, which need one.
    pub(crate) of_delegate: DelegateTimes,
    list: Option<Vec<acl::Entry>>,
    uncacheable: Option<bool>,
}

/// What the holder of a delegation says of a file's times (RFC 9754 section 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DelegateTimes {
    pub(crate) atime: Option<SystemTime>,
    pub(crate) mtime: Option<SystemTime>,
}

impl ToSet {
    /// Decodes a client's attributes.
    ///
    /// # Errors
    /// [`Error::AttrNotSupp`], [`Error::Inval`], [`Error::BadOwner`], [`Error::BadXdr`].
    pub(crate) async fn read(
        ids: &IdMap,
        wire: &Fattr,
        minor: u32,
        store: Capabilities,
    ) -> Result<Self, Error> {
        let asked = wire.asked();
        if !asked.difference(supported(minor, store)).is_empty() {
            return Err(Error::AttrNotSupp);
        }
        if !asked.difference(SETTABLE).is_empty() {
            return Err(Error::Inval);
        }
        let attrs = wire.attrs()?;
        let (mode, umask) = match (attrs.mode, attrs.mode_umask, attrs.mode_set_masked) {
            (mode, None, None) => (mode, None),
            (None, Some(both), None) => (Some(both.mode), Some(both.umask)),
            (None, None, Some(some)) => (Some(some.mode & some.mask), None),
            _ => return Err(Error::Inval),
        };
        let masked = attrs.mode_set_masked.map(|some| some.mask);
        if masked.unwrap_or(0) & !0o7777 != 0
            || mode.unwrap_or(0) & !0o7777 != 0
            || umask.unwrap_or(0) & !0o777 != 0
        {
            return Err(Error::Inval);
        }
        let list = match (&attrs.acl, &attrs.dacl) {
            (Some(_), Some(_)) => return Err(Error::Inval),
            // The flags say how a list was inherited, which no store can keep.
            (None, Some(dacl)) if !dacl.flags.is_empty() => return Err(Error::AttrNotSupp),
            (acl, dacl) => acl.as_ref().or(dacl.as_ref().map(|dacl| &dacl.aces)),
        };
        let list = match list {
            Some(aces) => Some(acl::entries(ids, &aces.0).await?),
            None => None,
        };
        let id = async |kind, name: &Option<Name>| match name {
            Some(name) if name.is_empty() => Err(Error::Inval),
            Some(name) => match ids.number(kind, name).await {
                // Not an id: in chown(2), -1 leaves the owner unchanged.
                Some(u32::MAX) => Err(Error::Inval),
                number => number.map(Some).ok_or(Error::BadOwner),
            },
            None => Ok(None),
        };
        let time = |time: Option<WireTime>| match time {
            Some(WireTime::ToServerTime) => Ok(Some(SetTime::Now)),
            Some(WireTime::ToClientTime(time)) => from_wire(time).map(|t| Some(SetTime::To(t))),
            None => Ok(None),
        };
        let set = SetAttr {
            mode,
            // Applies to an existing file only ([`Self::masked`]).
            mode_mask: None,
            umask,
            uid: id(IdKind::User, &attrs.owner).await?,
            gid: id(IdKind::Group, &attrs.owner_group).await?,
            size: attrs.size,
            atime: time(attrs.time_access_set)?,
            mtime: time(attrs.time_modify_set)?,
        };
        let delegate_time = |time: Option<NfsTime>| time.map(from_wire).transpose();
        let of_delegate = DelegateTimes {
            atime: delegate_time(attrs.time_deleg_access)?,
            mtime: delegate_time(attrs.time_deleg_modify)?,
        };
        if of_delegate.atime.is_some() && set.atime.is_some()
            || of_delegate.mtime.is_some() && set.mtime.is_some()
        {
            return Err(Error::Inval);
        }
        let uncacheable = attrs.uncacheable_file_data;
        Ok(Self { set, asked, masked, of_delegate, list, uncacheable })
    }

    /// The same for a file that is to be created, which no client has delegated.
    ///
    /// # Errors
    /// Those of [`read`](Self::read).
    pub(crate) async fn read_new(
        ids: &IdMap,
        wire: &Fattr,
        minor: u32,
        store: Capabilities,
    ) -> Result<Self, Error> {
        if !wire.asked().intersection(number::OF_DELEGATES).is_empty() {
            return Err(Error::Inval);
        }
        Self::read(ids, wire, minor, store).await
    }

    /// The attributes that need calls of their own, for a file of this kind.
    ///
    /// # Errors
    /// An attribute cannot be set on a file of this kind.
    pub(crate) fn more(&self, kind: FileKind) -> Result<More, Error> {
        if self.uncacheable.is_some() && kind != FileKind::Regular {
            return Err(Error::Inval);
        }
        let is_dir = kind == FileKind::Directory;
        let acls = match &self.list {
            Some(_) if kind == FileKind::Symlink => return Err(Error::AttrNotSupp),
            Some(entries) => Some(acl::read(entries, is_dir)?),
            None => None,
        };
        Ok(More { acls, is_dir, uncacheable: self.uncacheable })
    }
}

/// Attributes that need calls of their own to set.
pub(crate) struct More {
    acls: Option<Acls>,
    is_dir: bool,
    uncacheable: Option<bool>,
}

impl More {
    /// All attributes of this sort.
    pub(crate) const ALL: Bitmap =
        Bitmap::of(&[number::ACL, number::DACL, number::UNCACHEABLE_FILE_DATA]);

    /// Sets the attributes with the rights of `caller`. Removes a directory's default ACL if the
    /// client's list has no inheritable entry.
    pub(crate) async fn set(
        &self,
        fs: &CachedFs,
        caller: &Caller,
        id: FileId,
    ) -> Result<(), Error> {
        if let Some(acls) = &self.acls {
            let set = async |kind, acl| fs.set_acl(caller, id.acl(kind), acl).await.map_err(of_vfs);
            set(AclKind::Access, Some(&acls.access)).await?;
            if self.is_dir {
                set(AclKind::Default, acls.default.as_ref()).await?;
            }
        }
        let marked = match self.uncacheable {
            Some(true) => {
                fs.set_xattr(caller, id.xattr(UNCACHED_XATTR), UNCACHED_MARK, XattrMode::Either)
                    .await
            }
            Some(false) => fs.remove_xattr(caller, id.xattr(UNCACHED_XATTR)).await,
            None => Ok(()),
        };
        match marked {
            Err(weir_vfs::Error::NoAttribute) => Ok(()),
            marked => marked.map_err(of_vfs),
        }
    }

    /// Sets the attributes on the file just created as `name` in `dir`. Removes the file if that
    /// fails: without its ACL, it might be open to users whom the client excluded.
    ///
    /// The rights are the server's, as the mode may deny the caller what it sets; but only if the
    /// file is the caller's own. Otherwise they are the caller's: some stores find a new file by
    /// its name, which a program may have given to a file of another user.
    pub(crate) async fn set_on_new(
        &self,
        dir: &Target<'_>,
        name: &[u8],
        made: &Attr,
    ) -> Result<(), Error> {
        let (fs, caller, id) = (dir.fs(), &dir.caller, dir.node.id);
        let is_callers = matches!(caller, Caller::As(cred) if cred.uid == made.uid);
        let rights = if is_callers { &Caller::Own } else { caller };
        let Err(error) = self.set(fs, rights, made.id).await else { return Ok(()) };
        let removed = match made.kind {
            FileKind::Directory => fs.rmdir(caller, id.entry(name)).await,
            _ => fs.unlink(caller, id.entry(name)).await,
        };
        Err(removed.map_err(of_vfs).err().unwrap_or(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_round_trip_also_before_1970() {
        for (seconds, nseconds) in [(0, 0), (5, 7), (-1, 999_999_999), (-7, 0), (1 << 33, 1)] {
            let time = NfsTime { seconds, nseconds };
            assert_eq!(to_wire(from_wire(time).unwrap()), time);
        }
        let bad = NfsTime { seconds: 0, nseconds: NANOS_IN_SECOND };
        assert_eq!(from_wire(bad), Err(Error::Inval));
        // The range of `SystemTime` depends on the platform; no value may cause an overflow.
        for (seconds, nseconds) in [(i64::MIN, 0), (i64::MIN, 1), (i64::MAX, 999_999_999)] {
            if let Ok(time) = from_wire(NfsTime { seconds, nseconds }) {
                to_wire(time);
            }
        }
    }

    #[tokio::test]
    async fn settable_attributes_are_decoded() {
        let ids = IdMap::new(None);
        let all = Capabilities::all();
        let read = async |attrs: Attrs| ToSet::read(&ids, &attrs.into(), 2, all).await;
        let owner = |name: &str| Attrs { owner: Some(name.as_bytes().into()), ..Attrs::default() };
        assert_eq!(read(owner("17")).await.unwrap().set.uid, Some(17));
        assert_eq!(read(owner("no such user")).await, Err(Error::BadOwner));
        assert_eq!(read(Attrs { fileid: Some(1), ..Attrs::default() }).await, Err(Error::Inval));
        assert_eq!(
            read(Attrs { hidden: Some(true), ..Attrs::default() }).await,
            Err(Error::AttrNotSupp)
        );
        let both = |mode, umask| Attrs {
            mode_umask: Some(number::ModeUmask { mode, umask }),
            ..Attrs::default()
        };
        let ToSet { set, asked, .. } = read(both(0o666, 0o027)).await.unwrap();
        assert_eq!((set.mode, set.umask), (Some(0o666), Some(0o027)));
        assert_eq!(asked, Bitmap::of(&[number::MODE_UMASK]));
        assert_eq!(read(both(0o666, 0o1000)).await, Err(Error::Inval));
        assert_eq!(read(Attrs { mode: Some(0), ..both(0, 0) }).await, Err(Error::Inval));
        let acl = Attrs { acl: Some(List::default()), ..Attrs::default() };
        assert!(read(acl.clone()).await.is_ok());
        let fewer = all - Capabilities::POSIX_ACL;
        let without = ToSet::read(&ids, &acl.clone().into(), 2, fewer).await;
        assert_eq!(without, Err(Error::AttrNotSupp));
        let flags = AclFlags::PROTECTED;
        let dacl = |flags| Some(WireAcl { flags, aces: List::default() });
        assert_eq!(
            read(Attrs { dacl: dacl(flags), ..Attrs::default() }).await,
            Err(Error::AttrNotSupp)
        );
        assert_eq!(read(Attrs { dacl: dacl(AclFlags::empty()), ..acl }).await, Err(Error::Inval));
    }

    #[test]
    fn supported_attributes_depend_on_minor_version_and_store() {
        let all = Capabilities::all();
        assert!(!supported(0, all).contains(number::SUPPATTR_EXCLCREAT));
        assert!(supported(1, all).contains(number::SUPPATTR_EXCLCREAT));
        assert!(
            !supported(0, all).contains(number::DACL) && supported(0, all).contains(number::ACL)
        );
        assert!(!supported(1, all).contains(number::XATTR_SUPPORT));
        assert!(supported(2, all).contains(number::XATTR_SUPPORT));
        let none = supported(2, Capabilities::empty());
        assert!(!none.contains(number::ACL) && !none.contains(number::CLONE_BLKSIZE));
    }
}
