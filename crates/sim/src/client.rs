//! A client of one version of the protocol: its calls, sent again until they are answered.

mod delegations;
mod nlm;
mod v3;
mod v4;

use crate::host;
use crate::network::Link;
use crate::world::World;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;
use weir_rpc::{AuthSys, CallHeader, OpaqueAuth, ReplyHeader, start_record};
use weir_xdr::{Bytes, Decoder, Encode};

/// Of which version a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    V3,
    V40,
    V41,
    V42,
}

/// Why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    NoEnt,
    Exist,
    NotEmpty,
    Io,
    NoSpace,
    /// A lock of another client is in the way.
    Denied,
    /// The lock is not held any more.
    LockLost,
    Other(String),
}

/// How an operation ended.
pub(crate) struct Outcome<T> {
    pub(crate) result: Result<T, Failure>,
    /// Another run of the server than the one that answered may have executed it before.
    pub(crate) again: bool,
}

impl<T> Outcome<T> {
    fn map<U>(self, f: impl FnOnce(T) -> U) -> Outcome<U> {
        Outcome { result: self.result.map(f), again: self.again }
    }
}

/// Bytes of a range that is locked.
const RANGE: u64 = 100;

/// A filehandle.
pub(crate) type Handle = Vec<u8>;

/// What was written: how durable, and the verifier.
pub(crate) struct Written {
    pub(crate) durable: bool,
    pub(crate) verifier: [u8; 8],
}

/// A client.
pub(crate) struct Client {
    pub(crate) world: Arc<World>,
    pub(crate) number: usize,
    pub(crate) version: Version,
    pub(crate) link: Link,
    xid: AtomicU32,
    cred: OpaqueAuth,
    v4: v4::State,
    nlm: nlm::State,
}

/// A reply's results, and the server's runs when the call was first sent and when it was answered.
struct Answer {
    results: Bytes,
    /// When the call was sent, and when it was sent first.
    sent: Duration,
    begun: Duration,
    runs: (u64, u64),
}

impl Client {
    /// `boot` tells one start of the client from another.
    pub(crate) fn new(world: &Arc<World>, number: usize, version: Version, boot: u32) -> Arc<Self> {
        let cred = AuthSys { machine_name: "sim".into(), ..AuthSys::default() };
        Arc::new_cyclic(|client| Self {
            world: world.clone(),
            number,
            version,
            link: Link::new(world, number, client.clone()),
            // Another start has other numbers.
            xid: AtomicU32::new(boot << 20),
            cred: OpaqueAuth::from(&cred),
            v4: v4::State::new(boot),
            nlm: nlm::State::new(boot),
        })
    }

    /// Sends a call until it is answered. When it is sent again, it is the same call, or perhaps another one with the
    /// arguments `again`.
    async fn rpc(&self, which: (u32, u32, u32), args: &Bytes, again: Option<&Bytes>) -> Answer {
        let (mut xid, mut record) = self.record(which, args);
        let (first, begun) = (self.world.run(), host::now());
        loop {
            let sent = host::now();
            let Some(reply) = self.link.exchange(record.clone()).await else {
                if let Some(again) = again
                    && self.world.below(2) == 0
                {
                    (xid, record) = self.record(which, again);
                }
                continue;
            };
            let mut d = Decoder::new(reply.slice(4..));
            match d.get::<ReplyHeader>() {
                Ok(header)
                    if header == ReplyHeader::accepted(xid, weir_rpc::AcceptStatus::Success) =>
                {
                    let runs = (first, self.world.run());
                    return Answer { results: d.into_rest(), sent, begun, runs };
                }
                other => {
                    self.world.violation(format!("a call is refused: {other:?}"));
                }
            }
        }
    }

    /// A new call: its number and its record.
    fn record(&self, (program, version, procedure): (u32, u32, u32), args: &Bytes) -> (u32, Bytes) {
        let xid = self.xid.fetch_add(1, SeqCst) + 1;
        let mut e = start_record();
        let (cred, verf) = (self.cred.clone(), OpaqueAuth::NONE);
        e.put(&CallHeader { xid, program, version, procedure, cred, verf });
        e.raw(args);
        (xid, weir_rpc::finish_record(e).to_bytes().slice(4..))
    }

    /// Mounts the export; the root's handle.
    pub(crate) async fn mount(&self) -> Handle {
        match self.version {
            Version::V3 => {
                self.notify_restart().await;
                self.mount3().await
            }
            _ => self.mount4().await,
        }
    }

    pub(crate) async fn lookup(&self, dir: &Handle, name: &str) -> Outcome<Handle> {
        match self.version {
            Version::V3 => self.lookup3(dir, name).await,
            _ => self.lookup4(dir, name).await,
        }
    }

    pub(crate) async fn create(&self, dir: &Handle, name: &str) -> Outcome<Handle> {
        match self.version {
            Version::V3 => self.create3(dir, name).await,
            _ => self.create4(dir, name).await,
        }
    }

    pub(crate) async fn mkdir(&self, dir: &Handle, name: &str) -> Outcome<Handle> {
        match self.version {
            Version::V3 => self.mkdir3(dir, name).await,
            _ => self.mkdir4(dir, name).await,
        }
    }

    pub(crate) async fn remove(&self, dir: &Handle, name: &str, is_dir: bool) -> Outcome<()> {
        match self.version {
            Version::V3 => self.remove3(dir, name, is_dir).await,
            _ => self.remove4(dir, name).await,
        }
    }

    pub(crate) async fn rename(&self, dir: &Handle, from: &str, to: &str) -> Outcome<()> {
        match self.version {
            Version::V3 => self.rename3(dir, from, to).await,
            _ => self.rename4(dir, from, to).await,
        }
    }

    pub(crate) async fn write(
        &self,
        slot: u32,
        file: &Handle,
        offset: u64,
        data: Vec<u8>,
        stable: bool,
    ) -> Outcome<Written> {
        let sent = host::now();
        let outcome = match self.version {
            Version::V3 => self.write3(file, offset, data, stable).await,
            _ => self.write4(slot, file, offset, data, stable).await,
        };
        self.check_delegations(file, sent, true, &outcome);
        outcome
    }

    pub(crate) async fn commit(&self, file: &Handle, offset: u64, count: u32) -> Outcome<[u8; 8]> {
        match self.version {
            Version::V3 => self.commit3(file, offset, count).await,
            _ => self.commit4(file, offset, count).await,
        }
    }

    pub(crate) async fn read(&self, file: &Handle, offset: u64, count: u32) -> Outcome<Vec<u8>> {
        let sent = host::now();
        let outcome = match self.version {
            Version::V3 => self.read3(file, offset, count).await,
            _ => self.read4(file, offset, count).await,
        };
        self.check_delegations(file, sent, false, &outcome);
        outcome
    }

    pub(crate) async fn truncate(&self, file: &Handle, size: u64) -> Outcome<()> {
        let sent = host::now();
        let outcome = match self.version {
            Version::V3 => self.truncate3(file, size).await,
            _ => self.truncate4(file, size).await,
        };
        self.check_delegations(file, sent, true, &outcome);
        outcome
    }

    /// Whether the client holds a lock.
    pub(crate) fn holds_lock(&self) -> bool {
        match self.version {
            Version::V3 => self.holds_lock3(),
            _ => self.holds_lock4(),
        }
    }

    /// Takes a lock on a range of a file, if no other client has it.
    pub(crate) async fn take_lock(&self, file: &Handle, range: u64) -> Outcome<()> {
        match self.version {
            Version::V3 => self.take_lock3(file, range).await,
            _ => self.take_lock4(file, range).await,
        }
    }

    /// Gives the lock up.
    pub(crate) async fn give_lock_up(&self) -> Outcome<()> {
        match self.version {
            Version::V3 => self.give_lock_up3().await,
            _ => self.give_lock_up4().await,
        }
    }

    /// What the client has done, in calls since `sent`, waited for the delegations of others that it conflicts with.
    fn check_delegations<T>(
        &self,
        file: &Handle,
        sent: Duration,
        changes: bool,
        done: &Outcome<T>,
    ) {
        if done.result.is_err() {
            return;
        }
        let delegations = self.world.delegations.lock();
        if let Err(why) = delegations.check(file, self.number, changes, (sent, host::now())) {
            drop(delegations);
            self.world.violation(format!("{}: {why}", self.world.file_name(file)));
        }
    }
}

fn encoded(args: &impl Encode) -> Bytes {
    let mut e = weir_xdr::Encoder::new();
    e.put(args);
    e.finish().to_bytes()
}
