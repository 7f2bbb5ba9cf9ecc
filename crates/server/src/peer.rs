//! A connection, as programs see it.

use crate::admission::Identity;
use crate::admission::{AddressShares, Admission, Origin};
use crate::replies::{ReplyBudget, ReplyMemory};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use tokio::sync::{Notify, oneshot};
use tracing::warn;
use weir_rpc::{AuthStatus, CallHeader, OpaqueAuth, finish_record, start_record};
use weir_xdr::{Bytes, Encode, Message};

/// A connection and its remote host.
#[derive(Debug)]
pub struct Peer {
    id: u64,
    address: Arc<AddressShares>,
    addr: SocketAddr,
    local: SocketAddr,
    origin: Origin,
    admission: Arc<Admission>,
    /// A credential from it was refused, and this was logged.
    refused: AtomicBool,
    replies: Arc<ReplyBudget>,
    outbox: Mutex<VecDeque<Outgoing>>,
    pub(crate) posted: Notify,
    closed: AtomicBool,
    /// Notified when the connection has ended.
    ended: Notify,
    next_xid: AtomicU32,
    calls: Mutex<HashMap<u32, oneshot::Sender<Bytes>>>,
}

/// Where a connection comes from.
pub(crate) struct From {
    pub(crate) addr: SocketAddr,
    pub(crate) local: SocketAddr,
    pub(crate) origin: Origin,
    pub(crate) address: Arc<AddressShares>,
}

impl Peer {
    pub(crate) fn new(id: u64, from: From, reply_bytes: usize, admission: Arc<Admission>) -> Self {
        let From { addr, local, origin, address } = from;
        let replies = ReplyBudget::new(reply_bytes, address.reply_bytes.clone());
        Self {
            id,
            address,
            addr,
            local,
            origin,
            admission,
            refused: AtomicBool::new(false),
            replies,
            outbox: Mutex::default(),
            posted: Notify::new(),
            closed: AtomicBool::new(false),
            ended: Notify::new(),
            next_xid: AtomicU32::new(1),
            calls: Mutex::default(),
        }
    }

    /// A number that is unique among all connections of this server's run.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The remote address.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The local address that the peer connected to.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The shares of the peer's address in the server's limits.
    pub(crate) fn address(&self) -> &Arc<AddressShares> {
        &self.address
    }

    /// Where the connection comes from.
    pub(crate) fn origin(&self) -> Origin {
        self.origin
    }

    /// The caller that a credential on this connection names.
    ///
    /// # Errors
    /// The credential is malformed, or not accepted from this origin.
    pub(crate) async fn identify(&self, auth: &OpaqueAuth) -> Result<Identity, AuthStatus> {
        let identified = self.admission.identify(auth, &self.origin).await;
        if identified == Err(AuthStatus::TooWeak) && self.is_first_refusal() {
            let claim = auth.auth_sys().map(|sys| format!("to be user {}", sys.uid));
            warn!(
                "{}: claims {}, from {}: refused (see the options `secure` and `auth_none`)",
                self.addr,
                claim.unwrap_or_else(|_| format!("nothing (flavor {})", auth.flavor.0)),
                self.origin,
            );
        }
        identified
    }

    /// Whether no call of this connection was refused before, so that the log tells of one.
    pub(crate) fn is_first_refusal(&self) -> bool {
        !self.refused.swap(true, Ordering::Relaxed)
    }

    /// Whether the server accepts AUTH_NONE.
    pub(crate) fn takes_auth_none(&self) -> bool {
        self.admission.takes_auth_none()
    }

    /// The memory budget of this connection's replies.
    pub(crate) fn replies(&self) -> &Arc<ReplyBudget> {
        &self.replies
    }

    /// Queues a finished record for sending; drops it if the connection has ended.
    pub(crate) fn post(&self, message: Outgoing) {
        let mut outbox = self.outbox.lock();
        if self.is_open() {
            outbox.push_back(message);
        }
        drop(outbox);
        self.posted.notify_one();
    }

    /// Takes everything queued.
    pub(crate) fn take_posted(&self, into: &mut VecDeque<Outgoing>) {
        into.append(&mut self.outbox.lock());
    }

    /// Whether the connection is still open.
    pub fn is_open(&self) -> bool {
        !self.closed.load(Ordering::Acquire)
    }

    /// Ends the connection without sending anything more.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        // Nothing is posted after this. Replies give back their memory, for which other calls may wait.
        let unsent = std::mem::take(&mut *self.outbox.lock());
        drop(unsent);
        self.posted.notify_one();
        self.calls.lock().clear();
        self.ended.notify_waiters();
    }

    /// Waits for `what`, or gives it up and returns `None` when the connection has ended.
    pub(crate) async fn while_open<T>(&self, what: impl Future<Output = T>) -> Option<T> {
        let ended = async {
            // Created before the check, so that it cannot miss the notification.
            let ended = self.ended.notified();
            if self.is_open() {
                ended.await;
            }
        };
        tokio::select! {
            biased;
            outcome = what => Some(outcome),
            () = ended => None,
        }
    }

    /// Calls a program of the peer. Returns the reply's record, header included, or `None` if the
    /// connection ends first.
    pub async fn call(&self, header: CallHeader, args: &(dyn Encode + Sync)) -> Option<Bytes> {
        let xid = self.next_xid.fetch_add(1, Ordering::Relaxed);
        let (tell, told) = oneshot::channel();
        self.calls.lock().insert(xid, tell);
        let _forget = Forget { peer: self, xid };
        let mut e = start_record();
        e.put(&CallHeader { xid, ..header });
        e.put(args);
        self.post(Outgoing { message: finish_record(e), memory: None, is_counted: true });
        if !self.is_open() {
            return None;
        }
        told.await.ok()
    }

    /// Passes a reply to the call that waits for it; drops it if there is none.
    pub(crate) fn replied(&self, xid: u32, record: Bytes) {
        if let Some(tell) = self.calls.lock().remove(&xid) {
            // The caller may have given up meanwhile.
            let _ = tell.send(record);
        }
    }
}

/// Removes a call from the table when its future ends or is dropped.
struct Forget<'a> {
    peer: &'a Peer,
    xid: u32,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.peer.calls.lock().remove(&self.xid);
    }
}

/// A finished record that waits to be sent.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) message: Message,
    /// The memory that a reply holds until it is sent.
    memory: Option<Arc<ReplyMemory>>,
    is_counted: bool,
}

impl Outgoing {
    /// The reply to a call.
    pub(crate) fn reply(message: Message, memory: Arc<ReplyMemory>) -> Self {
        let is_counted = !memory.counts_late(message.len());
        if is_counted {
            memory.settle(message.len());
        }
        Self { message, memory: Some(memory), is_counted }
    }

    /// Notes that the record has to wait until the socket accepts it.
    pub(crate) fn waits(&mut self) {
        if let Some(memory) = &self.memory
            && !std::mem::replace(&mut self.is_counted, true)
        {
            memory.settle(self.message.len());
        }
    }
}
