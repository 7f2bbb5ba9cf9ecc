//! The server over a real socket, with every kind of store.

mod access;
mod acls;
mod attributes;
mod calls;
mod data;
mod directories;
mod durability;
mod every_fault;
mod habits;
mod mounting;
mod names;
mod retries;

use super::{Mount3, Nfs3, NfsAcl3};
use crate::admission::Addresses;
use crate::callback::Callbacks;
use crate::delegation::recall::Recalls;
use crate::export::{Export, ExportOptions, Exports, Squash};
use crate::handle::Handles;
use crate::operation::copies::Copies;
use crate::program::Programs;
use crate::state::{self, Grace, State};
use crate::storage::client_tracking::ClientTracking;
use crate::storage::durability::Committer;
use crate::storage::recovery::Recovery;
use crate::storage::retry_journal::RetryJournal;
use crate::storage::write_verifier::WriteVerifier;
use crate::transport::{Transport, TransportLimits};
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use weir_base::SystemClock;
use weir_nfs::v3::op::create::How;
use weir_nfs::v3::op::{create, getattr, lookup, mkdir};
use weir_nfs::v3::types::{Attr, DirOp, FileHandle, SetAttr};
use weir_nfs::v3::{self, Error};
use weir_nfs::{mount, nfsacl};
use weir_pagecache::{Cache, CachedFs, Config};
use weir_rpc::{
    AcceptStatus, AuthSys, CallHeader, OpaqueAuth, ReplyHeader, finish_record, start_record,
};
use weir_stores::local::{LocalFs, LocalOptions};
use weir_stores::memory::MemoryFs;
use weir_xdr::{Bytes, Decode, Decoder, Encode};

const RUN: u32 = 7;

/// A server with one export, on its own port.
struct Fixture {
    addr: SocketAddr,
    addresses: Arc<Addresses>,
    fs: CachedFs,
    exports: Arc<Exports>,
    /// The owner of the export's root.
    uid: u32,
    is_memory: bool,
    stop: CancellationToken,
    dir: Arc<tempfile::TempDir>,
    state_dir: Arc<tempfile::TempDir>,
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Runs a test on each store.
async fn on_every_store(test: impl AsyncFn(Fixture)) {
    on_every_store_with(ExportOptions { squash: Squash::Nobody, ..Default::default() }, test).await;
}

async fn on_every_store_with(options: ExportOptions, test: impl AsyncFn(Fixture)) {
    for store in ["memory", "local"] {
        println!("on the {store} store");
        test(Fixture::new(store, options.clone()).await).await;
    }
}

impl Fixture {
    async fn new(store: &str, options: ExportOptions) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let uid = dir.path().metadata().unwrap().uid();
        let config = Config {
            budget_bytes: 16 << 20,
            fast_read: true,
            readahead_bytes: 1 << 20,
            ..Config::default()
        };
        let cache = Cache::new(config).unwrap();
        let fs = match store {
            "memory" => cache.mount(MemoryFs::new()),
            _ => cache.mount(LocalFs::open(dir.path(), LocalOptions::default()).unwrap()),
        };
        let export = Export { path: "/".into(), source: "".into(), fs: fs.clone(), options };
        let mut fixture = Self::serve(vec![export], uid, dir).await;
        fixture.is_memory = store == "memory";
        fixture
    }

    async fn serve(exports: Vec<Export>, uid: u32, dir: tempfile::TempDir) -> Self {
        Self::serve_in(exports, uid, dir.into(), tempfile::tempdir().unwrap().into()).await
    }

    /// Another run of the server, after this one was killed.
    async fn next_run(&self, options: ExportOptions) -> Self {
        self.stop.cancel();
        let export = Export { path: "/".into(), source: "".into(), fs: self.fs.clone(), options };
        Self::serve_in(vec![export], self.uid, self.dir.clone(), self.state_dir.clone()).await
    }

    async fn serve_in(
        exports: Vec<Export>,
        uid: u32,
        dir: Arc<tempfile::TempDir>,
        state_dir: Arc<tempfile::TempDir>,
    ) -> Self {
        let fs = exports[0].fs.clone();
        let exports = Exports::open(exports, Handles::new([7; 32]), state_dir.path());
        let exports = Arc::new(exports.unwrap());
        let mut programs = Programs::default();
        let clock = Arc::new(SystemClock::default());
        let state =
            State::new(state::Ids::new(RUN, [7; 32]), state::Limits::default(), Grace::default());
        let state = Arc::new(Mutex::new(state));
        let callbacks = Arc::new(Callbacks::new(state.clone()));
        let lease = state::Limits::default().lease;
        let (recovery, _) = Recovery::open(tempfile::tempdir().unwrap().path(), lease).unwrap();
        let records = Arc::new(ClientTracking::new(state.clone(), recovery, clock.clone()));
        let verifier = Arc::<WriteVerifier>::default();
        let stop = CancellationToken::new();
        let copies = Arc::new(Copies::new(state.clone(), exports.clone()));
        let recalls = Arc::new(Recalls::new(
            state,
            callbacks,
            exports.clone(),
            records,
            copies,
            clock.clone(),
            stop.clone(),
        ));
        let committer = Arc::new(Committer::new(verifier));
        let retries = Arc::new(RetryJournal::open(state_dir.path()));
        retries.resolve(&exports.table()).await;
        let (files, metrics) = (crate::v3::OpenFiles::new(1024), Arc::default());
        let nfs = Nfs3::new(exports.clone(), committer, retries, clock, recalls, metrics, files);
        let nfs = Arc::new(nfs);
        programs.add(nfs.clone());
        programs.add(Arc::new(NfsAcl3::new(nfs)));
        programs.add(Arc::new(Mount3::new(exports.clone())));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let transport =
            Transport::new(TransportLimits::default(), 16, programs, Arc::default(), stop.clone());
        let addresses = transport.addresses().clone();
        tokio::spawn(Arc::new(transport).serve(vec![listener]));
        Self { addr, addresses, fs, exports, uid, is_memory: false, stop, dir, state_dir }
    }

    /// A client that calls as the owner of the export's root.
    async fn client(&self) -> Client {
        self.client_as(self.uid).await
    }

    async fn client_as(&self, uid: u32) -> Client {
        let mut client = self.connect(uid).await;
        let mounted = client.mount("/").await.unwrap();
        client.root = mounted.handle;
        client
    }

    /// A client that has not mounted anything.
    async fn connect(&self, uid: u32) -> Client {
        // The port is bound, so that no other connection shares it (see `connect_anew`).
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let stream = socket.connect(self.addr).await.unwrap();
        let cred = AuthSys { uid, gid: uid, machine_name: "tester".into(), ..AuthSys::default() };
        Client { stream, xid: 100, cred: OpaqueAuth::from(&cred), root: FileHandle::default() }
    }
}

/// A client for raw calls and replies.
struct Client {
    stream: TcpStream,
    xid: u32,
    cred: OpaqueAuth,
    root: FileHandle,
}

impl Client {
    /// Drops its connection without waiting for replies, and reconnects from the same port.
    async fn connect_anew(&mut self, server: SocketAddr) {
        let port = self.stream.local_addr().unwrap();
        let old = socket2::SockRef::from(&self.stream);
        // A reset, so that the port is free at once.
        old.set_linger(Some(Duration::ZERO)).unwrap();
        // The new socket has the port before the old one releases it: another test might take it.
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(port).unwrap();
        let placeholder = TcpStream::connect(server).await.unwrap();
        drop(std::mem::replace(&mut self.stream, placeholder));
        self.stream = socket.connect(server).await.unwrap();
    }

    /// Calls a procedure of NFSv3.
    async fn call<C: v3::Call>(&mut self, args: &C) -> C::Res {
        let procedure = C::PROCEDURE as u32;
        self.call_program((v3::PROGRAM, v3::VERSION, procedure), args).await
    }

    /// Calls a procedure of MOUNT.
    async fn call_mount<C: mount::Call>(&mut self, args: &C) -> C::Res {
        let procedure = C::PROCEDURE as u32;
        self.call_program((mount::PROGRAM, mount::VERSION, procedure), args).await
    }

    /// Calls a procedure of NFSACL.
    async fn call_acl<C: nfsacl::Call>(&mut self, args: &C) -> C::Res {
        let procedure = C::PROCEDURE as u32;
        self.call_program((nfsacl::PROGRAM, nfsacl::VERSION, procedure), args).await
    }

    async fn mount(&mut self, path: &str) -> mount::MntRes {
        self.call_mount(&mount::Mnt { path: path.into() }).await
    }

    async fn call_program<R: Decode>(&mut self, which: (u32, u32, u32), args: &impl Encode) -> R {
        self.xid += 1;
        self.send(self.xid, which, args).await;
        let (header, results) = self.reply().await;
        assert_eq!(header, ReplyHeader::accepted(self.xid, AcceptStatus::Success));
        let mut d = Decoder::new(results);
        let results = d.get().unwrap();
        d.finish().unwrap();
        results
    }

    async fn send(&mut self, xid: u32, which: (u32, u32, u32), args: &impl Encode) {
        let (program, version, procedure) = which;
        let (cred, verf) = (self.cred.clone(), OpaqueAuth::NONE);
        let mut e = start_record();
        e.put(&CallHeader { xid, program, version, procedure, cred, verf });
        e.put(args);
        self.stream.write_all(&finish_record(e).to_bytes()).await.unwrap();
    }

    /// The header and results of the next reply.
    async fn reply(&mut self) -> (ReplyHeader, Bytes) {
        let len = self.stream.read_u32().await.unwrap() & 0x7fff_ffff;
        let mut record = vec![0; len as usize];
        self.stream.read_exact(&mut record).await.unwrap();
        let mut d = Decoder::new(record.into());
        (d.get().unwrap(), d.into_rest())
    }

    fn in_root(&self, name: &str) -> DirOp {
        DirOp::new(self.root.clone(), name.as_bytes().to_vec())
    }

    /// Creates a file in the root and returns its handle.
    async fn file(&mut self, name: &str) -> FileHandle {
        let set = SetAttr { mode: Some(0o644), ..SetAttr::NONE };
        let args = create::Args { target: self.in_root(name), how: How::Guarded(set) };
        self.call(&args).await.unwrap().handle.unwrap()
    }

    /// Creates a directory in the root and returns its handle.
    async fn dir(&mut self, name: &str) -> FileHandle {
        let set = SetAttr { mode: Some(0o755), ..SetAttr::NONE };
        let args = mkdir::Args { target: self.in_root(name), set };
        self.call(&args).await.unwrap().handle.unwrap()
    }

    async fn attr(&mut self, object: &FileHandle) -> Attr {
        self.call(&getattr::Args { object: object.clone() }).await.unwrap()
    }

    async fn lookup(&mut self, dir: &FileHandle, name: &str) -> Result<FileHandle, Error> {
        let what = DirOp::new(dir.clone(), name.as_bytes().to_vec());
        let found = self.call(&lookup::Args { what }).await;
        found.map(|found| found.object).map_err(|failure| failure.status)
    }
}

/// The status of a failure.
fn status<T: std::fmt::Debug, U>(result: Result<T, v3::Failure<U>>) -> Error {
    match result {
        Ok(value) => panic!("no failure: {value:?}"),
        Err(failure) => failure.status,
    }
}
