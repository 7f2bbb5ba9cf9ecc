//! GETATTR, SETATTR, VERIFY, NVERIFY, ACCESS (RFC 8881 sections 18.7, 18.30, 18.31, 18.15, 18.1).

use crate::state::StateRef;
use crate::v4::attrs;
use crate::v4::context::{Context, Target};
use crate::v4::status::of_vfs;
use weir_nfs::v4::attr::{Attrs, Fattr, RDATTR_ERROR, WRITE_ONLY};
use weir_nfs::v4::op::access::{Granted, Rights};
use weir_nfs::v4::op::{access, getattr, nverify, setattr, verify};
use weir_nfs::v4::types::StateId;
use weir_nfs::v4::{Bitmap, Error};
use weir_vfs::{Access, FileKind, SetAttr};

pub(crate) async fn getattr(cx: &mut Context, asked: getattr::Args) -> getattr::Res {
    if !asked.intersection(WRITE_ONLY).is_empty() {
        return Err(Error::Inval);
    }
    let target = cx.current()?;
    attributes(cx, &target, asked.difference(Bitmap::of(&[RDATTR_ERROR]))).await
}

/// The attributes asked for of a file.
pub(super) async fn attributes(
    cx: &Context,
    target: &Target<'_>,
    asked: Bitmap,
) -> Result<Attrs, Error> {
    let attr = target.attr().await?;
    let stat = if attrs::of_file_system(asked) {
        Some(target.fs().statfs().await.map_err(of_vfs)?)
    } else {
        None
    };
    Ok(attrs::of_file(cx, target, &attr, stat.as_ref(), asked))
}

pub(crate) async fn setattr(cx: &mut Context, args: setattr::Args) -> setattr::Res {
    match set(cx, &args).await {
        Ok(set) => setattr::Res { status: Ok(()), set },
        Err(error) => error.into(),
    }
}

async fn set(cx: &Context, args: &setattr::Args) -> Result<Bitmap, Error> {
    let target = cx.current()?;
    target.check_writable()?;
    let (mut set, done) = attrs::to_set(&args.attrs)?;
    if let Some(size) = set.size {
        set_size(cx, &target, args.stateid, size, &mut set).await?;
    }
    if !set.is_empty() {
        target.fs().setattr(&target.caller, target.node.id, &set).await.map_err(of_vfs)?;
    }
    Ok(done)
}

/// Sets the size under an open that lets the caller write; without one, it is left in `set` for
/// the caller's own rights.
async fn set_size(
    cx: &Context,
    target: &Target<'_>,
    stateid: StateId,
    size: u64,
    set: &mut SetAttr,
) -> Result<(), Error> {
    if size > i64::MAX as u64 {
        return Err(Error::FBig);
    }
    let attr = target.attr().await?;
    if attr.kind != FileKind::Regular {
        return Err(cx.wrong_type(target).await);
    }
    if !matches!(cx.stateid(stateid)?, StateRef::Of(_)) {
        let denied = cx.state().anonymous_io(target.node, Access::WRITE);
        return denied.map_err(crate::v4::status::of_state);
    }
    let io = cx.io(target, stateid, Access::WRITE).await?;
    io.file.truncate_async(size).await.map_err(of_vfs)?;
    set.size = None;
    Ok(())
}

/// Whether the file has these attributes with these values.
async fn compare(cx: &Context, wire: &Fattr) -> Result<bool, Error> {
    let asked = wire.asked();
    if !asked.difference(attrs::supported(cx.minor)).is_empty() {
        return Err(Error::AttrNotSupp);
    }
    if !asked.intersection(WRITE_ONLY).is_empty() || asked.contains(RDATTR_ERROR) {
        return Err(Error::Inval);
    }
    let target = cx.current()?;
    Ok(attributes(cx, &target, asked).await? == *wire.attrs()?)
}

pub(crate) async fn verify(cx: &mut Context, args: verify::Args) -> verify::Res {
    if compare(cx, &args).await? { Ok(()) } else { Err(Error::NotSame) }
}

pub(crate) async fn nverify(cx: &mut Context, args: nverify::Args) -> nverify::Res {
    if compare(cx, &args).await? { Err(Error::Same) } else { Ok(()) }
}

/// Which file system rights (read 4, write 2, execute or search 1) give which of the protocol's.
const OF_DIRECTORY: [(Rights, u32); 7] = [
    (Rights::READ, 4),
    (Rights::LOOKUP, 1),
    (Rights::MODIFY, 3),
    (Rights::EXTEND, 3),
    (Rights::DELETE, 3),
    (Rights::XAREAD.union(Rights::XALIST), 4),
    (Rights::XAWRITE, 2),
];
const OF_FILE: [(Rights, u32); 6] = [
    (Rights::READ, 4),
    (Rights::MODIFY, 2),
    (Rights::EXTEND, 2),
    (Rights::EXECUTE, 1),
    (Rights::XAREAD.union(Rights::XALIST), 4),
    (Rights::XAWRITE, 2),
];

pub(crate) async fn access(cx: &mut Context, asked: access::Args) -> access::Res {
    let target = cx.current()?;
    let attr = target.attr().await?;
    let table = if attr.kind == FileKind::Directory { &OF_DIRECTORY[..] } else { &OF_FILE[..] };
    let mut has = target.fs().access(&target.caller, target.node.id, 7).await.map_err(of_vfs)?;
    if target.read_only {
        has &= !2;
    }
    let (mut supported, mut rights) = (Rights::empty(), Rights::empty());
    for &(right, needs) in table {
        supported |= right;
        if has & needs == needs {
            rights |= right;
        }
    }
    if cx.minor < 2 {
        supported.remove(Rights::XAREAD | Rights::XAWRITE | Rights::XALIST);
    }
    supported &= asked;
    Ok(Granted { supported, rights: rights & supported })
}
