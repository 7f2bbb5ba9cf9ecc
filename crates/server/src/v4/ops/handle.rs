//! Filehandles: PUTFH, PUTROOTFH, PUTPUBFH, GETFH, SAVEFH, RESTOREFH, SECINFO, SECINFO_NO_NAME
//! (RFC 8881 sections 18.19 to 18.21, 18.8, 18.27, 18.28, 18.29, 18.45).

use crate::handle::Node;
use crate::v4::context::Context;
use crate::v4::ops::name::{check_name, parent};
use crate::v4::status::{of_handle, of_vfs};
use weir_nfs::v4::Error;
use weir_nfs::v4::op::{
    getfh, putfh, putpubfh, putrootfh, restorefh, savefh, secinfo, secinfo_no_name,
};
use weir_nfs::v4::types::SecInfo;
use weir_rpc::AuthFlavor;

pub(crate) async fn putfh(cx: &mut Context, args: putfh::Args) -> putfh::Res {
    let node = cx.services.exports.unseal(&args).map_err(of_handle)?;
    cx.exports.get(node.export).map_err(of_handle)?;
    cx.set_current(node);
    Ok(())
}

pub(crate) async fn putrootfh(cx: &mut Context, _: putrootfh::Args) -> putrootfh::Res {
    cx.set_current(cx.exports.root());
    Ok(())
}

/// PUTPUBFH: the public filehandle is the root filehandle.
pub(crate) async fn putpubfh(cx: &mut Context, (): putpubfh::Args) -> putpubfh::Res {
    putrootfh(cx, ()).await
}

pub(crate) async fn getfh(cx: &mut Context, _: getfh::Args) -> getfh::Res {
    let node = cx.current()?.node;
    Ok(cx.services.exports.seal(node)[..].into())
}

pub(crate) async fn savefh(cx: &mut Context, _: savefh::Args) -> savefh::Res {
    cx.saved = cx.current;
    cx.saved_stateid = cx.current_stateid;
    Ok(())
}

pub(crate) async fn restorefh(cx: &mut Context, _: restorefh::Args) -> restorefh::Res {
    cx.current = Some(cx.saved.ok_or(Error::RestoreFh)?);
    cx.current_stateid = cx.saved_stateid;
    Ok(())
}

/// The security flavors, which are the same for all exports.
fn flavors(cx: &Context) -> Vec<SecInfo> {
    let none = cx.peer.takes_auth_none().then_some(AuthFlavor::NONE);
    [AuthFlavor::SYS].into_iter().chain(none).map(|flavor| SecInfo::Flavor(flavor.0)).collect()
}

pub(crate) async fn secinfo(cx: &mut Context, name: secinfo::Args) -> secinfo::Res {
    check_name(&name)?;
    let dir = cx.current()?;
    let found = dir.fs().lookup(&dir.caller, dir.node.id.entry(&name)).await.map_err(of_vfs)?;
    cx.target(cx.exports.enter(Node { id: found.id, ..dir.node }))?;
    consume_current(cx);
    Ok(flavors(cx).into())
}

pub(crate) async fn secinfo_no_name(
    cx: &mut Context,
    args: secinfo_no_name::Args,
) -> secinfo_no_name::Res {
    let target = cx.current()?;
    if args == secinfo_no_name::Style::Parent {
        parent(cx, target.node).await?;
    }
    consume_current(cx);
    Ok(flavors(cx).into())
}

/// Clears the current filehandle: since minor version 1, SECINFO and SECINFO_NO_NAME consume it
/// (RFC 8881 section 2.6.3.1.1.8).
fn consume_current(cx: &mut Context) {
    if cx.minor > 0 {
        cx.current = None;
        cx.current_stateid = None;
    }
}
