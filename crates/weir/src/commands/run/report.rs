//! What a command moved, and what it left in the kernel's page cache.

use crate::output::say;
use parking_lot::Mutex;
use serde::Serialize;
use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use weir_fuse::Observer;
use weir_tools::failure::{Asked, Result};
use weir_tools::kernel_cache::resident_bytes;
use weir_tools::text::size_text;
use weir_vfs::{FileId, FileSystem};

/// Most files whose pages are counted.
const MOST_FILES: usize = 100_000;

/// The files that the command opened, and how much of each the kernel had before.
#[derive(Default)]
pub(super) struct Watch {
    before: Mutex<HashMap<PathBuf, u64>>,
}

impl Watch {
    /// The observer of a store's files.
    pub(super) fn of(self: &Arc<Self>, store: Arc<dyn FileSystem>) -> Arc<dyn Observer> {
        Arc::new(Watching { watch: Arc::clone(self), store, known: Mutex::default() })
    }
}

struct Watching {
    watch: Arc<Watch>,
    store: Arc<dyn FileSystem>,
    known: Mutex<std::collections::HashSet<FileId>>,
}

impl Observer for Watching {
    fn opening(&self, id: FileId) {
        {
            let mut known = self.known.lock();
            if known.len() >= MOST_FILES || !known.insert(id) {
                return;
            }
        }
        // A local store finds the path without waiting.
        let mut finding = std::pin::pin!(self.store.path_of(id));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        if let std::task::Poll::Ready(Ok(path)) = finding.as_mut().poll(&mut context)
            && let Some(bytes) = in_kernel(&path)
        {
            self.watch.before.lock().entry(path).or_insert(bytes);
        }
    }
}

/// The bytes of a file that the kernel's page cache holds.
fn in_kernel(path: &Path) -> Option<u64> {
    let file = File::open(path).ok()?;
    resident_bytes(&file, file.metadata().ok()?.len())
}

/// The figures.
#[derive(Serialize)]
pub(super) struct Report {
    read_bytes: u64,
    written_bytes: u64,
    files: usize,
    kernel_cache_bytes_before: u64,
    kernel_cache_bytes_after: u64,
    elapsed_ms: u64,
}

impl Report {
    pub(super) async fn new(
        watch: &Arc<Watch>,
        (read_bytes, written_bytes): (u64, u64),
        elapsed: Duration,
    ) -> Self {
        let before = std::mem::take(&mut *watch.before.lock());
        let kernel_cache_bytes_before = before.values().sum();
        let after = before.keys().filter_map(|path| in_kernel(path)).sum();
        Self {
            read_bytes,
            written_bytes,
            files: before.len(),
            kernel_cache_bytes_before,
            kernel_cache_bytes_after: after,
            elapsed_ms: elapsed.as_millis() as u64,
        }
    }

    pub(super) fn print(&self, json: bool) -> Result<()> {
        // Standard output is the command's.
        if json {
            let text = serde_json::to_string(self).map_err(std::io::Error::from);
            say(text.asked(|| "write JSON".into())?);
            return Ok(());
        }
        say(format_args!(
            "read {}, wrote {} in {} files in {:.1} s; of these files, the kernel's cache held {} before \
             and {} after",
            size_text(self.read_bytes),
            size_text(self.written_bytes),
            self.files,
            self.elapsed_ms as f64 / 1000.0,
            size_text(self.kernel_cache_bytes_before),
            size_text(self.kernel_cache_bytes_after),
        ));
        Ok(())
    }
}
