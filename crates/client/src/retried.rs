//! Requests that count once, where a server answers a repetition as if it were another request.
//!
//! A reply is lost with its connection, the request is sent again, and the server has forgotten that
//! it executed it (it restarted, or its reply cache is small): it says that a new name is in its own
//! way, or that a name which is gone is not there. Only an answer to a repetition is doubted.
//!
//! 1. What is taken for the outcome of the first request is what the request asked for, to the file.
//! 2. A new file that must not have existed is told by a verifier that its request carried.
//! 3. A directory that is in its own way cannot be told from another one's; that stays an error. It carries no
//!    verifier, and another process of the same user may have made it in the meantime, as a lock for instance:
//!    neither owner, time nor emptiness would tell, and two processes would hold the lock.

use crate::error::Result;
use crate::protocol::{Handle, NewEntry, Node, Protocol};
use weir_rpc::OpaqueAuth;
use weir_vfs::{Attr, FileKind, SetAttr, SetTime};

/// Tells a request to make a file from every other one.
pub(crate) fn verifier() -> [u8; 8] {
    let random = getrandom::u64().unwrap_or_else(|_| u64::from(std::process::id()) << 32);
    random.to_be_bytes()
}

/// Gives a file that was made exclusively, and has no attributes yet, those that it is to have.
/// (A server may keep the verifier in the file's times, which are set in any case, RFC 1813 section
/// 3.3.8.) A file that cannot have them is removed, unless another has its name by then.
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
    let attr = protocol.setattr(cred, &node.handle, None, &set).await;
    if attr.is_err() && has_name(protocol, cred, &node.attr, (entry.dir, entry.name)).await {
        // What failed first is what is worth saying.
        let _ = protocol.remove(cred, entry.dir, entry.name, false).await;
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

/// The attributes of the file, if the name is one of its own.
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

/// The symbolic link, if it leads to `target`.
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
