//! Delegation recall. Before a call changes a file, or reads one that a client may have written to
//! under a write delegation, the server asks each client that holds a conflicting delegation to
//! return it.
//!
//! 1. A change of a file that is not made under an open (by another protocol version, with a
//!    special stateid, of attributes or of names) runs under an [`AccessClaim`]. The caller takes
//!    the claim before it searches for delegations and keeps it until the change is done; meanwhile
//!    the file cannot be delegated.
//! 2. A call that finds a conflicting delegation waits for its [`Patience`], then fails with
//!    [`WouldBlock`](weir_vfs::Error::WouldBlock), so that its client tries again. A delegation
//!    that is not returned within a lease is revoked ([`State::recall`]).
//! 3. Each recalled delegation has one task that sends the recall until the client has answered it
//!    or the delegation is gone.
//! 4. Local programs recall nothing. The server notices their changes within seconds
//!    ([`Recalls::look_at_files`]) and then recalls the read delegations of the file. A client sees
//!    such a change only after it has returned its delegation ([`Recalls::attr`]).
//! 5. Files that several exports have in common are not delegated: a call finds only the delegations
//!    of its own export's file. Delegations from before a reload that adds such an export are recalled
//!    within seconds.

use crate::callback::Callbacks;
use crate::export::Exports;
use crate::handle::Node;
use crate::operation::copies::Copies;
use crate::operation::patience::Patience;
use crate::state::{Answer, ChangeGuard, ClientId, Filter, State, StateKey, Touch, Writer};
use crate::storage::client_tracking::ClientTracking;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::debug;
use weir_base::Clock;
use weir_nfs::v4::attr::{CHANGE, OF_DELEGATES, SIZE};
use weir_nfs::v4::cb::{getattr, recall};
use weir_nfs::v4::types::{NfsTime, StateId};
use weir_nfs::v4::{Bitmap, CbOp, CbOpRes};
use weir_pagecache::{CachedFs, File};
use weir_vfs::{Attr, Caller, FileKind};

/// How long to wait before the server sends a recall again.
const AGAIN: Duration = Duration::from_secs(1);
/// Delegated files that the server checks per second.
const LOOKS: usize = 1024;

/// Recalls delegations.
pub struct Recalls {
    state: Arc<Mutex<State<File>>>,
    filter: Arc<Filter>,
    callbacks: Arc<Callbacks>,
    exports: Arc<Exports>,
    records: Arc<ClientTracking>,
    copies: Arc<Copies>,
    clock: Arc<dyn Clock>,
    /// Notified whenever a delegation is gone.
    gone: Notify,
    /// Whether the grace period may still be in effect.
    in_grace: AtomicBool,
    /// Exports whose files a task is checking.
    checking: Mutex<HashSet<u16>>,
    stop: CancellationToken,
}

/// The grace period is in effect: clients may reclaim what they had before the server restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InGrace;

/// A name in a directory, and the caller that operates on it.
pub(crate) struct Named<'a> {
    pub(crate) fs: &'a CachedFs,
    pub(crate) caller: &'a Caller,
    pub(crate) dir: Node,
    pub(crate) name: &'a [u8],
}

/// Allows an access to a file without an open. While a claim for a change lives, the file is not
/// delegated.
#[derive(Debug)]
pub(crate) struct AccessClaim {
    _changing: Option<ChangeGuard>,
}

impl Recalls {
    pub(crate) fn new(
        state: Arc<Mutex<State<File>>>,
        callbacks: Arc<Callbacks>,
        exports: Arc<Exports>,
        records: Arc<ClientTracking>,
        copies: Arc<Copies>,
        clock: Arc<dyn Clock>,
        stop: CancellationToken,
    ) -> Self {
        let filter = state.lock().filter();
        Self {
            state,
            filter,
            callbacks,
            exports,
            records,
            copies,
            clock,
            gone: Notify::new(),
            in_grace: AtomicBool::new(true),
            checking: Mutex::default(),
            stop,
        }
    }

    /// Refuses changes of names and sizes, and I/O without an open, during the grace period.
    ///
    /// # Errors
    /// [`InGrace`]: the client should try again later.
    pub(crate) fn check_grace(&self) -> Result<(), InGrace> {
        if !self.in_grace.load(Ordering::Relaxed) {
            return Ok(());
        }
        if self.state.lock().grace.holds_back() {
            return Err(InGrace);
        }
        self.in_grace.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Keeps a file from being delegated until the returned guard is dropped.
    pub(crate) fn keep_undelegated(&self, node: Node) -> ChangeGuard {
        self.filter.begin_change(node)
    }

    /// Recalls the delegations that conflict with an access by client `by` (`None`: not known), and
    /// waits until they are gone. The caller keeps the claim until the access is done.
    ///
    /// # Errors
    /// [`WouldBlock`](weir_vfs::Error::WouldBlock): a delegation has not been returned yet, or the
    /// state database cannot be written now.
    pub(crate) async fn claim(
        self: &Arc<Self>,
        node: Node,
        touch: Touch,
        by: Option<ClientId>,
    ) -> weir_vfs::Result<AccessClaim> {
        let claim = self.begin(node, touch);
        if self.filter.may_conflict(node, touch) {
            self.clear(node, touch, by).await?;
        } else {
            // A delegation may be gone because it has just been revoked.
            self.write_due().await?;
        }
        Ok(claim)
    }

    /// Like [`claim`](Self::claim), but recalls conflicting delegations without waiting; `None` if
    /// there are any. The caller writes the records of those that this revokes.
    fn try_claim(
        self: &Arc<Self>,
        node: Node,
        touch: Touch,
        by: Option<ClientId>,
    ) -> Option<AccessClaim> {
        let claim = self.begin(node, touch);
        let free = !self.filter.may_conflict(node, touch) || !self.recall(node, touch, by);
        free.then_some(claim)
    }

    /// Recalls the delegations of the files that `names` refer to, before these names are removed
    /// or changed. To be called twice: first with `wait`; then without it, under the lock of the
    /// directories, because the names may refer to other files by then. The claims of the second
    /// call keep the files from being delegated, even if none was delegated before.
    ///
    /// # Errors
    /// [`WouldBlock`](weir_vfs::Error::WouldBlock): a delegation has not been returned yet, or the
    /// state database cannot be written now.
    pub(crate) async fn claim_names(
        self: &Arc<Self>,
        names: &[Named<'_>],
        by: Option<ClientId>,
        wait: bool,
    ) -> weir_vfs::Result<Vec<AccessClaim>> {
        let mut claims = Vec::new();
        if wait && !self.filter.any() {
            // The last one may be gone because it has just been revoked.
            self.write_due().await?;
            return Ok(claims);
        }
        for Named { fs, caller, dir, name } in names {
            // The operation itself reports what cannot be found.
            let Ok(found) = fs.lookup(caller, dir.id.entry(name)).await else { continue };
            if found.kind != FileKind::Regular {
                continue;
            }
            let node = Node { id: found.id, ..*dir };
            claims.push(if wait {
                self.claim(node, Touch::Change, by).await?
            } else {
                self.try_claim(node, Touch::Change, by).ok_or(weir_vfs::Error::WouldBlock)?
            });
        }
        self.write_due().await?;
        Ok(claims)
    }

    fn begin(&self, node: Node, touch: Touch) -> AccessClaim {
        AccessClaim { _changing: (touch == Touch::Change).then(|| self.filter.begin_change(node)) }
    }

    /// Recalls the conflicting delegations, and waits until they are gone.
    ///
    /// # Errors
    /// [`WouldBlock`](weir_vfs::Error::WouldBlock): some are still there after a [`Patience`], or the
    /// state database cannot be written now.
    pub(crate) async fn clear(
        self: &Arc<Self>,
        node: Node,
        touch: Touch,
        by: Option<ClientId>,
    ) -> weir_vfs::Result<()> {
        let mut patience = Patience::new();
        loop {
            let gone = self.gone.notified();
            tokio::pin!(gone);
            // Must precede the check, or a return between the check and the wait would be missed.
            gone.as_mut().enable();
            let pending = self.recall(node, touch, by);
            self.write_due().await?;
            if !pending {
                // A copy may still be writing under a delegation that has just been revoked.
                let quiet = patience.wait(self.copies.quiesce(node)).await;
                return quiet.ok_or(weir_vfs::Error::WouldBlock);
            }
            if patience.wait(gone).await.is_none() {
                return Err(weir_vfs::Error::WouldBlock);
            }
        }
    }

    async fn write_due(&self) -> weir_vfs::Result<()> {
        // However long: an error would have NFSv3 clients drop what they are about to write.
        self.records.write_due().await.map_err(|_| weir_vfs::Error::WouldBlock)
    }

    /// Recalls the conflicting delegations. Returns whether there are any.
    fn recall(self: &Arc<Self>, node: Node, touch: Touch, by: Option<ClientId>) -> bool {
        let recalled = self.state.lock().recall(node, touch, by, self.clock.monotonic());
        for key in recalled.tell {
            tokio::spawn(self.clone().tell(key));
        }
        recalled.pending
    }

    /// Sends a recall to its client until the client has answered it or the delegation is gone.
    async fn tell(self: Arc<Self>, key: StateKey) {
        loop {
            let Some(order) = self.state.lock().order(key) else { return };
            let op = CbOp::Recall(recall::Args {
                stateid: StateId { seqid: order.id.seq, other: key.to_wire() },
                truncate: false,
                file: self.exports.seal(order.node)[..].into(),
            });
            match self.callbacks.call(order.client, op, order.referring).await {
                Some(CbOpRes::Recall(Ok(()))) => return,
                // The client cannot be reached, or has not yet received the reply that grants the
                // delegation.
                result => debug!("client {:?} was not told of a recall: {result:?}", order.client),
            }
            sleep(AGAIN).await;
        }
    }

    /// Wakes the calls that wait for a delegation to go.
    pub(crate) fn look_again(&self) {
        self.gone.notify_waiters();
    }

    /// The attributes of a file as a client without a write delegation of it sees them. If another
    /// client that holds one has modified the file in its cache, they have that client's size, and
    /// a change attribute of the server's choice (RFC 8881 section 10.4.3).
    ///
    /// # Errors
    /// The store's; [`WouldBlock`](weir_vfs::Error::WouldBlock) if the other client does not answer
    /// the CB_GETATTR and does not return its delegation in time.
    pub(crate) async fn attr(
        self: &Arc<Self>,
        fs: &CachedFs,
        node: Node,
        by: Option<ClientId>,
    ) -> weir_vfs::Result<Attr> {
        if !self.may_be_delegated(node) {
            return fs.getattr(node.id).await;
        }
        let known = self.state.lock().known_change(node, by);
        if let Some(known) = known {
            let attr = fs.getattr(node.id).await?;
            if attr.change != known {
                // A local program changed the file. A client that holds a delegation attributes
                // every change it sees to itself, and keeps its cached data. So it must not see
                // this change before it has returned the delegation.
                self.recall(node, Touch::Change, None);
            }
            return Ok(Attr { change: known, ..attr });
        }
        let Some(writer) = self.state.lock().writer_elsewhere(node, by) else {
            return fs.getattr(node.id).await;
        };
        let Some(answer) = self.ask(node, writer).await else {
            self.clear(node, Touch::Read, by).await?;
            return fs.getattr(node.id).await;
        };
        let ours = fs.getattr(node.id).await?;
        Ok(self.state.lock().attrs_for_others(writer.key, answer, ours, self.clock.wall()))
    }

    /// Whether the attributes to show of a file, which [`attr`](Self::attr) returns, may differ from
    /// those that the store has.
    pub(crate) fn may_be_delegated(&self, node: Node) -> bool {
        self.filter.may_conflict(node, Touch::Change)
    }

    /// Whether another client than `by` may have modified a file in its cache, under a write
    /// delegation.
    pub(crate) fn is_written_elsewhere(&self, node: Node, by: Option<ClientId>) -> bool {
        self.filter.may_conflict(node, Touch::Read)
            && self.state.lock().writer_elsewhere(node, by).is_some()
    }

    /// Asks the holder of a write delegation for the attributes that it answers for. Returns `None`
    /// if it does not tell them in time.
    async fn ask(&self, node: Node, writer: Writer) -> Option<Answer> {
        let attrs = Bitmap::of(&[CHANGE, SIZE]);
        let attrs = if writer.keeps_times { attrs.union(OF_DELEGATES) } else { attrs };
        let file = self.exports.seal(node)[..].into();
        let op = CbOp::Getattr(getattr::Args { file, attrs });
        let asked = Patience::new().wait(self.callbacks.call(writer.client, op, None)).await;
        let Some(Some(CbOpRes::Getattr(Ok(attrs)))) = asked else { return None };
        let time = |time: Option<NfsTime>| match time {
            Some(time) if writer.keeps_times => time.to_system().map(Some),
            _ => Some(None),
        };
        Some(Answer {
            change: attrs.change?,
            size: attrs.size?,
            atime: time(attrs.time_deleg_access)?,
            mtime: time(attrs.time_deleg_modify)?,
        })
    }

    /// Periodic: recalls read delegations of files that local programs have changed, and all
    /// delegations in exports in which a reload allows none. One task per export checks its files, so
    /// that an export whose store hangs delays no other.
    pub(crate) fn look_at_files(self: &Arc<Self>) {
        if !self.filter.any() {
            return;
        }
        let table = self.exports.table();
        if !table.are_disjoint() {
            let allowed = |export| table.is_disjoint(export);
            let others = self.state.lock().delegated_elsewhere(allowed);
            for node in others {
                self.recall(node, Touch::Change, None);
            }
        }
        let mut by_export: HashMap<u16, Vec<Delegated>> = HashMap::new();
        for delegated in self.state.lock().delegations_to_look_at(LOOKS) {
            by_export.entry(delegated.1.export).or_default().push(delegated);
        }
        for (export, files) in by_export {
            if !self.checking.lock().insert(export) {
                continue;
            }
            let checking = ExportCheck { recalls: self.clone(), export };
            tokio::spawn(async move {
                let ExportCheck { recalls, .. } = &checking;
                tokio::select! {
                    () = recalls.stop.cancelled() => {}
                    () = recalls.look_at(export, files) => {}
                }
            });
        }
    }

    async fn look_at(self: &Arc<Self>, export: u16, files: Vec<Delegated>) {
        let Ok(export) = self.exports.table().share(export) else { return };
        for (_, node, known) in files {
            match (export.fs().getattr(node.id).await, known) {
                (Ok(attr), Some(known)) if attr.change == known => {}
                // The change attribute cannot be read; or the client changes the file itself, and
                // then the server cannot tell a local program's change from the client's.
                _ => {
                    self.recall(node, Touch::Change, None);
                }
            }
        }
    }
}

/// A delegation, its file, and the change attribute that its client was told; `None` after the
/// client has changed the file itself.
type Delegated = (StateKey, Node, Option<u64>);

/// Marks an export as being checked until it is dropped.
struct ExportCheck {
    recalls: Arc<Recalls>,
    export: u16,
}

impl Drop for ExportCheck {
    fn drop(&mut self) {
        self.recalls.checking.lock().remove(&self.export);
    }
}

impl std::fmt::Debug for Recalls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recalls").field("any", &self.filter.any()).finish_non_exhaustive()
    }
}
