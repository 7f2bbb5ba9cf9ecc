//! Symbolic links and special files.

use super::attributes::{self, Like};
use super::copier::{Copier, add};
use crate::failure::{Asked, Result};
use crate::mounts::Place;
use crate::text::kind_name;
use weir_vfs::{Attr, Caller, Error, FileKind, SetAttr, SpecialFile};

/// Makes a symbolic link like the one at `from`.
pub(crate) async fn symlink(copier: &Copier, from: &Place, attr: &Attr, to: &Place) -> Result<()> {
    let write = || format!("make the symbolic link {}", to.shown);
    let name = to.name.as_deref().ok_or(Error::Exists).asked(write)?;
    let read = || from.fs.readlink(&Caller::Own, attr.id);
    let target = from.found_again(attr.id, read).await;
    let target = target.asked(|| format!("read the symbolic link {}", from.shown))?;
    clear(to).await.asked(write)?;
    let set = SetAttr::default();
    let make = || to.fs.symlink(&Caller::Own, to.dir.entry(name).with(&set), &target);
    let made = to.with_directory(make).await.asked(write)?;
    copier.changed.lock().insert(to.dir);
    if copier.options.preserve {
        attributes::set_of_link(copier, Like::new(from, attr), to, &made).await.asked(write)?;
    }
    add(&copier.tally.symlinks, 1);
    Ok(())
}

/// Makes a device, named pipe or socket like the one at `from`.
pub(crate) async fn special(copier: &Copier, from: &Place, attr: &Attr, to: &Place) -> Result<()> {
    let write = || format!("make the {} {}", kind_name(attr.kind), to.shown);
    let name = to.name.as_deref().ok_or(Error::Exists).asked(write)?;
    let node = SpecialFile::of(attr).ok_or(Error::Invalid).asked(write)?;
    clear(to).await.asked(write)?;
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    let make = || to.fs.mknod(&Caller::Own, to.dir.entry(name).with(&set), node);
    let made = to.with_directory(make).await.asked(write)?;
    copier.changed.lock().insert(to.dir);
    attributes::set(copier, Like::new(from, attr), to, made.id).await.asked(write)?;
    add(&copier.tally.special_files, 1);
    Ok(())
}

/// Removes an existing entry in the place of a link or special file; never a directory.
async fn clear(to: &Place) -> weir_vfs::Result<()> {
    match (&to.attr, &to.name) {
        (Some(attr), _) if attr.kind == FileKind::Directory => Err(Error::IsDirectory),
        (Some(_), Some(name)) => {
            let unlink = || to.fs.unlink(&Caller::Own, to.dir.entry(name));
            to.with_directory(unlink).await
        }
        _ => Ok(()),
    }
}
