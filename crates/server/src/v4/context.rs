//! The context of a compound: filehandles, stateids, the caller, and the bytes left in the reply.

use super::status::{of_handle, of_state, of_unwritten, of_vfs};
use crate::admission::Identity;
use crate::delegation::recall::{AccessClaim, InGrace, Named};
use crate::export::{ExportTable, RightsCache, Served};
use crate::handle::Node;
use crate::operation::gather::Reader;
use crate::operation::set_id;
use crate::peer::Peer;
use crate::replies::{NoRoom, ReplyMemory};
use crate::services::Services;
use crate::state::{
    CallUses, Channel, ClientId, LockOwner, Principal, Referring, SessionId, SharedClient,
    SlotTable, State, StateRef, Touch, WriteInProgress,
};
use crate::storage::retry_journal::RequestKey;
use crate::v4::nfs4::Nfs4;
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::time::Duration;
use weir_nfs::v4::types::StateId;
use weir_nfs::v4::{Error, types};
use weir_pagecache::{CachedFs, File};
use weir_vfs::{Access, Attr, Caller, Capabilities};

/// The session that a compound runs in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InSession {
    pub(crate) id: SessionId,
    pub(crate) slot: u32,
    /// The slot's sequence number.
    pub(crate) sequence: u32,
    pub(crate) client: ClientId,
    pub(crate) fore: Channel,
    /// Whether to cache the reply.
    pub(crate) keep: bool,
}

impl InSession {
    /// Maximum size of the reply, in bytes; lower if it is to be cached.
    pub(crate) fn limit(&self) -> u32 {
        match self.keep {
            true => self.fore.max_cached.min(self.fore.max_response),
            false => self.fore.max_response,
        }
    }
}

/// The slot that a compound has taken. It is freed, without a reply, when this is dropped.
pub(crate) struct HeldSlot {
    services: Arc<Services>,
    table: Arc<SlotTable>,
    slot: u32,
    is_finished: bool,
}

impl HeldSlot {
    /// The slot `slot` of `table`, in which a request has begun.
    pub(crate) fn new(services: Arc<Services>, table: Arc<SlotTable>, slot: u32) -> Self {
        Self { services, table, slot, is_finished: false }
    }

    /// Frees the slot, and caches the reply if there is one to cache.
    pub(crate) fn finish(mut self, reply: Option<Bytes>) {
        self.free(reply);
    }

    fn free(&mut self, reply: Option<Bytes>) {
        if !std::mem::replace(&mut self.is_finished, true) {
            self.table.finish(self.slot, reply, self.services.now());
        }
    }
}

impl Drop for HeldSlot {
    fn drop(&mut self) {
        self.free(None);
    }
}

/// A compound being executed.
pub(crate) struct Context {
    pub(crate) nfs: Arc<Nfs4>,
    pub(crate) services: Arc<Services>,
    /// The table of exports; the same for the whole compound.
    pub(crate) exports: Arc<ExportTable>,
    pub(crate) peer: Arc<Peer>,
    pub(crate) reply_memory: Arc<ReplyMemory>,
    pub(crate) identity: Identity,
    pub(crate) principal: Principal,
    pub(crate) minor: u32,
    /// Number of operations in the compound.
    pub(crate) operations: usize,
    /// Distinguishes requests with the same slot and sequence number.
    pub(crate) digest: u64,
    /// A hash of the arguments of this operation, if an owner numbers it (minor version 0).
    pub(crate) arguments_digest: u64,
    /// Size of the request in bytes, RPC header included.
    pub(crate) request_bytes: usize,
    pub(crate) session: Option<InSession>,
    /// The slot of `session`.
    pub(crate) slot: Option<HeldSlot>,
    /// Identifies the request in the retry journal, if it is not in a session of this run.
    pub(crate) resumed: Option<RequestKey>,
    /// The position of this operation in the compound.
    pub(crate) position: u32,
    pub(crate) current: Option<Node>,
    pub(crate) saved: Option<Node>,
    pub(crate) current_stateid: Option<StateId>,
    pub(crate) saved_stateid: Option<StateId>,
    /// Size of the reply before the result of this operation, in bytes.
    pub(crate) used_bytes: usize,
    /// Room for the result of this operation, including its number and status, in bytes.
    pub(crate) reply_bytes_left: usize,
    /// Files that this operation has changed, to be made durable before its result is sent.
    pub(crate) changed: Mutex<Vec<Node>>,
    /// The client of minor version 0 whose call this is.
    pub(crate) renewing: Renewing,
    /// The exports that this uses of the session's client.
    pub(crate) uses: CallUses,
    /// A cached reply, to be sent instead of the one under construction.
    pub(crate) replay: Option<Bytes>,
}

/// Renews the lease of the client of minor version 0 that a call names, until the call ends. In a
/// session, [`HeldSlot`] does this.
pub(crate) struct Renewing {
    services: Arc<Services>,
    client: Mutex<Option<Arc<SharedClient>>>,
}

impl Renewing {
    pub(crate) fn new(services: Arc<Services>) -> Self {
        Self { services, client: Mutex::default() }
    }

    fn renew(&self, state: &State<File>, client: ClientId, now: Duration) {
        let begun = state.clients.begin_call(client, now);
        let before = std::mem::replace(&mut *self.client.lock(), begun);
        if let Some(before) = before {
            before.lease.end_call(now);
        }
    }
}

impl Drop for Renewing {
    fn drop(&mut self) {
        if let Some(client) = self.client.get_mut().take() {
            client.lease.end_call(self.services.now());
        }
    }
}

/// What I/O on a file uses.
pub(crate) struct FileIo {
    /// The open file.
    pub(crate) file: File,
    /// The owner whose locks apply.
    pub(crate) lock_owner: Option<LockOwner>,
    /// What lets the caller go on without the right.
    pub(crate) kept: KeptRights,
    /// For I/O without an open: keeps conflicting delegations away until the I/O is done.
    _claim: Option<AccessClaim>,
    /// For a write under a delegation: keeps that from being revoked until the write is done.
    _writing: Option<WriteInProgress>,
}

/// By what a principal keeps its access under an open, although it may not open the file now.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KeptRights {
    /// It created the file with this open.
    made: bool,
    /// It opened the file.
    opened: bool,
}

impl KeptRights {
    fn of(io: &crate::state::Io<File>, principal: &Principal) -> Self {
        let is_its = |by: &Option<Principal>| by.as_ref() == Some(principal);
        Self { made: is_its(&io.made_by), opened: is_its(&io.opened_by) }
    }

    /// Refuses I/O on an open file to a user without the right to do it: a stateid is no credential
    /// (like Linux's `nfsd_permission` with `NFSD_MAY_OWNER_OVERRIDE`).
    ///
    /// The principal that created the file with this open has access even if the store maps users
    /// and so another user owns the file. If the last name of the file is removed, the store can no
    /// longer check rights; then the file's owner and the principal that opened it have access.
    pub(crate) async fn check_rights(
        self,
        rights: &RightsCache,
        (export, caller): (&Served, &Caller),
        (file, access): (&File, Access),
        now: Duration,
    ) -> Result<(), Error> {
        let node = Node { export: export.id, id: file.id() };
        match rights.check(export, caller, node, access, now).await {
            Err(weir_vfs::Error::AccessDenied) if self.made => Ok(()),
            Err(weir_vfs::Error::Stale) => {
                let owner = file.getattr().await.map_err(of_vfs)?.uid;
                let owns = matches!(caller, Caller::As(cred) if cred.uid == owner);
                if owns || self.opened { Ok(()) } else { Err(Error::Access) }
            }
            checked => checked.map_err(of_vfs),
        }
    }
}

/// A file of an export, and the user as whom the server accesses it.
pub(crate) struct Target<'a> {
    pub(crate) node: Node,
    pub(crate) export: &'a Served,
    pub(crate) caller: Caller,
    /// Whether the caller has read-only access to the export.
    pub(crate) read_only: bool,
}

impl Target<'_> {
    pub(crate) fn fs(&self) -> &CachedFs {
        self.export.fs()
    }

    /// The capabilities of the file's store.
    pub(crate) fn capabilities(&self) -> Capabilities {
        self.fs().store().capabilities()
    }

    /// A name in this directory.
    pub(crate) fn named<'a>(&'a self, name: &'a [u8]) -> Named<'a> {
        Named { fs: self.fs(), caller: &self.caller, dir: self.node, name }
    }

    pub(crate) async fn attr(&self) -> Result<Attr, Error> {
        self.fs().getattr(self.node.id).await.map_err(of_vfs)
    }

    /// Whether the caller may search this directory.
    pub(crate) async fn may_search(&self) -> Result<bool, Error> {
        self.export.may_search(&self.caller, self.node.id).await.map_err(of_vfs)
    }

    /// Refuses a change of `len` bytes at `offset` that the store's largest file does not have.
    pub(crate) fn check_size(&self, offset: u64, len: u64) -> Result<(), Error> {
        let largest = self.fs().store().max_file_size().min(i64::MAX as u64);
        let end = offset.checked_add(len).filter(|&end| end <= largest);
        end.map(drop).ok_or(Error::FBig)
    }

    /// Refuses changes to a read-only export.
    pub(crate) fn check_writable(&self) -> Result<(), Error> {
        if self.read_only { Err(Error::RoFs) } else { Ok(()) }
    }
}

impl Context {
    /// The connection and the reply for which data is read.
    pub(crate) fn reader(&self) -> Reader<'_> {
        Reader { peer: &self.peer, memory: &self.reply_memory }
    }

    /// Reserves memory for a result of `bytes`.
    ///
    /// # Errors
    /// [`Error::Delay`] if the call already holds large results and may not hold another.
    pub(crate) async fn reserve(&self, bytes: usize) -> Result<(), Error> {
        self.reply_memory.reserve(bytes).await.map_err(|NoRoom| Error::Delay)
    }

    pub(crate) fn now(&self) -> Duration {
        self.services.now()
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State<File>> {
        self.services.state.lock()
    }

    /// The client of the session.
    pub(crate) fn client(&self) -> Result<ClientId, Error> {
        self.session.map(|s| s.client).ok_or(Error::OpNotInSession)
    }

    /// The client of a request. In a session, this is the session's client, and `named` is ignored.
    /// In minor version 0 it is the client `named`, whose lease this renews.
    pub(crate) fn client_of(&self, named: types::ClientId) -> Result<ClientId, Error> {
        if self.minor > 0 {
            return self.client();
        }
        let (id, now) = (ClientId(named), self.now());
        let state = self.state();
        state.named_client(id).map_err(of_state)?;
        self.renewing.renew(&state, id, now);
        Ok(id)
    }

    /// The client of a request that changes a state: the session's client, or in minor version 0
    /// the owner of the state, whose lease this renews. There the request must come from the
    /// principal that opened the file, or from the client's.
    pub(crate) fn client_of_state(&self, id: crate::state::StateId) -> Result<ClientId, Error> {
        if self.minor > 0 {
            return self.client();
        }
        let now = self.now();
        let state = self.state();
        let client = state.client_of_own(id.key, &self.principal).map_err(of_state)?;
        self.renewing.renew(&state, client, now);
        Ok(client)
    }

    /// The error for a result that does not fit the reply.
    pub(crate) fn too_big(&self) -> Error {
        match self.session {
            Some(session) if session.limit() < session.fore.max_response => Error::RepTooBigToCache,
            Some(_) => Error::RepTooBig,
            None => Error::Resource,
        }
    }

    /// The client of the session; `None` in minor version 0.
    pub(crate) fn known_client(&self) -> Option<ClientId> {
        self.session.map(|s| s.client)
    }

    /// This request as a referring call of callbacks (RFC 8881 section 20.9.3).
    pub(crate) fn referring(&self) -> Option<Referring> {
        self.session.map(|s| Referring { session: s.id, slot: s.slot, sequence: s.sequence })
    }

    /// Recalls delegations of other clients that conflict with an access without an open. Keep the
    /// returned claim until the access is done.
    pub(crate) async fn claim(&self, node: Node, touch: Touch) -> Result<AccessClaim, Error> {
        self.services.recalls.claim(node, touch, self.known_client()).await.map_err(of_vfs)
    }

    /// Fails with [`Error::Grace`] while clients may still reclaim opens.
    pub(crate) fn check_grace(&self) -> Result<(), Error> {
        self.services.recalls.check_grace().map_err(|InGrace| Error::Grace)
    }

    /// Recalls delegations before names are removed or changed ([`Recalls::claim_names`]).
    ///
    /// [`Recalls::claim_names`]: crate::delegation::recall::Recalls::claim_names
    pub(crate) async fn claim_names(
        &self,
        names: &[Named<'_>],
        wait: bool,
    ) -> Result<Vec<AccessClaim>, Error> {
        let claimed = self.services.recalls.claim_names(names, self.known_client(), wait).await;
        claimed.map_err(of_vfs)
    }

    /// The current file, for requests that give up what the client holds of it: it may do so also after the export
    /// was closed to it.
    pub(crate) fn current_to_release(&self) -> Result<Node, Error> {
        self.current.ok_or(Error::NoFilehandle)
    }

    pub(crate) fn current(&self) -> Result<Target<'_>, Error> {
        self.target(self.current.ok_or(Error::NoFilehandle)?)
    }

    pub(crate) fn saved(&self) -> Result<Target<'_>, Error> {
        self.target(self.saved.ok_or(Error::NoFilehandle)?)
    }

    pub(crate) fn target(&self, node: Node) -> Result<Target<'_>, Error> {
        let export = self.exports.get(node.export).map_err(of_handle)?;
        let admitted = export.admit(&self.identity, self.peer.addr().ip()).ok_or(Error::Access)?;
        Ok(Target { node, export, caller: admitted.caller, read_only: admitted.read_only })
    }

    /// Sets the current filehandle, and clears the current stateid, which belongs to another file.
    pub(crate) fn set_current(&mut self, node: Node) {
        self.current = Some(node);
        self.current_stateid = None;
    }

    /// Sets the current stateid (RFC 8881 section 16.2.3.1.2). Returns it in wire form.
    pub(crate) fn set_stateid(&mut self, id: crate::state::StateId) -> StateId {
        let wire = StateId { seqid: id.seq, other: id.key.to_wire() };
        self.current_stateid = Some(wire);
        wire
    }

    /// Parses a stateid argument. The special "current stateid" yields the compound's current
    /// stateid.
    ///
    /// # Errors
    /// [`Error::BadStateId`]; with sessions also for a stateid of an earlier run. NFS4ERR_STALE_STATEID is for clients
    /// that learn of a restart by it: Linux's client, which learns that by its session, takes a delegation for valid
    /// if TEST_STATEID returns that error, and repeats I/O that gets it for ever.
    pub(crate) fn stateid(&self, wire: StateId) -> Result<StateRef, Error> {
        let read = |wire: StateId| StateRef::from_wire(wire.seqid, wire.other).map_err(of_state);
        if self.minor == 0 {
            return match read(wire)? {
                StateRef::Current => Err(Error::BadStateId),
                other => Ok(other),
            };
        }
        match read(wire)? {
            StateRef::Current => match read(self.current_stateid.ok_or(Error::BadStateId)?)? {
                StateRef::Current => Err(Error::BadStateId),
                other => Ok(other),
            },
            StateRef::Of(id) if id.key.run != self.services.run => Err(Error::BadStateId),
            other => Ok(other),
        }
    }

    /// Parses a stateid argument that must name a state.
    pub(crate) fn state_of(&self, wire: StateId) -> Result<crate::state::StateId, Error> {
        match self.stateid(wire)? {
            StateRef::Of(id) => Ok(id),
            _ => Err(Error::BadStateId),
        }
    }

    /// Prepares I/O on `target` under a stateid.
    pub(crate) async fn io(
        &self,
        target: &Target<'_>,
        stateid: StateId,
        access: Access,
    ) -> Result<FileIo, Error> {
        let stateid = self.stateid(stateid)?;
        if access.contains(Access::WRITE) {
            target.check_writable()?;
        }
        if let StateRef::Of(id) = stateid {
            let io = self.io_under(id, target.node, access)?;
            let kept = self.check_rights(target, &io, access).await?;
            let (file, lock_owner) = (io.file, io.lock_owner);
            return Ok(FileIo { file, lock_owner, kept, _claim: None, _writing: io.writing });
        }
        self.check_grace()?;
        let writes = access.contains(Access::WRITE);
        let touch = if writes { Touch::Change } else { Touch::Read };
        let claim = self.claim(target.node, touch).await?;
        if stateid == StateRef::Anonymous || access.contains(Access::WRITE) {
            let now = self.now();
            self.state().anonymous_io(target.node, access, now).map_err(of_state)?;
            self.settle_for_io().await?;
        }
        let file = target.export.open_for_io(&target.caller, target.node.id, access).await;
        let file = match file.map_err(of_vfs) {
            // Not a regular file (RFC 8881 section 18.22.3).
            Err(Error::Inval) => return Err(self.wrong_type(target).await),
            opened => opened?,
        };
        let kept = KeptRights::default();
        Ok(FileIo { file, lock_owner: None, kept, _claim: Some(claim), _writing: None })
    }

    /// The open file for I/O under a stateid. In a session, the stateid must belong to the
    /// session's client; in minor version 0, the stateid itself identifies the client, whose lease
    /// this renews.
    fn io_under(
        &self,
        id: crate::state::StateId,
        node: Node,
        access: Access,
    ) -> Result<crate::state::Io<File>, Error> {
        let now = self.now();
        let state = self.state();
        if self.minor > 0 {
            let client = self.client()?;
            return state.io(Some(client), id, node, access).map_err(of_state);
        }
        let client = state.client_of(id.key).map_err(of_state)?;
        let io = state.io(None, id, node, access).map_err(of_state)?;
        self.renewing.renew(&state, client, now);
        Ok(io)
    }

    /// Checks that the caller itself has the right to an access that a stateid allows.
    pub(crate) async fn check_rights_under(
        &self,
        target: &Target<'_>,
        id: crate::state::StateId,
        access: Access,
    ) -> Result<(), Error> {
        let io = self.io_under(id, target.node, access)?;
        self.check_rights(target, &io, access).await.map(drop)
    }

    /// Checks the caller's rights to I/O under an open ([`KeptRights::check_rights`]).
    async fn check_rights(
        &self,
        target: &Target<'_>,
        io: &crate::state::Io<File>,
        access: Access,
    ) -> Result<KeptRights, Error> {
        let kept = KeptRights::of(io, &self.principal);
        let (rights, by) = (self.services.exports.rights(), (target.export, &target.caller));
        kept.check_rights(rights, by, (&io.file, access), self.now()).await?;
        Ok(kept)
    }

    /// Like [`io`](Self::io), for a change of the file's content. Also clears the set-user-ID and
    /// set-group-ID bits that the change must clear.
    pub(crate) async fn io_to_change(
        &self,
        target: &Target<'_>,
        stateid: StateId,
    ) -> Result<FileIo, Error> {
        let io = self.io(target, stateid, Access::WRITE).await?;
        // A write by the superuser clears no bits, so it does not have to wait for attributes.
        if matches!(&target.caller, Caller::As(cred) if cred.uid != 0) {
            let attr = io.file.getattr().await.map_err(of_vfs)?;
            set_id::clear(target.fs(), &target.caller, &attr).await.map_err(of_vfs)?;
        }
        Ok(io)
    }

    /// Notes files whose names or attributes have changed. The compound makes them durable after
    /// the operation has released its locks, before it continues
    /// ([`commit_changes`](Self::commit_changes)).
    pub(crate) fn changed(&self, nodes: &[Node]) {
        self.changed.lock().extend_from_slice(nodes);
    }

    /// Makes the noted changes durable, as far as the export promises that. Do not hold the lock of
    /// a directory meanwhile: commits of one directory share syncs, which the lock would prevent.
    pub(crate) async fn commit_changes(&self) -> Result<(), Error> {
        let changed = std::mem::take(&mut *self.changed.lock());
        // One operation changes one export.
        let Some(first) = changed.first() else { return Ok(()) };
        let export = self.exports.get(first.export).map_err(of_handle)?;
        let nodes = changed.iter().map(|node| node.id);
        self.services.committer.commit(export, nodes).await.map_err(of_vfs)
    }

    /// Records on disk the state that transitions have revoked, before another client gets or uses it.
    ///
    /// # Errors
    /// [`Error::Delay`]: the records cannot be written now, on a full disk, say;
    /// [`Error::ServerFault`]: they could not be written for longer than a lease. The next request
    /// tries again.
    pub(crate) async fn settle(&self) -> Result<(), Error> {
        self.services.records.write_due().await.map_err(of_unwritten)
    }

    /// The same for I/O, which its client repeats however long: after an error, it may drop what it was to write.
    ///
    /// # Errors
    /// [`Error::Delay`].
    pub(crate) async fn settle_for_io(&self) -> Result<(), Error> {
        self.settle().await.map_err(|_| Error::Delay)
    }

    /// The error for I/O on a file that is not a regular file.
    pub(crate) async fn wrong_type(&self, target: &Target<'_>) -> Error {
        match target.attr().await {
            Ok(attr) if attr.kind == weir_vfs::FileKind::Directory => Error::IsDir,
            Ok(attr) if attr.kind == weir_vfs::FileKind::Symlink && self.minor > 0 => {
                Error::Symlink
            }
            Ok(attr) if attr.kind == weir_vfs::FileKind::Regular => Error::Inval,
            Ok(_) if self.minor > 0 => Error::WrongType,
            Ok(_) => Error::Inval,
            Err(error) => error,
        }
    }

    /// The change attribute of a directory before and after a change. The caller holds the
    /// directory's lock ([`Changes`](crate::export::directory_change::Changes)), so no other change
    /// of this server by the same export is in between. The pair is marked atomic only if all changes go through this
    /// machine and this export.
    pub(crate) async fn change_info(
        &self,
        fs: &CachedFs,
        dir: Node,
        before: u64,
    ) -> Result<types::ChangeInfo, Error> {
        let after = fs.getattr(dir.id).await.map_err(of_vfs)?.change;
        let atomic = fs.store().names_change_here() && self.exports.is_disjoint(dir.export);
        Ok(types::ChangeInfo { atomic, before, after })
    }
}
