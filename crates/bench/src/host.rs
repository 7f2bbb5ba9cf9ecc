//! `weir serve` for benchmarks, in a process of its own. It executes commands from its standard
//! input, one per line, and answers each with a line of JSON; it ends when the input does.
//!
//! - `drop NAME`: evicts the file from the page cache, and from the kernel's;
//! - `load NAME`: reads the file into the page cache.
//!
//! The answer to both is the number of bytes of data that are resident afterwards.

use crate::process::{self, PathBytes};
use crate::scratch::forget;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::io::BufRead;
use std::net::IpAddr;
use std::path::Path;
use tokio::net::TcpListener;
use weir_pagecache::{Cache, CachedFs, Config};
use weir_server::export::{Export, ExportOptions, Squash};
use weir_server::{Durability, Server, ServerConfig};
use weir_stores::local::{LocalFs, LocalOptions};
use weir_tools::failure::{Asked, Failure, Result};
use weir_tools::memory::{READAHEAD_BYTES, budget_bytes};
use weir_tools::size::Size;
use weir_vfs::{Access, Advice, Caller, IoFlags};

/// Bytes per read when loading.
const LOAD_BYTES: usize = 4 << 20;

/// The name of the helper.
pub(crate) const NAME: &str = "host";

/// What to serve.
#[derive(Serialize, Deserialize)]
pub(crate) struct Settings {
    pub(crate) dir: PathBytes,
    pub(crate) state_dir: PathBytes,
    pub(crate) address: IpAddr,
    /// Budget of the page cache; the default if not given.
    pub(crate) budget_bytes: Option<u64>,
    /// Changes of names become durable only some seconds after the reply.
    pub(crate) relaxed: bool,
}

/// Serves until standard input ends.
pub(crate) fn run(args: &Settings) -> Result<()> {
    // A local store makes its metadata calls on the calling thread, so a few more threads than
    // processors keep other tasks running.
    let threads = std::thread::available_parallelism().map_or(4, |n| n.get().max(4));
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(threads).enable_all().build();
    let runtime = runtime.asked(|| "start threads".into())?;
    let shown = args.dir.display();
    let cache = Cache::new(Config {
        budget_bytes: budget_bytes(args.budget_bytes.map(Size::Bytes), 16 << 30),
        fast_read: true,
        readahead_bytes: READAHEAD_BYTES,
        ..Config::default()
    });
    let options =
        LocalOptions { state_dir: Some(args.state_dir.join("files")), ..LocalOptions::default() };
    std::fs::create_dir_all(&*args.state_dir).asked(|| "make the state directory".into())?;
    let store = LocalFs::open(&*args.dir, options).asked(|| format!("serve {shown}"))?;
    let fs = cache.asked(|| "set up a page cache".into())?.mount(store);
    let durability = if args.relaxed { Durability::Relaxed } else { Durability::Sync };
    let options = ExportOptions { squash: Squash::Nobody, durability, ..ExportOptions::default() };
    let source = args.dir.to_path_buf();
    let export = Export { path: "/".into(), source, fs: fs.clone(), options };
    let server = Server::new(ServerConfig::new(vec![export], &*args.state_dir))
        .map_err(|error| Failure::new(format!("serve {shown}"), error.to_string()))?;
    let listener = runtime
        .block_on(TcpListener::bind((args.address, 0)))
        .asked(|| format!("listen on {}", args.address))?;
    let port = listener.local_addr().asked(|| "listen".into())?.port();
    say(&json!({ "port": port }))?;
    let served = server.clone();
    let serving = runtime.spawn(async move { served.serve(listener).await });
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let answer = runtime.block_on(control(&fs, &args.dir, &line));
        say(&answer.unwrap_or_else(|failure| json!({ "error": failure.to_string() })))?;
    }
    server.stop();
    let _ = runtime.block_on(serving);
    Ok(())
}

fn say(value: &Value) -> Result<()> {
    process::answer(&value.to_string())
}

async fn control(fs: &CachedFs, dir: &Path, line: &str) -> Result<Value> {
    let asked = || line.to_owned();
    let (what, name) = line.split_once(' ').unwrap_or((line, ""));
    let id = fs.lookup(&Caller::Own, fs.root().entry(name.as_bytes())).await.asked(asked)?.id;
    let file = fs.open(&Caller::Own, id, Access::READ).await.asked(asked)?;
    match what {
        "drop" => {
            // Pages that are read ahead become resident only when they arrive.
            for _ in 0..100 {
                file.advise(0, 0, Advice::DontNeed).asked(asked)?;
                if file.resident().is_empty() {
                    break;
                }
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
            forget(&dir.join(name))?;
        }
        "load" => {
            let mut at = 0;
            while at < file.size() {
                let found = file.read_segments_async(at, LOAD_BYTES, IoFlags::empty()).await;
                at = found.asked(asked)?.end(at);
            }
        }
        _ => return Err(Failure::new(line, "there is no such control")),
    }
    let resident: u64 = file.resident().iter().map(|r| r.end - r.start).sum();
    Ok(json!({ "resident_bytes": resident }))
}
