//! Operations that create and remove names, none of them idempotent: if a server executes a resent
//! request as a new one (it has no sessions, or lost them in a restart), the client recognises the
//! effect of the first ([`retried`](crate::retried)).

use super::attr::set_attrs;
use super::client::V4;
use super::requests::{getattr, lookup, node_ops, putfh, take};
use crate::error::Result;
use crate::protocol::{Handle, NewEntry, Node, Protocol, Special};
use crate::retried;
use std::sync::atomic::Ordering::Relaxed;
use weir_nfs::v4::attr::{ACL, MODE_UMASK, ModeUmask, SETTABLE};
use weir_nfs::v4::op;
use weir_nfs::v4::op::open::{Claim, CreateHow, CreateVerifier, How};
use weir_nfs::v4::types::{FileType, SpecData, StateId};
use weir_nfs::v4::{Attrs, Bitmap, Error as Nfs4Error, Op, OpRes};
use weir_rpc::OpaqueAuth;
use weir_vfs::{Access, Attr, FileKind, RenameFlags, SetAttr, SpecialFile};

impl V4 {
    /// Creates a regular file that must not exist.
    pub(super) async fn create_file(
        &self,
        cred: &OpaqueAuth,
        entry: NewEntry<'_>,
        exclusive: bool,
    ) -> Result<Node> {
        // What an exclusive create may set beside the verifier.
        let allowed = self.about().and_then(|about| about.exclusive).filter(|_| exclusive);
        let sends_umask = self.mode_umask(entry.set, allowed).is_some();
        let how = match (exclusive, self.has_sessions()) {
            (false, _) => CreateHow::Guarded(self.attrs_of_new(entry.set, None).into()),
            (true, false) => CreateHow::Exclusive(retried::verifier()),
            (true, true) => {
                let mut attrs = self.attrs_of_new(&mode_of_new(entry.set), allowed);
                attrs.retain(allowed.unwrap_or(SETTABLE));
                let verifier = retried::verifier();
                CreateHow::Exclusive41(CreateVerifier { verifier, attrs: attrs.into() })
            }
        };
        let (mut node, set) = match self.has_sessions() {
            true => self.create_with_session(cred, &entry, How::Create(how)).await?,
            false => {
                let made = self.create_without_session(cred, &entry, How::Create(how)).await?;
                let node = self.node(made, "OPEN")?;
                self.found(&node, entry.dir, entry.name);
                (node, Bitmap::EMPTY)
            }
        };
        let is_masked = sends_umask && set.contains(MODE_UMASK);
        if exclusive {
            let mut rest = entry.set.clone();
            if is_masked {
                // The mode that the server has derived from the umask and the directory's default list stays. (A
                // change of the owner clears set-user-ID bits, so they go with it once more.)
                let chowns = rest.uid.is_some() || rest.gid.is_some();
                (rest.mode, rest.umask) = (chowns.then_some(node.attr.mode), None);
            }
            let entry = NewEntry { set: &rest, ..entry };
            node.attr = retried::complete(self, cred, &entry, &node).await?;
        } else if sends_umask && !is_masked {
            self.apply_umask(cred, &entry, &mut node).await?;
        }
        Ok(node)
    }

    /// Sets the mode of a new file whose umask the server has not applied.
    async fn apply_umask(
        &self,
        cred: &OpaqueAuth,
        entry: &NewEntry<'_>,
        node: &mut Node,
    ) -> Result<()> {
        let entry = NewEntry { set: &mode_of_new(entry.set), ..*entry };
        node.attr = retried::set_or_remove(self, cred, &entry, node).await?;
        Ok(())
    }

    /// The attributes of a new file. Where the server takes the umask along with the mode (RFC 8275), it applies the
    /// umask only in a directory without a default access control list; elsewhere it is applied here. `allowed`: what
    /// the request may set, if that is not everything.
    fn attrs_of_new(&self, set: &SetAttr, allowed: Option<Bitmap>) -> Attrs {
        let mut attrs = set_attrs(set);
        attrs.mode_umask = self.mode_umask(set, allowed);
        if attrs.mode_umask.is_some() {
            attrs.mode = None;
        }
        attrs
    }

    /// A new file's mode and umask, if the umask is the server's to apply. Only where files have access control lists:
    /// Linux's server before 5.8 ignores the umask elsewhere, where it is no different from one that is applied here.
    fn mode_umask(&self, set: &SetAttr, allowed: Option<Bitmap>) -> Option<ModeUmask> {
        let supported = self.about().and_then(|about| about.supported).unwrap_or_default();
        let is_allowed = allowed.is_none_or(|allowed| allowed.contains(MODE_UMASK));
        let is_supported = supported.contains(MODE_UMASK) && supported.contains(ACL);
        if self.minor < 2 || !is_supported || !is_allowed {
            return None;
        }
        Some(ModeUmask { mode: set.mode?, umask: set.umask? & 0o777 })
    }

    /// Creates a regular file, and closes it. Returns the attributes that the server has set, too.
    async fn create_with_session(
        &self,
        cred: &OpaqueAuth,
        entry: &NewEntry<'_>,
        how: How,
    ) -> Result<(Node, Bitmap)> {
        let claim = Claim::Null(entry.name.into());
        let args = self.open_args(Access::READ | Access::WRITE, how, claim);
        let mut ops = node_ops(vec![putfh(entry.dir), Op::Open(args)]);
        let close = |open_stateid| Op::Close(op::close::Args { seqid: 0, open_stateid });
        ops.push(close(StateId::CURRENT));
        let answer = self.exchange(cred, "OPEN", &ops, None).await?;
        let opened = answer.results.iter().find_map(|result| match result {
            OpRes::Open(Ok(opened)) => Some(opened.clone()),
            _ => None,
        });
        let closed = answer.results.last();
        match (opened, closed) {
            (Some(opened), Some(OpRes::Close(closed))) => {
                let node = self.node(answer.results.clone(), "OPEN")?;
                self.delegations.refuse(&node.handle, &opened.delegation);
                // A server may keep no current stateid. If this fails, the open ends with the lease.
                if closed.is_err()
                    && let Err(error) = self
                        .call(cred, "CLOSE", &[putfh(&node.handle), close(opened.stateid)])
                        .await
                {
                    tracing::debug!("{error}");
                }
                Ok((node, opened.attrs_set))
            }
            _ => {
                self.checked("OPEN", answer.status)?;
                Err(self.unexpected("OPEN"))
            }
        }
    }

    /// Creates a file of another kind.
    pub(super) async fn make_name(
        &self,
        cred: &OpaqueAuth,
        entry: NewEntry<'_>,
        special: Special<'_>,
    ) -> Result<Node> {
        use op::create::Kind;
        let kind = match special {
            Special::Directory => Kind::Directory,
            Special::Symlink(target) => Kind::Symlink(target.into()),
            Special::File(SpecialFile::Block(major, minor)) => {
                Kind::Block(SpecData { major, minor })
            }
            Special::File(SpecialFile::Char(major, minor)) => Kind::Char(SpecData { major, minor }),
            Special::File(SpecialFile::Socket) => Kind::Socket,
            Special::File(SpecialFile::Fifo) => Kind::Fifo,
        };
        let args = op::create::Args {
            kind,
            name: entry.name.into(),
            attrs: self.attrs_of_new(entry.set, None).into(),
        };
        let ops = node_ops(vec![putfh(entry.dir), Op::Create(args)]);
        let answer = self.exchange(cred, "CREATE", &ops, None).await?;
        if answer.status == Err(Nfs4Error::Exist)
            && answer.resent
            && let Special::Symlink(target) = special
            && let Some(node) = retried::symlink_made(self, cred, &entry, target).await
        {
            return Ok(node);
        }
        self.checked("CREATE", answer.status)?;
        let created = answer.results.iter().find_map(|result| match result {
            OpRes::Create(Ok(created)) => Some(created.set),
            _ => None,
        });
        let mut node = self.node(answer.results, "CREATE")?;
        // The mode of a symbolic link means nothing.
        let has_mode = node.attr.kind != FileKind::Symlink;
        if has_mode
            && self.mode_umask(entry.set, None).is_some()
            && !created.is_some_and(|set| set.contains(MODE_UMASK))
        {
            self.apply_umask(cred, &entry, &mut node).await?;
        }
        Ok(node)
    }

    /// Adds a name for a file.
    pub(super) async fn link_name(
        &self,
        cred: &OpaqueAuth,
        handle: &Handle,
        dir: &Handle,
        name: &[u8],
    ) -> Result<Attr> {
        let ops = [
            putfh(handle),
            Op::Savefh(()),
            putfh(dir),
            Op::Link(name.into()),
            putfh(handle),
            getattr(super::attr::WANTED),
        ];
        let answer = self.exchange(cred, "LINK", &ops, None).await?;
        if answer.status == Err(Nfs4Error::Exist)
            && answer.resent
            && let Some(attr) = retried::linked(self, cred, handle, (dir, name)).await
        {
            return Ok(attr);
        }
        self.checked("LINK", answer.status)?;
        let attrs = take!(self, answer.results, Getattr)?;
        Ok(self.node_of(handle.clone(), &attrs, "LINK")?.attr)
    }

    /// Removes a name.
    pub(super) async fn remove_name(
        &self,
        cred: &OpaqueAuth,
        dir: &Handle,
        name: &[u8],
        directory: bool,
    ) -> Result<()> {
        let verifies = self.verifies.load(Relaxed);
        if !verifies || self.delegations.any() {
            let node = self.lookup(cred, dir, name).await?;
            match (directory, node.attr.kind) {
                (true, FileKind::Directory) => {}
                (true, _) => return Err(weir_vfs::Error::NotDirectory.into()),
                (false, FileKind::Directory) => return Err(weir_vfs::Error::IsDirectory.into()),
                (false, _) => {}
            }
            self.give_back_file(&node.handle).await;
        }
        // REMOVE removes files and directories alike (RFC 8881 section 18.25), so the compound goes on
        // only if the name is of the right kind.
        let kind = Attrs { kind: Some(FileType::Directory), ..Attrs::default() }.into();
        let check = if directory { Op::Verify(kind) } else { Op::Nverify(kind) };
        let mut ops = vec![putfh(dir)];
        if verifies {
            ops.extend([lookup(name), check, putfh(dir)]);
        }
        ops.push(Op::Remove(name.into()));
        let answer = self.exchange(cred, "REMOVE", &ops, None).await?;
        let compared = answer.results.last();
        match answer.status {
            Err(Nfs4Error::NotSame) => Err(weir_vfs::Error::NotDirectory.into()),
            Err(Nfs4Error::Same) => Err(weir_vfs::Error::IsDirectory.into()),
            // It existed and the first attempt removed it, or it never did.
            Err(Nfs4Error::NoEnt) if answer.resent => Ok(()),
            // Some servers do not compare attributes.
            Err(_) if matches!(compared, Some(OpRes::Verify(_) | OpRes::Nverify(_))) => {
                self.verifies.store(false, Relaxed);
                Box::pin(self.remove_name(cred, dir, name, directory)).await
            }
            status => self.checked("REMOVE", status),
        }
    }

    /// Renames an entry.
    pub(super) async fn rename_name(
        &self,
        cred: &OpaqueAuth,
        from: (&Handle, &[u8]),
        to: (&Handle, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        if flags != RenameFlags::Replace {
            return crate::exclusive_rename::rename_with(self, cred, from, to, flags).await;
        }
        if self.delegations.any()
            && let Ok(over) = self.lookup(cred, to.0, to.1).await
        {
            self.give_back_file(&over.handle).await;
        }
        // If the server lost the session in a restart, its answer no longer tells which file had
        // the name.
        let source = self.lookup(cred, from.0, from.1).await?.attr;
        let ops = [
            putfh(from.0),
            Op::Savefh(()),
            putfh(to.0),
            Op::Rename(op::rename::Args { from: from.1.into(), to: to.1.into() }),
        ];
        let answer = self.exchange(cred, "RENAME", &ops, None).await?;
        match answer.status {
            Err(Nfs4Error::NoEnt)
                if answer.resent && retried::has_name(self, cred, &source, to).await =>
            {
                Ok(())
            }
            // Also if the target's kind differs from the source's (RFC 8881 section 18.26.3).
            Err(Nfs4Error::Exist) => {
                let target = self.lookup(cred, to.0, to.1).await?.attr;
                match (source.kind, target.kind) {
                    (FileKind::Directory, FileKind::Directory) => {}
                    (FileKind::Directory, _) => return Err(weir_vfs::Error::NotDirectory.into()),
                    (_, FileKind::Directory) => return Err(weir_vfs::Error::IsDirectory.into()),
                    _ => {}
                }
                self.checked("RENAME", answer.status)
            }
            status => self.checked("RENAME", status),
        }
    }
}

/// The mode and the umask alone.
fn mode_of_new(set: &SetAttr) -> SetAttr {
    SetAttr { mode: set.mode, umask: set.umask, ..SetAttr::default() }
}
