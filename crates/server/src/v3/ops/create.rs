//! CREATE, MKDIR, SYMLINK, MKNOD.

use super::attr::set_size;
use crate::delegation::recall::AccessClaim;
use crate::handle::Node;
use crate::operation::exclusive_create::{Exclusive, OWNERS_ALONE};
use crate::storage::retry_journal::{MadeBefore, NameChange};
use crate::v3::convert;
use crate::v3::request::{Request, Target};
use weir_nfs::v3::op::create::{self, How};
use weir_nfs::v3::op::mknod::{self, What};
use weir_nfs::v3::op::{mkdir, symlink};
use weir_nfs::v3::types::{Device, SetAttr};
use weir_nfs::v3::{Error, Failure};
use weir_vfs::{Attr, CreateMode, Created, FileKind, SpecialFile};

pub(in crate::v3) async fn create(request: &Request<'_>, args: create::Args) -> create::Res {
    let dir = request.target(&args.target.dir)?;
    let name = &args.target.name;
    // Only the truncation of an existing file needs delegations recalled. This happens before the
    // directory is locked, so that no other call waits for it.
    let truncates = matches!(&args.how, How::Unchecked(set) if set.size.is_some());
    let way_made =
        if truncates { dir.claim_names(&[dir.named(name)], true).await } else { Ok(Vec::new()) };
    let change = dir.change().await;
    let made = make_file(request, &dir, name, args.how, way_made).await;
    change.created(&dir, made).await
}

async fn make_file(
    request: &Request<'_>,
    dir: &Target<'_>,
    name: &[u8],
    how: How,
    way_made: Result<Vec<AccessClaim>, Error>,
) -> Result<Attr, Error> {
    check_new(dir, name)?;
    let create = async |set: &weir_vfs::SetAttr, mode| {
        dir.fs()
            .create(&dir.caller, dir.id().entry(name).with(set), mode)
            .await
            .map_err(convert::error)
    };
    match how {
        How::Unchecked(set) => {
            let set = convert::set_attr(&set)?;
            let Created { attr, created } = create(&set, CreateMode::MayExist).await?;
            match set.size {
                // An existing file keeps its attributes except the size (RFC 1813 section 3.3.8).
                Some(size) if !created => {
                    let _way_made = way_made?;
                    let _claims = dir.claim_names(&[dir.named(name)], false).await?;
                    let file = dir.sibling(attr.id);
                    set_size(&file, size).await?;
                    file.getattr().await
                }
                _ => Ok(attr),
            }
        }
        How::Guarded(set) => {
            let set = convert::set_attr(&set)?;
            let made = async {
                Ok(dir
                    .fs()
                    .create(&dir.caller, dir.id().entry(name).with(&set), CreateMode::MustBeNew)
                    .await?
                    .attr)
            };
            make_once(request, dir, (name, FileKind::Regular), made).await
        }
        How::Exclusive(verifier) => {
            let (handles, dir_node, caller) = (dir.handles(), dir.node, &dir.caller);
            let creation = Exclusive { handles, dir: dir_node, name, caller, verifier };
            let mode = Some(OWNERS_ALONE);
            let mut set = weir_vfs::SetAttr { mode, ..weir_vfs::SetAttr::default() };
            creation.store_in(&mut set);
            match create(&set, CreateMode::MustBeNew).await {
                Err(Error::Exist) => {
                    creation.made_before(dir.fs(), 0).await.map_err(convert::error)
                }
                made => Ok(made?.attr),
            }
        }
    }
}

pub(in crate::v3) async fn mkdir(request: &Request<'_>, args: mkdir::Args) -> mkdir::Res {
    let dir = request.target(&args.target.dir)?;
    let change = dir.change().await;
    let made = async {
        check_new(&dir, &args.target.name)?;
        let set = new_attr(&args.set)?;
        let name = &args.target.name;
        let made = dir.fs().mkdir(&dir.caller, dir.id().entry(name).with(&set));
        make_once(request, &dir, (name, FileKind::Directory), made).await
    };
    let made = made.await;
    change.created(&dir, made).await
}

pub(in crate::v3) async fn symlink(request: &Request<'_>, args: symlink::Args) -> symlink::Res {
    let dir = request.target(&args.target.dir)?;
    let change = dir.change().await;
    let made = async {
        check_new(&dir, &args.target.name)?;
        let (name, set) = (&args.target.name, new_attr(&args.set)?);
        let made = dir.fs().symlink(&dir.caller, dir.id().entry(name).with(&set), &args.path);
        make_once(request, &dir, (name, FileKind::Symlink), made).await
    };
    let made = made.await;
    change.created(&dir, made).await
}

pub(in crate::v3) async fn mknod(request: &Request<'_>, args: mknod::Args) -> mknod::Res {
    let dir = request.target(&args.target.dir)?;
    let (node, set) = match args.what {
        What::Blk(mknod::DeviceData { device: Device { major, minor }, set }) => {
            (SpecialFile::Block(major, minor), set)
        }
        What::Chr(mknod::DeviceData { device: Device { major, minor }, set }) => {
            (SpecialFile::Char(major, minor), set)
        }
        What::Sock(set) => (SpecialFile::Socket, set),
        What::Fifo(set) => (SpecialFile::Fifo, set),
        What::Reg | What::Dir | What::Lnk => {
            return Err(Failure { status: Error::BadType, rest: dir.wcc().await });
        }
    };
    let change = dir.change().await;
    let made = async {
        check_new(&dir, &args.target.name)?;
        let (name, set) = (&args.target.name, new_attr(&set)?);
        let made = dir.fs().mknod(&dir.caller, dir.id().entry(name).with(&set), node);
        make_once(request, &dir, (name, node.kind()), made).await
    };
    let made = made.await;
    change.created(&dir, made).await
}

/// Creates a file that must not exist, unless an earlier run of the server has created it for this
/// call.
async fn make_once(
    request: &Request<'_>,
    dir: &Target<'_>,
    (name, kind): (&[u8], FileKind),
    make: impl Future<Output = weir_vfs::Result<Attr>>,
) -> Result<Attr, Error> {
    if let Some(MadeBefore { file: Some(file), .. }) = request.made_before() {
        let attr = dir.sibling(file.id).getattr().await?;
        let is_this = file.export == dir.node.export && attr.kind == kind;
        return if is_this { Ok(attr) } else { Err(Error::Exist) };
    }
    let begun = request.begin(dir, NameChange::Create { dir: dir.node, name }).await;
    let made = make.await;
    begun.end_create(made.as_ref().map(|made| Node { id: made.id, ..dir.node }));
    made.map_err(convert::error)
}

/// The attributes for a new object that is not a regular file.
fn new_attr(set: &SetAttr) -> Result<weir_vfs::SetAttr, Error> {
    Ok(weir_vfs::SetAttr { size: None, ..convert::set_attr(set)? })
}

/// Checks that a name may be created. `.` and `..` exist in every directory.
pub(super) fn check_new(dir: &Target<'_>, name: &[u8]) -> Result<(), Error> {
    dir.check_writable()?;
    if name == b"." || name == b".." { Err(Error::Exist) } else { Ok(()) }
}
