//! Open state, and the requests and results of the open transitions.

use crate::handle::Node;
use crate::state::client::{ClientId, OwnerName, Principal};
use crate::state::share::Share;
use crate::state::stateid::StateRef;
use crate::state::tables::lock::LockOwner;
use std::sync::Arc;
use std::time::Duration;
use weir_vfs::Access;

/// An open of a file by an open-owner.
#[derive(Clone, Debug)]
pub(in crate::state) struct Open<F> {
    pub(in crate::state) client: ClientId,
    pub(in crate::state) owner: OwnerName,
    pub(in crate::state) node: Node,
    pub(in crate::state) seq: u32,
    pub(in crate::state) share: Share,
    /// The principal that opened it last.
    pub(in crate::state) by: Principal,
    /// The principal that created the file with this open.
    pub(in crate::state) made_by: Option<Principal>,
    /// When it began to wait for OPEN_CONFIRM; `None` if it is confirmed.
    pub(in crate::state) unconfirmed: Option<Duration>,
    /// Whether a lock request under it has been told to wait.
    pub(in crate::state) waits: bool,
    /// Each share mode that was opened, to check downgrades.
    pub(in crate::state) opened: Vec<Share>,
    /// The OPENs in progress, which may still be undone, oldest first.
    pub(in crate::state) pending: Vec<PendingOpen>,
    pub(in crate::state) reader: Option<F>,
    pub(in crate::state) writer: Option<F>,
}

/// An OPEN in progress: what it adds to the open, and what it found there.
#[derive(Clone, Debug)]
pub(in crate::state) struct PendingOpen {
    /// The sequence number that it gave the open; no other OPEN in progress has it.
    pub(in crate::state) seq: u32,
    /// Its share mode, unless a later OPEN_DOWNGRADE has given that up.
    pub(in crate::state) share: Share,
    /// Whether it is truncating the file.
    pub(in crate::state) truncates: bool,
    pub(in crate::state) before: BeforeOpen,
}

/// The fields of an open that the owner's next OPEN replaces.
#[derive(Clone, Debug)]
pub(in crate::state) struct BeforeOpen {
    pub(in crate::state) seq: u32,
    pub(in crate::state) by: Principal,
    pub(in crate::state) made_by: Option<Principal>,
}

impl<F> Open<F> {
    /// The share modes of all OPENs, those in progress included.
    pub(in crate::state) fn modes(&self) -> impl Iterator<Item = Share> {
        self.opened.iter().copied().chain(self.pending.iter().map(|pending| pending.share))
    }

    /// Makes the share mode the union of what was opened, and ends what that no longer includes. The mode includes
    /// writing during truncations, too: no other open may deny these.
    pub(in crate::state) fn settle(&mut self) {
        let opened = self.modes().fold(Share::default(), |all, share| all.union(share));
        if !opened.access.contains(Access::READ) {
            self.reader = None;
        }
        if !opened.access.contains(Access::WRITE) {
            self.writer = None;
        }
        let truncates = self.pending.iter().any(|pending| pending.truncates);
        let truncating = if truncates { Access::WRITE } else { Access::empty() };
        self.share = Share { access: opened.access | truncating, ..opened };
    }

    /// The OPEN in progress that gave the open this sequence number.
    pub(in crate::state) fn pending(&mut self, seq: u32) -> Option<&mut PendingOpen> {
        self.pending.iter_mut().find(|pending| pending.seq == seq)
    }

    /// Ends an OPEN in progress.
    pub(in crate::state) fn take_pending(&mut self, seq: u32) -> Option<PendingOpen> {
        let at = self.pending.iter().position(|pending| pending.seq == seq)?;
        let taken = self.pending.remove(at);
        if self.pending.is_empty() {
            // An open without OPENs in progress needs no memory for them.
            self.pending = Vec::new();
        }
        Some(taken)
    }

    /// Takes back what an OPEN has added, and nothing that others have added or changed since.
    pub(in crate::state) fn undo(&mut self, seq: u32) {
        let Some(PendingOpen { before, .. }) = self.take_pending(seq) else { return };
        if let Some(next) = self.pending.iter_mut().find(|next| next.before.seq == seq) {
            // If that one is undone as well, this one is not to come back.
            next.before = before;
        } else if self.seq == seq {
            (self.seq, self.by, self.made_by) = (before.seq, before.by, before.made_by);
        }
        self.settle();
    }
}

/// The use of a file that outlasts its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Use {
    /// The stateid that the client sent.
    pub(crate) under: StateRef,
    /// The file.
    pub(crate) node: Node,
    /// The access that the use needs.
    pub(crate) access: Access,
}

/// Whether an open is new, or the client already has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// A new open.
    New,
    /// The client had the open before the server restarted.
    Reclaim,
    /// The client opened the file locally, under a delegation.
    Delegated,
}

/// An OPEN request.
#[derive(Clone, Debug)]
pub(crate) struct OpenRequest<F> {
    /// The client.
    pub(crate) client: ClientId,
    /// The open-owner.
    pub(crate) owner: OwnerName,
    /// The file.
    pub(crate) node: Node,
    /// Access and deny modes.
    pub(crate) share: Share,
    /// Whether it is new.
    pub(crate) claim: Claim,
    /// Whether the owner must send OPEN_CONFIRM; only for an owner without other opens.
    pub(crate) confirm: bool,
    /// The principal that opens it.
    pub(crate) by: Principal,
    /// Whether this OPEN created the file.
    pub(crate) made: bool,
    /// Whether this OPEN truncates the file, which others may deny as they deny writing. The open counts
    /// as one for writing until [`State::truncated`](crate::state::State::truncated).
    pub(crate) truncates: bool,
    /// An open file with the access of [`share`](Self::share).
    pub(crate) file: F,
}

impl<F> OpenRequest<F> {
    /// The access and deny modes that must not conflict with those of other opens.
    pub(in crate::state) fn effect(&self) -> Share {
        let truncating = if self.truncates { Access::WRITE } else { Access::empty() };
        Share { access: self.share.access | truncating, ..self.share }
    }
}

/// What I/O under a stateid uses.
#[derive(Clone, Debug)]
pub(crate) struct Io<F> {
    /// The open file.
    pub(crate) file: F,
    /// The owner whose locks apply.
    pub(crate) lock_owner: Option<LockOwner>,
    /// The principal that opened it last; under a delegation, the one that opened the file when it
    /// was delegated.
    pub(crate) opened_by: Option<Principal>,
    /// The principal that created the file with this open.
    pub(crate) made_by: Option<Principal>,
    /// Kept until a write under a delegation is done.
    pub(crate) writing: Option<WriteInProgress>,
}

/// A write in progress under a delegation, which is not revoked as long as this lives.
#[derive(Clone, Debug, Default)]
pub(crate) struct WriteInProgress(Arc<()>);

impl WriteInProgress {
    /// Whether there are others of the same delegation than this one, which the delegation keeps.
    pub(in crate::state) fn are_there_others(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}
