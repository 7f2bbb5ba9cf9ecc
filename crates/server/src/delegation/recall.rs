//! Delegation recall: before a file is changed (or, if a client may have written to it, read), each
//! client that holds a delegation of it is asked to give it back.
//!
//! 1. A change of a file that is not under an open (another protocol version's, one by a special
//!    stateid, of attributes, of names) goes on under a [`Claim`], from before the look for
//!    delegations until it is done; meanwhile the file is not delegated.
//! 2. A call that has to wait waits for [`PATIENCE`], then its client is told to come back. A delegation that does
//!    not come back is taken away when its time is up ([`State::recall`]).
//! 3. A recalled delegation has one task that tells its client, until the client has heard or the
//!    delegation is gone.
//! 4. Programs on this machine recall nothing; a change of theirs is noticed within seconds
//!    ([`Recalls::look_at_files`]), recalls read delegations then, and is told to who holds one only
//!    when it has given it back ([`Recalls::attr`]).

use crate::callback::Callbacks;
use crate::export::Exports;
use crate::handle::Node;
use crate::operation::copies::Copies;
use crate::state::{ChangeGuard, ClientId, Filter, State, StateKey, Touch};
use crate::storage::client_tracking::ClientTracking;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error};
use weir_base::Clock;
use weir_nfs::v4::attr::{CHANGE, SIZE};
use weir_nfs::v4::cb::{getattr, recall};
use weir_nfs::v4::types::StateId;
use weir_nfs::v4::{Bitmap, CbOp, CbOpRes};
use weir_pagecache::{CachedFs, File};
use weir_vfs::{Attr, Caller, FileKind};

/// How long a call waits for a delegation in the way before its client is told to come back.
const PATIENCE: Duration = Duration::from_millis(1500);
/// How long to wait before a client is told again.
const AGAIN: Duration = Duration::from_secs(1);
/// Delegated files that are looked at in a second.
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
    /// A delegation is gone.
    gone: Notify,
    /// Grace may hold something back still.
    in_grace: AtomicBool,
    /// Exports whose files are being looked at.
    looking: Mutex<HashSet<u16>>,
    stop: CancellationToken,
}

/// Clients may still take back what they had before the server restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InGrace;

/// A name in a directory, and who asks for it.
pub(crate) struct Named<'a> {
    pub(crate) fs: &'a CachedFs,
    pub(crate) caller: &'a Caller,
    pub(crate) dir: Node,
    pub(crate) name: &'a [u8],
}

/// The right to touch a file now, without an open.
#[derive(Debug)]
pub(crate) struct Claim {
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
            looking: Mutex::default(),
            stop,
        }
    }

    /// Refuses, as long as clients may take back what they had, a change of names or sizes, and I/O
    /// that is not under an open.
    ///
    /// # Errors
    /// [`InGrace`]: to be tried again later.
    pub(crate) fn check_grace(&self) -> Result<(), InGrace> {
        if !self.in_grace.load(Ordering::Relaxed) {
            return Ok(());
        }
        if self.state.lock().grace.holds_back(self.clock.monotonic()) {
            return Err(InGrace);
        }
        self.in_grace.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Keeps a file from being delegated as long as what this returns lives.
    pub(crate) fn keep_undelegated(&self, node: Node) -> ChangeGuard {
        self.filter.begin_change(node)
    }

    /// Recalls the delegations that exclude a touch `by` a client, or by an unknown one. Keep what it returns until the
    /// touch is done.
    ///
    /// # Errors
    /// [`WouldBlock`](weir_vfs::Error::WouldBlock): a delegation has not been returned yet.
    pub(crate) async fn claim(
        self: &Arc<Self>,
        node: Node,
        touch: Touch,
        by: Option<ClientId>,
    ) -> weir_vfs::Result<Claim> {
        let claim = self.begin(node, touch);
        if self.filter.may_conflict(node, touch) {
            self.clear(node, touch, by).await?;
        }
        Ok(claim)
    }

    /// The same, without waiting; what is in the way is recalled.
    fn try_claim(
        self: &Arc<Self>,
        node: Node,
        touch: Touch,
        by: Option<ClientId>,
    ) -> Option<Claim> {
        let claim = self.begin(node, touch);
        let free = !self.filter.may_conflict(node, touch) || !self.recall(node, touch, by);
        free.then_some(claim)
    }

    /// Makes way for the removal or change of names: delegations of the files that have them are
    /// recalled. To be called twice: to wait, and again, under the lock of the directories, because
    /// the names may have changed hands meanwhile. What the second call returns keeps the files from
    /// being delegated, also when none was delegated before.
    ///
    /// # Errors
    /// [`WouldBlock`](weir_vfs::Error::WouldBlock): a delegation has not been returned yet.
    pub(crate) async fn claim_names(
        self: &Arc<Self>,
        names: &[Named<'_>],
        by: Option<ClientId>,
        wait: bool,
    ) -> weir_vfs::Result<Vec<Claim>> {
        let mut claims = Vec::new();
        if wait && !self.filter.any() {
            return Ok(claims);
        }
        for Named { fs, caller, dir, name } in names {
            // What cannot be found, the operation itself will tell.
            let Ok(found) = fs.lookup(caller, dir.id, name).await else { continue };
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
        Ok(claims)
    }

    fn begin(&self, node: Node, touch: Touch) -> Claim {
        Claim { _changing: (touch == Touch::Change).then(|| self.filter.begin_change(node)) }
    }

    /// Recalls what is in the way, and waits until it is gone.
    ///
    /// # Errors
    /// [`WouldBlock`](weir_vfs::Error::WouldBlock): it is there still.
    pub(crate) async fn clear(
        self: &Arc<Self>,
        node: Node,
        touch: Touch,
        by: Option<ClientId>,
    ) -> weir_vfs::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let gone = self.gone.notified();
            tokio::pin!(gone);
            // From here on nothing that happens is missed.
            gone.as_mut().enable();
            let pending = self.recall(node, touch, by);
            if let Err(error) = self.records.write_due().await {
                error!("cannot write the state database: {error}");
                return Err(weir_vfs::Error::Io);
            }
            if !pending {
                // One that wrote under a delegation which was taken away.
                let quiet = timeout_at(deadline, self.copies.quiesce(node)).await;
                return quiet.map_err(|_| weir_vfs::Error::WouldBlock);
            }
            if timeout_at(deadline, gone).await.is_err() {
                return Err(weir_vfs::Error::WouldBlock);
            }
        }
    }

    /// Recalls what is in the way. Says whether there is something.
    fn recall(self: &Arc<Self>, node: Node, touch: Touch, by: Option<ClientId>) -> bool {
        let recalled = self.state.lock().recall(node, touch, by, self.clock.monotonic());
        for key in recalled.tell {
            tokio::spawn(self.clone().tell(key));
        }
        recalled.pending
    }

    /// Tells the client of a recalled delegation until it has heard or the delegation is gone.
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
                // Not reached; or the reply that gives the delegation has not reached it.
                result => debug!("client {:?} was not told of a recall: {result:?}", order.client),
            }
            sleep(AGAIN).await;
        }
    }

    /// Tells those who wait that a delegation may be gone.
    pub(crate) fn look_again(&self) {
        self.gone.notify_waiters();
    }

    /// A file's attributes as they are for a client without a write delegation of it: if
    /// the client that does has written what it keeps to itself so far, its size and a change
    /// attribute of their own (RFC 8881 section 10.4.3).
    ///
    /// # Errors
    /// The store's; [`WouldBlock`](weir_vfs::Error::WouldBlock) when the client does not say and has
    /// to give the delegation back first.
    pub(crate) async fn attr(
        self: &Arc<Self>,
        fs: &CachedFs,
        node: Node,
        by: Option<ClientId>,
    ) -> weir_vfs::Result<Attr> {
        if !self.filter.may_conflict(node, Touch::Change) {
            return fs.getattr(node.id).await;
        }
        let known = self.state.lock().known_change(node, by);
        if let Some(known) = known {
            let attr = fs.getattr(node.id).await?;
            if attr.change != known {
                // Something else than this server changed the file. A client takes a change that it
                // sees while it holds a delegation for its own, and keeps the data that it has:
                // it is to see this one when it has given the delegation back.
                self.recall(node, Touch::Change, None);
            }
            return Ok(Attr { change: known, ..attr });
        }
        let Some((key, client)) = self.state.lock().writer_elsewhere(node, by) else {
            return fs.getattr(node.id).await;
        };
        let op = CbOp::Getattr(getattr::Args {
            file: self.exports.seal(node)[..].into(),
            attrs: Bitmap::of(&[CHANGE, SIZE]),
        });
        let asked = timeout(PATIENCE, self.callbacks.call(client, op, None)).await;
        let theirs = match asked {
            Ok(Some(CbOpRes::Getattr(Ok(attrs)))) => attrs.change.zip(attrs.size),
            _ => None,
        };
        let Some((change, size)) = theirs else {
            self.clear(node, Touch::Read, by).await?;
            return fs.getattr(node.id).await;
        };
        let ours = fs.getattr(node.id).await?;
        let told = self.state.lock().told_change(key, change, ours.change);
        Ok(match told {
            Some(change) => {
                let now = SystemTime::now();
                Attr { change, size, mtime: now, ctime: now, ..ours }
            }
            None => ours,
        })
    }

    /// Periodic: recalls read delegations of files that something else than this server changed. Each
    /// export is looked at by a task of its own, one at a time: one that hangs holds up no other.
    pub(crate) fn look_at_files(self: &Arc<Self>) {
        if !self.filter.any() {
            return;
        }
        let mut by_export: HashMap<u16, Vec<Delegated>> = HashMap::new();
        for delegated in self.state.lock().delegations_to_look_at(LOOKS) {
            by_export.entry(delegated.1.export).or_default().push(delegated);
        }
        for (export, files) in by_export {
            if !self.looking.lock().insert(export) {
                continue;
            }
            let looking = Looking { recalls: self.clone(), export };
            tokio::spawn(async move {
                let Looking { recalls, .. } = &looking;
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
                // Where its client changes the file, too, a local program's change cannot be told from
                // the client's.
                _ => {
                    self.recall(node, Touch::Change, None);
                }
            }
        }
    }
}

/// A delegation, its file, and the change attribute that its client knows.
type Delegated = (StateKey, Node, Option<u64>);

/// A look at an export's files. There is no other until it is dropped.
struct Looking {
    recalls: Arc<Recalls>,
    export: u16,
}

impl Drop for Looking {
    fn drop(&mut self) {
        self.recalls.looking.lock().remove(&self.export);
    }
}

impl std::fmt::Debug for Recalls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recalls").field("any", &self.filter.any()).finish_non_exhaustive()
    }
}
