//! Extended attributes: GETXATTR, SETXATTR, LISTXATTRS, REMOVEXATTR (RFC 8276 section 8.4).
//!
//! Clients can access only the `user` namespace. Names on the wire have no namespace prefix.

use crate::state::Touch;
use crate::v4::context::{Context, Target};
use crate::v4::status::of_vfs;
use weir_nfs::v4::op::setxattr::Mode;
use weir_nfs::v4::op::{getxattr, listxattrs, removexattr, setxattr};
use weir_nfs::v4::types::ChangeInfo;
use weir_nfs::v4::{Error, OpCode};
use weir_vfs::XattrMode;
use weir_xdr::padding;

const PREFIX: &[u8] = b"user.";
/// Maximum length of a name with its prefix, in bytes; the same as on Linux.
const MAX_NAME_BYTES: usize = 255;

fn full_name(name: &[u8]) -> Result<Vec<u8>, Error> {
    if name.is_empty() || name.contains(&0) {
        return Err(Error::Inval);
    }
    if name.len() + PREFIX.len() > MAX_NAME_BYTES {
        return Err(Error::NameTooLong);
    }
    Ok([PREFIX, name].concat())
}

fn of_xattr(error: weir_vfs::Error) -> Error {
    match error {
        weir_vfs::Error::TooBig | weir_vfs::Error::Range => Error::Xattr2Big,
        error => of_vfs(error),
    }
}

async fn changed(cx: &Context, target: &Target<'_>, before: u64) -> Result<ChangeInfo, Error> {
    cx.changed(&[target.node]);
    Ok(ChangeInfo { atomic: false, before, after: target.attr().await?.change })
}

pub(crate) async fn getxattr(cx: &mut Context, name: getxattr::Args) -> getxattr::Res {
    let target = cx.current()?;
    let name = full_name(&name)?;
    let value = target.fs().get_xattr(&target.caller, target.node.id.xattr(&name)).await;
    let value = value.map_err(of_xattr)?;
    if OpCode::Getxattr.reply_bound().fixed_bytes() + value.len() > cx.reply_bytes_left {
        return Err(Error::TooSmall);
    }
    Ok(value[..].into())
}

pub(crate) async fn setxattr(cx: &mut Context, args: setxattr::Args) -> setxattr::Res {
    let target = cx.current()?;
    target.check_writable()?;
    let name = full_name(&args.name)?;
    let mode = match args.mode {
        Mode::Either => XattrMode::Either,
        Mode::Create => XattrMode::Create,
        Mode::Replace => XattrMode::Replace,
    };
    let _claim = cx.claim(target.node, Touch::Change).await?;
    let before = target.attr().await?.change;
    let (fs, caller, id) = (target.fs(), &target.caller, target.node.id);
    fs.set_xattr(caller, id.xattr(&name), &args.value, mode).await.map_err(of_xattr)?;
    changed(cx, &target, before).await
}

pub(crate) async fn removexattr(cx: &mut Context, name: removexattr::Args) -> removexattr::Res {
    let target = cx.current()?;
    target.check_writable()?;
    let name = full_name(&name)?;
    let _claim = cx.claim(target.node, Touch::Change).await?;
    let before = target.attr().await?.change;
    let (fs, caller, id) = (target.fs(), &target.caller, target.node.id);
    fs.remove_xattr(caller, id.xattr(&name)).await.map_err(of_xattr)?;
    changed(cx, &target, before).await
}

/// LISTXATTRS. The cookie is the number of names already returned. Names are sorted, so a cookie
/// stays valid until a name is added or removed.
pub(crate) async fn listxattrs(cx: &mut Context, args: listxattrs::Args) -> listxattrs::Res {
    let target = cx.current()?;
    let names = target.fs().list_xattrs(&target.caller, target.node.id).await;
    let mut names: Vec<Vec<u8>> = names
        .map_err(of_xattr)?
        .iter()
        .filter_map(|name| name.strip_prefix(PREFIX).map(<[u8]>::to_vec))
        .collect();
    names.sort_unstable();
    let begin = usize::try_from(args.cookie).ok().filter(|&n| n <= names.len());
    let rest = &names[begin.ok_or(Error::BadCookie)?..];

    let row = OpCode::Listxattrs.reply_bound().fixed_bytes();
    let mut bytes_left = (args.max_bytes as usize).min(cx.reply_bytes_left.saturating_sub(row));
    let mut page = Vec::new();
    for name in rest {
        let bytes = 4 + name.len() + padding(name.len());
        let Some(left) = bytes_left.checked_sub(bytes) else { break };
        bytes_left = left;
        page.push(name[..].into());
    }
    if page.is_empty() && !rest.is_empty() {
        return Err(Error::TooSmall);
    }
    let eof = page.len() == rest.len();
    let cookie = args.cookie + page.len() as u64;
    Ok(listxattrs::Names { cookie, names: page.into(), eof })
}
