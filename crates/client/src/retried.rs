//! Recovery of non-idempotent requests that a server executes again when they are resent.
//!
//! If a reply is lost with its connection, the request is sent again. A server that has forgotten
//! its execution (it restarted, or its reply cache is small) then reports that a new name already
//! exists, or that a removed name does not. Only the answer to a resent request is doubted.
//!
//! 1. The first request counts as successful only if the file is in the state that it asked for.
//! 2. A new file that must not have existed is recognised by a verifier that its request carried.
//! 3. A directory that already exists cannot be told from another client's; that stays an error. It
//!    carries no verifier, and another process of the same user may have created it in the
//!    meantime, as a lock for instance: neither owner, time nor emptiness would tell, and two
//!    processes would hold the lock.

use crate::error::Result;
use crate::protocol::{Handle, NewEntry, Node, Protocol};
use weir_rpc::OpaqueAuth;
use weir_vfs::{Attr, FileKind, SetAttr, SetTime};

/// Distinguishes one request to create a file from all others.
pub(crate) fn verifier() -> [u8; 8] {
    let random = getrandom::u64().unwrap_or_else(|_| u64::from(std::process::id()) << 32);
    random.to_be_bytes()
}

/// Sets the initial attributes of a file that was created exclusively, and so without them. (A
/// server may store the verifier in the file's times, which are set in any case, RFC 1813 section
/// 3.3.8.) If that fails, the file is removed.
pub(crate) async fn complete(
    protocol: &dyn Protocol,
    cred: &OpaqueAuth,
    entry: &NewEntry<'_>,
    node: &Node,
) -> Result<Attr> {
    let set = SetAttr {
        atime: entry.set.atime.or(Some(SetTime::Now)),
        mtime: entry.set.mtime.or(Some(SetTime::Now)),
        ..entry.set.clone()
    };
    set_or_remove(protocol, cred, &NewEntry { set: &set, ..*entry }, node).await
}

/// Sets attributes of a new file; if that fails, removes it, unless its name refers to another file by then.
pub(crate) async fn set_or_remove(
    protocol: &dyn Protocol,
    cred: &OpaqueAuth,
    entry: &NewEntry<'_>,
    node: &Node,
) -> Result<Attr> {
    let attr = protocol.setattr(cred, &node.handle, None, entry.set).await;
    if attr.is_err() && has_name(protocol, cred, &node.attr, (entry.dir, entry.name)).await {
        let is_directory = node.attr.kind == FileKind::Directory;
        // The first error is the one to report.
        let _ = protocol.remove(cred, entry.dir, entry.name, is_directory).await;
    }
    attr.map(|(attr, _)| attr)
}

/// Whether the file has this name.
pub(crate) async fn has_name(
    protocol: &dyn Protocol,
    cred: &OpaqueAuth,
    file: &Attr,
    (dir, name): (&Handle, &[u8]),
) -> bool {
    let there = protocol.lookup(cred, dir, name).await;
    there.is_ok_and(|node| same_file(&node.attr, file))
}

/// The attributes of the file, if it has this name.
pub(crate) async fn linked(
    protocol: &dyn Protocol,
    cred: &OpaqueAuth,
    file: &Handle,
    (dir, name): (&Handle, &[u8]),
) -> Option<Attr> {
    let attr = protocol.getattr(cred, file).await.ok()?;
    let there = protocol.lookup(cred, dir, name).await.ok()?;
    same_file(&attr, &there.attr).then_some(attr)
}

/// The symbolic link, if its target is `target`.
pub(crate) async fn symlink_made(
    protocol: &dyn Protocol,
    cred: &OpaqueAuth,
    entry: &NewEntry<'_>,
    target: &[u8],
) -> Option<Node> {
    let node = protocol.lookup(cred, entry.dir, entry.name).await.ok()?;
    if node.attr.kind != FileKind::Symlink {
        return None;
    }
    let leads_to = protocol.readlink(cred, &node.handle).await.ok()?;
    (leads_to == target).then_some(node)
}

fn same_file(a: &Attr, b: &Attr) -> bool {
    (a.fsid, a.id) == (b.fsid, b.id)
}
