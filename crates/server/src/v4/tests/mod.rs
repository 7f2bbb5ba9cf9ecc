//! The whole server over a real socket, with a client that sends plain compounds.

mod access;
mod attackers;
mod attributes;
mod callbacks;
mod compounds;
mod copies;
mod delegated_opens;
mod delegated_permissions;
mod delegated_times;
mod delegations;
mod durability;
mod every_fault;
mod exhaustion;
mod exports;
mod files;
mod habits;
mod interleavings;
mod locks;
mod memory;
mod metrics;
mod permissions;
mod reclaimed_permissions;
mod recovery;
mod retries;
mod sparse;
mod unwritten_records;
mod v40;
mod write_same;

use crate::export::{CachePolicy, Export, ExportOptions, Squash};
use crate::server::{Server, ServerConfig};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout;
use weir_nfs::v4::attr::Attrs;
use weir_nfs::v4::op::{create_session, exchange_id, getfh, open, reclaim_complete, sequence};
use weir_nfs::v4::types::{ClientOwner, FileHandle, SessionId, StateId, StateOwner, Status};
use weir_nfs::v4::{CompoundHeader, CompoundResHeader, Error, Op, OpRes};
use weir_pagecache::{Cache, CachedFs, Config};
use weir_rpc::{
    AcceptStatus, AuthSys, CallHeader, OpaqueAuth, ReplyHeader, finish_record, start_record,
};
use weir_stores::memory::MemoryFs;
use weir_vfs::FileSystem;
use weir_xdr::{Bytes, Decoder, List};

/// A running server.
struct Fixture {
    addr: SocketAddr,
    server: Server,
    served: tokio::task::JoinHandle<std::io::Result<()>>,
    fs: CachedFs,
    dir: tempfile::TempDir,
    adjust: fn(&mut ServerConfig),
}

impl Fixture {
    async fn new() -> Self {
        Self::with(|_| {}).await
    }

    async fn with(adjust: fn(&mut ServerConfig)) -> Self {
        Self::of_with(MemoryFs::new(), adjust).await
    }

    /// A server that exports a store.
    async fn of(store: Arc<dyn FileSystem>) -> Self {
        Self::of_with(store, |_| {}).await
    }

    async fn of_with(store: Arc<dyn FileSystem>, adjust: fn(&mut ServerConfig)) -> Self {
        Self::of_budget(store, 32 << 20, adjust).await
    }

    async fn of_budget(
        store: Arc<dyn FileSystem>,
        budget_bytes: u64,
        adjust: fn(&mut ServerConfig),
    ) -> Self {
        let config =
            Config { budget_bytes, fast_read: true, readahead_bytes: 1 << 20, ..Config::default() };
        let fs = Cache::new(config).unwrap().mount(store);
        // In memory, so that no file of the server waits for a busy disk.
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let (server, addr, served) = start(&fs, dir.path(), adjust).await;
        Self { addr, server, served, fs, dir, adjust }
    }

    /// Stops the server and starts another one over the same store and state.
    async fn restart(&mut self) {
        self.server.stop();
        (&mut self.served).await.unwrap().unwrap();
        // Dropping the last handle on the server closes the database.
        let placeholder = tempfile::tempdir().unwrap();
        let (server, _, _) = start(&self.fs, placeholder.path(), self.adjust).await;
        drop(std::mem::replace(&mut self.server, server));
        (self.server, self.addr, self.served) = start(&self.fs, self.dir.path(), self.adjust).await;
    }

    async fn connect(&self, name: &'static str, minor: u32) -> Client {
        self.connect_from("127.0.0.1", name, minor).await
    }

    /// A connection from this address of the loopback interface.
    async fn connect_from(&self, ip: &str, name: &'static str, minor: u32) -> Client {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((ip.parse::<IpAddr>().unwrap(), 0).into()).unwrap();
        let stream = socket.connect(self.addr).await.unwrap();
        let cred = AuthSys { uid: 0, machine_name: name.into(), ..AuthSys::default() };
        Client {
            stream,
            xid: 0,
            cred: OpaqueAuth::from(&cred),
            name,
            minor,
            session: SessionId::default(),
            sequence: 0,
            highest_slot: 0,
            cache_this: false,
            status_flags: sequence::StatusFlags::empty(),
            service: callbacks::Service::default(),
        }
    }

    /// Serves a client's calls until the server has tested the backchannel.
    async fn test_backchannel(&self, client: &mut Client) {
        let session = crate::state::SessionId(client.session);
        let state = &self.server.services.state;
        let tested = async {
            while !state.lock().sessions.get(session).unwrap().can_call() {
                client.serve_for(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_secs(120), tested).await.unwrap();
    }

    /// Waits until the server has tested the callback service of a client of minor version 0.
    async fn test_callback_service(&self, id: crate::state::ClientId) {
        let tested = async {
            while !self.server.services.state.lock().can_call(id) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(Duration::from_secs(120), tested).await.unwrap();
    }

    /// A client with a session that may take state.
    async fn client(&self, name: &'static str) -> Client {
        let mut client = self.connect(name, 2).await;
        client.begin_session(1 << 20).await;
        client.ok(vec![Op::ReclaimComplete(reclaim_complete::Args { one_fs: false })]).await;
        client
    }
}

async fn start(
    fs: &CachedFs,
    state_dir: &Path,
    adjust: fn(&mut ServerConfig),
) -> (Server, SocketAddr, tokio::task::JoinHandle<std::io::Result<()>>) {
    let options = ExportOptions { squash: Squash::Nobody, ..ExportOptions::default() };
    let export = Export { path: "/".into(), source: "".into(), fs: fs.clone(), options };
    start_adjusted(vec![export], state_dir, adjust).await
}

async fn start_with(
    exports: Vec<Export>,
    state_dir: &Path,
) -> (Server, SocketAddr, tokio::task::JoinHandle<std::io::Result<()>>) {
    start_adjusted(exports, state_dir, |_| {}).await
}

async fn start_adjusted(
    exports: Vec<Export>,
    state_dir: &Path,
    adjust: fn(&mut ServerConfig),
) -> (Server, SocketAddr, tokio::task::JoinHandle<std::io::Result<()>>) {
    let mut config = ServerConfig::new(exports, state_dir);
    adjust(&mut config);
    let server = Server::new(config).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let serving = server.clone();
    let served = tokio::spawn(async move { serving.serve(listener).await });
    (server, addr, served)
}

struct Client {
    stream: TcpStream,
    xid: u32,
    cred: OpaqueAuth,
    name: &'static str,
    minor: u32,
    session: SessionId,
    sequence: u32,
    /// The highest slot that it says it uses.
    highest_slot: u32,
    cache_this: bool,
    /// Of its last SEQUENCE.
    status_flags: sequence::StatusFlags,
    /// Its callback program.
    service: callbacks::Service,
}

#[derive(Debug)]
struct Reply {
    status: Status,
    results: Vec<OpRes>,
    /// As sent, without the record's header.
    bytes: Bytes,
}

impl Client {
    /// The record of a call, without its mark.
    fn call(&mut self, tag: &'static str, ops: &[Op]) -> Bytes {
        self.encode(tag, ops.len() as u32, ops).slice(4..)
    }

    fn encode(&mut self, tag: &'static str, operations: u32, ops: &[Op]) -> Bytes {
        self.xid += 1;
        let mut e = start_record();
        e.put(&CallHeader {
            xid: self.xid,
            program: weir_nfs::v4::PROGRAM,
            version: weir_nfs::v4::VERSION,
            procedure: weir_nfs::v4::PROC_COMPOUND,
            cred: self.cred.clone(),
            verf: OpaqueAuth::NONE,
        });
        e.put(&CompoundHeader { tag: tag.into(), minor_version: self.minor, operations });
        ops.iter().for_each(|op| e.put(op));
        finish_record(e).to_bytes()
    }

    async fn send(&mut self, tag: &'static str, operations: u32, ops: &[Op]) {
        let record = self.encode(tag, operations, ops);
        self.stream.write_all(&record).await.unwrap();
    }

    async fn record(&mut self) -> Bytes {
        let len = self.stream.read_u32().await.unwrap() & 0x7fff_ffff;
        let mut record = vec![0; len as usize];
        self.stream.read_exact(&mut record).await.unwrap();
        record.into()
    }

    /// Sends a compound unchanged.
    async fn raw(&mut self, ops: Vec<Op>) -> Reply {
        self.send("tag", ops.len() as u32, &ops).await;
        let bytes = self.reply().await;
        let mut d = Decoder::new(bytes.clone());
        let header: ReplyHeader = d.get().unwrap();
        assert_eq!(header, ReplyHeader::accepted(self.xid, AcceptStatus::Success));
        let header: CompoundResHeader = d.get().unwrap();
        assert_eq!(&header.tag[..], b"tag");
        let results = (0..header.results).map(|_| OpRes::decode_next(&mut d).unwrap()).collect();
        d.finish().unwrap();
        Reply { status: header.status, results, bytes }
    }

    fn sequence(&self) -> Op {
        Op::Sequence(sequence::Args {
            session: self.session,
            sequence_id: self.sequence,
            slot: 0,
            highest_slot: self.highest_slot,
            cache_this: self.cache_this,
        })
    }

    /// Sends a compound in the session. Returns the reply without SEQUENCE's result.
    async fn run(&mut self, ops: Vec<Op>) -> Reply {
        self.sequence = self.sequence.wrapping_add(1);
        let ops = std::iter::once(self.sequence()).chain(ops).collect();
        let mut reply = self.raw(ops).await;
        let OpRes::Sequence(Ok(sequenced)) = reply.results.remove(0) else {
            panic!("{:?}", reply.status)
        };
        self.status_flags = sequenced.status_flags;
        reply
    }

    /// Sends a compound that must succeed.
    async fn ok(&mut self, ops: Vec<Op>) -> Vec<OpRes> {
        let reply = self.run(ops).await;
        assert_eq!(reply.status, Ok(()), "{:?}", reply.results.last());
        reply.results
    }

    /// Sends a compound that must fail.
    async fn fails(&mut self, ops: Vec<Op>) -> Error {
        self.run(ops).await.status.unwrap_err()
    }

    /// EXCHANGE_ID and CREATE_SESSION, with replies of at most `max_response` bytes.
    async fn begin_session(&mut self, max_response: u32) {
        let args = exchange_id::Args {
            client: ClientOwner { verifier: *b"one run.", owner: self.name.into() },
            flags: exchange_id::Flags::empty(),
            state_protect: exchange_id::StateProtect::None,
            impl_id: List::default(),
        };
        let results = self.raw(vec![Op::ExchangeId(args)]).await.results;
        let Some(OpRes::ExchangeId(Ok(exchanged))) = results.last() else { panic!("{results:?}") };
        let channel = create_session::ChannelAttrs {
            max_request_size: 1 << 20,
            max_response_size: max_response,
            max_response_size_cached: 1024,
            max_operations: 16,
            max_requests: 4,
            ..create_session::ChannelAttrs::default()
        };
        let args = create_session::Args {
            client_id: exchanged.client_id,
            sequence_id: exchanged.sequence_id,
            flags: self.service.flags(),
            fore: channel.clone(),
            back: channel,
            cb_program: callbacks::PROGRAM,
            sec_parms: vec![weir_nfs::v4::types::CallbackSec::None].into(),
        };
        let results = self.raw(vec![Op::CreateSession(args)]).await.results;
        let Some(OpRes::CreateSession(Ok(created))) = results.last() else { panic!("{results:?}") };
        (self.session, self.sequence) = (created.session, 0);
    }

    /// Opens a file in the root, creating it if missing. Returns its handle and stateid.
    async fn open(&mut self, name: &'static str) -> (FileHandle, StateId) {
        let results = self.ok(vec![Op::Putrootfh(()), self.open_op(name, 0), Op::Getfh(())]).await;
        match &results[1..] {
            [OpRes::Open(Ok(opened)), OpRes::Getfh(Ok(handle))] => (handle.clone(), opened.stateid),
            other => panic!("{other:?}"),
        }
    }

    fn open_op(&self, name: &'static str, deny: u32) -> Op {
        let attrs = Attrs { mode: Some(0o644), ..Attrs::default() };
        Op::Open(open::Args {
            seqid: 0,
            share_access: open::ShareAccess::BOTH,
            share_deny: open::ShareDeny::from_bits_retain(deny),
            owner: StateOwner { client_id: 0, owner: "process".into() },
            how: open::How::Create(open::CreateHow::Unchecked(attrs.into())),
            claim: open::Claim::Null(name.into()),
        })
    }

    /// A compound on one file.
    async fn on(&mut self, file: &FileHandle, op: Op) -> OpRes {
        let mut reply = self.run(vec![Op::Putfh(file.clone()), op]).await;
        reply.results.pop().unwrap()
    }
}

/// The result of GETFH at the end of a compound.
fn handle(results: &[OpRes]) -> getfh::Res {
    match results.last() {
        Some(OpRes::Getfh(res)) => res.clone(),
        other => panic!("{other:?}"),
    }
}
