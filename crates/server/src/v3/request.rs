//! A call and the files that it names.

use super::convert;
use super::nfs3::Nfs3;
use crate::admission::Identity;
use crate::delegation::recall::{AccessClaim, InGrace, Named};
use crate::export::directory_change::DirectoryGuard;
use crate::export::{Admitted, ExportTable, Served};
use crate::handle::{Handles, Node};
use crate::operation::gather::Reader;
use crate::operation::set_id;
use crate::peer::Peer;
use crate::replies::{NoRoom, ReplyMemory};
use crate::state::Touch;
use crate::storage::retry_journal::{Begun, ChangeKey, MadeBefore, NameChange};
use crate::storage::write_verifier::WriteVerifier;
use crate::v3::open_files::{self, RightsAttrs};
use weir_nfs::v3::Error;
use weir_nfs::v3::types::{Created, FileHandle, PostOpAttr, WccAttr, WccData};
use weir_pagecache::{CachedFs, File};
use weir_vfs::{Access, Attr, Caller, FileId, FileKind, IoFlags};
use weir_xdr::Opaque;

/// A call, its caller and its connection.
pub(super) struct Request<'a> {
    pub(super) nfs: &'a Nfs3,
    /// The exports as this call sees them.
    pub(super) exports: &'a ExportTable,
    pub(super) identity: Identity,
    pub(super) peer: &'a Peer,
    pub(super) reply_memory: &'a ReplyMemory,
    /// Identifies the call in the retry journal, if its reply is kept.
    pub(super) key: Option<ChangeKey>,
}

/// A file that a call names, with the caller's identity in its export.
pub(super) struct Target<'a> {
    nfs: &'a Nfs3,
    peer: &'a Peer,
    pub(super) export: &'a Served,
    pub(super) node: Node,
    pub(super) caller: Caller,
    /// The caller may not change anything.
    read_only: bool,
}

impl<'a> Request<'a> {
    /// The connection and reply memory for reading data.
    pub(super) fn reader(&self) -> Reader<'a> {
        Reader { peer: self.peer, memory: self.reply_memory }
    }

    /// The change of names that this call is, if an earlier run of the server made it.
    pub(super) fn made_before(&self) -> Option<MadeBefore> {
        self.nfs.retries.made_before(self.key?)
    }

    /// Records the change of names that this call is about to make in the export of `target`.
    pub(super) async fn begin(&self, target: &Target<'_>, change: NameChange<'_>) -> Begun<'a> {
        match self.key {
            Some(key) => self.nfs.retries.begin(key, target.fs(), change, false).await,
            None => Begun::NONE,
        }
    }

    /// Reserves reply memory for results of `bytes`.
    pub(super) async fn reserve(&self, bytes: usize) -> Result<(), Error> {
        self.reply_memory.reserve(bytes).await.map_err(|NoRoom| Error::Jukebox)
    }

    /// The file that a handle names. It may no longer exist.
    pub(super) fn target(&self, handle: &FileHandle) -> Result<Target<'a>, Error> {
        let node = self.nfs.exports.unseal(handle).map_err(convert::handle_error)?;
        let export = self.exports.mountable(node.export).map_err(convert::handle_error)?;
        let admitted = export.admit(&self.identity, self.peer.addr().ip());
        let Admitted { caller, read_only } = admitted.ok_or(Error::Access)?;
        Ok(Target { nfs: self.nfs, peer: self.peer, export, node, caller, read_only })
    }
}

impl Target<'_> {
    pub(super) fn fs(&self) -> &CachedFs {
        self.export.fs()
    }

    pub(super) fn id(&self) -> FileId {
        self.node.id
    }

    pub(super) async fn getattr(&self) -> Result<Attr, Error> {
        has_name(self.fs().getattr(self.id()).await)
    }

    /// The attributes, including changes that a client with a write delegation has not written back
    /// yet.
    pub(super) async fn newest_attr(&self) -> Result<Attr, Error> {
        has_name(self.nfs.recalls.attr(self.fs(), self.node, None).await)
    }

    /// Recalls delegations that conflict with an access. Hold the claim until the access is done.
    pub(super) async fn claim(&self, touch: Touch) -> Result<AccessClaim, Error> {
        self.nfs.recalls.claim(self.node, touch, None).await.map_err(convert::error)
    }

    /// Refuses the call while other clients may still reclaim their state.
    pub(super) fn check_grace(&self) -> Result<(), Error> {
        self.nfs.recalls.check_grace().map_err(|InGrace| Error::Jukebox)
    }

    /// Refuses a call whose connection has ended while it waited. The client has sent it again,
    /// perhaps with others after it.
    pub(super) fn check_connected(&self) -> Result<(), Error> {
        if self.peer.is_open() { Ok(()) } else { Err(Error::Jukebox) }
    }

    /// A name in this directory.
    pub(super) fn named<'a>(&'a self, name: &'a [u8]) -> Named<'a> {
        Named { fs: self.fs(), caller: &self.caller, dir: self.node, name }
    }

    /// Recalls delegations that conflict with the removal or change of names
    /// ([`Recalls::claim_names`]).
    ///
    /// [`Recalls::claim_names`]: crate::delegation::recall::Recalls::claim_names
    pub(super) async fn claim_names(
        &self,
        names: &[Named<'_>],
        wait: bool,
    ) -> Result<Vec<AccessClaim>, Error> {
        self.nfs.recalls.claim_names(names, None, wait).await.map_err(convert::error)
    }

    /// Makes changes to files of this file's export durable, if the export requires it. Do not wait
    /// for this during a [`change`](Self::change), so that concurrent commits of one directory can
    /// share syncs.
    pub(super) async fn commit(&self, nodes: Vec<FileId>) -> Result<(), Error> {
        self.nfs.committer.commit(self.export, nodes).await.map_err(convert::error)
    }

    pub(super) fn verifier(&self) -> &WriteVerifier {
        self.nfs.committer.verifier()
    }

    /// The attributes for a reply, if they can be read.
    pub(super) async fn attr(&self) -> PostOpAttr {
        self.shown(&self.getattr().await.ok()?)
    }

    /// The attributes of a file of this export for a reply. `None` if they may not be the newest: a
    /// client may have a longer file under a write delegation. GETATTR asks that client.
    pub(super) fn shown(&self, attr: &Attr) -> PostOpAttr {
        let node = Node { export: self.node.export, id: attr.id };
        let newest = !self.nfs.recalls.is_written_elsewhere(node, None);
        newest.then(|| convert::attr(attr))
    }

    /// Opens the file for reading or writing, or uses the kept one. Returns its attributes from
    /// before the access.
    pub(super) async fn open(&self, access: Access) -> Result<(File, Attr), Error> {
        let files = &self.nfs.files;
        let key = open_files::Key { peer: self.peer.id(), node: self.node, access };
        let kept = files.get(&key, &self.caller);
        let changes = self.nfs.exports.rights().changes(self.node);
        if let Some((file, rights)) = &kept {
            let attr = has_name(file.getattr().await)?;
            if rights.is_some_and(|rights| rights == RightsAttrs::of(&attr, changes)) {
                return Ok((file.clone(), attr));
            }
        }
        let opened = self.export.open_for_io(&self.caller, self.id(), access).await;
        let opened = opened.map_err(convert::error)?;
        // The kept file has the read-ahead state.
        let file = kept.map_or(opened, |(file, _)| file);
        let attr = has_name(file.getattr().await)?;
        let rights = RightsAttrs::of(&attr, changes);
        files.keep(key, file.clone(), self.caller.clone(), rights);
        Ok((file, attr))
    }

    /// Closes kept files that have just lost their last name.
    pub(super) fn lost_name(&self) {
        self.nfs.files.let_unlinked_go();
    }

    /// Weak cache consistency data without the attributes from before, for operations outside a
    /// [`change`](Self::change).
    pub(super) async fn wcc(&self) -> WccData {
        WccData { before: None, after: self.attr().await }
    }

    /// Another file of the same export.
    pub(super) fn sibling(&self, id: FileId) -> Self {
        let node = Node { export: self.node.export, id };
        Self { node, caller: self.caller.clone(), ..*self }
    }

    pub(super) fn handles(&self) -> &Handles {
        self.nfs.exports.handles()
    }

    /// Refuses a caller that may not search this directory.
    pub(super) async fn check_search(&self) -> Result<(), Error> {
        let may = self.export.may_search(&self.caller, self.id()).await.map_err(convert::error)?;
        if may { Ok(()) } else { Err(Error::Access) }
    }

    /// The handle of another file of the same export.
    pub(super) fn handle_of(&self, id: FileId) -> FileHandle {
        let node = Node { export: self.node.export, id };
        Opaque::copy_from(&self.nfs.exports.seal(node))
    }

    /// Refuses changes to a read-only export.
    pub(super) fn check_writable(&self) -> Result<(), Error> {
        if self.read_only { Err(Error::RoFs) } else { Ok(()) }
    }

    /// Discards cached rights after a change of the file's mode, owner or ACL.
    pub(super) fn rights_changed(&self) {
        self.nfs.exports.rights().changed(self.node);
    }

    /// Clears set-user-ID and set-group-ID as a change of the data requires.
    pub(super) async fn clear_set_id(&self, attr: &Attr) -> Result<(), Error> {
        set_id::clear(self.fs(), &self.caller, attr).await.map_err(convert::error)
    }

    /// The flags of a write.
    pub(super) fn write_flags(&self, file: &File, offset: u64, len: usize) -> IoFlags {
        self.export.write_flags(self.peer.addr().ip(), file, offset, len)
    }

    /// Begins a change of this directory's entries.
    pub(super) async fn change(&self) -> Change<'_> {
        let changing = self.nfs.exports.changes().lock(self.node).await;
        Change { before: self.before().await, _changing: changing }
    }

    /// Begins a change of two directories.
    pub(super) async fn change_with(&self, other: &Self) -> (Change<'_>, Option<WccAttr>) {
        let changing = self.nfs.exports.changes().lock_both(self.node, other.node).await;
        let theirs = other.before().await;
        (Change { before: self.before().await, _changing: changing }, theirs)
    }

    /// The attributes before a change. None if the directory's lock, which the caller holds, does not keep changes by
    /// another export out.
    async fn before(&self) -> Option<WccAttr> {
        if !self.nfs.exports.table().is_disjoint(self.node.export) {
            return None;
        }
        let attr = self.fs().getattr(self.id()).await.ok()?;
        (attr.kind == FileKind::Directory).then(|| convert::wcc_attr(&attr))
    }
}

/// Refuses a file without a name, which exists only because it is open.
fn has_name(attr: weir_vfs::Result<Attr>) -> Result<Attr, Error> {
    match attr {
        Ok(attr) if attr.nlink == 0 => Err(Error::Stale),
        attr => attr.map_err(convert::error),
    }
}

/// Makes a successful change durable before it is reported.
pub(super) async fn durable<T>(
    target: &Target<'_>,
    changed: Result<T, Error>,
    nodes: impl FnOnce(&T) -> Vec<FileId>,
) -> Result<T, Error> {
    let changed = changed?;
    target.commit(nodes(&changed)).await?;
    Ok(changed)
}

/// A directory being changed and its lock.
pub(super) struct Change<'a> {
    before: Option<WccAttr>,
    _changing: DirectoryGuard<'a>,
}

impl Change<'_> {
    /// Ends the change. Returns the attributes from before and after it.
    pub(super) async fn end(self, dir: &Target<'_>) -> WccData {
        WccData { before: self.before, after: dir.attr().await }
    }

    /// As [`end`](Self::end), for both directories.
    pub(super) async fn end_both(
        self,
        dir: &Target<'_>,
        (other, before): (&Target<'_>, Option<WccAttr>),
    ) -> (WccData, WccData) {
        let theirs = WccData { before, after: other.attr().await };
        (self.end(dir).await, theirs)
    }

    /// Ends the change and returns the results of creating a file in the directory.
    pub(super) async fn created(
        self,
        dir: &Target<'_>,
        made: Result<Attr, Error>,
    ) -> weir_nfs::v3::op::create::Res {
        let around = self.end(dir).await;
        match durable(dir, made, |attr| vec![attr.id, dir.id()]).await {
            Ok(attr) => Ok(Created {
                handle: Some(dir.handle_of(attr.id)),
                attr: dir.shown(&attr),
                dir: around,
            }),
            Err(status) => Err(weir_nfs::v3::Failure { status, rest: around }),
        }
    }
}
