//! Renames that must not replace a file. No version of the protocol has a request for them.

use crate::error::{Error, Result};
use crate::protocol::{Handle, Node, Protocol};
use crate::retried;
use weir_rpc::OpaqueAuth;
use weir_vfs::{FileKind, RenameFlags};

/// Renames with flags that no protocol version has. If the new name must not exist, it is created
/// as a link, which is atomic, before the old one is removed; only a directory, which cannot have
/// two names, is checked beforehand (and a rename replaces only an empty one). If the old name stays, or
/// another program has taken the file by it, the new one is removed again.
pub(crate) async fn rename_with(
    protocol: &dyn Protocol,
    cred: &OpaqueAuth,
    from: (&Handle, &[u8]),
    to: (&Handle, &[u8]),
    flags: RenameFlags,
) -> Result<()> {
    if flags == RenameFlags::Exchange {
        return Err(weir_vfs::Error::NotSupported.into());
    }
    let node = protocol.lookup(cred, from.0, from.1).await?;
    if node.attr.kind == FileKind::Directory {
        return match protocol.lookup(cred, to.0, to.1).await {
            Ok(_) => Err(weir_vfs::Error::Exists.into()),
            Err(error) if error.to_vfs() == weir_vfs::Error::NotFound => {
                protocol.rename(cred, from, to, RenameFlags::Replace).await
            }
            Err(error) => Err(error),
        };
    }
    protocol.link(cred, &node.handle, to.0, to.1).await?;
    match protocol.remove(cred, from.0, from.1, false).await {
        // Of others it is not known whether the server has executed the removal, or will.
        Err(error @ (Error::Status { .. } | Error::Local(_))) => {
            if has_other_name(protocol, cred, &node, from, &error).await
                && retried::has_name(protocol, cred, &node.attr, to).await
                && let Err(left) = protocol.remove(cred, to.0, to.1, false).await
            {
                tracing::warn!("a file has two names after a rename that failed: {left}");
            }
            Err(error)
        }
        removed => removed,
    }
}

/// Whether a file whose old name `from` could not be removed has a name besides the new one: the old one itself, or
/// one that it got from the program that took the old one away.
async fn has_other_name(
    protocol: &dyn Protocol,
    cred: &OpaqueAuth,
    file: &Node,
    from: (&Handle, &[u8]),
    error: &Error,
) -> bool {
    match error.to_vfs() {
        weir_vfs::Error::NotFound | weir_vfs::Error::Stale => {
            let attr = protocol.getattr(cred, &file.handle).await;
            attr.is_ok_and(|attr| attr.nlink > 1)
        }
        _ => retried::has_name(protocol, cred, &file.attr, from).await,
    }
}
