//! GETATTR, SETATTR, VERIFY, NVERIFY, ACCESS (RFC 8881 sections 18.7, 18.30, 18.31, 18.15, 18.1).

use crate::operation::set_id;
use crate::state::{ClientId, StateRef, Touch};
use crate::v4::attrs::{self, Besides, DelegateTimes, More, ToSet};
use crate::v4::context::{Context, Target};
use crate::v4::status::{of_state, of_vfs};
use weir_nfs::v4::attr::{
    Attrs, CHANGE, Fattr, OF_DELEGATES, RDATTR_ERROR, SIZE, TIME_ACCESS, TIME_DELEG_ACCESS,
    TIME_METADATA, TIME_MODIFY, WRITE_ONLY,
};
use weir_nfs::v4::op::access::{Granted, Rights};
use weir_nfs::v4::op::{access, getattr, nverify, setattr, verify};
use weir_nfs::v4::types::StateId;
use weir_nfs::v4::{Bitmap, Error};
use weir_vfs::{Access, Caller, FileKind, Permissions, SetAttr};
use weir_xdr::Encoder;

pub(crate) async fn getattr(cx: &mut Context, asked: getattr::Args) -> getattr::Res {
    if !asked.intersection(WRITE_ONLY).is_empty() {
        return Err(Error::Inval);
    }
    let target = cx.current()?;
    let attrs = attributes(cx, &target, asked.difference(Bitmap::of(&[RDATTR_ERROR]))).await?;
    if !asked.intersection(attrs::LISTS).is_empty() {
        let mut measured = Encoder::new();
        measured.put(&attrs);
        // 8 bytes for the number and status of the operation.
        if 8 + measured.len() > cx.reply_bytes_left {
            return Err(cx.too_big());
        }
    }
    Ok(attrs)
}

/// Attributes that a client with a write delegation changes without telling the server.
pub(super) const OF_DATA: Bitmap =
    Bitmap::of(&[CHANGE, SIZE, TIME_ACCESS, TIME_METADATA, TIME_MODIFY]);

/// The requested attributes of a file.
pub(super) async fn attributes(
    cx: &Context,
    target: &Target<'_>,
    asked: Bitmap,
) -> Result<Attrs, Error> {
    let attr = if asked.intersection(OF_DATA).is_empty() {
        target.attr().await?
    } else {
        let by = cx.known_client();
        cx.services.recalls.attr(target.fs(), target.node, by).await.map_err(of_vfs)?
    };
    let besides = Besides::of_file_system(target, asked).await?;
    let besides = besides.of_file(&cx.nfs.id_map, target, &attr, asked).await?;
    Ok(attrs::of_file(cx, target, &attr, &besides, asked))
}

pub(crate) async fn setattr(cx: &mut Context, args: setattr::Args) -> setattr::Res {
    let mut done = Bitmap::EMPTY;
    let status = set(cx, &args, &mut done).await;
    setattr::Res { status, set: done }
}

/// Sets attributes in this order: the times from the holder of a delegation, the size, the other
/// attributes, and last the access control list, because it decides the permission bits. `done`
/// receives those that were set, also on failure.
async fn set(cx: &Context, args: &setattr::Args, done: &mut Bitmap) -> Result<(), Error> {
    let target = cx.current()?;
    target.check_writable()?;
    let claim = cx.services.recalls.claim(target.node, Touch::Change, setter(cx, args)).await;
    let _claim = claim.map_err(of_vfs)?;
    if !args.attrs.asked().intersection(cx.nfs.refused_attributes()).is_empty() {
        return Err(Error::AttrNotSupp);
    }
    let wanted = ToSet::read(&cx.nfs.id_map, &args.attrs, cx.minor, target.capabilities()).await?;
    if wanted.set.umask.is_some() {
        // A umask applies only to the creation of files (RFC 8275 section 5).
        return Err(Error::Inval);
    }
    let more = match wanted.asked.intersection(More::ALL).is_empty() {
        true => None,
        false => Some(wanted.more(target.attr().await?.kind)?),
    };
    let mut ignored = Bitmap::EMPTY;
    if !wanted.asked.intersection(OF_DELEGATES).is_empty() {
        ignored = set_delegated_times(cx, &target, args.stateid, wanted.of_delegate).await?;
        *done = wanted.asked.intersection(OF_DELEGATES).difference(ignored);
    }
    let mut set = wanted.set;
    set.mode_mask = wanted.masked.filter(|_| set.mode.is_some());
    if let Some(size) = set.size {
        set_size(cx, &target, args.stateid, size, &mut set).await?;
        if set.size.is_none() {
            done.insert(SIZE);
            cx.changed(&[target.node]);
        }
    }
    if !set.is_empty() {
        let fs = target.fs();
        let attr = fs.setattr(&target.caller, target.node.id, &set).await;
        // Also after a failure, which may have changed some attributes.
        cx.services.exports.rights().changed(target.node);
        cx.changed(&[target.node]);
        let attr = attr.map_err(of_vfs)?;
        if set.size.is_some() {
            let kept = set.mode.map_or(0, |_| set.mode_mask.unwrap_or(u32::MAX));
            let cleared = set_id::clear_except(fs, &target.caller, &attr, kept).await;
            cleared.map_err(of_vfs)?;
        }
        if let Some(client) = cx.known_client() {
            let now = cx.services.clock.wall();
            cx.state().times_set(client, target.node, &set, now);
        }
        *done = wanted.asked.difference(More::ALL).difference(ignored);
    }
    if let Some(more) = more {
        let set = more.set(target.fs(), &target.caller, target.node.id).await;
        cx.services.exports.rights().changed(target.node);
        cx.changed(&[target.node]);
        set?;
    }
    *done = wanted.asked.difference(ignored);
    Ok(())
}

/// Sets the times that the holder of a delegation reports (RFC 9754 section 5). Returns the
/// attributes that were ignored.
async fn set_delegated_times(
    cx: &Context,
    target: &Target<'_>,
    stateid: StateId,
    told: DelegateTimes,
) -> Result<Bitmap, Error> {
    let (client, id) = (cx.client()?, cx.state_of(stateid)?);
    let now = cx.services.clock.wall();
    let times = (told.atime, told.mtime);
    let set = cx.state().delegated_times(client, id, target.node, times, now).map_err(of_state)?;
    if set.is_empty() {
        return Ok(OF_DELEGATES);
    }
    cx.check_rights_under(target, id, Access::WRITE).await?;
    // A caller with write access can produce any time between the original one and now by a write
    // at that time, so it does not need the owner's right to set times. The server may lack that
    // right, too.
    match target.fs().setattr(&Caller::Own, target.node.id, &set).await {
        Ok(_) => {}
        Err(weir_vfs::Error::AccessDenied | weir_vfs::Error::NotPermitted) => {
            return Ok(OF_DELEGATES);
        }
        Err(error) => return Err(of_vfs(error)),
    }
    cx.changed(&[target.node]);
    let no_atime = set.atime.is_none();
    Ok(if no_atime { Bitmap::of(&[TIME_DELEG_ACCESS]) } else { Bitmap::EMPTY })
}

/// The client that sets attributes, if it is known. In minor version 0 the stateid may identify it.
fn setter(cx: &Context, args: &setattr::Args) -> Option<ClientId> {
    cx.known_client().or_else(|| match cx.stateid(args.stateid) {
        Ok(StateRef::Of(id)) => cx.state().client_of_own(id.key, &cx.principal).ok(),
        _ => None,
    })
}

/// Sets the size under an open for writing, and takes it out of `set`. Without an open, leaves the
/// size in `set`, to be set with the caller's own rights.
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
        cx.check_grace()?;
        let now = cx.now();
        cx.state().anonymous_io(target.node, Access::WRITE, now).map_err(of_state)?;
        return cx.settle_for_io().await;
    }
    let io = cx.io_to_change(target, stateid).await?;
    io.file.truncate_async(size).await.map_err(of_vfs)?;
    set.size = None;
    Ok(())
}

/// Whether the file has these attributes with these values.
async fn compare(cx: &Context, wire: &Fattr) -> Result<bool, Error> {
    let asked = wire.asked();
    let target = cx.current()?;
    if !asked.difference(attrs::supported(cx.minor, target.capabilities())).is_empty() {
        return Err(Error::AttrNotSupp);
    }
    if !asked.intersection(WRITE_ONLY).is_empty() || asked.contains(RDATTR_ERROR) {
        return Err(Error::Inval);
    }
    Ok(attributes(cx, &target, asked).await? == *wire.attrs()?)
}

pub(crate) async fn verify(cx: &mut Context, args: verify::Args) -> verify::Res {
    if compare(cx, &args).await? { Ok(()) } else { Err(Error::NotSame) }
}

pub(crate) async fn nverify(cx: &mut Context, args: nverify::Args) -> nverify::Res {
    if compare(cx, &args).await? { Err(Error::Same) } else { Ok(()) }
}

/// Permissions on a directory that a change of its names needs.
const CHANGE_NAMES: Permissions = Permissions::WRITE.union(Permissions::EXECUTE);

/// The permissions of the file system that each right of the protocol needs.
const OF_DIRECTORY: [(Rights, Permissions); 7] = [
    (Rights::READ, Permissions::READ),
    (Rights::LOOKUP, Permissions::EXECUTE),
    (Rights::MODIFY, CHANGE_NAMES),
    (Rights::EXTEND, CHANGE_NAMES),
    (Rights::DELETE, CHANGE_NAMES),
    (Rights::XAREAD.union(Rights::XALIST), Permissions::READ),
    (Rights::XAWRITE, Permissions::WRITE),
];
const OF_FILE: [(Rights, Permissions); 6] = [
    (Rights::READ, Permissions::READ),
    (Rights::MODIFY, Permissions::WRITE),
    (Rights::EXTEND, Permissions::WRITE),
    (Rights::EXECUTE, Permissions::EXECUTE),
    (Rights::XAREAD.union(Rights::XALIST), Permissions::READ),
    (Rights::XAWRITE, Permissions::WRITE),
];

pub(crate) async fn access(cx: &mut Context, asked: access::Args) -> access::Res {
    let target = cx.current()?;
    let attr = target.attr().await?;
    let table = if attr.kind == FileKind::Directory { &OF_DIRECTORY[..] } else { &OF_FILE[..] };
    let all = Permissions::all();
    let mut has = target.fs().access(&target.caller, target.node.id, all).await.map_err(of_vfs)?;
    if target.read_only {
        has.remove(Permissions::WRITE);
    }
    let (mut supported, mut rights) = (Rights::empty(), Rights::empty());
    for &(right, needs) in table {
        supported |= right;
        if has.contains(needs) {
            rights |= right;
        }
    }
    if cx.minor < 2 {
        supported.remove(Rights::XAREAD | Rights::XAWRITE | Rights::XALIST);
    }
    supported &= asked;
    Ok(Granted { supported, rights: rights & supported })
}
