//! A connection without a socket: the caller passes records in memory, and gets one future per
//! call. The bounds of socket connections do not apply; the caller must limit its own calls.

use super::Transport;
use super::call::{RecordAction, begin};
use crate::admission::Origin;
use crate::peer::{From, Peer};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weir_xdr::Bytes;

/// A client's connection within this process. Dropping it closes the connection.
#[derive(Debug)]
pub struct LocalConnection {
    transport: Arc<Transport>,
    peer: Arc<Peer>,
}

impl LocalConnection {
    pub(crate) fn new(transport: Arc<Transport>, addresses: [SocketAddr; 2]) -> Self {
        let id = transport.next_id.fetch_add(1, Ordering::Relaxed);
        let [addr, local] = addresses;
        let address = transport.addresses.shares_of(addr.ip());
        let from = From { addr, local, origin: Origin::elsewhere(addr.port()), address };
        let (bytes, admission) = (transport.limits.reply_bytes, transport.admission.clone());
        let peer = Arc::new(Peer::new(id, from, bytes, admission));
        Self { transport, peer }
    }

    /// Executes the call in `record` (without record mark) and returns the reply's record (with
    /// record mark). The call continues if the connection is dropped. Returns `None` if the record
    /// was not a call; a socket connection would have ended.
    pub fn call(&self, record: Bytes) -> impl Future<Output = Option<Bytes>> + Send + use<> {
        let begun = begin(&self.transport.programs, &self.peer, record, None);
        async move {
            match begun {
                Ok(RecordAction::Call(call)) => Some(call.await.message.to_bytes()),
                Ok(RecordAction::Refused(reply)) => Some(reply.message.to_bytes()),
                Ok(RecordAction::Nothing) | Err(_) => None,
            }
        }
    }

    /// The server's calls to the client, as records (with record marks), once there are any; `None` when the
    /// connection has ended. One future at a time waits for them. A reply goes to [`call`](Self::call).
    pub fn calls(&self) -> impl Future<Output = Option<Vec<Bytes>>> + Send + use<> {
        let peer = self.peer.clone();
        async move {
            let mut posted = VecDeque::new();
            loop {
                if !peer.is_open() {
                    return None;
                }
                peer.take_posted(&mut posted);
                if !posted.is_empty() {
                    return Some(posted.into_iter().map(|call| call.message.to_bytes()).collect());
                }
                peer.posted.notified().await;
            }
        }
    }
}

impl Drop for LocalConnection {
    fn drop(&mut self) {
        self.peer.close();
        self.transport.programs.disconnected(&self.peer);
    }
}
