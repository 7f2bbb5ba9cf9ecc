//! A client of one version of the protocol: its calls, sent again until they are answered.

mod delegations;
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
}

/// A reply's results, and the server's runs when the call was first sent and when it was answered.
struct Answer {
    results: Bytes,
    sent: Duration,
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
        })
    }

    /// Sends a call until it is answered.
    async fn rpc(&self, (program, version, procedure): (u32, u32, u32), args: &Bytes) -> Answer {
        let xid = self.xid.fetch_add(1, SeqCst) + 1;
        let mut e = start_record();
        let (cred, verf) = (self.cred.clone(), OpaqueAuth::NONE);
        e.put(&CallHeader { xid, program, version, procedure, cred, verf });
        e.raw(args);
        let record = weir_rpc::finish_record(e).to_bytes().slice(4..);
        let first = self.world.run();
        loop {
            let sent = host::now();
            let Some(reply) = self.link.exchange(record.clone()).await else { continue };
            let mut d = Decoder::new(reply.slice(4..));
            match d.get::<ReplyHeader>() {
                Ok(header)
                    if header == ReplyHeader::accepted(xid, weir_rpc::AcceptStatus::Success) =>
                {
                    let runs = (first, self.world.run());
                    return Answer { results: d.into_rest(), sent, runs };
                }
                other => {
                    self.world.violation(format!("a call is refused: {other:?}"));
                }
            }
        }
    }

    /// Mounts the export; the root's handle.
    pub(crate) async fn mount(&self) -> Handle {
        match self.version {
            Version::V3 => self.mount3().await,
            Version::V41 | Version::V42 => self.mount4().await,
        }
    }

    pub(crate) async fn lookup(&self, dir: &Handle, name: &str) -> Outcome<Handle> {
        match self.version {
            Version::V3 => self.lookup3(dir, name).await,
            Version::V41 | Version::V42 => self.lookup4(dir, name).await,
        }
    }

    pub(crate) async fn create(&self, dir: &Handle, name: &str) -> Outcome<Handle> {
        match self.version {
            Version::V3 => self.create3(dir, name).await,
            Version::V41 | Version::V42 => self.create4(dir, name).await,
        }
    }

    pub(crate) async fn mkdir(&self, dir: &Handle, name: &str) -> Outcome<Handle> {
        match self.version {
            Version::V3 => self.mkdir3(dir, name).await,
            Version::V41 | Version::V42 => self.mkdir4(dir, name).await,
        }
    }

    pub(crate) async fn remove(&self, dir: &Handle, name: &str, is_dir: bool) -> Outcome<()> {
        match self.version {
            Version::V3 => self.remove3(dir, name, is_dir).await,
            Version::V41 | Version::V42 => self.remove4(dir, name).await,
        }
    }

    pub(crate) async fn rename(&self, dir: &Handle, from: &str, to: &str) -> Outcome<()> {
        match self.version {
            Version::V3 => self.rename3(dir, from, to).await,
            Version::V41 | Version::V42 => self.rename4(dir, from, to).await,
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
            Version::V41 | Version::V42 => self.write4(slot, file, offset, data, stable).await,
        };
        self.check_delegations(file, sent, true, &outcome);
        outcome
    }

    pub(crate) async fn commit(&self, file: &Handle, offset: u64, count: u32) -> Outcome<[u8; 8]> {
        match self.version {
            Version::V3 => self.commit3(file, offset, count).await,
            Version::V41 | Version::V42 => self.commit4(file, offset, count).await,
        }
    }

    pub(crate) async fn read(&self, file: &Handle, offset: u64, count: u32) -> Outcome<Vec<u8>> {
        let sent = host::now();
        let outcome = match self.version {
            Version::V3 => self.read3(file, offset, count).await,
            Version::V41 | Version::V42 => self.read4(file, offset, count).await,
        };
        self.check_delegations(file, sent, false, &outcome);
        outcome
    }

    pub(crate) async fn truncate(&self, file: &Handle, size: u64) -> Outcome<()> {
        let sent = host::now();
        let outcome = match self.version {
            Version::V3 => self.truncate3(file, size).await,
            Version::V41 | Version::V42 => self.truncate4(file, size).await,
        };
        self.check_delegations(file, sent, true, &outcome);
        outcome
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
