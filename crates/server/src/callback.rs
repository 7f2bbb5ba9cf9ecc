//! Callbacks to clients: over a session's backchannel or, in minor version 0, to the address that
//! the client registered.
//!
//! 1. The server sends a callback only to the client's own host: over a connection that the client
//!    made and bound to its session, or to a registered address whose IP address the request came
//!    from ([`service_of`]). The server uses a path only after the client has answered a null call
//!    on it.
//! 2. A callback without an answer times out. The server then stops using its connection as a
//!    backchannel, or marks the registered address as down; the client learns of that when it next
//!    renews its lease. If the client answers that it does not have the session, the server sends the callback
//!    in another of its sessions.
//! 3. A callback in a session runs to its answer or its timeout even if its caller is cancelled.
//!    Only then is its slot reused. If its answer was lost, the client may have executed it, and
//!    might answer another call under the same number with the reply to this one. So the server
//!    first sends CB_SEQUENCE alone under this number, which any answer but DELAY uses up. A client
//!    answers RETRY_UNCACHED_REP, for CB_SEQUENCE or for the operation after it, if it has used the
//!    number up and has not kept the reply; the server then sends the callback at once under the
//!    next number (RFC 8881 section 2.10.6).
//! 4. Callbacks in progress are bounded: by the slots of the sessions, and by [`OUTGOING`]
//!    connections, of which an address has a part. So a client that registers addresses at which
//!    nothing answers delays no other client's recalls.

use crate::admission;
use crate::peer::Peer;
use crate::state::{
    BackCall, BackOutcome, CallbackCred, CallbackService, ClientId, Referring, SessionId, State,
};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tracing::{debug, trace};
use weir_nfs::v4::cb::sequence;
use weir_nfs::v4::types::{CallbackSec, NetAddr};
use weir_nfs::v4::{
    CB_VERSION, CbCompoundHeader, CbOp, CbOpRes, CompoundResHeader, Error, PROC_CB_COMPOUND,
    PROC_CB_NULL,
};
use weir_pagecache::File;
use weir_rpc::net::{self, ClientLimits, RpcClient, Source};
use weir_rpc::{AuthFlavor, AuthSys, CallHeader, OpaqueAuth, ProgramId, ReplyHeader};
use weir_xdr::{Decode, Decoder, Encode, Encoder, List, Opaque};

/// How long a client may take to answer a callback.
const PATIENCE: Duration = Duration::from_secs(5);
/// Concurrent outgoing connections to clients of minor version 0.
const OUTGOING: usize = 64;
/// Of these, to the clients of one address.
const OUTGOING_TO_ADDRESS: usize = 8;
/// Of those, to try whether a client answers. The rest is left for recalls.
const PROBES_OF_ADDRESS: usize = 4;
/// Most clients of an address that wait to be tried.
const WAITING_OF_ADDRESS: usize = 64;
/// How often the server sends a callback before it counts as failed.
const ATTEMPTS: usize = 4;
/// How often it sends CB_SEQUENCE alone before that. Others may lose callbacks meanwhile.
const MOST_SETTLED: usize = 16;
/// How long to wait after the client answers NFS4ERR_DELAY.
const DELAY: Duration = Duration::from_millis(50);

/// Sends callbacks to clients.
pub(crate) struct Callbacks {
    state: Arc<Mutex<State<File>>>,
    /// Connections that are bound to a backchannel, by connection number.
    peers: Mutex<HashMap<u64, Weak<Peer>>>,
    outgoing: Outgoing,
    /// Clients of minor version 0 that are being tried, and whether to try them again.
    probing: Mutex<HashMap<ClientId, bool>>,
}

/// The outgoing connections.
struct Outgoing {
    all: Semaphore,
    addresses: Mutex<HashMap<IpAddr, Weak<OutgoingToAddress>>>,
}

/// The outgoing connections to an address.
struct OutgoingToAddress {
    all: Semaphore,
    probes: Semaphore,
    /// Probes that wait or are made.
    waiting: Semaphore,
}

impl Outgoing {
    fn new() -> Self {
        Self { all: Semaphore::new(OUTGOING), addresses: Mutex::default() }
    }

    /// Those to the host of this address.
    fn to(&self, ip: IpAddr) -> Arc<OutgoingToAddress> {
        let mut addresses = self.addresses.lock();
        let host = admission::host(ip);
        if let Some(known) = addresses.get(&host).and_then(Weak::upgrade) {
            return known;
        }
        addresses.retain(|_, used| used.strong_count() > 0);
        let new = Arc::new(OutgoingToAddress {
            all: Semaphore::new(OUTGOING_TO_ADDRESS),
            probes: Semaphore::new(PROBES_OF_ADDRESS),
            waiting: Semaphore::new(WAITING_OF_ADDRESS),
        });
        addresses.insert(host, Arc::downgrade(&new));
        new
    }
}

impl Callbacks {
    pub(crate) fn new(state: Arc<Mutex<State<File>>>) -> Self {
        Self {
            state,
            peers: Mutex::default(),
            outgoing: Outgoing::new(),
            probing: Mutex::default(),
        }
    }

    /// Calls one operation of a client's callback program. Returns its result, or `None` if the
    /// server cannot reach the client.
    pub(crate) async fn call(
        self: &Arc<Self>,
        client: ClientId,
        op: CbOp,
        referring: Option<Referring>,
    ) -> Option<CbOpRes> {
        let service = self.state.lock().clients.get(client).ok()?.callback;
        let result = match service {
            Some(service) => self.call_service(client, service, op).await,
            None => self.call_in_session(client, op, referring).await,
        };
        trace!(?client, ?result, "called back");
        result
    }

    async fn call_in_session(
        self: &Arc<Self>,
        client: ClientId,
        op: CbOp,
        referring: Option<Referring>,
    ) -> Option<CbOpRes> {
        let (mut attempts, mut settled) = (0, 0);
        while attempts < ATTEMPTS && settled < MOST_SETTLED {
            let call = self.state.lock().sessions.begin_call(client)?;
            let mut guard = SlotGuard { callbacks: self.clone(), outcome: BackOutcome::Lost, call };
            let op = (!guard.call.is_unsure).then(|| op.clone());
            match op {
                Some(_) => attempts += 1,
                None => settled += 1,
            }
            // A separate task, so that the call completes even if the caller is cancelled.
            let sent = tokio::spawn(async move {
                let (outcome, result) = guard.callbacks.send(&guard.call, op, referring).await;
                guard.outcome = outcome;
                drop(guard);
                result
            });
            match sent.await {
                Ok(Ok(Some(result))) => return Some(result),
                Ok(Err(Error::Delay)) => tokio::time::sleep(DELAY).await,
                _ => {}
            }
        }
        None
    }

    /// Sends a call once, without `op` CB_SEQUENCE alone. Returns what became of its slot, and the
    /// operation's result or the reason why there is none.
    async fn send(
        &self,
        call: &BackCall,
        op: Option<CbOp>,
        referring: Option<Referring>,
    ) -> (BackOutcome, Result<Option<CbOpRes>, Error>) {
        let peer = self.peers.lock().get(&call.connection).and_then(Weak::upgrade);
        let lost = (BackOutcome::Lost, Err(Error::CbPathDown));
        let Some(peer) = peer else { return lost };
        let sequence = CbOp::Sequence(sequence::Args {
            session: call.session.0,
            sequence_id: call.sequence,
            slot: call.slot,
            highest_slot: call.slot,
            cache_this: false,
            referring_calls: referring_calls(referring),
        });
        let is_alone = op.is_none();
        let ops: Vec<CbOp> = std::iter::once(sequence).chain(op).collect();
        let body = Body { minor: call.minor, ident: 0, ops: &ops };
        let header = header(call.program, PROC_CB_COMPOUND, &call.cred);
        let Ok(Some(record)) = timeout(PATIENCE, peer.call(header, &body)).await else {
            debug!("{}: a callback was not answered", peer.addr());
            return lost;
        };
        let mut d = Decoder::new(record);
        match d.get::<ReplyHeader>() {
            Ok(header) if header.is_success() => {}
            _ => return lost,
        }
        let Ok(Results(results)) = d.get() else { return lost };
        match results.as_slice() {
            [CbOpRes::Sequence(Ok(_)), ..] if is_alone => (BackOutcome::Taken, Ok(None)),
            [CbOpRes::Sequence(Ok(_)), result, ..] => match result.status() {
                Err(error @ Error::RetryUncachedRep) => (BackOutcome::Taken, Err(error)),
                _ => (BackOutcome::Taken, Ok(Some(result.clone()))),
            },
            [CbOpRes::Sequence(Err(Error::Delay)), ..] => {
                (BackOutcome::NotTaken, Err(Error::Delay))
            }
            // The client has used this sequence number up.
            [
                CbOpRes::Sequence(Err(
                    error @ (Error::RetryUncachedRep | Error::SeqFalseRetry | Error::SeqMisordered),
                )),
                ..,
            ] => (BackOutcome::Taken, Err(*error)),
            // It may have replaced the session, and use the connection in the new one.
            [
                CbOpRes::Sequence(Err(error @ (Error::BadSession | Error::ConnNotBoundToSession))),
                ..,
            ] => (BackOutcome::NoSession, Err(*error)),
            _ => lost,
        }
    }

    async fn call_service(
        &self,
        client: ClientId,
        service: CallbackService,
        op: CbOp,
    ) -> Option<CbOpRes> {
        let body = Body { minor: 0, ident: service.ident, ops: &[op] };
        let called = self.exchange::<Results>(service, PROC_CB_COMPOUND, &body).await;
        let result = called.and_then(|mut results| results.0.pop());
        if result.is_none() {
            self.set_up(client, service, false);
        }
        result
    }

    async fn exchange<R: Decode>(
        &self,
        service: CallbackService,
        procedure: u32,
        args: &(impl Encode + Sync),
    ) -> Option<R> {
        // No semaphore is ever closed. An address takes of its own part first, so that its calls that
        // wait hold nothing of what others need.
        let of_address = self.outgoing.to(service.addr.ip());
        let _to_address = of_address.all.acquire().await.ok()?;
        let _outgoing = self.outgoing.all.acquire().await.ok()?;
        let called = async {
            let connection =
                RpcClient::connect(service.addr, Source::ANY, ClientLimits::SMALL).await?;
            let mut connection = connection.with_cred(OpaqueAuth::from(&AuthSys {
                machine_name: "weir".into(),
                ..AuthSys::default()
            }));
            let id = ProgramId { program: service.program, version: CB_VERSION };
            connection.call(id, procedure, args).await
        };
        let called: Result<R, net::Error> = called.await;
        called.inspect_err(|error| debug!("{}: a callback failed: {error}", service.addr)).ok()
    }

    /// Checks whether a client of minor version 0 answers at the address that it registered. One task
    /// at a time does this for a client, and tries again if the client has registered meanwhile: so
    /// repeated registrations make no queue. Beyond [`WAITING_OF_ADDRESS`], clients of an address get no
    /// delegations until they register again.
    pub(crate) async fn probe_service(&self, client: ClientId) {
        match self.probing.lock().entry(client) {
            Entry::Occupied(mut again) => {
                again.insert(true);
                return;
            }
            Entry::Vacant(new) => drop(new.insert(false)),
        }
        loop {
            if let Some(service) = self.service(client) {
                let of_address = self.outgoing.to(service.addr.ip());
                let waits = of_address.waiting.try_acquire();
                let probe = match waits {
                    Ok(_) => of_address.probes.acquire().await.ok(),
                    Err(_) => None,
                };
                // By now the client may be gone.
                if probe.is_some() && self.service(client).is_some_and(|now| now.is(&service)) {
                    let answered = self.exchange::<()>(service, PROC_CB_NULL, &()).await.is_some();
                    self.set_up(client, service, answered);
                }
            }
            let mut probing = self.probing.lock();
            match probing.get_mut(&client) {
                Some(again) if *again => *again = false,
                _ => {
                    probing.remove(&client);
                    return;
                }
            }
        }
    }

    /// Number of clients that wait to be tried, or are.
    #[cfg(test)]
    pub(crate) fn probed(&self) -> usize {
        self.probing.lock().len()
    }

    fn service(&self, client: ClientId) -> Option<CallbackService> {
        self.state.lock().clients.get(client).ok()?.callback
    }

    fn set_up(&self, client: ClientId, service: CallbackService, is_up: bool) {
        if let Ok(client) = self.state.lock().clients.get_mut(client)
            && let Some(known) = &mut client.callback
            && known.is(&service)
        {
            known.is_up = is_up;
        }
    }

    /// Binds a connection to a session's backchannel, and checks in the background whether the
    /// client answers on it.
    pub(crate) fn bind(self: &Arc<Self>, session: SessionId, peer: &Arc<Peer>) {
        let cred = {
            let mut state = self.state.lock();
            let found = state.sessions.get(session);
            let Some(cred) =
                found.ok().and_then(|s| Some((s.callback_cred.clone()?, s.callback_program)))
            else {
                return;
            };
            if state.sessions.bind_back(session, peer.id()).is_err() {
                return;
            }
            cred
        };
        self.peers.lock().insert(peer.id(), Arc::downgrade(peer));
        let (callbacks, peer) = (self.clone(), peer.clone());
        tokio::spawn(async move { callbacks.probe(&peer, cred).await });
    }

    async fn probe(&self, peer: &Peer, (cred, program): (CallbackCred, u32)) {
        let called = peer.call(header(program, PROC_CB_NULL, &cred), &());
        let answered = match timeout(PATIENCE, called).await {
            Ok(Some(record)) => {
                Decoder::new(record).get().is_ok_and(|h: ReplyHeader| h.is_success())
            }
            _ => false,
        };
        if answered {
            self.state.lock().sessions.answered(peer.id());
        } else {
            debug!("{}: no answer to a null callback", peer.addr());
            self.forget(peer.id());
        }
    }

    /// Whether a connection serves a session's backchannel. The client may then stay silent on it
    /// until the server calls.
    pub(crate) fn needs(&self, connection: u64) -> bool {
        self.state.lock().sessions.is_bound(connection)
    }

    /// Forgets a connection that is closed or does not answer.
    pub(crate) fn forget(&self, connection: u64) {
        if self.peers.lock().remove(&connection).is_some() {
            self.state.lock().sessions.unbind(connection);
        }
    }
}

/// Releases the slot, however the call ends.
struct SlotGuard {
    callbacks: Arc<Callbacks>,
    call: BackCall,
    outcome: BackOutcome,
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        self.callbacks.state.lock().sessions.end_call(&self.call, self.outcome);
    }
}

/// A callback compound.
struct Body<'a> {
    minor: u32,
    ident: u32,
    ops: &'a [CbOp],
}

impl Encode for Body<'_> {
    fn encode(&self, e: &mut Encoder) {
        e.put(&CbCompoundHeader {
            tag: Opaque::default(),
            minor_version: self.minor,
            callback_ident: self.ident,
            operations: self.ops.len() as u32,
        });
        self.ops.iter().for_each(|op| e.put(op));
    }
}

/// The results of a callback compound.
struct Results(Vec<CbOpRes>);

impl Decode for Results {
    fn decode(d: &mut Decoder) -> weir_xdr::Result<Self> {
        /// A callback has at most two operations.
        const MOST: u32 = 2;
        let header: CompoundResHeader = d.get()?;
        (0..header.results.min(MOST)).map(|_| d.get()).collect::<Result<_, _>>().map(Self)
    }
}

fn referring_calls(
    referring: Option<Referring>,
) -> List<sequence::ReferringCalls, { weir_nfs::v4::types::MAX_LIST }> {
    let calls = referring.map(|r| sequence::ReferringCalls {
        session: r.session.0,
        calls: vec![sequence::ReferringCall { sequence_id: r.sequence, slot: r.slot }].into(),
    });
    calls.into_iter().collect::<Vec<_>>().into()
}

fn header(program: u32, procedure: u32, cred: &CallbackCred) -> CallHeader {
    let cred = match cred {
        CallbackCred::AuthNone => OpaqueAuth::NONE,
        CallbackCred::Sys(body) => {
            OpaqueAuth { flavor: AuthFlavor::SYS, body: Opaque(body.clone()) }
        }
    };
    CallHeader { xid: 0, program, version: CB_VERSION, procedure, cred, verf: OpaqueAuth::NONE }
}

/// The credential for callbacks to a client that accepts `offered`: AUTH_SYS if possible, else
/// AUTH_NONE; `None` if the client accepts neither.
pub(crate) fn cred_of(offered: &[CallbackSec]) -> Option<CallbackCred> {
    let sys = offered.iter().find_map(|sec| match sec {
        CallbackSec::Sys(sys) => Some(CallbackCred::Sys(OpaqueAuth::from(sys).body.0)),
        _ => None,
    });
    sys.or_else(|| offered.contains(&CallbackSec::None).then_some(CallbackCred::AuthNone))
}

/// The callback service that a client of minor version 0 at the address `peer` registers; `None` if
/// `location` is no TCP address, or has another host's IP address: the server connects to no host
/// that did not ask for it.
pub(crate) fn service_of(
    location: &NetAddr,
    program: u32,
    ident: u32,
    peer: IpAddr,
) -> Option<CallbackService> {
    if !matches!(&location.netid[..], b"tcp" | b"tcp6") {
        return None;
    }
    let addr = socket_address(std::str::from_utf8(&location.addr).ok()?)?;
    let own = addr.ip().to_canonical() == peer.to_canonical() && addr.port() != 0;
    own.then_some(CallbackService { addr, program, ident, is_up: false })
}

/// Parses a universal address (RFC 5665 section 5.2.3): the last two numbers are the port.
fn socket_address(text: &str) -> Option<SocketAddr> {
    let mut parts = text.rsplitn(3, '.');
    let (low, high) = (parts.next()?.parse::<u8>().ok()?, parts.next()?.parse::<u8>().ok()?);
    let ip: IpAddr = parts.next()?.parse().ok()?;
    Some(SocketAddr::new(ip, u16::from_be_bytes([high, low])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callbacks_go_only_to_the_clients_own_address() {
        let location = |netid: &'static str, addr: &'static str| NetAddr {
            netid: netid.into(),
            addr: addr.into(),
        };
        let peer: IpAddr = "192.0.2.2".parse().unwrap();
        let at = |l: NetAddr| service_of(&l, 7, 9, peer).map(|s| s.addr.to_string());
        assert_eq!(at(location("tcp", "192.0.2.2.3.232")), Some("192.0.2.2:1000".into()));
        assert_eq!(at(location("tcp6", "::ffff:192.0.2.2.3.232")).map(|_| ()), Some(()));
        assert_eq!(at(location("tcp", "192.0.2.3.3.232")), None, "another host's");
        assert_eq!(at(location("tcp", "192.0.2.2.0.0")), None, "no port");
        assert_eq!(at(location("udp", "192.0.2.2.3.232")), None);
        assert_eq!(at(location("tcp", "192.0.2.2.3.256")), None);
        assert_eq!(at(location("tcp", "")), None);
        let v6: IpAddr = "fe80::1".parse().unwrap();
        assert!(service_of(&location("tcp6", "fe80::1.8.1"), 7, 9, v6).is_some());
    }

    #[test]
    fn callbacks_use_the_security_that_the_client_chose() {
        let sys = CallbackSec::Sys(AuthSys::default());
        let gss = || {
            CallbackSec::Gss(weir_nfs::v4::types::GssCbHandles {
                service: 1,
                handle_from_server: Opaque::default(),
                handle_from_client: Opaque::default(),
            })
        };
        assert!(matches!(cred_of(&[CallbackSec::None, sys]), Some(CallbackCred::Sys(_))));
        assert_eq!(cred_of(&[gss(), CallbackSec::None]), Some(CallbackCred::AuthNone));
        assert_eq!(cred_of(&[gss()]), None);
    }
}
