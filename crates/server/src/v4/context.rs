//! Where a compound stands: filehandles, stateids, who asks, and how much room its reply has.

use super::status::{of_handle, of_state, of_vfs};
use crate::admission::Identity;
use crate::delegation::recall::{Claim, InGrace, Named};
use crate::export::{Served, Table};
use crate::handle::Node;
use crate::operation::gather::Reader;
use crate::operation::set_id;
use crate::peer::Peer;
use crate::replies::{NoRoom, ReplyMemory};
use crate::services::Services;
use crate::state::{
    Channel, ClientId, LockOwner, Principal, Referring, SessionId, State, StateRef, Touch,
};
use crate::v4::nfs4::Nfs4;
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
    /// The reply is to be kept.
    pub(crate) keep: bool,
}

impl InSession {
    /// Most bytes of the reply: fewer if it is to be kept.
    pub(crate) fn limit(&self) -> u32 {
        match self.keep {
            true => self.fore.max_cached.min(self.fore.max_response),
            false => self.fore.max_response,
        }
    }
}

/// A compound being executed.
pub(crate) struct Context {
    pub(crate) nfs: Arc<Nfs4>,
    pub(crate) services: Arc<Services>,
    /// The exports, as they are for this compound.
    pub(crate) exports: Arc<Table>,
    pub(crate) peer: Arc<Peer>,
    pub(crate) reply_memory: Arc<ReplyMemory>,
    pub(crate) identity: Identity,
    pub(crate) principal: Principal,
    pub(crate) minor: u32,
    /// Operations in the compound.
    pub(crate) operations: usize,
    /// Tells the request from others of the same place in a session.
    pub(crate) digest: u64,
    /// Bytes of the request, RPC header included.
    pub(crate) request_bytes: usize,
    pub(crate) session: Option<InSession>,
    pub(crate) current: Option<Node>,
    pub(crate) saved: Option<Node>,
    pub(crate) current_stateid: Option<StateId>,
    pub(crate) saved_stateid: Option<StateId>,
    /// Bytes of the reply before the result of this operation.
    pub(crate) used_bytes: usize,
    /// Bytes left for the result of this operation, its number and status included.
    pub(crate) room: usize,
    /// What was changed by this operation, and is to be durable before it is told of.
    pub(crate) changed: Mutex<Vec<Node>>,
    /// A reply to be sent as it is, in the place of the one being made.
    pub(crate) replay: Option<bytes::Bytes>,
}

/// What I/O on a file is done with.
pub(crate) struct FileIo {
    /// The handle.
    pub(crate) file: File,
    /// Under whose locks.
    pub(crate) lock_owner: Option<LockOwner>,
    /// The right to do it without an open. Held until the I/O is done.
    _claim: Option<Claim>,
}

/// A file of an export, and as whom it is used.
pub(crate) struct Target<'a> {
    pub(crate) node: Node,
    pub(crate) export: &'a Served,
    pub(crate) caller: Caller,
    /// The caller may change nothing.
    pub(crate) read_only: bool,
}

impl Target<'_> {
    pub(crate) fn fs(&self) -> &CachedFs {
        self.export.fs()
    }

    /// What the file's store can do.
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

    /// Whether the caller may find what lies in this directory.
    pub(crate) async fn may_search(&self) -> Result<bool, Error> {
        self.export.may_search(&self.caller, self.node.id).await.map_err(of_vfs)
    }

    /// Refuses changes to a read-only export.
    pub(crate) fn check_writable(&self) -> Result<(), Error> {
        if self.read_only { Err(Error::RoFs) } else { Ok(()) }
    }
}

impl Context {
    /// The connection and the reply that data is read for.
    pub(crate) fn reader(&self) -> Reader<'_> {
        Reader { peer: &self.peer, memory: &self.reply_memory }
    }

    /// Makes room for a result of `bytes`.
    ///
    /// # Errors
    /// [`Error::Delay`]: the call holds large results already, and there is no room for another.
    pub(crate) async fn reserve(&self, bytes: usize) -> Result<(), Error> {
        self.reply_memory.reserve(bytes).await.map_err(|NoRoom| Error::Delay)
    }

    pub(crate) fn now(&self) -> Duration {
        self.services.now()
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State<File>> {
        self.services.state.lock()
    }

    /// The client whose session this is.
    pub(crate) fn client(&self) -> Result<ClientId, Error> {
        self.session.map(|s| s.client).ok_or(Error::OpNotInSession)
    }

    /// The client of a request: the session's, or in minor version 0 the one that it names, whose
    /// lease that renews. A client with sessions has no other name there than its session's.
    pub(crate) fn client_of(&self, named: types::ClientId) -> Result<ClientId, Error> {
        if self.minor > 0 {
            return self.client();
        }
        let (id, now) = (ClientId(named), self.now());
        let mut state = self.state();
        state.named_client(id).map_err(of_state)?;
        state.clients.renew(id, now);
        Ok(id)
    }

    /// The client of a request that changes a state, as [`client_of`](Self::client_of): in minor
    /// version 0, the principal that opened the file asks for it, or the client's.
    pub(crate) fn client_of_state(&self, id: crate::state::StateId) -> Result<ClientId, Error> {
        if self.minor > 0 {
            return self.client();
        }
        let now = self.now();
        let mut state = self.state();
        let client = state.client_of_own(id.key, &self.principal).map_err(of_state)?;
        state.clients.renew(client, now);
        Ok(client)
    }

    /// The error for a result that the reply has no room for.
    pub(crate) fn too_big(&self) -> Error {
        match self.session {
            Some(session) if session.limit() < session.fore.max_response => Error::RepTooBigToCache,
            Some(_) => Error::RepTooBig,
            None => Error::Resource,
        }
    }

    /// The client of the compound, if it is known without the operation's saying so.
    pub(crate) fn known_client(&self) -> Option<ClientId> {
        self.session.map(|s| s.client)
    }

    /// The request, to be named in callbacks.
    pub(crate) fn referring(&self) -> Option<Referring> {
        self.session.map(|s| Referring { session: s.id, slot: s.slot, sequence: s.sequence })
    }

    /// Makes way for a touch of a file that is not under an open: delegations of others are
    /// recalled. Keep what it returns until the touch is done.
    pub(crate) async fn claim(&self, node: Node, touch: Touch) -> Result<Claim, Error> {
        self.services.recalls.claim(node, touch, self.known_client()).await.map_err(of_vfs)
    }

    /// Has the client come back later, as long as others may take back what they had.
    pub(crate) fn check_grace(&self) -> Result<(), Error> {
        self.services.recalls.check_grace().map_err(|InGrace| Error::Grace)
    }

    /// Makes way for the removal or change of names ([`Recalls::claim_names`]).
    ///
    /// [`Recalls::claim_names`]: crate::delegation::recall::Recalls::claim_names
    pub(crate) async fn claim_names(
        &self,
        names: &[Named<'_>],
        wait: bool,
    ) -> Result<Vec<Claim>, Error> {
        let claimed = self.services.recalls.claim_names(names, self.known_client(), wait).await;
        claimed.map_err(of_vfs)
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

    /// Makes a file the current one; the current stateid is of another file then.
    pub(crate) fn set_current(&mut self, node: Node) {
        self.current = Some(node);
        self.current_stateid = None;
    }

    /// Sets the current stateid (RFC 8881 section 16.2.3.1.2), and returns it.
    pub(crate) fn set_stateid(&mut self, id: crate::state::StateId) -> StateId {
        let wire = StateId { seqid: id.seq, other: id.key.to_wire() };
        self.current_stateid = Some(wire);
        wire
    }

    /// Reads a stateid argument; the current one stands for itself.
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
                // An older copy of a stateid that has moved on meanwhile is not meant.
                other => Ok(other),
            },
            other => Ok(other),
        }
    }

    /// A stateid argument that must name a state.
    pub(crate) fn state_of(&self, wire: StateId) -> Result<crate::state::StateId, Error> {
        match self.stateid(wire)? {
            StateRef::Of(id) => Ok(id),
            _ => Err(Error::BadStateId),
        }
    }

    /// What I/O on the current file under a stateid is done with.
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
            self.check_rights(target, &io, access).await?;
            return Ok(FileIo { file: io.file, lock_owner: io.lock_owner, _claim: None });
        }
        self.check_grace()?;
        let writes = access.contains(Access::WRITE);
        let touch = if writes { Touch::Change } else { Touch::Read };
        let claim = self.claim(target.node, touch).await?;
        if stateid == StateRef::Anonymous || access.contains(Access::WRITE) {
            let now = self.now();
            self.state().anonymous_io(target.node, access, now).map_err(of_state)?;
        }
        let file = target.export.open_for_io(&target.caller, target.node.id, access).await;
        let file = match file.map_err(of_vfs) {
            // Directories, links and devices are no files to read (RFC 8881 section 18.22.3).
            Err(Error::Inval) => return Err(self.wrong_type(target).await),
            opened => opened?,
        };
        Ok(FileIo { file, lock_owner: None, _claim: Some(claim) })
    }

    /// The handle for I/O under a stateid. A client with sessions uses its own in them alone; in minor
    /// version 0 the stateid itself says whose it is.
    fn io_under(
        &self,
        id: crate::state::StateId,
        node: Node,
        access: Access,
    ) -> Result<crate::state::Io<File>, Error> {
        let now = self.now();
        let mut state = self.state();
        if self.minor > 0 {
            let client = self.client()?;
            return state.io(Some(client), id, node, access).map_err(of_state);
        }
        let client = state.client_of(id.key).map_err(of_state)?;
        let io = state.io(None, id, node, access).map_err(of_state)?;
        state.clients.renew(client, now);
        Ok(io)
    }

    /// Refuses a caller that may not do by itself what a stateid allows.
    pub(crate) async fn check_rights_under(
        &self,
        target: &Target<'_>,
        id: crate::state::StateId,
        access: Access,
    ) -> Result<(), Error> {
        let io = self.io_under(id, target.node, access)?;
        self.check_rights(target, &io, access).await
    }

    /// Refuses I/O under an open to who may not do it by itself: a stateid is no right (as Linux's
    /// nfsd_permission with NFSD_MAY_OWNER_OVERRIDE). Who made the file by that open may, too, where the
    /// file is not its own because the store maps users. A file that has lost its last name lives through
    /// its opens alone, and the store tells no rights to it any more: its owner goes on, and who opened it.
    async fn check_rights(
        &self,
        target: &Target<'_>,
        io: &crate::state::Io<File>,
        access: Access,
    ) -> Result<(), Error> {
        let rights = self.services.exports.rights();
        let now = self.now();
        match rights.check(target.export, &target.caller, target.node, access, now).await {
            Err(weir_vfs::Error::AccessDenied) if io.made_by.as_ref() == Some(&self.principal) => {
                Ok(())
            }
            Err(weir_vfs::Error::Stale) => {
                let owner = io.file.getattr().await.map_err(of_vfs)?.uid;
                let owns = matches!(&target.caller, Caller::As(cred) if cred.uid == owner);
                let opened = io.opened_by.as_ref() == Some(&self.principal);
                if owns || opened { Ok(()) } else { Err(Error::Access) }
            }
            checked => checked.map_err(of_vfs),
        }
    }

    /// As [`io`](Self::io), for a change of what the file holds, which is about to be made.
    pub(crate) async fn io_to_change(
        &self,
        target: &Target<'_>,
        stateid: StateId,
    ) -> Result<FileIo, Error> {
        let io = self.io(target, stateid, Access::WRITE).await?;
        // The superuser takes nothing away, and is not made to wait for attributes.
        if matches!(&target.caller, Caller::As(cred) if cred.uid != 0) {
            let attr = io.file.getattr().await.map_err(of_vfs)?;
            set_id::clear(target.fs(), &target.caller, &attr).await.map_err(of_vfs)?;
        }
        Ok(io)
    }

    /// Notes files whose names or attributes were changed: the compound has them on disk before it
    /// goes on, once the operation has let go of its locks ([`commit_changes`](Self::commit_changes)).
    pub(crate) fn changed(&self, nodes: &[Node]) {
        self.changed.lock().extend_from_slice(nodes);
    }

    /// Makes durable what was noted, as far as exports promise that. Not to be waited for under the
    /// lock of a directory: commits of one directory share syncs.
    pub(crate) async fn commit_changes(&self) -> Result<(), Error> {
        let changed = std::mem::take(&mut *self.changed.lock());
        // One operation changes one export.
        let Some(first) = changed.first() else { return Ok(()) };
        let export = self.exports.get(first.export).map_err(of_handle)?;
        let nodes = changed.iter().map(|node| node.id);
        self.services.committer.commit(export, nodes).await.map_err(of_vfs)
    }

    /// The error for I/O on what is no regular file.
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

    /// A directory's change attribute before and after a change of it, no other change being
    /// in between: the directory's lock is held
    /// ([`Changes`](crate::export::directory_change::Changes)). They are told
    /// to be those around this change alone only if no other machine changes the directory.
    pub(crate) async fn change_info(
        &self,
        fs: &CachedFs,
        dir: Node,
        before: u64,
    ) -> Result<types::ChangeInfo, Error> {
        let after = fs.getattr(dir.id).await.map_err(of_vfs)?.change;
        Ok(types::ChangeInfo { atomic: fs.store().names_change_here(), before, after })
    }
}
