//! The duplicate request cache: replies to calls that must not be executed twice, kept for clients
//! that retransmit after they lost a connection.
//!
//! 1. A call is identified by its source address and port, its xid, program and procedure, and a
//!    hash of its credential and arguments, as in knfsd. A client that reconnects to retransmit
//!    keeps its port. Another program on the same machine has another port; it may use the same xid
//!    for a call with the same arguments (a SETATTR of size 0, say), which must be executed.
//! 2. While a call is being executed, its duplicates wait for its results. WRITEs do so too, though
//!    their replies are not kept: a retransmitted WRITE joins the first one, and so is not executed
//!    after a later WRITE of the client.
//! 3. At most [`MAX_REPLIES`] and [`MAX_BYTES`] are kept per program, none longer than [`MAX_AGE`].
//!    A host may keep as many as it leaves free; beyond that its oldest are dropped, so it cannot
//!    push out the replies of other hosts. The transport bounds the number of calls being executed.

use crate::admission::{allowance, host};
use crate::program::Call;
use crate::storage::retry_journal::RequestKey;
use bytes::Bytes;
use hashlink::LinkedHashMap;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::Notify;

/// Maximum number of replies kept.
const MAX_REPLIES: usize = 64 << 10;
/// Maximum bytes of results kept.
const MAX_BYTES: usize = 16 << 20;
/// How long a reply is kept. By then a client has given up retransmitting.
const MAX_AGE: Duration = Duration::from_secs(300);

/// Bytes of the arguments that are hashed if the reply is not kept: the file, the offset and
/// length, and some of the data.
const BEGINNING: usize = 4 << 10;

/// How long the reply to a call is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    /// Not at all: executing the call again does no harm.
    Nothing,
    /// For duplicates that arrive while the call is being executed.
    WhileRunning,
    /// Also for later duplicates.
    Reply,
}

/// Identifies a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    peer: SocketAddr,
    xid: u32,
    /// Program and procedure.
    what: (u32, u32),
    hash: [u8; 16],
}

impl Key {
    /// The key of a call whose arguments are not decoded yet.
    pub(crate) fn of(call: &Call, keep: Keep) -> Self {
        let mut hasher = blake3::Hasher::new();
        let args = call.args.clone().into_rest();
        let looked_at = if keep == Keep::Reply { args.len() } else { args.len().min(BEGINNING) };
        let (flavor, credential) = call.credential();
        hasher.update(&flavor.to_be_bytes());
        hasher.update(&(credential.len() as u64).to_be_bytes());
        hasher.update(credential);
        hasher.update(&(args.len() as u64).to_be_bytes());
        hasher.update(&args[..looked_at]);
        let mut hash = [0; 16];
        hash.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        let what = (call.header.program, call.header.procedure);
        Self { peer: call.peer.addr(), xid: call.header.xid, what, hash }
    }
}

impl From<&Key> for RequestKey {
    /// Leaves out the port: after a restart of the server, Linux's client may have another one.
    fn from(key: &Key) -> Self {
        let numbers = [key.xid, key.what.0, key.what.1].map(u32::to_be_bytes);
        let address = key.peer.ip().to_canonical().to_string();
        Self::of(&[b"call", numbers.as_flattened(), &key.hash, address.as_bytes()])
    }
}

/// The cache of one program.
#[derive(Debug, Default)]
pub(crate) struct Replies {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    running: HashMap<Key, Arc<Execution>>,
    /// The oldest first.
    kept: LinkedHashMap<Key, Kept>,
    bytes: usize,
    /// What each host has in `kept`.
    hosts: HashMap<IpAddr, OfHost>,
}

/// The kept replies of one host.
#[derive(Debug, Default)]
struct OfHost {
    /// The oldest first.
    keys: VecDeque<Key>,
    bytes: usize,
}

/// A call being executed.
#[derive(Debug, Default)]
struct Execution {
    results: OnceLock<Bytes>,
    /// Notified when execution ends, with or without results.
    over: Arc<Notify>,
}

#[derive(Debug)]
struct Kept {
    results: Bytes,
    since: Duration,
}

/// What the caller does with a call.
pub(crate) enum Lookup<'a> {
    /// Execute it.
    New(Running<'a>),
    /// Reply with these results of an earlier execution.
    Cached(Bytes),
}

/// A call being executed. If dropped before [`done`](Self::done), the next duplicate executes the
/// call.
pub(crate) struct Running<'a> {
    replies: &'a Replies,
    key: Key,
}

impl Replies {
    /// Begins a call, or waits until the call that it duplicates is done.
    pub(crate) async fn look_up(&self, key: Key, now: Duration) -> Lookup<'_> {
        loop {
            let (running, over) = {
                let mut table = self.table.lock();
                table.expire(now);
                if let Some(kept) = table.kept.get(&key) {
                    return Lookup::Cached(kept.results.clone());
                }
                match table.running.get(&key) {
                    // Created under the lock, so that it cannot miss the notification.
                    Some(running) => (running.clone(), running.over.clone().notified_owned()),
                    None => {
                        table.running.insert(key, Arc::default());
                        return Lookup::New(Running { replies: self, key });
                    }
                }
            };
            over.await;
            if let Some(results) = running.results.get() {
                return Lookup::Cached(results.clone());
            }
        }
    }
}

impl Running<'_> {
    /// Passes the results to waiting duplicates, and keeps them if `keep` says so.
    pub(crate) fn done(self, results: Bytes, keep: Keep, now: Duration) {
        let mut table = self.replies.table.lock();
        if let Some(running) = table.running.get(&self.key) {
            // Cannot fail: only this line sets it, once per execution.
            let _ = running.results.set(results.clone());
        }
        if keep == Keep::Reply {
            table.keep(self.key, results, now);
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if let Some(running) = self.replies.table.lock().running.remove(&self.key) {
            running.over.notify_waiters();
        }
    }
}

impl Table {
    fn keep(&mut self, key: Key, results: Bytes, now: Duration) {
        let host = host(key.peer.ip());
        while let Some(own) = self.hosts.get(&host)
            && !(self.is_within_quota(own.keys.len(), 1, own.bytes, results.len()))
        {
            if let Some(&oldest) = own.keys.front() {
                self.forget(oldest);
            }
        }
        // Others make way for a host that keeps nothing, unless there are very many of them.
        while !self.is_within_quota(0, 1, 0, results.len()) && !self.kept.is_empty() {
            self.forget_oldest();
        }
        if results.len() > MAX_BYTES {
            return;
        }
        let own = self.hosts.entry(host).or_default();
        own.keys.push_back(key);
        own.bytes += results.len();
        self.bytes += results.len();
        self.kept.insert(key, Kept { results, since: now });
    }

    /// Whether a host that keeps `own` replies of `own_bytes` may keep more.
    fn is_within_quota(
        &self,
        own: usize,
        more: usize,
        own_bytes: usize,
        more_bytes: usize,
    ) -> bool {
        more <= allowance(MAX_REPLIES, self.kept.len(), own)
            && more_bytes <= allowance(MAX_BYTES, self.bytes, own_bytes)
    }

    fn expire(&mut self, now: Duration) {
        while self.kept.front().is_some_and(|(_, kept)| now.saturating_sub(kept.since) > MAX_AGE) {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        if let Some((&oldest, _)) = self.kept.front() {
            self.forget(oldest);
        }
    }

    /// Drops the oldest reply of a host.
    fn forget(&mut self, key: Key) {
        let Some(Kept { results, .. }) = self.kept.remove(&key) else { return };
        self.bytes -= results.len();
        let host = host(key.peer.ip());
        if let Some(own) = self.hosts.get_mut(&host) {
            own.keys.pop_front();
            own.bytes -= results.len();
            if own.keys.is_empty() {
                self.hosts.remove(&host);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    const NOW: Duration = Duration::ZERO;

    fn key(xid: u32) -> Key {
        Key { peer: ([127, 0, 0, 1], 700).into(), xid, what: (100_003, 8), hash: [0; 16] }
    }

    async fn ours(replies: &Replies, xid: u32) -> Running<'_> {
        match replies.look_up(key(xid), NOW).await {
            Lookup::New(running) => running,
            Lookup::Cached(_) => panic!("{xid} is known"),
        }
    }

    async fn known(replies: &Replies, xid: u32) -> Bytes {
        match replies.look_up(key(xid), NOW).await {
            Lookup::New(_) => panic!("{xid} is not known"),
            Lookup::Cached(results) => results,
        }
    }

    #[tokio::test]
    async fn a_call_is_executed_once_and_its_duplicates_wait() {
        let replies = Replies::default();
        let running = ours(&replies, 1).await;
        let mut duplicate = Box::pin(known(&replies, 1));
        assert_eq!((&mut duplicate).now_or_never(), None);
        running.done(Bytes::from_static(b"results"), Keep::Reply, NOW);
        assert_eq!(duplicate.await, "results");
        assert_eq!(known(&replies, 1).await, "results");
        drop(ours(&replies, 2).await);
        drop(ours(&replies, 2).await);
    }

    #[tokio::test]
    async fn a_reply_too_long_to_keep_reaches_waiting_duplicates() {
        let replies = Replies::default();
        let running = ours(&replies, 1).await;
        let mut duplicate = Box::pin(known(&replies, 1));
        assert_eq!((&mut duplicate).now_or_never(), None);
        running.done(Bytes::from_static(b"results"), Keep::WhileRunning, NOW);
        assert_eq!(duplicate.await, "results");
        drop(ours(&replies, 1).await);
        assert!(replies.table.lock().running.is_empty());
    }

    #[tokio::test]
    async fn a_duplicate_is_executed_if_the_first_call_was_dropped() {
        let replies = Replies::default();
        let running = ours(&replies, 1).await;
        let mut duplicate = Box::pin(ours(&replies, 1));
        assert!((&mut duplicate).now_or_never().is_none());
        drop(running);
        duplicate.await.done(Bytes::new(), Keep::Reply, NOW);
        assert_eq!(known(&replies, 1).await, "");
    }

    async fn keeps(replies: &Replies, key: Key, results: Bytes) {
        match replies.look_up(key, NOW).await {
            Lookup::New(running) => running.done(results, Keep::Reply, NOW),
            Lookup::Cached(_) => panic!("{key:?} is known"),
        }
    }

    fn from(last: u8, xid: u32) -> Key {
        Key { peer: ([192, 0, 2, last], 700).into(), ..key(xid) }
    }

    #[tokio::test]
    async fn bounds_hold() {
        let replies = Replies::default();
        let large = Bytes::from(vec![0; MAX_BYTES / 2]);
        for host in 1..=3 {
            keeps(&replies, from(host, 1), large.clone()).await;
        }
        assert_eq!(replies.table.lock().kept.len(), 2);
        drop(ours(&replies, 0).await);
        for xid in 0..MAX_REPLIES as u32 + 9 {
            keeps(&replies, from((xid % 7) as u8, 10 + xid), Bytes::from_static(b"x")).await;
        }
        let later = MAX_AGE + Duration::from_secs(1);
        {
            let table = replies.table.lock();
            assert!(table.kept.len() <= MAX_REPLIES && table.bytes <= MAX_BYTES);
            assert_eq!(
                table.hosts.values().map(|own| own.keys.len()).sum::<usize>(),
                table.kept.len()
            );
            assert_eq!(table.hosts.values().map(|own| own.bytes).sum::<usize>(), table.bytes);
        }
        drop(replies.look_up(key(5), later).await);
        let table = replies.table.lock();
        assert_eq!((table.kept.len(), table.bytes, table.running.len()), (0, 0, 0));
        assert!(table.hosts.is_empty());
    }

    #[tokio::test]
    async fn a_host_cannot_evict_the_replies_of_other_hosts() {
        let replies = Replies::default();
        let other = Bytes::from_static(b"of another");
        keeps(&replies, from(1, 1), other.clone()).await;
        for xid in 0..MAX_REPLIES as u32 + 9 {
            keeps(&replies, from(2, xid), Bytes::from_static(b"x")).await;
        }
        for xid in 0..9 {
            keeps(&replies, from(3, xid), Bytes::from(vec![0; MAX_BYTES / 4])).await;
        }
        match replies.look_up(from(1, 1), NOW).await {
            Lookup::Cached(results) => assert_eq!(results, other),
            Lookup::New(_) => panic!("the reply is gone"),
        }
        // The last replies of the others are kept as well.
        assert!(matches!(
            replies.look_up(from(2, MAX_REPLIES as u32 + 8), NOW).await,
            Lookup::Cached(_)
        ));
        assert!(matches!(replies.look_up(from(3, 8), NOW).await, Lookup::Cached(_)));
    }
}
