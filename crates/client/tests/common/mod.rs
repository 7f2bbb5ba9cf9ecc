//! Shared by the client's tests: Weir's own server, and files of a mount.
#![allow(dead_code, reason = "each test binary uses a part of it")]

pub(crate) mod between;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use weir_base::ManualClock;
use weir_client::{MountOptions, NfsFs, NfsUrl};
use weir_pagecache::{Cache, Config};
use weir_server::export::{Export, ExportOptions, Squash};
use weir_server::{Server, ServerConfig, Versions};
use weir_stores::memory::MemoryFs;
use weir_vfs::{Access, Caller, FileSystem, OpenFile};

/// A server on its own threads, so that it can be ended as if by `kill -9`.
pub(crate) struct Served {
    runtime: Option<tokio::runtime::Runtime>,
    server: Option<Server>,
    pub(crate) addr: SocketAddr,
    pub(crate) store: Arc<dyn FileSystem>,
    pub(crate) cache: Option<Cache>,
    pub(crate) state: tempfile::TempDir,
    pub(crate) grace: Duration,
    pub(crate) lease: Duration,
    pub(crate) versions: Versions,
    /// Most sessions that the server keeps.
    pub(crate) sessions: usize,
    /// Most lock owners that the server keeps.
    pub(crate) locks: usize,
    /// The server's clock, from the next restart on. `None`: the machine's.
    pub(crate) clock: Option<Arc<ManualClock>>,
}

impl Served {
    pub(crate) fn start() -> Self {
        // In memory, so that no file of the server waits for a busy disk.
        let state = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let mut served = Self {
            runtime: None,
            server: None,
            addr: ([127, 0, 0, 1], 0).into(),
            store: MemoryFs::new(),
            cache: None,
            state,
            grace: Duration::from_millis(500),
            lease: Duration::from_secs(3600),
            versions: Versions::ALL,
            sessions: 1 << 10,
            locks: 1 << 20,
            clock: None,
        };
        served.restart();
        served
    }

    /// Ends the server without notice to its clients, and starts another on the same store and
    /// port.
    pub(crate) fn restart(&mut self) {
        // On its own thread, because the test's may be running an executor.
        let restarted = std::thread::scope(|s| s.spawn(|| self.restart_here()).join());
        restarted.unwrap();
    }

    fn restart_here(&mut self) {
        self.end();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let cache = Cache::new(Config { budget_bytes: 64 << 20, ..Config::default() }).unwrap();
        let options = ExportOptions { squash: Squash::Nobody, ..ExportOptions::default() };
        let fs = cache.mount(Arc::clone(&self.store));
        self.cache = Some(cache);
        let export = Export { path: "/".into(), source: "".into(), fs, options };
        let mut config = ServerConfig::new(vec![export], self.state.path());
        config.grace = self.grace;
        config.versions = self.versions;
        // Idle clients notice a restart when they renew their lease.
        config.state.lease = self.lease;
        config.state.sessions = self.sessions;
        config.state.locks = self.locks;
        if let Some(clock) = self.clock.clone() {
            config.clock = clock;
        }
        let server = Server::new(config).unwrap();
        self.server = Some(server.clone());
        let addr = self.addr;
        self.addr = runtime.block_on(async move {
            let listener = TcpListener::bind(addr).await.unwrap();
            let addr = listener.local_addr().unwrap();
            tokio::spawn(async move { server.serve(listener).await });
            addr
        });
        self.runtime = Some(runtime);
    }

    /// Ends the server without notice to its clients; it answers nothing afterwards.
    pub(crate) fn end(&mut self) {
        // The last handle on the server keeps its database open.
        self.server = None;
        let Some(runtime) = self.runtime.take() else { return };
        // On its own thread, because the test's may be running an executor.
        let end = move || runtime.shutdown_timeout(Duration::from_secs(300));
        std::thread::scope(|s| s.spawn(end).join()).unwrap();
    }

    /// Waits until clients have reclaimed so many ranges of locks, then ends the grace period by [`Self::clock`].
    pub(crate) async fn reclaimed(&self, ranges: u64) {
        while self.used("locked_ranges") != ranges {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.clock.as_ref().unwrap().advance(self.grace);
    }

    /// How much of a limit is in use.
    pub(crate) fn used(&self, limit: &str) -> u64 {
        let limits = self.server.as_ref().unwrap().report().limits();
        limits.into_iter().find(|one| one.name == limit).unwrap().used
    }

    /// Deletes the server's knowledge of clients; to be followed by a restart.
    pub(crate) fn forget(&mut self) {
        self.end();
        std::fs::remove_file(self.state.path().join("state.redb")).unwrap();
    }

    pub(crate) async fn mount(&self, options: &str) -> Arc<NfsFs> {
        let url: NfsUrl = format!("nfs://{}/?{options}", self.addr).parse().unwrap();
        NfsFs::mount(&url, &MountOptions::default()).await.unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A file of the mount's root, opened to read and write.
pub(crate) async fn opened(nfs: &Arc<NfsFs>, name: &[u8]) -> Arc<dyn OpenFile> {
    let id = nfs.lookup(&Caller::Own, nfs.root().entry(name)).await.unwrap().id;
    nfs.open(&Caller::Own, id, Access::READ | Access::WRITE).await.unwrap()
}
