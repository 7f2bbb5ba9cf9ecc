//! Sums up what the directories of an export hold, with futures on tokio.
//!
//! ```console
//! $ cargo run -p weir-client --example usage -- nfs://filer/images
//! ```

use futures_util::TryStreamExt;
use std::collections::BTreeMap;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use weir_client::Export;

/// Writes the bytes below each directory of the export to a file there, and returns its lines.
pub(crate) async fn summarise(url: &str) -> io::Result<Vec<String>> {
    // No request may take longer; without a limit, a program waits for a server that is down.
    let export = Export::connect(url).await?.with_time_limit(Duration::from_secs(30));

    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    let mut files = export.walk("/").await?;
    while let Some(entry) = files.try_next().await? {
        if entry.metadata().is_file() {
            let top = entry.path().components().nth(1).map(|name| name.as_os_str().to_owned());
            let name = top.unwrap_or_default().to_string_lossy().into_owned();
            *sums.entry(name).or_default() += entry.metadata().len();
        }
    }

    // A file is a stream of tokio's; several writes are on their way at a time.
    let mut report = export.create("usage.new").await?;
    for (name, bytes) in &sums {
        report.write_all(format!("{bytes:>15} {name}\n").as_bytes()).await?;
    }
    // Durable at the server from here on; then the name changes at once.
    report.sync_all().await?;
    drop(report);
    export.rename("usage.new", "usage").await?;

    let mut lines = BufReader::new(export.open("usage").await?).lines();
    let mut found = Vec::new();
    while let Some(line) = lines.next_line().await? {
        found.push(line);
    }
    export.close().await;
    Ok(found)
}

#[allow(dead_code, reason = "a test runs the rest")]
#[tokio::main]
async fn main() -> io::Result<()> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "nfs://127.0.0.1/".into());
    for line in summarise(&url).await? {
        println!("{line}");
    }
    Ok(())
}
