//! Weir's own server keeps every rule, and docs/CHECK.md explains every rule.

use std::time::Duration;
use tokio::net::TcpListener;
use weir_check::{Options, Verdict};
use weir_pagecache::{Cache, Config};
use weir_server::export::{Export, ExportOptions, Squash};
use weir_server::{Server, ServerConfig};
use weir_stores::memory::MemoryFs;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_keeps_every_rule() {
    let state = tempfile::tempdir().unwrap();
    let cache = Cache::new(Config { budget_bytes: 64 << 20, ..Config::default() }).unwrap();
    let export_options = ExportOptions { squash: Squash::Nobody, ..ExportOptions::default() };
    let fs = cache.mount(MemoryFs::new());
    let export = Export { path: "/".into(), source: "".into(), fs, options: export_options };
    let mut config = ServerConfig::new(vec![export], state.path());
    config.grace = Duration::from_millis(500);
    config.state.lease = Duration::from_secs(4);
    config.delegated_times = true;
    let server = Server::new(config).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("nfs://{}/", listener.local_addr().unwrap()).parse().unwrap();
    tokio::spawn(async move { server.serve(listener).await });

    let mut options = Options::default();
    options.leases = true;
    let report = weir_check::run(&url, &options).await.unwrap();
    let tested: Vec<_> = report.findings.iter().map(|finding| finding.rule.name).collect();
    assert_eq!(tested, weir_check::rules().map(|rule| rule.name).collect::<Vec<_>>());
    let other: Vec<_> = report.findings.iter().filter(|f| f.verdict != Verdict::Pass).collect();
    assert!(other.is_empty(), "{other:#?}");
}

/// The table in docs/CHECK.md has a row for each rule, in the same order; the rest of a row is about servers.
#[test]
fn the_documentation_explains_every_rule() {
    let explained: Vec<_> = include_str!("../../../docs/CHECK.md")
        .lines()
        .filter(|line| {
            line.starts_with("| ") && !line.starts_with("| rule ") && !line.starts_with("| ---")
        })
        .map(|line| line.split('|').skip(1).take(3).map(str::trim).collect::<Vec<_>>().join(" | "))
        .collect();
    let rules: Vec<_> = weir_check::rules()
        .map(|rule| format!("{} | {} | {}", rule.name, rule.source, rule.test))
        .collect();
    assert_eq!(explained, rules, "docs/CHECK.md differs from the rules; quote `weir check --list`");
}
