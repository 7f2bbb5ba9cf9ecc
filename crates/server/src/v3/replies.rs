//! Replies to calls that may not be executed twice, kept for when the client, having lost a
//! connection, sends the call again (the duplicate request cache).
//!
//! 1. A call is known again by who sent it, its transaction, program and procedure, and a hash of its
//!    credential and arguments.
//! 2. While a call is being executed, its duplicates wait for the same results.
//! 3. At most [`MAX_REPLIES`] and [`MAX_BYTES`] are kept, none longer than [`MAX_AGE`]; the
//!    oldest go first. Calls being executed are bounded by the transport.

use crate::program::Call;
use bytes::Bytes;
use hashlink::LinkedHashMap;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// Most replies that are kept.
const MAX_REPLIES: usize = 64 << 10;
/// Most bytes of results that are kept.
const MAX_BYTES: usize = 16 << 20;
/// How long a reply is kept. A client that has not sent the call again by then has given up.
const MAX_AGE: Duration = Duration::from_secs(300);

/// What a call is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    peer: IpAddr,
    xid: u32,
    /// Program and procedure.
    what: (u32, u32),
    hash: [u8; 16],
}

impl Key {
    /// The key of a call whose arguments are not decoded yet.
    pub(super) fn of(call: &Call) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&call.header.cred.body);
        hasher.update(&call.args.clone().into_rest());
        let mut hash = [0; 16];
        hash.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        let what = (call.header.program, call.header.procedure);
        Self { peer: call.peer.addr().ip(), xid: call.header.xid, what, hash }
    }
}

/// The replies kept.
#[derive(Debug, Default)]
pub(super) struct Replies {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    running: HashMap<Key, Arc<Notify>>,
    kept: LinkedHashMap<Key, Kept>,
    bytes: usize,
}

#[derive(Debug)]
struct Kept {
    results: Bytes,
    since: Duration,
}

/// What is to be done with a call.
pub(super) enum Turn<'a> {
    /// It is executed, here and now.
    Ours(Running<'a>),
    /// It was executed before, with these results.
    Known(Bytes),
}

/// A call being executed. Dropped before it is [`done`](Self::done), it was not executed.
pub(super) struct Running<'a> {
    replies: &'a Replies,
    key: Key,
}

impl Replies {
    /// Takes a call on, or waits until the one that it repeats is done.
    pub(super) async fn turn(&self, key: Key, now: Duration) -> Turn<'_> {
        loop {
            let done = {
                let mut table = self.table.lock();
                table.expire(now);
                if let Some(kept) = table.kept.get(&key) {
                    return Turn::Known(kept.results.clone());
                }
                match table.running.get(&key) {
                    // Made under the lock, so that it cannot miss being told.
                    Some(running) => running.clone().notified_owned(),
                    None => {
                        table.running.insert(key, Arc::default());
                        return Turn::Ours(Running { replies: self, key });
                    }
                }
            };
            done.await;
        }
    }
}

impl Running<'_> {
    /// Keeps the results of the call.
    pub(super) fn done(self, results: Bytes, now: Duration) {
        self.replies.table.lock().keep(self.key, results, now);
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if let Some(waiting) = self.replies.table.lock().running.remove(&self.key) {
            waiting.notify_waiters();
        }
    }
}

impl Table {
    fn keep(&mut self, key: Key, results: Bytes, now: Duration) {
        self.bytes += results.len();
        self.kept.insert(key, Kept { results, since: now });
        while self.kept.len() > MAX_REPLIES || self.bytes > MAX_BYTES {
            self.forget_oldest();
        }
    }

    fn expire(&mut self, now: Duration) {
        while self.kept.front().is_some_and(|(_, kept)| now.saturating_sub(kept.since) > MAX_AGE) {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        if let Some((_, kept)) = self.kept.pop_front() {
            self.bytes -= kept.results.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    const NOW: Duration = Duration::ZERO;

    fn key(xid: u32) -> Key {
        Key { peer: [127, 0, 0, 1].into(), xid, what: (100_003, 8), hash: [0; 16] }
    }

    async fn ours(replies: &Replies, xid: u32) -> Running<'_> {
        match replies.turn(key(xid), NOW).await {
            Turn::Ours(running) => running,
            Turn::Known(_) => panic!("{xid} is known"),
        }
    }

    async fn known(replies: &Replies, xid: u32) -> Bytes {
        match replies.turn(key(xid), NOW).await {
            Turn::Ours(_) => panic!("{xid} is not known"),
            Turn::Known(results) => results,
        }
    }

    #[tokio::test]
    async fn a_call_is_executed_once_and_its_duplicates_wait() {
        let replies = Replies::default();
        let running = ours(&replies, 1).await;
        let mut duplicate = Box::pin(known(&replies, 1));
        assert_eq!((&mut duplicate).now_or_never(), None);
        running.done(Bytes::from_static(b"results"), NOW);
        assert_eq!(duplicate.await, "results");
        assert_eq!(known(&replies, 1).await, "results");
        drop(ours(&replies, 2).await);
        drop(ours(&replies, 2).await);
    }

    #[tokio::test]
    async fn a_duplicate_takes_over_from_a_call_that_came_to_nothing() {
        let replies = Replies::default();
        let running = ours(&replies, 1).await;
        let mut duplicate = Box::pin(ours(&replies, 1));
        assert!((&mut duplicate).now_or_never().is_none());
        drop(running);
        duplicate.await.done(Bytes::new(), NOW);
        assert_eq!(known(&replies, 1).await, "");
    }

    #[tokio::test]
    async fn bounds_hold() {
        let replies = Replies::default();
        let large = Bytes::from(vec![0; MAX_BYTES / 2]);
        for xid in 0..3 {
            ours(&replies, xid).await.done(large.clone(), NOW);
        }
        assert_eq!(replies.table.lock().kept.len(), 2);
        drop(ours(&replies, 0).await);
        for xid in 0..MAX_REPLIES as u32 + 9 {
            ours(&replies, 10 + xid).await.done(Bytes::from_static(b"x"), NOW);
        }
        let later = MAX_AGE + Duration::from_secs(1);
        {
            let table = replies.table.lock();
            assert_eq!((table.kept.len(), table.bytes), (MAX_REPLIES, MAX_REPLIES));
        }
        drop(replies.turn(key(5), later).await);
        let table = replies.table.lock();
        assert_eq!((table.kept.len(), table.bytes, table.running.len()), (0, 0, 0));
    }
}
