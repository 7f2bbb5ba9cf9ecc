//! The way from the server's root to a mount's.
//!
//! 1. One compound looks up several components. A reply that has to fit the server's reply cache, that of
//!    the first compound, is short; the operations of each fit the session.
//! 2. A new client has nothing to reclaim, and says so with its first compound, before it asks for any
//!    state (RFC 8881 section 18.51.3).

use super::attr::{ABOUT, ABOUT_WITH_SESSION, about, lease_of};
use super::client::V4;
use super::requests::{getattr, lookup, node_ops, putfh, take};
use crate::error::{Error, Result};
use crate::protocol::{Handle, Limits, Node, Reach, Root};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use weir_nfs::v4::attr::XATTR_SUPPORT;
use weir_nfs::v4::op::reclaim_complete;
use weir_nfs::v4::{Attrs, Bitmap, Error as Nfs4Error, Op, OpRes};
use weir_rpc::OpaqueAuth;
use weir_vfs::FileKind;

/// Operations that look up a component: LOOKUP, GETFH, GETATTR.
const EACH: usize = 3;
/// GETATTR of what is known of the file system, and of whether it has extended attributes.
const ABOUTS: usize = 2;
/// Components in the first compound: their attributes fit in 2 KiB, which is what the kernel's server keeps.
const MOST_AT_FIRST: usize = 3;
/// Components in another compound: names of the longest kind fit in 4 KiB.
const MOST_TOGETHER: usize = 8;
/// Operations in a compound of version 4.0, where no limit is agreed on.
const WITHOUT_SESSION: usize = 16;

/// What is known of a file system, by GETATTR.
struct FsAttrs {
    attrs: Attrs,
    /// The file that was asked.
    of: Node,
}

impl V4 {
    /// Follows `path` from the server's root as far as `reach` says, and learns about the file system
    /// there.
    pub(crate) async fn root(self: &Arc<Self>, path: &[Vec<u8>], reach: Reach) -> Result<Root> {
        let (mut found, known) = self.follow(path, reach).await?;
        if reach == Reach::LastDirectory {
            let is_directory = |node: &Node| node.attr.kind == FileKind::Directory;
            found.truncate(found.iter().rposition(is_directory).map_or(0, |last| last + 1));
        }
        let depth = found.len().saturating_sub(1);
        let node = found.pop().ok_or(weir_vfs::Error::NotDirectory)?;
        // A file of the same file system answers for the directory that it is in; a link may not.
        let known = known.filter(|known| {
            known.of.attr.fsid == node.attr.fsid && known.of.attr.kind != FileKind::Symlink
        });
        self.learn(&node.handle, known.map(|known| known.attrs)).await?;
        Ok(Root { node, depth })
    }

    /// The server's root and what each component is, to the end or to what is no directory; and what
    /// the last of them tells of its file system.
    async fn follow(&self, path: &[Vec<u8>], reach: Reach) -> Result<(Vec<Node>, Option<FsAttrs>)> {
        let mut found: Vec<Node> = Vec::new();
        let mut asked = path;
        loop {
            let most = self.most_operations();
            let mut ops = match found.last() {
                None => self.first_ops(),
                Some(node) => vec![putfh(&node.handle)],
            };
            // SEQUENCE is an operation of the compound, too.
            let fixed = ops.len() + usize::from(self.has_sessions());
            let fit = most.saturating_sub(fixed) / EACH;
            let lookups = if found.is_empty() { fit.min(MOST_AT_FIRST) } else { fit.max(1) };
            let (now, later) = asked.split_at(asked.len().min(lookups));
            let completes = matches!(ops.first(), Some(Op::ReclaimComplete(_)));
            for name in now {
                ops = node_ops_of_lookup(ops, name);
            }
            if later.is_empty() && fixed + EACH * now.len() + ABOUTS <= most {
                ops.extend(self.about_ops());
            }
            let answer = self.exchange(&self.own, "LOOKUP", &ops, None).await?;
            let before = found.len();
            let attrs = self.nodes(answer.results, &mut found)?;
            let all = found.len() - before == now.len() + usize::from(before == 0);
            if all && later.is_empty() {
                let of = found.last().cloned();
                return Ok((found, attrs.zip(of).map(|(attrs, of)| FsAttrs { attrs, of })));
            }
            let error = match answer.status {
                Ok(()) if all => {
                    asked = later;
                    continue;
                }
                // It was sent before a restart of the server, whose recovery said so.
                Err(Nfs4Error::CompleteAlready) if completes => continue,
                Ok(()) => return Err(self.unexpected("LOOKUP")),
                Err(error) => self.failed("LOOKUP", error),
            };
            if reach == Reach::End || found.is_empty() || !error.is_no_directory() {
                return Err(error);
            }
            return Ok((found, None));
        }
    }

    /// Looks up the components of a path below `dir`, several in one compound.
    pub(super) async fn lookup_names(
        &self,
        cred: &OpaqueAuth,
        dir: &Handle,
        names: &[Vec<u8>],
    ) -> Result<(Vec<Node>, Option<Error>)> {
        let mut found: Vec<Node> = Vec::with_capacity(names.len());
        while let Some(rest) = names.get(found.len()..).filter(|rest| !rest.is_empty()) {
            // SEQUENCE and PUTFH come first.
            let fit = self.most_operations().saturating_sub(2) / EACH;
            let now = &rest[..rest.len().min(fit.clamp(1, MOST_TOGETHER))];
            let at = found.last().map_or(dir, |node| &node.handle);
            let ops = now.iter().fold(vec![putfh(at)], |ops, name| node_ops_of_lookup(ops, name));
            let answer = self.exchange(cred, "LOOKUP", &ops, None).await?;
            let before = found.len();
            self.nodes(answer.results, &mut found)?;
            for (index, name) in (before..found.len()).zip(now) {
                let parent = index.checked_sub(1).map_or(dir, |parent| &found[parent].handle);
                self.found(&found[index], parent, name);
            }
            match answer.status {
                Ok(()) if found.len() - before == now.len() => {}
                Ok(()) => return Err(self.unexpected("LOOKUP")),
                // Fewer than the components asked for: a server that reports a failure of more
                // operations than it executed breaks the protocol.
                Err(_) if found.len() - before >= now.len() => {
                    return Err(self.unexpected("LOOKUP"));
                }
                Err(error) => return Ok((found, Some(self.failed("LOOKUP", error)))),
            }
        }
        Ok((found, None))
    }

    /// Most operations in a compound.
    fn most_operations(&self) -> usize {
        match self.has_sessions() {
            true => self.session().max_operations,
            false => WITHOUT_SESSION,
        }
    }

    /// What leads a new client to the server's root.
    fn first_ops(&self) -> Vec<Op> {
        let mut ops = Vec::new();
        if self.complete_due.swap(false, Relaxed) {
            ops.push(Op::ReclaimComplete(reclaim_complete::Args { one_fs: false }));
        }
        ops.push(Op::Putrootfh(()));
        node_ops(ops)
    }

    /// Asks about a file system. Servers have been seen to refuse the question for extended attributes
    /// (nfs-ganesha 4.3) rather than leave out the answer, so it comes last.
    fn about_ops(&self) -> Vec<Op> {
        let mut ops = vec![getattr(if self.has_sessions() { ABOUT_WITH_SESSION } else { ABOUT })];
        if self.minor >= 2 {
            ops.push(getattr(Bitmap::of(&[XATTR_SUPPORT])));
        }
        ops
    }

    /// Adds the files of a compound, each by GETFH and GETATTR, to `found`; returns what the file system
    /// was asked after them.
    fn nodes(&self, results: Vec<OpRes>, found: &mut Vec<Node>) -> Result<Option<Attrs>> {
        let (mut handle, mut about) = (None, None::<Attrs>);
        for result in results {
            match (result, handle.take(), &mut about) {
                (OpRes::Getfh(Ok(fh)), ..) => handle = Some(Handle(fh.0)),
                (OpRes::Getattr(Ok(attrs)), Some(handle), _) => {
                    found.push(self.node_of(handle, &attrs, "LOOKUP")?);
                }
                (OpRes::Getattr(Ok(attrs)), None, Some(about)) => {
                    about.xattr_support = attrs.xattr_support;
                }
                (OpRes::Getattr(Ok(attrs)), None, about) => *about = Some(attrs),
                _ => {}
            }
        }
        Ok(about)
    }

    /// Learns about the file system of the mount's root: what is `known`, and what that leaves open.
    async fn learn(self: &Arc<Self>, root: &Handle, known: Option<Attrs>) -> Result<()> {
        let mut attrs = match known {
            Some(attrs) => attrs,
            None => {
                let mut ops = vec![putfh(root)];
                ops.extend(self.about_ops());
                let answer = self.exchange(&self.own, "GETATTR", &ops, None).await?;
                match self.nodes(answer.results, &mut Vec::new())? {
                    Some(attrs) => attrs,
                    None => {
                        self.checked("GETATTR", answer.status)?;
                        return Err(self.unexpected("GETATTR"));
                    }
                }
            }
        };
        let has_xattrs = attrs.supported_attrs.unwrap_or_default().contains(XATTR_SUPPORT);
        if self.minor >= 2 && has_xattrs && attrs.xattr_support.is_none() {
            let ops = [putfh(root), getattr(Bitmap::of(&[XATTR_SUPPORT]))];
            let results = self.call(&self.own, "GETATTR", &ops).await?;
            attrs.xattr_support = take!(self, results, Getattr)?.xattr_support;
        }
        let session = self.session();
        let fit = |asked: usize, session: usize, server: Option<u64>| {
            let server = server.map_or(usize::MAX, |s| usize::try_from(s).unwrap_or(usize::MAX));
            let session = if self.has_sessions() { session } else { usize::MAX };
            asked.min(session).min(server.max(512))
        };
        let about = about(&attrs, |max_read, max_write| Limits {
            read: fit(self.asked.read, session.max_read, max_read),
            write: fit(self.asked.write, session.max_write, max_write),
        });
        self.set_lease(lease_of(&attrs));
        self.keep_alive();
        // Only the first root counts; a second mount has its own connection.
        let _ = self.about.set(about);
        Ok(())
    }
}

/// `ops`, the lookup of a component, and what identifies it.
fn node_ops_of_lookup(mut ops: Vec<Op>, name: &[u8]) -> Vec<Op> {
    ops.push(lookup(name));
    node_ops(ops)
}
