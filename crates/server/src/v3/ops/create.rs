//! CREATE, MKDIR, SYMLINK, MKNOD.

use super::attr::set_size;
use crate::state::Touch;
use crate::v3::convert;
use crate::v3::request::{Request, Target};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use weir_nfs::v3::op::create::{self, How};
use weir_nfs::v3::op::mknod::{self, What};
use weir_nfs::v3::op::{mkdir, symlink};
use weir_nfs::v3::types::{Device, SetAttr, Verifier};
use weir_nfs::v3::{Error, Failure};
use weir_vfs::{Attr, Created, FileKind, SetTime};

pub(in crate::v3) async fn create(request: &Request<'_>, args: create::Args) -> create::Res {
    let dir = request.target(&args.target.dir)?;
    let change = dir.change().await;
    let made = make_file(&dir, &args.target.name, args.how).await;
    change.created(&dir, made).await
}

async fn make_file(dir: &Target<'_>, name: &[u8], how: How) -> Result<Attr, Error> {
    check_new(dir, name)?;
    let create = async |set: &weir_vfs::SetAttr, exclusive| {
        dir.fs().create(&dir.caller, dir.id(), name, set, exclusive).await.map_err(convert::error)
    };
    match how {
        How::Unchecked(set) => {
            let set = convert::set_attr(&set)?;
            let Created { attr, created } = create(&set, false).await?;
            match set.size {
                // What is there stays as it is, but for the size (RFC 1813 section 3.3.8).
                Some(size) if !created => {
                    let file = dir.sibling(attr.id);
                    let _claim = file.claim(Touch::Change).await?;
                    set_size(&file, size).await?;
                    file.getattr().await
                }
                _ => Ok(attr),
            }
        }
        How::Guarded(set) => Ok(create(&convert::set_attr(&set)?, true).await?.attr),
        How::Exclusive(verifier) => {
            let (atime, mtime) = verifier_times(verifier);
            let set = weir_vfs::SetAttr {
                mode: Some(0),
                atime: Some(SetTime::To(atime)),
                mtime: Some(SetTime::To(mtime)),
                ..weir_vfs::SetAttr::default()
            };
            match create(&set, true).await {
                Err(Error::Exist) => made_before(dir, name, (atime, mtime)).await,
                made => Ok(made?.attr),
            }
        }
    }
}

/// Where the verifier of an exclusive creation is kept until the client sets the times: in the
/// times, which outlive a restart. (The top bits are left out, as file systems are at odds there.)
fn verifier_times(verifier: Verifier) -> (SystemTime, SystemTime) {
    let [a, b, c, d, e, f, g, h] = verifier;
    let time = |word: [u8; 4]| {
        UNIX_EPOCH + Duration::from_secs((u32::from_be_bytes(word) & 0x7fff_ffff).into())
    };
    (time([a, b, c, d]), time([e, f, g, h]))
}

/// The file, if the same exclusive creation made it.
async fn made_before(
    dir: &Target<'_>,
    name: &[u8],
    times: (SystemTime, SystemTime),
) -> Result<Attr, Error> {
    let attr = dir.fs().lookup(&dir.caller, dir.id(), name).await.map_err(convert::error)?;
    let ours =
        attr.kind == FileKind::Regular && attr.size == 0 && (attr.atime, attr.mtime) == times;
    if ours { Ok(attr) } else { Err(Error::Exist) }
}

pub(in crate::v3) async fn mkdir(request: &Request<'_>, args: mkdir::Args) -> mkdir::Res {
    let dir = request.target(&args.target.dir)?;
    let change = dir.change().await;
    let made = async {
        check_new(&dir, &args.target.name)?;
        let set = new_attr(&args.set)?;
        let made = dir.fs().mkdir(&dir.caller, dir.id(), &args.target.name, &set).await;
        made.map_err(convert::error)
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
        let made = dir.fs().symlink(&dir.caller, dir.id(), name, &args.path, &set).await;
        made.map_err(convert::error)
    };
    let made = made.await;
    change.created(&dir, made).await
}

pub(in crate::v3) async fn mknod(request: &Request<'_>, args: mknod::Args) -> mknod::Res {
    let dir = request.target(&args.target.dir)?;
    let (kind, device, set) = match args.what {
        What::Blk(data) => (FileKind::Block, data.device, data.set),
        What::Chr(data) => (FileKind::Char, data.device, data.set),
        What::Sock(set) => (FileKind::Socket, Device::default(), set),
        What::Fifo(set) => (FileKind::Fifo, Device::default(), set),
        What::Reg | What::Dir | What::Lnk => {
            return Err(Failure { status: Error::BadType, rest: dir.wcc().await });
        }
    };
    let change = dir.change().await;
    let made = async {
        check_new(&dir, &args.target.name)?;
        let (name, set) = (&args.target.name, new_attr(&set)?);
        let rdev = (device.major, device.minor);
        let made = dir.fs().mknod(&dir.caller, dir.id(), name, kind, rdev, &set).await;
        made.map_err(convert::error)
    };
    let made = made.await;
    change.created(&dir, made).await
}

/// Attributes of something that has no size to set.
fn new_attr(set: &SetAttr) -> Result<weir_vfs::SetAttr, Error> {
    Ok(weir_vfs::SetAttr { size: None, ..convert::set_attr(set)? })
}

/// Whether something may be made under a name at all. Every directory has `.` and `..`.
pub(super) fn check_new(dir: &Target<'_>, name: &[u8]) -> Result<(), Error> {
    dir.check_writable()?;
    if name == b"." || name == b".." { Err(Error::Exist) } else { Ok(()) }
}
