//! A copy's attributes: owner, mode, times, extended attributes, access lists.
//!
//! 1. No other user can open a protected copy before it is protected: it has mode 0600 (a directory
//!    0700) until owner, access list and mode are set, in this order, since each may change the
//!    next.
//! 2. Attributes that `--preserve` cannot keep are reported ([`Copier::lost`]), not ignored.
//! 3. Attributes of the system (`security.*`, `trusted.*`) are set after the data and the owner:
//!    Linux drops file capabilities when either changes, and another owner's program must not get
//!    them.

use super::copier::{Copier, Lost};
use super::mend;
use crate::mounts::Place;
use std::time::{Duration, SystemTime};
use weir_vfs::{
    Acl, AclKind, AclWho, Attr, Caller, Capabilities, Error, FileId, FileKind, SetAttr, SetTime,
    XattrMode,
};

/// The coarsest time stamps of any file system that stores all times (FAT).
const COARSEST: Duration = Duration::from_secs(2);
/// The group's bits of a mode. Those of a file with a list are the upper bound of the rights of named users as
/// well; the group itself may have had none.
const OF_GROUP: u32 = 0o070;
/// Gives rights to the user that runs the program.
pub(super) const CAPABILITY: &[u8] = b"security.capability";
/// Signs an inode together with its number (Linux: EVM), so it is wrong for every copy.
const OF_ITS_INODE: &[u8] = b"security.evm";

/// A source, and its attributes.
#[derive(Clone, Copy)]
pub(crate) struct Like<'a> {
    pub(crate) place: &'a Place,
    pub(crate) attr: &'a Attr,
    /// Names of its extended attributes, if they are known already.
    pub(crate) xattrs: Option<&'a [Vec<u8>]>,
    /// Its access list, likewise.
    pub(crate) access_list: Option<&'a weir_vfs::Result<Option<Acl>>>,
}

impl<'a> Like<'a> {
    /// A source, with nothing known but its attributes.
    pub(crate) fn new(place: &'a Place, attr: &'a Attr) -> Self {
        Self { place, attr, xattrs: None, access_list: None }
    }

    /// Its access list, or the one that its new files get.
    pub(super) async fn list(&self, kind: AclKind) -> weir_vfs::Result<Option<Acl>> {
        match self.access_list {
            Some(list) if kind == AclKind::Access => list.clone(),
            _ => self.place.fs.get_acl(self.attr.id.acl(kind)).await,
        }
    }
}

/// The attributes that a new file gets, if it has neither extended attributes nor access lists.
pub(crate) struct Wanted {
    pub(crate) mode: u32,
    pub(crate) owner: Option<(u32, u32)>,
    pub(crate) times: Option<(SystemTime, SystemTime)>,
}

/// The attributes that [`set_of_file`] sets.
pub(crate) fn wanted(copier: &Copier, like: Like<'_>, to: &Place) -> Wanted {
    let replaced = to.attr.as_ref().filter(|a| a.kind == FileKind::Regular);
    let Attr { mode, uid, gid, atime, mtime, .. } = *like.attr;
    match replaced {
        _ if copier.options.preserve => {
            Wanted { mode, owner: Some((uid, gid)), times: Some((atime, mtime)) }
        }
        Some(replaced) => {
            let owner = Some((replaced.uid, replaced.gid));
            Wanted { mode: replaced.mode, owner, times: None }
        }
        None => Wanted { mode: mode & 0o777 & !copier.options.umask, owner: None, times: None },
    }
}

/// Sets a copied file's mode, and with `--preserve` its other attributes; without, a file that is
/// replaced keeps its owner, access control list, users' extended attributes and mode.
pub(crate) async fn set_of_file(
    copier: &Copier,
    like: Like<'_>,
    to: &Place,
    id: FileId,
) -> weir_vfs::Result<()> {
    let replaced = to.attr.as_ref().filter(|a| a.kind == FileKind::Regular);
    match replaced {
        Some(replaced) if !copier.options.preserve => {
            let mode = like_replaced(copier, replaced, to, id).await?;
            set_mode(to, id, mode).await
        }
        _ => set(copier, like, to, id).await,
    }
}

/// Sets a new file's owner, access control list, users' extended attributes and mode where there is no source:
/// those of the file that it replaces.
pub(crate) async fn set_without_source(
    copier: &Copier,
    to: &Place,
    id: FileId,
) -> weir_vfs::Result<()> {
    let mode = match to.attr.as_ref().filter(|a| a.kind == FileKind::Regular) {
        Some(replaced) => like_replaced(copier, replaced, to, id).await?,
        None => 0o666 & !copier.options.umask,
    };
    set_mode(to, id, mode).await
}

async fn set_mode(to: &Place, id: FileId, mode: u32) -> weir_vfs::Result<()> {
    let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
    to.fs.setattr(&Caller::Own, id, &set).await.map(drop)
}

/// Gives the new file `id` the owner, the access control list and the users' extended attributes of the one
/// that it replaces. Returns the mode that it is to have.
async fn like_replaced(
    copier: &Copier,
    replaced: &Attr,
    to: &Place,
    id: FileId,
) -> weir_vfs::Result<u32> {
    keep_xattrs(copier, replaced, to, id).await;
    let now = to.fs.getattr(id).await?;
    let mode = own(to, &now, replaced).await?.reported(copier, to).mode(replaced);
    Ok(match has_acl_of(replaced, to, id).await {
        true => mode,
        false => {
            copier.lost(Lost::Acls, to);
            mode & !OF_GROUP
        }
    })
}

/// Gives the new file `id` the users' extended attributes of the one that it replaces, which a file that is
/// overwritten keeps. Those of the system belong to the old data.
async fn keep_xattrs(copier: &Copier, replaced: &Attr, to: &Place, id: FileId) {
    if replaced.id == id {
        return;
    }
    match users_xattrs(to, replaced.id).await {
        Ok(names) => copy_xattrs(copier, Like::new(to, replaced), to, id, &names).await,
        // Which ones it had is not known, or not any more.
        Err(_) => copier.lost(Lost::Xattrs, to),
    }
}

/// The names of a file's extended attributes that belong to users.
pub(crate) async fn users_xattrs(place: &Place, id: FileId) -> weir_vfs::Result<Vec<Vec<u8>>> {
    match place.fs.list_xattrs(&Caller::Own, id).await {
        Err(Error::NotSupported) => Ok(Vec::new()),
        names => {
            let mut names = names?;
            names.retain(|name| name.starts_with(b"user."));
            Ok(names)
        }
    }
}

/// Gives the new file `id` the access control list of the one that it replaces. Returns whether it has the
/// same rights as that, as far as these are known.
async fn has_acl_of(replaced: &Attr, to: &Place, id: FileId) -> bool {
    let get = async |id: FileId| to.fs.get_acl(id.acl(AclKind::Access)).await;
    let list = match get(replaced.id).await {
        Ok(list) => list,
        Err(Error::NotSupported) => return true,
        // A server says no more than that there is a list. The new file may have got one from its directory, as the
        // old one did.
        Err(Error::AccessDenied) if !has_lists(to) => {
            return get(id).await == Err(Error::AccessDenied);
        }
        // Whether a file had a list that another program has removed meanwhile is not known any more.
        Err(_) => return false,
    };
    if list.is_none() && get(id).await == Ok(None) {
        return true;
    }
    if to.fs.set_acl(&Caller::Own, id.acl(AclKind::Access), list.as_ref()).await.is_ok() {
        return true;
    }
    // It may have got the same from its directory. The mode, which is set later, is part of a list.
    let with_mode = |mut list: Acl| {
        list.set_mode(replaced.mode);
        list
    };
    let there = get(id).await.ok().flatten();
    there.is_some() && there.map(with_mode) == list.map(with_mode)
}

/// Sets the attributes of the new file or directory `id` from its source, as the options require.
pub(crate) async fn set(
    copier: &Copier,
    like: Like<'_>,
    to: &Place,
    id: FileId,
) -> weir_vfs::Result<()> {
    let now = to.fs.getattr(id).await?;
    set_from(copier, like, to, &now).await
}

/// Sets the attributes of the new file or directory `now` from its source, as the options require.
/// Its owner and mode are those in `now`.
pub(crate) async fn set_from(
    copier: &Copier,
    like: Like<'_>,
    to: &Place,
    now: &Attr,
) -> weir_vfs::Result<()> {
    let id = now.id;
    if !copier.options.preserve {
        let mode = new_mode(copier, like.attr, now);
        if mode == now.mode {
            return Ok(());
        }
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        return to.fs.setattr(&Caller::Own, id, &set).await.map(drop);
    }
    let listed = listed_xattrs(copier, like, to).await?;
    let is_old = to.attr.as_ref().is_some_and(|there| there.id == id);
    if copier.options.mirror.is_some()
        && is_old
        && let Some(names) = &listed
    {
        mend::remove_xattrs(copier, names, to, id).await;
    }
    let names = listed.unwrap_or_default();
    let (users, systems): (Vec<_>, Vec<_>) =
        names.into_iter().partition(|name| name.starts_with(b"user."));
    // While its owner may still write to it, which user attributes require.
    copy_xattrs(copier, like, to, id, &users).await;
    let owned = own(to, now, like.attr).await?.reported(copier, to);
    let denied = copy_acls(copier, like, to, id).await?;
    copy_system_xattrs(copier, like, to, id, (owned, systems)).await?;
    let mode = owned.mode(like.attr) & !denied;
    let set = SetAttr {
        mode: Some(mode),
        atime: Some(SetTime::To(like.attr.atime)),
        mtime: Some(SetTime::To(like.attr.mtime)),
        ..SetAttr::default()
    };
    let got = to.fs.setattr(&Caller::Own, id, &set).await?;
    report_mode(copier, &got, mode, to);
    if !has_times(&got, like.attr) {
        copier.lost(Lost::Times, to);
    }
    Ok(())
}

/// Reports a copy whose store did not take its mode.
pub(super) fn report_mode(copier: &Copier, got: &Attr, mode: u32, to: &Place) {
    if (got.mode ^ mode) & 0o7777 != 0 {
        copier.lost(Lost::Mode, to);
    }
}

/// Reports what a copy, which was written whole, does not have of its source, or of the file that it replaces.
pub(crate) fn report(copier: &Copier, copy: &Attr, source: &Attr, to: &Place) {
    if !copier.options.preserve {
        let replaced = to.attr.as_ref().filter(|there| there.kind == FileKind::Regular);
        if let Some(replaced) = replaced {
            Owned::of(copy, replaced).reported(copier, to);
        }
        return;
    }
    let owned = Owned::of(copy, source).reported(copier, to);
    report_mode(copier, copy, owned.mode(source), to);
    if !has_times(copy, source) {
        copier.lost(Lost::Times, to);
    }
}

/// Whether a copy has the times of its source. A store may accept times but store others: those of
/// NFSv3 range from 1970 to 2106.
pub(crate) fn has_times(copy: &Attr, source: &Attr) -> bool {
    let near = |a, b| apart(a, b) <= COARSEST;
    near(copy.mtime, source.mtime) && near(copy.atime, source.atime)
}

/// The mode of a new file that does not keep its source's: without special bits, except the
/// set-group-ID bit that a directory inherits from its parent (inode(7)).
pub(crate) fn new_mode(copier: &Copier, source: &Attr, now: &Attr) -> u32 {
    let inherited = if now.kind == FileKind::Directory { now.mode & 0o2000 } else { 0 };
    source.mode & 0o777 & !copier.options.umask | inherited
}

/// Sets owner, extended attributes and times of a symbolic link from its source.
pub(crate) async fn set_of_link(
    copier: &Copier,
    source: Like<'_>,
    to: &Place,
    made: &Attr,
) -> weir_vfs::Result<()> {
    let like = source.attr;
    let owned = own(to, made, like).await?.reported(copier, to);
    let names = xattr_names(copier, source, to).await?;
    copy_system_xattrs(copier, source, to, made.id, (owned, names)).await?;
    let set = SetAttr {
        atime: Some(SetTime::To(like.atime)),
        mtime: Some(SetTime::To(like.mtime)),
        ..SetAttr::default()
    };
    match to.fs.setattr(&Caller::Own, made.id, &set).await {
        Ok(got) if has_times(&got, like) => Ok(()),
        Ok(_) | Err(Error::NotSupported | Error::NotPermitted | Error::AccessDenied) => {
            copier.lost(Lost::Times, to);
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Whether a copy has the owner of its source.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Owned {
    Alike,
    Otherwise,
}

impl Owned {
    /// Whether the owner of `copy` is that of `like`.
    fn of(copy: &Attr, like: &Attr) -> Self {
        match (copy.uid, copy.gid) == (like.uid, like.gid) {
            true => Self::Alike,
            false => Self::Otherwise,
        }
    }

    /// The same, after a report that the copy at `to` has another owner.
    pub(super) fn reported(self, copier: &Copier, to: &Place) -> Self {
        if self == Self::Otherwise {
            copier.lost(Lost::Owner, to);
        }
        self
    }

    /// The mode to set: a program must not run with the rights of a different owner.
    pub(super) fn mode(self, like: &Attr) -> u32 {
        match self {
            Self::Alike => like.mode,
            Self::Otherwise => like.mode & !0o6000,
        }
    }
}

/// Sets the owner and the group, as far as permitted.
pub(super) async fn own(to: &Place, now: &Attr, like: &Attr) -> weir_vfs::Result<Owned> {
    if Owned::of(now, like) == Owned::Alike {
        return Ok(Owned::Alike);
    }
    let both = SetAttr { uid: Some(like.uid), gid: Some(like.gid), ..SetAttr::default() };
    if let Some(got) = permitted(to.fs.setattr(&Caller::Own, now.id, &both).await)? {
        return Ok(Owned::of(&got, like));
    }
    // A user may give his files to another group that he is in.
    if now.uid != like.uid && now.gid != like.gid {
        let group = SetAttr { gid: Some(like.gid), ..SetAttr::default() };
        permitted(to.fs.setattr(&Caller::Own, now.id, &group).await)?;
    }
    Ok(Owned::Otherwise)
}

/// What a change of owners found; `None` if it is refused. Only root may change a file's owner, and a
/// container or server may not know the user.
fn permitted(changed: weir_vfs::Result<Attr>) -> weir_vfs::Result<Option<Attr>> {
    match changed {
        Err(Error::NotPermitted | Error::AccessDenied | Error::NotSupported | Error::Invalid) => {
            Ok(None)
        }
        changed => changed.map(Some),
    }
}

/// Names of the extended attributes to copy.
pub(crate) async fn xattr_names(
    copier: &Copier,
    like: Like<'_>,
    to: &Place,
) -> weir_vfs::Result<Vec<Vec<u8>>> {
    Ok(listed_xattrs(copier, like, to).await?.unwrap_or_default())
}

/// The same; `None` if they are not known. A server may refuse to list those of anything but a
/// file or directory (NFS4ERR_WRONG_TYPE and NFS4ERR_INVAL as [`Error::Invalid`], NFS4ERR_SYMLINK
/// as [`Error::Loop`]): then there are none.
pub(super) async fn listed_xattrs(
    copier: &Copier,
    like: Like<'_>,
    to: &Place,
) -> weir_vfs::Result<Option<Vec<Vec<u8>>>> {
    let has_users_attributes = matches!(like.attr.kind, FileKind::Regular | FileKind::Directory);
    let listed = match like.xattrs {
        Some(names) => Ok(names.to_vec()),
        None => like.place.fs.list_xattrs(&Caller::Own, like.attr.id).await,
    };
    match listed {
        Ok(mut names) => {
            names.retain(|name| name != OF_ITS_INODE);
            Ok(Some(names))
        }
        Err(Error::NotSupported) => Ok(None),
        Err(Error::Invalid | Error::Loop) if !has_users_attributes => Ok(None),
        Err(Error::AccessDenied | Error::NotPermitted) => {
            copier.lost(Lost::Xattrs, to);
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Copies attributes with an effect on the system, to a file that has its data and owner.
pub(super) async fn copy_system_xattrs(
    copier: &Copier,
    like: Like<'_>,
    to: &Place,
    id: FileId,
    (owned, mut names): (Owned, Vec<Vec<u8>>),
) -> weir_vfs::Result<()> {
    if names.iter().any(|name| name == CAPABILITY) {
        match owned {
            // Dirty pages that are written later would remove it again.
            Owned::Alike => to.fs.sync_node(id).await?,
            Owned::Otherwise => {
                names.retain(|name| name != CAPABILITY);
                copier.lost(Lost::Xattr(CAPABILITY.to_vec()), to);
            }
        }
    }
    copy_xattrs(copier, like, to, id, &names).await;
    Ok(())
}

pub(super) async fn copy_xattrs(
    copier: &Copier,
    like: Like<'_>,
    to: &Place,
    id: FileId,
    names: &[Vec<u8>],
) {
    for name in names {
        let value = match like.place.fs.get_xattr(&Caller::Own, like.attr.id.xattr(name)).await {
            Ok(value) => value,
            // Removed meanwhile.
            Err(Error::NoAttribute) => continue,
            Err(_) => {
                copier.lost(Lost::Xattr(name.clone()), to);
                continue;
            }
        };
        let set = to.fs.set_xattr(&Caller::Own, id.xattr(name), &value, XattrMode::Either).await;
        // A label that the system itself gave the copy may be the right one.
        let is_kept = set.is_ok()
            || to
                .fs
                .get_xattr(&Caller::Own, id.xattr(name))
                .await
                .is_ok_and(|there| there == value);
        if !is_kept {
            copier.lost(Lost::Xattr(name.clone()), to);
        }
    }
}

/// Copies access control lists; if the source has none, removes inherited ones. Returns the bits that the mode of
/// the copy must not have: without its list, they would give the group rights that it does not have at the source.
pub(super) async fn copy_acls(
    copier: &Copier,
    like: Like<'_>,
    to: &Place,
    id: FileId,
) -> weir_vfs::Result<u32> {
    let mut denied = 0;
    let default = (like.attr.kind == FileKind::Directory).then_some(AclKind::Default);
    for kind in [AclKind::Access].into_iter().chain(default) {
        let list = match like.list(kind).await {
            Ok(list) => list,
            // The store does not support lists: the mode is all there is.
            Err(Error::NotSupported) => return Ok(denied),
            Err(_) => {
                copier.lost(Lost::Acls, to);
                if kind == AclKind::Access {
                    denied = OF_GROUP;
                }
                continue;
            }
        };
        let has_list = async || {
            let there = to.fs.get_acl(id.acl(kind)).await;
            !matches!(there, Ok(None) | Err(Error::NotSupported))
        };
        // A server is not asked for a list that could not be removed.
        if list.is_none() && !(has_lists(to) && has_list().await) {
            continue;
        }
        if to.fs.set_acl(&Caller::Own, id.acl(kind), list.as_ref()).await.is_err() {
            copier.lost(Lost::Acls, to);
            if kind == AclKind::Access {
                denied = match list {
                    Some(list) if !has_list().await => OF_GROUP & !group_bits(&list),
                    // The users of an inherited list would have these rights.
                    _ => OF_GROUP,
                };
            }
        }
    }
    Ok(denied)
}

/// Whether the store at a place sets access control lists. Those of a server can be read at most.
pub(super) fn has_lists(place: &Place) -> bool {
    place.fs.store().capabilities().contains(Capabilities::POSIX_ACL)
}

/// The rights that a list gives the owning group, as bits of a mode.
fn group_bits(list: &Acl) -> u32 {
    let rights = list.get(AclWho::Group).unwrap_or(0) & list.get(AclWho::Mask).unwrap_or(7);
    u32::from(rights) << 3
}

fn apart(a: SystemTime, b: SystemTime) -> Duration {
    a.duration_since(b).unwrap_or_else(|before| before.duration())
}
