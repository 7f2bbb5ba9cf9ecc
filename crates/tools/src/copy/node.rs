//! Symbolic links and special files.

use super::attributes::{self, Like};
use super::copier::{Copier, add};
use super::temporary::replace_entry;
use crate::failure::{Asked, Result};
use crate::mounts::Place;
use crate::text::kind_name;
use weir_vfs::{Attr, Caller, Error, FileKind, SetAttr, SpecialFile};

/// Makes a symbolic link like the one at `from`.
pub(crate) async fn symlink(copier: &Copier, from: &Place, attr: &Attr, to: &Place) -> Result<()> {
    let write = || format!("make the symbolic link {}", to.shown);
    let target = from.link_target(attr.id).await;
    let target = target.asked(|| format!("read the symbolic link {}", from.shown))?;
    let (set, target) = (&SetAttr::default(), &target[..]);
    let make = |name: Vec<u8>| async move {
        to.fs.symlink(&Caller::Own, to.dir.entry(&name).with(set), target).await
    };
    let made = put(copier, to, make).await.asked(write)?;
    copier.note_changed(&to.fs, to.dir);
    if copier.options.preserve {
        let set = || attributes::set_of_link(copier, Like::new(from, attr), to, &made);
        from.both_found_again(attr.id, (to, made.id), set).await.asked(write)?;
    }
    add(&copier.tally.symlinks, 1);
    Ok(())
}

/// Makes a device, named pipe or socket like the one at `from`.
pub(crate) async fn special(copier: &Copier, from: &Place, attr: &Attr, to: &Place) -> Result<()> {
    let write = || format!("make the {} {}", kind_name(attr.kind), to.shown);
    let node = SpecialFile::of(attr).ok_or(Error::Invalid).asked(write)?;
    let set = &SetAttr { mode: Some(0o600), ..SetAttr::default() };
    let make = |name: Vec<u8>| async move {
        to.fs.mknod(&Caller::Own, to.dir.entry(&name).with(set), node).await
    };
    let made = put(copier, to, make).await.asked(write)?;
    copier.note_changed(&to.fs, to.dir);
    let set = || attributes::set(copier, Like::new(from, attr), to, made.id);
    from.both_found_again(attr.id, (to, made.id), set).await.asked(write)?;
    add(&copier.tally.special_files, 1);
    Ok(())
}

/// Makes a link or special file at a place by `make`, which gets its name; replaces an existing entry, but
/// no directory.
async fn put<F>(copier: &Copier, to: &Place, make: impl Fn(Vec<u8>) -> F) -> weir_vfs::Result<Attr>
where
    F: Future<Output = weir_vfs::Result<Attr>>,
{
    let name = to.name.as_deref().ok_or(Error::Exists)?;
    match &to.attr {
        Some(there) if there.kind == FileKind::Directory => Err(Error::IsDirectory),
        Some(_) => to.with_directory(|| replace_entry(copier, to, &make)).await,
        None => to.with_directory(|| make(name.to_vec())).await,
    }
}
