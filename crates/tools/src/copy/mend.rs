//! Files of a mirror that are up to date by all that a listing shows: type, size, times, mode, and
//! the target of a link.
//!
//! Extended attributes and access control lists change without any of these, and so does the owner
//! of a link. They are compared one by one, and only what differs is set.

use super::attributes::{self, CAPABILITY, Like, Owned};
use super::copier::{Copier, Lost};
use crate::mounts::Place;
use weir_vfs::{AclKind, Attr, Caller, Error, FileId, FileKind, Result, SetAttr};

/// Gives the file at `to`, which is `there`, what it lacks of the attributes of its source. Returns
/// whether it lacked anything; a dry run sets nothing.
pub(crate) async fn mend(
    copier: &Copier,
    like: Like<'_>,
    to: &Place,
    there: &Attr,
) -> Result<bool> {
    let is_dry = copier.options.dry_run;
    let differs = (there.uid, there.gid) != (like.attr.uid, like.attr.gid);
    let owned = match differs && !is_dry {
        true => attributes::own(to, there, like.attr).await?.reported(copier, to),
        false => Owned::Alike,
    };
    let xattrs = different_xattrs(copier, like, to, there).await?;
    let is_listed =
        there.kind == FileKind::Regular && !has_same_acl(copier, like, to, there.id).await;
    let is_changed = differs || is_listed || !xattrs.is_empty();
    if is_dry || !is_changed {
        return Ok(is_changed);
    }
    remove(copier, &xattrs.extra, to, there.id).await;
    let (users, systems): (Vec<_>, Vec<_>) =
        xattrs.to_set.into_iter().partition(|name| name.starts_with(b"user."));
    attributes::copy_xattrs(copier, like, to, there.id, &users).await;
    let denied = match is_listed {
        true => attributes::copy_acls(copier, like, to, there.id).await?,
        false => 0,
    };
    attributes::copy_system_xattrs(copier, like, to, there.id, (owned, systems)).await?;
    if is_listed || differs && there.kind != FileKind::Symlink {
        // Both change it.
        let mode = owned.mode(like.attr) & !denied;
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        let got = to.fs.setattr(&Caller::Own, there.id, &set).await?;
        attributes::report_mode(copier, &got, mode, to);
    }
    Ok(true)
}

/// Extended attributes in which two files differ.
#[derive(Default)]
struct Xattrs {
    to_set: Vec<Vec<u8>>,
    /// Those that the source does not have.
    extra: Vec<Vec<u8>>,
}

impl Xattrs {
    fn is_empty(&self) -> bool {
        self.to_set.is_empty() && self.extra.is_empty()
    }
}

async fn different_xattrs(
    copier: &Copier,
    like: Like<'_>,
    to: &Place,
    there: &Attr,
) -> Result<Xattrs> {
    let Some(names) = attributes::listed_xattrs(copier, like, to).await? else {
        return Ok(Xattrs::default());
    };
    // A server may have none of links and special files.
    let is_file = there.kind == FileKind::Regular;
    if names.is_empty() && !is_file {
        return Ok(Xattrs::default());
    }
    let found = match to.fs.list_xattrs(&Caller::Own, there.id).await {
        Ok(found) => found,
        Err(Error::NotSupported) => Vec::new(),
        Err(_) if !is_file => Vec::new(),
        Err(Error::AccessDenied | Error::NotPermitted) => {
            copier.lost(Lost::Xattrs, to);
            return Ok(Xattrs::default());
        }
        Err(error) => return Err(error),
    };
    let mut xattrs = Xattrs { extra: extra(&names, &found), to_set: Vec::new() };
    for name in names {
        let is_same = found.contains(&name) && {
            let value = like.place.fs.get_xattr(&Caller::Own, like.attr.id.xattr(&name)).await;
            let copy = to.fs.get_xattr(&Caller::Own, there.id.xattr(&name)).await;
            matches!((value, copy), (Ok(value), Ok(copy)) if value == copy)
        };
        if !is_same {
            xattrs.to_set.push(name);
        }
    }
    Ok(xattrs)
}

/// Removes the extended attributes of the existing file or directory `id` that its source, which has
/// `names`, does not have.
pub(crate) async fn remove_xattrs(copier: &Copier, names: &[Vec<u8>], to: &Place, id: FileId) {
    // A store without any has none to remove.
    let found = to.fs.list_xattrs(&Caller::Own, id).await.unwrap_or_default();
    remove(copier, &extra(names, &found), to, id).await;
}

/// The names to remove. The system gives files labels of their own (`security.*`), which stay; not
/// so the rights of a program.
fn extra(names: &[Vec<u8>], found: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let is_of_users = |name: &[u8]| name.starts_with(b"user.") || name.starts_with(b"trusted.");
    let is_extra =
        |name: &&Vec<u8>| (is_of_users(name) || &name[..] == CAPABILITY) && !names.contains(name);
    found.iter().filter(is_extra).cloned().collect()
}

async fn remove(copier: &Copier, names: &[Vec<u8>], to: &Place, id: FileId) {
    for name in names {
        match to.fs.remove_xattr(&Caller::Own, id.xattr(name)).await {
            Ok(()) | Err(Error::NoAttribute) => {}
            Err(_) => copier.lost(Lost::Xattr(name.clone()), to),
        }
    }
}

/// Whether a regular file has the access control list of its source, as far as both can be read. Those of servers
/// would cost a request for each file that is up to date.
async fn has_same_acl(copier: &Copier, like: Like<'_>, to: &Place, id: FileId) -> bool {
    let list = async |place: &Place, id: FileId| match attributes::has_lists(place) {
        true => place.fs.get_acl(id.acl(AclKind::Access)).await,
        false => Err(Error::NotSupported),
    };
    match (list(like.place, like.attr.id).await, list(to, id).await) {
        (Err(Error::NotSupported), _) | (Ok(None), Err(Error::NotSupported)) => true,
        (Ok(list), Ok(there)) => list == there,
        (Ok(_), Err(Error::NotSupported)) => false,
        (Err(_), _) | (_, Err(_)) => {
            copier.lost(Lost::Acls, to);
            true
        }
    }
}
