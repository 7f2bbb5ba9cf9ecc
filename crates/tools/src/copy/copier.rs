//! One run of a copy: its options, counts, failures, and the files that it has to remove if it ends
//! early.

use super::offload::Offload;
use super::options::{Options, Overwrite};
use super::progress::Progress;
use super::rate::Rate;
use super::source::Identity;
use super::summary::{FileStats, Summary};
use super::temporary::take_back;
use crate::failure::Failure;
use crate::mounts::Place;
use crate::text::shown;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use weir_pagecache::{CachedFs, File};
use weir_vfs::{Caller, Error, FileId};

/// Bytes per read.
pub(crate) const CHUNK_BYTES: u64 = 1 << 20;

/// Most names of lost extended attributes that are reported individually.
const MOST_LOST: usize = 100;

/// Counts while copying.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) files: AtomicU64,
    pub(crate) directories: AtomicU64,
    pub(crate) symlinks: AtomicU64,
    pub(crate) hard_links: AtomicU64,
    pub(crate) special_files: AtomicU64,
    pub(crate) size_bytes: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
    pub(crate) cloned_bytes: AtomicU64,
    pub(crate) server_copied_bytes: AtomicU64,
    pub(crate) holes_skipped: AtomicU64,
    pub(crate) hole_bytes: AtomicU64,
    pub(crate) zero_bytes: AtomicU64,
    pub(crate) resumed_bytes: AtomicU64,
    pub(crate) up_to_date: AtomicU64,
    pub(crate) kept: AtomicU64,
    pub(crate) verified_bytes: AtomicU64,
    pub(crate) matched_bytes: AtomicU64,
    pub(crate) removed: AtomicU64,
}

/// Adds to a count; counts are only read at the end. Holes are larger than any disk, so a sum of
/// sizes may overflow: then it saturates.
pub(crate) fn add(count: &AtomicU64, n: u64) {
    let sum = |count: u64| Some(count.saturating_add(n));
    // It always succeeds, as the closure always returns a value.
    let _ = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
}

/// An attribute that `--preserve` may be unable to keep.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lost {
    /// An extended attribute, by its name.
    Xattr(Vec<u8>),
    /// Extended attributes that cannot be listed, or are too many to name individually.
    Xattrs,
    Acls,
    Owner,
    Mode,
    Times,
}

impl Lost {
    fn name(&self) -> String {
        match self {
            Self::Xattr(name) => format!("the extended attribute {}", shown(name)),
            Self::Xattrs => "extended attributes".into(),
            Self::Acls => "access control lists".into(),
            Self::Owner => "owner and group".into(),
            Self::Mode => "mode".into(),
            Self::Times => "times".into(),
        }
    }
}

/// A file under a temporary name.
pub(crate) struct Left {
    pub(crate) fs: CachedFs,
    pub(crate) dir: FileId,
    pub(crate) name: Vec<u8>,
    pub(crate) shown: String,
    /// Whether a later run may continue it.
    pub(crate) is_kept: bool,
    /// A file to continue that may have its final mode and owner already, but not its final name: its identity,
    /// and the user who began it.
    pub(crate) begun: Option<(FileId, u32)>,
}

impl Left {
    /// The file called `name`, for a copy to `place`.
    pub(crate) fn new(place: &Place, name: &[u8], is_kept: bool) -> Self {
        let text = String::from_utf8_lossy(name);
        let shown = match place.shown.split('?').next().and_then(|path| path.rsplit_once('/')) {
            Some((above, _)) => format!("{above}/{text}"),
            None => text.into_owned(),
        };
        Self {
            fs: place.fs.clone(),
            dir: place.dir,
            name: name.to_vec(),
            shown,
            is_kept,
            begun: None,
        }
    }
}

/// The source of a file that is overwritten in place.
pub(crate) struct Overwritten {
    pub(crate) source: Identity,
    /// What the user calls the source.
    pub(crate) shown: String,
    /// Held while the file is written.
    pub(crate) turn: tokio::sync::Mutex<()>,
}

/// One run of a copy.
pub struct Copier {
    pub(crate) options: Options,
    pub(crate) window: Semaphore,
    pub(crate) rate: Rate,
    pub(crate) tally: Tally,
    pub(crate) progress: Box<dyn Progress>,
    pub(crate) failures: Mutex<Vec<Failure>>,
    /// A number unique to this run.
    pub(crate) run: u64,
    /// Files under temporary names, by a number.
    pub(crate) temporary: Mutex<HashMap<u64, Left>>,
    pub(crate) next_temporary: AtomicU64,
    /// Files that are being overwritten in place, as the user named them.
    pub(crate) in_place: Mutex<BTreeSet<String>>,
    /// Files that this run overwrites or has overwritten in place.
    pub(crate) overwritten: Mutex<HashMap<(u64, FileId), Arc<Overwritten>>>,
    /// Number of files that lost an attribute, and the first of them.
    pub(crate) lost: Mutex<BTreeMap<Lost, (u64, String)>>,
    /// Directories of the destination whose names changed, to be synced at the end, by the addresses of
    /// their stores.
    pub(crate) changed: Mutex<HashMap<(usize, FileId), CachedFs>>,
    pub(crate) interrupted: watch::Sender<bool>,
    pub(crate) told: AtomicBool,
    pub(crate) stats: Mutex<Vec<FileStats>>,
    /// File systems whose stores refused to clone or copy within themselves.
    pub(crate) refused: Mutex<HashSet<(u64, Offload)>>,
}

impl Copier {
    /// Copies with `options`, with chunks in flight bounded by a page cache of `budget_bytes`.
    pub fn new(options: Options, budget_bytes: u64, progress: impl Progress) -> Self {
        let window = (budget_bytes / 4 / CHUNK_BYTES).clamp(2, 256) as usize;
        Self {
            rate: Rate::new(options.bytes_per_second),
            options,
            window: Semaphore::new(window),
            tally: Tally::default(),
            progress: Box::new(progress),
            failures: Mutex::default(),
            // Its keys are random.
            run: RandomState::new().build_hasher().finish(),
            temporary: Mutex::default(),
            lost: Mutex::default(),
            next_temporary: AtomicU64::new(0),
            in_place: Mutex::default(),
            overwritten: Mutex::default(),
            changed: Mutex::default(),
            interrupted: watch::Sender::new(false),
            told: AtomicBool::new(false),
            stats: Mutex::default(),
            refused: Mutex::default(),
        }
    }

    /// Ends the copy early, and reports that: unfinished files are removed.
    pub fn interrupt(&self) {
        self.progress.interrupted();
        self.interrupted.send_replace(true);
    }

    /// Whether [`interrupt`](Self::interrupt) was called.
    pub fn is_interrupted(&self) -> bool {
        *self.interrupted.borrow()
    }

    /// The name with this number, unique to this run.
    pub(crate) fn temporary_name(&self, number: u64) -> Vec<u8> {
        format!(".weir-{:016x}-{number}.part", self.run).into_bytes()
    }

    /// Notes that names in a directory of the destination changed.
    pub(crate) fn note_changed(&self, fs: &CachedFs, dir: FileId) {
        // The store is not freed as long as the entry exists.
        let address = Arc::as_ptr(fs.store()).addr();
        self.changed.lock().entry((address, dir)).or_insert_with(|| fs.clone());
    }

    /// Waits for [`interrupt`](Self::interrupt).
    pub(crate) async fn interrupted(&self) {
        // The sender is in `self`, so it is not gone while a task waits here.
        let _ = self.interrupted.subscribe().wait_for(|&interrupted| interrupted).await;
    }

    /// Records the effect of copying a file on the page cache, if requested.
    pub(crate) fn report(&self, from: &Place, to: &Place, source: &File, copy: &File) {
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
    pub(crate) fn fail(&self, failure: Failure) {
        self.progress.failed(&failure);
        self.failures.lock().push(failure);
    }

    /// The same, for a copy that fails only because a file has appeared which is to stay.
    pub(crate) fn fail_or_keep(&self, failure: Failure) {
        match self.options.overwrite == Overwrite::Keep && failure.is_of(Error::Exists) {
            true => add(&self.tally.kept, 1),
            false => self.fail(failure),
        }
    }

    /// Notes and says that a file was removed.
    pub(crate) fn removed(&self, shown: &str) {
        add(&self.tally.removed, 1);
        self.progress.removed(shown);
    }

    /// Records a failure that was already reported.
    pub fn failed_before(&self, failure: Failure) {
        self.failures.lock().push(failure);
    }

    /// Records that the copy at `to` lacks an attribute of its source.
    pub(crate) fn lost(&self, mut what: Lost, to: &Place) {
        let mut lost = self.lost.lock();
        if matches!(what, Lost::Xattr(_)) && lost.len() >= MOST_LOST && !lost.contains_key(&what) {
            what = Lost::Xattrs;
        }
        lost.entry(what).or_insert_with(|| (0, to.shown.clone())).0 += 1;
    }

    /// Messages about attributes that could not be preserved.
    pub fn not_preserved(&self) -> Vec<String> {
        let lost = self.lost.lock();
        let tell = |(what, (count, first)): (&Lost, &(u64, String))| match count {
            1 => format!("{} of {first}", what.name()),
            count => format!("{} of {count} files, the first of them {first}", what.name()),
        };
        lost.iter().map(tell).collect()
    }

    /// Whether anything has failed.
    pub fn failed(&self) -> bool {
        !self.failures.lock().is_empty()
    }

    /// Removes the temporary files of interrupted copies, and those whose removal failed.
    pub(crate) async fn clean_up(&self) {
        let unkept = |left: &HashMap<u64, Left>| {
            let first = left.iter().find(|(_, left)| !left.is_kept);
            first.map(|(&number, left)| {
                (number, left.fs.clone(), left.dir, left.name.clone(), left.begun)
            })
        };
        // A file stays on the list during its removal, for an immediate end of the program.
        loop {
            let next = unkept(&self.temporary.lock());
            let Some((number, fs, dir, name, begun)) = next else { return };
            if let Some(begun) = begun
                && take_back(&fs, dir.entry(&name), begun).await
            {
                if let Some(left) = self.temporary.lock().get_mut(&number) {
                    left.is_kept = true;
                }
                continue;
            }
            let removed = match fs.unlink(&Caller::Own, dir.entry(&name)).await {
                // Many stores check the permission before they look for the name.
                Err(error @ (Error::AccessDenied | Error::NotPermitted | Error::ReadOnly)) => {
                    match fs.lookup(&Caller::Own, dir.entry(&name)).await {
                        Err(Error::NotFound) => Ok(()),
                        _ => Err(error),
                    }
                }
                removed => removed,
            };
            let left = self.temporary.lock().remove(&number);
            match (removed, left) {
                (Ok(()) | Err(Error::NotFound), _) | (_, None) => {}
                (Err(error), Some(left)) => {
                    let asked = format!("remove the temporary file {}", left.shown);
                    self.fail(Failure::new(asked, error.to_string()).advice("remove it"));
                }
            }
        }
    }

    /// Whether this was called before.
    pub fn was_told(&self) -> bool {
        self.told.swap(true, Ordering::Relaxed)
    }

    /// The files that an end of the program now would leave behind: those to be removed, and those
    /// that `--continue` can resume.
    pub fn left(&self) -> (Vec<String>, Vec<String>) {
        let left = self.temporary.lock();
        let mut left: Vec<_> = left.values().map(|l| (l.is_kept, l.shown.clone())).collect();
        left.sort();
        let (kept, others): (Vec<_>, Vec<_>) = left.into_iter().partition(|(kept, _)| *kept);
        let names = |list: Vec<(bool, String)>| list.into_iter().map(|(_, name)| name).collect();
        (names(others), names(kept))
    }

    /// The files that an end of the program now would leave incomplete.
    pub fn incomplete(&self) -> Vec<String> {
        self.in_place.lock().iter().cloned().collect()
    }

    /// The summary of a run of `elapsed`, with `wire_bytes` over the network.
    pub fn summary(&self, elapsed: Duration, wire_bytes: u64) -> Summary {
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
            cloned_bytes: read(&t.cloned_bytes),
            server_copied_bytes: read(&t.server_copied_bytes),
            holes_skipped: read(&t.holes_skipped),
            hole_bytes: read(&t.hole_bytes),
            zero_bytes: read(&t.zero_bytes),
            resumed_bytes: read(&t.resumed_bytes),
            up_to_date: read(&t.up_to_date),
            kept: read(&t.kept),
            verified_bytes: read(&t.verified_bytes),
            matched_bytes: read(&t.matched_bytes),
            removed: read(&t.removed),
            seconds,
            mb_per_s: size_bytes as f64 / 1e6 / seconds.max(1e-9),
            not_preserved: self.not_preserved(),
            failures: self.failures.lock().iter().map(ToString::to_string).collect(),
            stats: self.stats.lock().clone(),
        }
    }
}
