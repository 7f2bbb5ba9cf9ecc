//! Weir's own server keeps every rule.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use weir_check::{Finding, Verdict};
use weir_client::{MountOptions, NfsFs};
use weir_pagecache::{Cache, Config};
use weir_server::export::{Export, ExportOptions, Squash};
use weir_server::{Server, ServerConfig};
use weir_stores::memory::MemoryFs;

const LEASE: Duration = Duration::from_secs(4);

#[tokio::test]
async fn the_server_keeps_every_rule_of_read_plus() {
    let served = Served::start().await;
    let (nfs, other) = (served.mount().await, served.mount().await);
    passes(&weir_check::all(&nfs, &other).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_keeps_every_rule_of_leases() {
    let served = Served::start().await;
    let (ours, theirs, silent) = (served.mount().await, served.mount().await, served.mount().await);
    let findings = weir_check::leases(&ours, &theirs, &silent).await.unwrap();
    assert_eq!(findings.len(), 5);
    passes(&findings);
}

/// Every rule is kept, and explained.
fn passes(findings: &[Finding]) {
    let explained = include_str!("../../../docs/CHECK.md");
    for finding in findings {
        assert_eq!(finding.verdict, Verdict::Pass, "{}", finding.rule);
        let row = format!("| {} | {} |", finding.rule, finding.section());
        assert!(explained.contains(&row), "docs/CHECK.md lacks: {row}");
    }
}

/// Weir's server, with an empty file system.
struct Served {
    addr: SocketAddr,
    _cache: Cache,
    _state: tempfile::TempDir,
}

impl Served {
    async fn start() -> Self {
        let state = tempfile::tempdir().unwrap();
        let cache = Cache::new(Config { budget_bytes: 64 << 20, ..Config::default() }).unwrap();
        let options = ExportOptions { squash: Squash::Nobody, ..ExportOptions::default() };
        let fs = cache.mount(MemoryFs::new());
        let export = Export { path: "/".into(), source: "".into(), fs, options };
        let mut config = ServerConfig::new(vec![export], state.path());
        config.grace = Duration::from_millis(500);
        config.state.lease = LEASE;
        let server = Server::new(config).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        tokio::spawn(async move { server.serve(listener).await });
        Self { addr, _cache: cache, _state: state }
    }

    async fn mount(&self) -> Arc<NfsFs> {
        let url = format!("nfs://{}/?vers=4.2", self.addr).parse().unwrap();
        NfsFs::mount(&url, &MountOptions::default()).await.unwrap()
    }
}
