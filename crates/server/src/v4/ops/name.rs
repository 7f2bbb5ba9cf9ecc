//! Names: LOOKUP, LOOKUPP, CREATE, LINK, REMOVE, RENAME, READLINK (RFC 8881 sections 18.13, 18.14,
//! 18.4, 18.9, 18.25, 18.26, 18.24).

use crate::handle::Node;
use crate::state::Touch;
use crate::storage::retry_journal::{MadeBefore, NameChange};
use crate::v4::attrs::ToSet;
use crate::v4::context::{Context, Target};
use crate::v4::status::of_vfs;
use weir_nfs::v4::Error;
use weir_nfs::v4::op::{create, link, lookup, lookupp, readlink, remove, rename};
use weir_nfs::v4::types::SpecData;
use weir_vfs::{Attr, FileKind, RenameFlags, SpecialFile};

/// Checks a name of a directory entry (RFC 8881 section 14.5). Names are bytes in any encoding.
pub(crate) fn check_name(name: &[u8]) -> Result<(), Error> {
    match name {
        [] => Err(Error::Inval),
        b"." | b".." => Err(Error::BadName),
        _ if name.contains(&b'/') || name.contains(&0) => Err(Error::BadChar),
        _ if name.len() > 255 => Err(Error::NameTooLong),
        _ => Ok(()),
    }
}

/// The current file, which must be a directory, and its attributes.
pub(crate) async fn current_dir(cx: &Context) -> Result<(Target<'_>, Attr), Error> {
    let target = cx.current()?;
    let attr = check_dir(cx, &target).await?;
    Ok((target, attr))
}

async fn check_dir(cx: &Context, target: &Target<'_>) -> Result<Attr, Error> {
    let attr = target.attr().await?;
    match attr.kind {
        FileKind::Directory => Ok(attr),
        FileKind::Symlink if cx.minor > 0 => Err(Error::Symlink),
        _ => Err(Error::NotDir),
    }
}

pub(crate) async fn lookup(cx: &mut Context, name: lookup::Args) -> lookup::Res {
    check_name(&name)?;
    let dir = cx.current()?;
    match dir.attr().await?.kind {
        FileKind::Directory => {}
        // This applies to all minor versions (RFC 7530 section 16.13.5, RFC 8881 section 18.13.4).
        FileKind::Symlink => return Err(Error::Symlink),
        _ => return Err(Error::NotDir),
    }
    let found = dir.fs().lookup(&dir.caller, dir.node.id.entry(&name)).await.map_err(of_vfs)?;
    let node = cx.exports.enter(Node { id: found.id, ..dir.node });
    cx.target(node)?;
    cx.set_current(node);
    Ok(())
}

pub(crate) async fn lookupp(cx: &mut Context, _: lookupp::Args) -> lookupp::Res {
    let (dir, _) = current_dir(cx).await?;
    if !dir.may_search().await? {
        return Err(Error::Access);
    }
    let node = parent(cx, dir.node).await?;
    cx.set_current(node);
    Ok(())
}

/// The parent of a directory; that of an export's root is in the export it is mounted on.
pub(crate) async fn parent(cx: &Context, dir: Node) -> Result<Node, Error> {
    if dir == cx.exports.root() {
        return Err(Error::NoEnt);
    }
    let dir = cx.target(cx.exports.leave(dir))?;
    let parent = dir.fs().parent(dir.node.id).await.map_err(of_vfs)?;
    Ok(Node { id: parent.id, ..dir.node })
}

pub(crate) async fn create(cx: &mut Context, args: create::Args) -> create::Res {
    check_name(&args.name)?;
    let services = cx.services.clone();
    let _alone = services.exports.changes().lock(cx.current.ok_or(Error::NoFilehandle)?).await;
    let (dir, before) = current_dir(cx).await?;
    dir.check_writable()?;
    let wanted = ToSet::read_new(&cx.nfs.id_map, &args.attrs, cx.minor, dir.capabilities()).await?;
    let set = &wanted.set;
    let kind = match args.kind {
        create::Kind::Directory => FileKind::Directory,
        create::Kind::Symlink(_) => FileKind::Symlink,
        create::Kind::Block(_) => FileKind::Block,
        create::Kind::Char(_) => FileKind::Char,
        create::Kind::Socket => FileKind::Socket,
        create::Kind::Fifo => FileKind::Fifo,
        create::Kind::Regular | create::Kind::AttrDir | create::Kind::NamedAttr => {
            return Err(Error::BadType);
        }
    };
    let more = wanted.more(kind)?;
    let name = &args.name[..];
    if let Some(MadeBefore { file: Some(node), complete }) = cx.made_before() {
        if node.export != dir.node.export || cx.target(node)?.attr().await?.kind != kind {
            return Err(Error::Exist);
        }
        if !complete {
            // With the caller's rights: another client may have changed the file since.
            more.set(dir.fs(), &dir.caller, node.id).await?;
        }
        cx.changed(&[node]);
        let change = cx.changed_before(dir.node).await?;
        cx.set_current(node);
        return Ok(create::Created { change, set: wanted.asked });
    }
    let (fs, caller, new) = (dir.fs(), &dir.caller, dir.node.id.entry(name).with(set));
    let begun = cx.begin_change(&dir, NameChange::Create { dir: dir.node, name }).await;
    let made = match args.kind {
        create::Kind::Directory => fs.mkdir(caller, new).await,
        create::Kind::Symlink(text) => fs.symlink(caller, new, &text).await,
        create::Kind::Block(SpecData { major, minor }) => {
            fs.mknod(caller, new, SpecialFile::Block(major, minor)).await
        }
        create::Kind::Char(SpecData { major, minor }) => {
            fs.mknod(caller, new, SpecialFile::Char(major, minor)).await
        }
        create::Kind::Socket => fs.mknod(caller, new, SpecialFile::Socket).await,
        create::Kind::Fifo => fs.mknod(caller, new, SpecialFile::Fifo).await,
        create::Kind::Regular | create::Kind::AttrDir | create::Kind::NamedAttr => {
            Err(weir_vfs::Error::Invalid)
        }
    };
    let made = match made.map_err(of_vfs) {
        Ok(made) => more.set_on_new(&dir, name, &made).await.map(|()| made),
        failed => failed,
    };
    let made = made.map(|made| Node { id: made.id, ..dir.node });
    begun.end_create(made);
    let node = made?;
    cx.changed(&[node, dir.node]);
    let change = cx.change_info(fs, dir.node, before.change).await?;
    cx.set_current(node);
    Ok(create::Created { change, set: wanted.asked })
}

pub(crate) async fn link(cx: &mut Context, name: link::Args) -> link::Res {
    check_name(&name)?;
    let file = cx.saved()?;
    if file.node.export != cx.current()?.node.export {
        return Err(Error::XDev);
    }
    if file.attr().await?.kind == FileKind::Directory {
        return Err(Error::IsDir);
    }
    cx.current()?.check_writable()?;
    if cx.made_before().is_some() {
        cx.changed(&[file.node]);
        return cx.changed_before(cx.current()?.node).await;
    }
    // Before the directory is locked: other calls must not wait for a client that does not return
    // its delegation.
    let _claim = cx.claim(file.node, Touch::Change).await?;
    let services = cx.services.clone();
    let _alone = services.exports.changes().lock(cx.current.ok_or(Error::NoFilehandle)?).await;
    let (dir, before) = current_dir(cx).await?;
    let fs = dir.fs();
    let change = NameChange::Link { file: file.node, dir: dir.node, name: &name };
    let begun = cx.begin_change(&dir, change).await;
    let linked = fs.link(&dir.caller, file.node.id, dir.node.id.entry(&name)).await;
    begun.end(&linked);
    linked.map_err(of_vfs)?;
    cx.changed(&[file.node, dir.node]);
    cx.change_info(fs, dir.node, before.change).await
}

pub(crate) async fn remove(cx: &mut Context, name: remove::Args) -> remove::Res {
    check_name(&name)?;
    if cx.made_before().is_some() {
        return cx.changed_before(cx.current()?.node).await;
    }
    cx.check_grace()?;
    cx.claim_names(&[cx.current()?.named(&name)], true).await?;
    let services = cx.services.clone();
    let _alone = services.exports.changes().lock(cx.current.ok_or(Error::NoFilehandle)?).await;
    let (dir, before) = current_dir(cx).await?;
    dir.check_writable()?;
    let _claims = cx.claim_names(&[dir.named(&name)], false).await?;
    let (fs, caller, id) = (dir.fs(), &dir.caller, dir.node.id);
    let found = fs.lookup(caller, id.entry(&name)).await.map_err(of_vfs)?;
    let change = NameChange::Remove { dir: dir.node, name: &name };
    let begun = cx.begin_change(&dir, change).await;
    let removed = match found.kind {
        FileKind::Directory => fs.rmdir(caller, id.entry(&name)).await,
        _ => fs.unlink(caller, id.entry(&name)).await,
    };
    begun.end(&removed);
    removed.map_err(of_vfs)?;
    cx.changed(&[dir.node]);
    cx.change_info(fs, dir.node, before.change).await
}

pub(crate) async fn rename(cx: &mut Context, args: rename::Args) -> rename::Res {
    check_name(&args.from)?;
    check_name(&args.to)?;
    if cx.made_before().is_some() {
        return Ok(rename::Renamed {
            source: cx.changed_before(cx.saved()?.node).await?,
            target: cx.changed_before(cx.current()?.node).await?,
        });
    }
    cx.check_grace()?;
    let (from, to) = (cx.saved.ok_or(Error::NoFilehandle)?, cx.current.ok_or(Error::NoFilehandle)?);
    cx.claim_names(&[cx.saved()?.named(&args.from)], true).await?;
    cx.claim_names(&[cx.current()?.named(&args.to)], true).await?;
    let services = cx.services.clone();
    let _alone = services.exports.changes().lock_both(from, to).await;
    let (to, to_before) = current_dir(cx).await?;
    let from = cx.saved()?;
    let from_before = check_dir(cx, &from).await?;
    to.check_writable()?;
    if from.node.export != to.node.export {
        return Err(Error::XDev);
    }
    let _claims = cx.claim_names(&[from.named(&args.from), to.named(&args.to)], false).await?;
    let (fs, flags) = (to.fs(), RenameFlags::Replace);
    let change = NameChange::Rename { from: (from.node, &args.from), to: (to.node, &args.to) };
    let begun = cx.begin_change(&to, change).await;
    let renamed = fs
        .rename(&to.caller, from.node.id.entry(&args.from), to.node.id.entry(&args.to), flags)
        .await;
    begun.end(&renamed);
    renamed.map_err(|error| match error {
        // Source and target are a directory and a non-directory (RFC 8881 section 18.26.3).
        weir_vfs::Error::IsDirectory | weir_vfs::Error::NotDirectory => Error::Exist,
        error => of_vfs(error),
    })?;
    cx.changed(&[from.node, to.node]);
    Ok(rename::Renamed {
        source: cx.change_info(fs, from.node, from_before.change).await?,
        target: cx.change_info(fs, to.node, to_before.change).await?,
    })
}

pub(crate) async fn readlink(cx: &mut Context, _: readlink::Args) -> readlink::Res {
    let target = cx.current()?;
    if target.attr().await?.kind != FileKind::Symlink {
        return Err(if cx.minor > 0 { Error::WrongType } else { Error::Inval });
    }
    let text = target.fs().readlink(&target.caller, target.node.id).await.map_err(of_vfs)?;
    Ok(text[..].into())
}
