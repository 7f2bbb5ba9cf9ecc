//! What a copy gets besides its data: owner, mode, times, extended attributes, access lists.
//!
//! 1. Nobody can open a copy that is to be protected before it is: it has mode 0600 (a directory
//!    0700) until owner, access list and mode are set, in this order, since each may change the next.
//! 2. What `--preserve` cannot keep is said ([`Copier::lost`]), not passed over.

use super::{Copier, Lost};
use crate::mounts::Place;
use std::time::{Duration, SystemTime};
use weir_vfs::{AclKind, Attr, Caller, Error, FileId, FileKind, SetAttr, SetTime, XattrMode};

/// The coarsest time stamps of a file system that takes all times (FAT).
const COARSEST: Duration = Duration::from_secs(2);

/// A source, and its attributes.
#[derive(Clone, Copy)]
pub(super) struct Like<'a> {
    pub(super) place: &'a Place,
    pub(super) attr: &'a Attr,
}

/// Gives a copied file its mode, and with `--preserve` all else; a file that is replaced keeps its
/// mode and owner otherwise.
pub(super) async fn set_of_file(
    copier: &Copier,
    like: Like<'_>,
    to: &Place,
    id: FileId,
) -> weir_vfs::Result<()> {
    let replaced = to.attr.as_ref().filter(|a| a.kind == FileKind::Regular);
    match replaced {
        Some(replaced) if !copier.options.preserve => {
            let now = to.fs.getattr(id).await?;
            let mode = own(to, &now, replaced).await?;
            let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
            to.fs.setattr(&Caller::Own, id, &set).await.map(drop)
        }
        _ => set(copier, like, to, id).await,
    }
}

/// Gives the new file or directory `id` the attributes of its source as far as the options want.
pub(super) async fn set(
    copier: &Copier,
    like: Like<'_>,
    to: &Place,
    id: FileId,
) -> weir_vfs::Result<()> {
    let now = to.fs.getattr(id).await?;
    if !copier.options.preserve {
        let set = SetAttr { mode: Some(new_mode(copier, like.attr, &now)), ..SetAttr::default() };
        return to.fs.setattr(&Caller::Own, id, &set).await.map(drop);
    }
    // While its owner may still write to it, which user attributes take.
    copy_xattrs(copier, like, to, id).await?;
    let mode = own(to, &now, like.attr).await?;
    copy_acls(copier, like, to, id).await?;
    let set = SetAttr {
        mode: Some(mode),
        atime: Some(SetTime::To(like.attr.atime)),
        mtime: Some(SetTime::To(like.attr.mtime)),
        ..SetAttr::default()
    };
    let got = to.fs.setattr(&Caller::Own, id, &set).await?;
    if apart(got.mtime, like.attr.mtime) > COARSEST {
        copier.lost(Lost::Times, to);
    }
    Ok(())
}

/// The mode of a new file that does not keep its source's: without special bits, but for the
/// set-group-ID bit that a directory has from the one that it is in (inode(7)).
pub(super) fn new_mode(copier: &Copier, source: &Attr, now: &Attr) -> u32 {
    let inherited = if now.kind == FileKind::Directory { now.mode & 0o2000 } else { 0 };
    source.mode & 0o777 & !copier.options.umask | inherited
}

/// Gives a symbolic link the owner and times of its source.
pub(super) async fn set_of_link(
    copier: &Copier,
    like: &Attr,
    to: &Place,
    made: &Attr,
) -> weir_vfs::Result<()> {
    own(to, made, like).await?;
    let set = SetAttr {
        atime: Some(SetTime::To(like.atime)),
        mtime: Some(SetTime::To(like.mtime)),
        ..SetAttr::default()
    };
    match to.fs.setattr(&Caller::Own, made.id, &set).await {
        Ok(got) if apart(got.mtime, like.mtime) <= COARSEST => Ok(()),
        Ok(_) | Err(Error::NotSupported | Error::NotPermitted | Error::AccessDenied) => {
            copier.lost(Lost::Times, to);
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Sets the owner, and returns the mode to set after that.
async fn own(to: &Place, now: &Attr, like: &Attr) -> weir_vfs::Result<u32> {
    if (now.uid, now.gid) == (like.uid, like.gid) {
        return Ok(like.mode);
    }
    let own = SetAttr { uid: Some(like.uid), gid: Some(like.gid), ..SetAttr::default() };
    match to.fs.setattr(&Caller::Own, now.id, &own).await {
        Ok(_) => Ok(like.mode),
        // Only root may give files away; then nobody may run it as its new owner either.
        Err(Error::NotPermitted | Error::AccessDenied | Error::NotSupported) => {
            Ok(like.mode & !0o6000)
        }
        Err(error) => Err(error),
    }
}

async fn copy_xattrs(
    copier: &Copier,
    like: Like<'_>,
    to: &Place,
    id: FileId,
) -> weir_vfs::Result<()> {
    let source = &like.place.fs;
    let names = match source.list_xattrs(&Caller::Own, like.attr.id).await {
        Ok(names) => names,
        Err(Error::NotSupported) => return Ok(()),
        Err(Error::AccessDenied | Error::NotPermitted) => {
            copier.lost(Lost::Xattrs, to);
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    for name in names {
        let value = match source.get_xattr(&Caller::Own, like.attr.id, &name).await {
            Ok(value) => value,
            // Removed meanwhile.
            Err(Error::NoAttribute) => continue,
            Err(_) => {
                copier.lost(Lost::Xattrs, to);
                continue;
            }
        };
        let set = to.fs.set_xattr(&Caller::Own, id, &name, &value, XattrMode::Either).await;
        if set.is_err() {
            copier.lost(Lost::Xattrs, to);
        }
    }
    Ok(())
}

/// Copies access control lists; a file whose source has none loses what it inherited.
async fn copy_acls(
    copier: &Copier,
    like: Like<'_>,
    to: &Place,
    id: FileId,
) -> weir_vfs::Result<()> {
    let default = (like.attr.kind == FileKind::Directory).then_some(AclKind::Default);
    for kind in [AclKind::Access].into_iter().chain(default) {
        let list = match like.place.fs.get_acl(like.attr.id, kind).await {
            Ok(list) => list,
            // A store that does not tell of lists: the mode says what there is to say.
            Err(Error::NotSupported) => return Ok(()),
            Err(_) => {
                copier.lost(Lost::Acls, to);
                continue;
            }
        };
        if list.is_none() && !matches!(to.fs.get_acl(id, kind).await, Ok(Some(_))) {
            continue;
        }
        if to.fs.set_acl(&Caller::Own, id, kind, list.as_ref()).await.is_err() {
            copier.lost(Lost::Acls, to);
        }
    }
    Ok(())
}

fn apart(a: SystemTime, b: SystemTime) -> Duration {
    a.duration_since(b).unwrap_or_else(|before| before.duration())
}
