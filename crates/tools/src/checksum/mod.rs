//! Checksums of files and trees, and their manifests.
//!
//! 1. The checksum is that of the content: a hole counts as zeros, and is not read.
//! 2. A checksum is only returned for a file that did not change while it was read.
//! 3. Memory is bounded: each chunk in flight, of any file, holds a permit, and a bounded number of
//!    files is read at a time.
//! 4. Results come in the order of the files, each as soon as those before it are known.

use crate::failure::{Asked, Failure, Result};
use crate::mounts::{Mounts, Place};
use crate::walk::{Visited, Walk};
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use weir_vfs::{Attr, FileKind};

mod algorithm;
mod file;
mod find;
pub mod manifest;
mod verify;

pub use algorithm::{Algorithm, Checksum};
pub use find::below;
pub use verify::{Checked, Verdict};

/// Bytes per read.
const CHUNK_BYTES: u64 = 1 << 20;

/// Computes checksums, of several files at a time.
pub struct Summer {
    algorithm: Algorithm,
    jobs: usize,
    window: Arc<Semaphore>,
}

/// The checksum of one file of a tree.
pub struct Summed {
    /// The names from the top of the tree down to the file; none for the top itself.
    pub names: Vec<Vec<u8>>,
    /// Its size and checksum, or why there is none. A directory appears only if it could not be listed.
    pub sum: Result<(u64, Checksum)>,
}

impl Summer {
    /// Reads `jobs` files at a time, with chunks in flight bounded by a page cache of `budget_bytes`.
    pub fn new(algorithm: Algorithm, jobs: usize, budget_bytes: u64) -> Self {
        let window = (budget_bytes / 4 / CHUNK_BYTES).clamp(2, 64) as usize;
        Self { algorithm, jobs: jobs.max(1), window: Arc::new(Semaphore::new(window)) }
    }

    /// Gives the checksum of the file at `place`, or of each regular file of the tree there, to `found`,
    /// until that returns false. Returns whether it took all. `mounts` finds what is mounted in the tree.
    ///
    /// # Errors
    /// Those of `found`. A file that cannot be read is a result like others.
    pub async fn tree(
        &self,
        place: Place,
        attr: Attr,
        one_file_system: bool,
        mut mounts: Option<&mut Mounts>,
        mut found: impl FnMut(Summed) -> Result<bool>,
    ) -> Result<bool> {
        let mut walk = Walk::new(place, attr, one_file_system);
        let mut ahead = Ahead::default();
        loop {
            while ahead.0.len() < self.jobs
                && let Some(visited) = walk.next()
            {
                match visited.attr.kind {
                    FileKind::Directory => {
                        for failure in walk.enter(&visited, mounts.as_deref_mut()).await {
                            let names = visited.names.clone();
                            ahead.0.push_back(Pending::known(names, Err(failure)));
                        }
                    }
                    FileKind::Regular => ahead.0.push_back(self.begin(visited)),
                    // Only a file that was named is missed if it has no content.
                    _ if visited.names.is_empty() => {
                        let failed = file::not_regular(&visited.place.shown, visited.attr.kind);
                        ahead.0.push_back(Pending::known(visited.names, Err(failed)));
                    }
                    _ => {}
                }
            }
            let Some(next) = ahead.0.pop_front() else { return Ok(true) };
            if !found(next.wait().await)? {
                return Ok(false);
            }
        }
    }

    fn begin(&self, visited: Visited) -> Pending {
        let Visited { place, attr, names } = visited;
        Pending { names, sum: Sum::Running(self.spawn(self.algorithm, place, attr)) }
    }

    /// Reads a file in a task of its own.
    fn spawn(&self, algorithm: Algorithm, place: Place, attr: Attr) -> Running {
        let window = Arc::clone(&self.window);
        Running(tokio::spawn(async move { file::sum(algorithm, &window, &place, &attr).await }))
    }
}

/// The files whose checksums are computed, in their order.
#[derive(Default)]
struct Ahead(VecDeque<Pending>);

struct Pending {
    names: Vec<Vec<u8>>,
    sum: Sum,
}

enum Sum {
    Known(Result<(u64, Checksum)>),
    Running(Running),
}

/// A task that ends when it is not needed any more.
struct Running(JoinHandle<Result<(u64, Checksum)>>);

impl Pending {
    fn known(names: Vec<Vec<u8>>, sum: Result<(u64, Checksum)>) -> Self {
        Self { names, sum: Sum::Known(sum) }
    }

    async fn wait(self) -> Summed {
        let sum = match self.sum {
            Sum::Known(sum) => sum,
            Sum::Running(running) => running.wait().await,
        };
        Summed { names: self.names, sum }
    }
}

impl Running {
    async fn wait(mut self) -> Result<(u64, Checksum)> {
        match (&mut self.0).await {
            Ok(sum) => sum,
            Err(error) => Err(Failure::new("read a file", format!("a fault in weir: {error}"))),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The lines of a manifest that is read from standard input or a local file.
///
/// # Errors
/// It cannot be opened.
pub fn open_manifest(path: &std::path::Path) -> Result<Box<dyn std::io::BufRead>> {
    if path.as_os_str() == "-" {
        return Ok(Box::new(std::io::BufReader::new(std::io::stdin())));
    }
    let asked = || format!("read the manifest {}", path.display());
    let file = std::fs::File::open(path).asked(asked)?;
    Ok(Box::new(std::io::BufReader::new(file)))
}
