//! Copying: what `weir cp` does once it knows from where to where.
//!
//! 1. A regular file appears under its name only when all of its data is durable and its source is
//!    what it was before it was read: it is written under a temporary name in the same directory,
//!    synced, then renamed. In place only if asked to; a failure says that it is incomplete then.
//! 2. Holes are never read, never written, and zeros become holes unless asked otherwise.
//! 3. Memory is bounded: chunks in flight, over all files, hold a permit of [`Copier::window`].
//! 4. A failure concerns one file; the others are still copied.

use crate::failure::{Asked, Failure};
use crate::mounts::Place;
use crate::output::{say, shown};
use indicatif::ProgressBar;
use parking_lot::Mutex;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use weir_pagecache::{CachedFs, File};
use weir_vfs::{Caller, FileId, IoFlags};

mod attributes;
mod data;
mod digest;
mod file;
pub(crate) mod source;
mod temporary;
mod tree;
pub(crate) mod zeros;

/// Bytes that one read asks for.
const CHUNK_BYTES: u64 = 1 << 20;

/// Names of extended attributes that could not be kept are said one by one up to about so many.
const MOST_LOST: usize = 100;

/// Which zeros become holes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Sparse {
    /// Holes of the source
    Auto,
    /// Holes of the source, and pages of zeros
    Always,
    /// None: zeros are written out
    Never,
}

/// How to copy.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Directories and special files, too.
    pub(crate) recursive: bool,
    /// Keep mode, owner, times and hard links.
    pub(crate) preserve: bool,
    /// Which zeros become holes.
    pub(crate) sparse: Sparse,
    /// For every read and write of data.
    pub(crate) flags: IoFlags,
    /// Files copied at a time.
    pub(crate) jobs: usize,
    /// Permission bits that new files do not get.
    pub(crate) umask: u32,
    /// Go on where an earlier copy ended, and make that possible every so many bytes.
    pub(crate) resume_bytes: Option<u64>,
    /// Write over files that exist, rather than replace them.
    pub(crate) in_place: bool,
    /// Read copies back and compare.
    pub(crate) checksum: bool,
    /// Report what each file's pages did to the cache.
    pub(crate) stats: bool,
}

/// What was done, as JSON.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Summary {
    files: u64,
    directories: u64,
    symlinks: u64,
    hard_links: u64,
    special_files: u64,
    /// Sizes of all files, holes included.
    pub(crate) size_bytes: u64,
    /// Data that the sources yielded.
    pub(crate) read_bytes: u64,
    /// Bytes that went over connections to servers, in both directions.
    pub(crate) wire_bytes: u64,
    /// Bytes given to the destination.
    pub(crate) written_bytes: u64,
    /// Holes of the sources, and their size.
    pub(crate) holes_skipped: u64,
    hole_bytes: u64,
    /// Zeros that the sources yielded as data and that became holes.
    zero_bytes: u64,
    /// From start to end.
    pub(crate) seconds: f64,
    /// Size by time, in millions of bytes a second.
    pub(crate) mb_per_s: f64,
    /// Bytes of earlier copies that were gone on with, and files that were there already.
    resumed_bytes: u64,
    up_to_date: u64,
    /// Bytes of copies that were read back.
    verified_bytes: u64,
    failures: Vec<String>,
    /// What `--preserve` could not keep.
    not_preserved: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) stats: Vec<FileStats>,
}

/// What copying one file did to the page cache.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct FileStats {
    from: String,
    pub(crate) to: String,
    /// Pages that the uncached operations of the copy brought in, of both files.
    pub(crate) brought_in_pages: u64,
    /// Of these, dropped when done with.
    pub(crate) pruned_pages: u64,
    /// Of these, kept since somebody else used them.
    pub(crate) claimed_pages: u64,
    /// Pages of others that were lost to it.
    pub(crate) lost_pages: u64,
}

/// Counts while copying.
#[derive(Default)]
struct Tally {
    files: AtomicU64,
    directories: AtomicU64,
    symlinks: AtomicU64,
    hard_links: AtomicU64,
    special_files: AtomicU64,
    size_bytes: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    holes_skipped: AtomicU64,
    hole_bytes: AtomicU64,
    zero_bytes: AtomicU64,
    resumed_bytes: AtomicU64,
    up_to_date: AtomicU64,
    verified_bytes: AtomicU64,
}

/// Adds to a count; they are only read when all is done. Holes are larger than any disk, so a sum
/// of sizes may be more than a count takes: then it is the most that it takes.
fn add(count: &AtomicU64, n: u64) {
    let sum = |count: u64| Some(count.saturating_add(n));
    // It does not fail, as the sum is always some.
    let _ = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
}

/// What `--preserve` may be unable to keep.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Lost {
    /// An extended attribute, by its name.
    Xattr(Vec<u8>),
    /// Extended attributes that cannot be listed, or are too many to name.
    Xattrs,
    Acls,
    Times,
}

impl Lost {
    fn name(&self) -> String {
        match self {
            Self::Xattr(name) => format!("the extended attribute {}", shown(name)),
            Self::Xattrs => "extended attributes".into(),
            Self::Acls => "access control lists".into(),
            Self::Times => "times".into(),
        }
    }
}

/// A file under a temporary name.
struct Left {
    fs: CachedFs,
    dir: FileId,
    name: Vec<u8>,
    shown: String,
    /// A later run may go on with it.
    is_kept: bool,
}

impl Left {
    /// The file called `name`, for a copy to `place`.
    fn new(place: &Place, name: &[u8], is_kept: bool) -> Self {
        let text = String::from_utf8_lossy(name);
        let shown = match place.shown.split('?').next().and_then(|path| path.rsplit_once('/')) {
            Some((above, _)) => format!("{above}/{text}"),
            None => text.into_owned(),
        };
        Self { fs: place.fs.clone(), dir: place.dir, name: name.to_vec(), shown, is_kept }
    }
}

/// One run of `weir cp`.
pub(crate) struct Copier {
    options: Options,
    window: Semaphore,
    tally: Tally,
    progress: ProgressBar,
    failures: Mutex<Vec<Failure>>,
    /// A number that no other run has.
    run: u64,
    /// Files under temporary names, by a number of their own.
    temporary: Mutex<HashMap<u64, Left>>,
    next_temporary: AtomicU64,
    /// Files that are being written in place, as people wrote them.
    in_place: Mutex<BTreeSet<String>>,
    /// How many files lost what, and the first of them.
    lost: Mutex<BTreeMap<Lost, (u64, String)>>,
    /// Directories of the destination whose names changed, to be synced at the end.
    changed: Mutex<HashSet<FileId>>,
    interrupted: watch::Sender<bool>,
    told: AtomicBool,
    stats: Mutex<Vec<FileStats>>,
}

impl Copier {
    /// Copies with `options`, with chunks in flight bounded by a page cache of `budget_bytes`.
    pub(crate) fn new(options: Options, budget_bytes: u64, progress: ProgressBar) -> Self {
        let window = (budget_bytes / 4 / CHUNK_BYTES).clamp(2, 256) as usize;
        Self {
            options,
            window: Semaphore::new(window),
            tally: Tally::default(),
            progress,
            failures: Mutex::default(),
            // Its keys are random.
            run: RandomState::new().build_hasher().finish(),
            temporary: Mutex::default(),
            lost: Mutex::default(),
            next_temporary: AtomicU64::new(0),
            in_place: Mutex::default(),
            changed: Mutex::default(),
            interrupted: watch::Sender::new(false),
            told: AtomicBool::new(false),
            stats: Mutex::default(),
        }
    }

    /// Copies each first place to the name that the second one is, with all that is below it,
    /// and makes it durable. All destinations are in the one store `to`.
    pub(crate) async fn copy(self: &Arc<Self>, pairs: Vec<(Place, Place)>, to: &CachedFs) {
        tree::copy(self, pairs).await;
        if self.is_interrupted() {
            return self.clean_up().await;
        }
        let changed = std::mem::take(&mut *self.changed.lock());
        for dir in changed {
            if let Err(failure) = to.sync_node(dir).await.asked(|| "sync a directory".into()) {
                self.fail(failure);
            }
        }
    }

    /// Ends the copy early, and says so: what is unfinished is removed.
    pub(crate) fn interrupt(&self) {
        self.progress.suspend(|| say("weir: interrupted"));
        self.interrupted.send_replace(true);
    }

    /// Whether [`interrupt`](Self::interrupt) was called.
    pub(crate) fn is_interrupted(&self) -> bool {
        *self.interrupted.borrow()
    }

    /// A name that nothing has yet.
    fn link_name(&self) -> Vec<u8> {
        self.temporary_name(self.next_temporary.fetch_add(1, Ordering::Relaxed))
    }

    /// The name with this number, which no other run has.
    fn temporary_name(&self, number: u64) -> Vec<u8> {
        format!(".weir-{:016x}-{number}.part", self.run).into_bytes()
    }

    /// Waits for [`interrupt`](Self::interrupt).
    async fn interrupted(&self) {
        // The sender is in `self`, so it is not gone while somebody waits here.
        let _ = self.interrupted.subscribe().wait_for(|&interrupted| interrupted).await;
    }

    /// Notes what copying a file did to the page cache, if that is wanted.
    fn report(&self, from: &Place, to: &Place, source: &File, copy: &File) {
        if !self.options.stats {
            return;
        }
        let (read, written) = (source.stats(), copy.stats());
        self.stats.lock().push(FileStats {
            from: from.shown.clone(),
            to: to.shown.clone(),
            brought_in_pages: read.uncached_pages + written.uncached_pages,
            pruned_pages: read.pruned_pages + written.pruned_pages,
            claimed_pages: read.claimed_pages + written.claimed_pages,
            lost_pages: read.lost_pages + written.lost_pages,
        });
    }

    /// Notes and says a failure.
    fn fail(&self, failure: Failure) {
        self.progress.suspend(|| crate::cli::complain(&failure));
        self.failures.lock().push(failure);
    }

    /// Notes a failure that was said already.
    pub(crate) fn failed_before(&self, failure: Failure) {
        self.failures.lock().push(failure);
    }

    /// Notes that the copy at `to` does not have what its source has.
    fn lost(&self, mut what: Lost, to: &Place) {
        let mut lost = self.lost.lock();
        if matches!(what, Lost::Xattr(_)) && lost.len() >= MOST_LOST && !lost.contains_key(&what) {
            what = Lost::Xattrs;
        }
        lost.entry(what).or_insert_with(|| (0, to.shown.clone())).0 += 1;
    }

    /// What could not be preserved, in words.
    pub(crate) fn not_preserved(&self) -> Vec<String> {
        let lost = self.lost.lock();
        let tell = |(what, (count, first)): (&Lost, &(u64, String))| match count {
            1 => format!("{} of {first}", what.name()),
            count => format!("{} of {count} files, the first of them {first}", what.name()),
        };
        lost.iter().map(tell).collect()
    }

    /// Whether anything failed so far.
    pub(crate) fn failed(&self) -> bool {
        !self.failures.lock().is_empty()
    }

    /// Removes the temporary files of copies that were cut off.
    async fn clean_up(&self) {
        let unkept = |left: &HashMap<u64, Left>| {
            let first = left.iter().find(|(_, left)| !left.is_kept);
            first.map(|(&number, left)| (number, left.fs.clone(), left.dir, left.name.clone()))
        };
        // One that is being removed stays on the list, for who ends this at once.
        loop {
            let Some((number, fs, dir, name)) = unkept(&self.temporary.lock()) else { return };
            let removed = fs.unlink(&Caller::Own, dir, &name).await;
            let left = self.temporary.lock().remove(&number);
            match (removed, left) {
                (Ok(()) | Err(weir_vfs::Error::NotFound), _) | (_, None) => {}
                (Err(error), Some(left)) => {
                    let asked = format!("remove the temporary file {}", left.shown);
                    self.fail(Failure::new(asked, error.to_string()).advice("remove it"));
                }
            }
        }
    }

    /// Whether this was asked before.
    pub(crate) fn was_told(&self) -> bool {
        self.told.swap(true, Ordering::Relaxed)
    }

    /// The files that an end at this moment leaves behind: those to be removed, and those that
    /// `--continue` goes on with.
    pub(crate) fn left(&self) -> (Vec<String>, Vec<String>) {
        let left = self.temporary.lock();
        let mut left: Vec<_> = left.values().map(|l| (l.is_kept, l.shown.clone())).collect();
        left.sort();
        let (kept, others): (Vec<_>, Vec<_>) = left.into_iter().partition(|(kept, _)| *kept);
        let names = |list: Vec<(bool, String)>| list.into_iter().map(|(_, name)| name).collect();
        (names(others), names(kept))
    }

    /// The files that an end at this moment leaves incomplete under their names.
    pub(crate) fn incomplete(&self) -> Vec<String> {
        self.in_place.lock().iter().cloned().collect()
    }

    /// What was done in `elapsed`, with `wire_bytes` over the network.
    pub(crate) fn summary(&self, elapsed: Duration, wire_bytes: u64) -> Summary {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let t = &self.tally;
        let size_bytes = read(&t.size_bytes);
        let seconds = elapsed.as_secs_f64();
        Summary {
            files: read(&t.files),
            directories: read(&t.directories),
            symlinks: read(&t.symlinks),
            hard_links: read(&t.hard_links),
            special_files: read(&t.special_files),
            size_bytes,
            read_bytes: read(&t.read_bytes),
            wire_bytes,
            written_bytes: read(&t.written_bytes),
            holes_skipped: read(&t.holes_skipped),
            hole_bytes: read(&t.hole_bytes),
            zero_bytes: read(&t.zero_bytes),
            resumed_bytes: read(&t.resumed_bytes),
            up_to_date: read(&t.up_to_date),
            verified_bytes: read(&t.verified_bytes),
            seconds,
            mb_per_s: size_bytes as f64 / 1e6 / seconds.max(1e-9),
            not_preserved: self.not_preserved(),
            failures: self.failures.lock().iter().map(ToString::to_string).collect(),
            stats: self.stats.lock().clone(),
        }
    }
}
