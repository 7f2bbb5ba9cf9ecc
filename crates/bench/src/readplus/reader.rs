//! Reads a file of a server sequentially like an ordinary program, into a buffer through the page
//! cache, and prints the cost as a line of JSON.

use crate::measure::processor_seconds_of;
use crate::process;
use crate::serve::load::mount;
use crate::versions::version;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::time::Instant;
use weir_pagecache::{Cache, Config};
use weir_tools::failure::{Asked, Failure, Result};
use weir_tools::memory::READAHEAD_BYTES;
use weir_vfs::{Access, Caller, Error, IoFlags};

/// Read in one call.
const READ_BYTES: usize = 256 << 10;
/// Memory for read-ahead; the file is read once, so nothing else needs to stay.
const BUDGET_BYTES: u64 = 128 << 20;

/// The name of the helper.
pub(crate) const NAME: &str = "read";

/// What to read.
#[derive(Serialize, Deserialize)]
pub(crate) struct Settings {
    pub(crate) url: String,
    pub(crate) name: String,
    pub(crate) version: String,
}

/// Reads the file, and prints the cost.
pub(crate) fn run(args: &Settings) -> Result<()> {
    let asked = || format!("read {} of {}", args.name, args.url);
    let failure = |error: String| Failure::new(asked(), error);
    let version = version(&args.version).map_err(failure)?;
    let url = args.url.parse().map_err(|e: weir_client::Error| failure(e.to_string()))?;
    let nfs = mount(&url, version)?;
    let config = Config {
        budget_bytes: BUDGET_BYTES,
        readahead_bytes: READAHEAD_BYTES,
        ..Config::default()
    };
    let fs = Cache::new(config).asked(asked)?.mount(nfs.clone());
    let runtime = tokio::runtime::Builder::new_current_thread().build().asked(asked)?;
    let mut buf = vec![0; READ_BYTES];
    let open = || {
        runtime.block_on(async {
            let id = fs.lookup(&Caller::Own, fs.root().entry(args.name.as_bytes())).await?.id;
            fs.open(&Caller::Own, id, Access::READ).await
        })
    };
    // A server that was just started makes its clients wait; that is not part of the read.
    drop(open().asked(asked)?);
    let own = std::process::id();
    let (received, processor) = (nfs.wire_stats().received_bytes, processor_seconds_of(own));
    let begun = Instant::now();
    let mut read = || {
        let file = open()?;
        let mut at = 0;
        loop {
            match file.read_at(&mut buf, at, IoFlags::UNCACHED)? {
                0 => return Ok::<_, Error>((at, file.size())),
                n => at += n as u64,
            }
        }
    };
    let (read, size) = read().asked(asked)?;
    let seconds = begun.elapsed().as_secs_f64();
    if read != size {
        return Err(Failure::new(asked(), format!("{read} of {size} bytes came")));
    }
    let processor = processor_seconds_of(own).zip(processor).map(|(after, before)| after - before);
    let answer = json!({
        "seconds": seconds,
        "received_bytes": nfs.wire_stats().received_bytes - received,
        "read_bytes": read,
        "cpu_s": processor,
    });
    // The parent waits for the line, so print it before the unmount.
    process::answer(&answer.to_string())?;
    runtime.block_on(nfs.unmount());
    Ok(())
}
