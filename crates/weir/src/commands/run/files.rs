//! The files that a watched command has opened, and which of their pages were cached before.
//!
//! 1. Pages that were cached before are never dropped; what the kernel does not report counts as cached.
//! 2. The path of an open may lead to another file when the kernel looks it up than here. That is harmless: what
//!    is read here decides only which pages are dropped from the cache.
//! 3. At most `most` files are open here. The one that was opened least recently is finished when there are more:
//!    its pages are written and dropped, and it is closed.
//! 4. The table's lock is not held during a system call that may wait.
//! 5. The kernel reports a failed write once, and that report may reach this process alone: when a write is started, or
//!    later; then, the page is clean. So each call that may report it is heeded, and before pages of a file are
//!    dropped, the kernel is asked. A report is kept for the end, and the file's pages stay: they may be the only copy
//!    of the data. What a program writes between that question and the drop is not covered.

use super::report::Watch;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, openat, openat2, statat};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use weir_tools::failure::{Asked, Failure};
use weir_tools::kernel_cache::{
    drop_range, earlier_writes, is_stacked, resident_in_layers, resident_ranges, start_writing,
    write_out,
};
use weir_tools::opens::{Call, Open};

/// Most files that are open at a time.
const MOST_FILES: u64 = 1024;
/// Most ranges remembered of one file, and of all: 16 MiB.
const MOST_RANGES: usize = 64 << 10;
const MOST_RANGES_OF_ALL: usize = 1 << 20;
/// How long a file that is created may take to appear.
const APPEARS_WITHIN: Duration = Duration::from_secs(2);
/// Looks for a created file before it is left to the rounds, and the time between them.
const LOOKS: usize = 5;
const BETWEEN_LOOKS: Duration = Duration::from_micros(200);
/// Most files that are named of those that could not be written.
const MOST_NAMED: usize = 16;

/// File systems without pages of their own in the kernel's cache, or whose files are no data; and FUSE, which the
/// command itself may serve.
const WITHOUT_PAGES: [u64; 14] = [
    0x9fa0,
    0x6265_6572,
    0x0102_1994,
    0x8584_58f6,
    0x9584_58f6,
    0x6367_7270,
    0x27_e0eb,
    0x6462_6720,
    0x7472_6163,
    0x7363_6673,
    0xcafe_4a11,
    0x6e73_6673,
    0x1cd1,
    0x6573_5546,
];

type Key = (u64, u64);

/// The files.
pub(super) struct Files {
    /// The directories whose files are watched; all, if there are none.
    paths: Vec<PathBuf>,
    budget: u64,
    most: usize,
    watch: Option<Arc<Watch>>,
    table: Mutex<Table>,
    evicted: AtomicU64,
    unseen: AtomicU64,
    unwritten: Mutex<Unwritten>,
}

#[derive(Default)]
struct Table {
    files: HashMap<Key, Arc<Tracked>>,
    /// Opens so far, as a clock.
    clock: u64,
    /// Ranges remembered of all files.
    ranges: usize,
    /// Files to write out, drop and close.
    finishing: Vec<Arc<Tracked>>,
    /// Files that are being created.
    created: Vec<Created>,
}

struct Tracked {
    file: File,
    before: Before,
    writes: AtomicBool,
    used: AtomicU64,
}

/// What was cached of a file.
struct Before {
    ranges: Vec<Range<u64>>,
    /// From here on, it is not known, and counts as cached.
    unknown_from: Option<u64>,
}

/// A file that is being created.
pub(super) struct Created {
    base: OwnedFd,
    open: Open,
    since: Instant,
}

/// What was done.
pub(super) struct Totals {
    pub(super) evicted: u64,
    pub(super) unseen: u64,
    pub(super) unwritten: Unwritten,
}

/// Files that could not be written.
#[derive(Default)]
pub(super) struct Unwritten {
    named: Vec<Failure>,
    more: u64,
}

impl Files {
    /// No files yet. New pages of up to `budget` bytes stay until the end.
    pub(super) fn new(paths: Vec<PathBuf>, budget: u64, watch: Option<Arc<Watch>>) -> Self {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let most = limit.map_or(MOST_FILES, |limit| (limit / 4).clamp(8, MOST_FILES)) as usize;
        Self {
            paths,
            budget,
            most,
            watch,
            table: Mutex::default(),
            evicted: AtomicU64::new(0),
            unseen: AtomicU64::new(0),
            unwritten: Mutex::default(),
        }
    }

    /// Counts an open that could not be looked at.
    pub(super) fn missed(&self) {
        self.unseen.fetch_add(1, Ordering::Relaxed);
    }

    /// Looks at an open before the kernel carries it out. Returns a file that the open will create.
    pub(super) fn look(&self, call: &Call, is_valid: impl Fn() -> bool) -> Option<Created> {
        let Ok(open) = call.open() else {
            // An open of no path, or of memory that this process may not read.
            if is_valid() {
                self.missed();
            }
            return None;
        };
        let start = match (open.path.first(), open.dir) {
            (Some(b'/'), _) => format!("/proc/{}/root", call.pid),
            (_, None) => format!("/proc/{}/cwd", call.pid),
            (_, Some(number)) => format!("/proc/{}/fd/{number}", call.pid),
        };
        let base = rustix::fs::open(start, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        // Its process number may belong to another process by now.
        if !is_valid() {
            return None;
        }
        let Ok(base) = base else {
            self.missed();
            return None;
        };
        match found(&base, &open) {
            Ok(seen) => {
                self.track(&seen, &open, false);
                None
            }
            Err(Errno::NOENT) if open.creates => {
                Some(Created { base, open, since: Instant::now() })
            }
            // The kernel's own open fails, too.
            Err(_) => None,
        }
    }

    /// Looks for a file that is being created.
    pub(super) fn look_for(&self, created: Created) {
        for _ in 0..LOOKS {
            if self.has_appeared(&created) {
                return;
            }
            std::thread::sleep(BETWEEN_LOOKS);
        }
        let mut table = self.table.lock();
        if table.created.len() < self.most / 4 {
            table.created.push(created);
        } else {
            self.missed();
        }
    }

    fn has_appeared(&self, created: &Created) -> bool {
        let seen = found(&created.base, &created.open);
        if let Ok(seen) = &seen {
            self.track(seen, &created.open, true);
        }
        seen.is_ok()
    }

    /// Remembers what is cached of a file; nothing, if it is new.
    fn track(&self, seen: &OwnedFd, open: &Open, is_new: bool) {
        let Ok(stat) = statat(seen, "", AtFlags::EMPTY_PATH) else { return };
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return;
        }
        let key = (stat.st_dev, stat.st_ino);
        {
            let mut table = self.table.lock();
            table.clock += 1;
            if let Some(known) = table.files.get(&key) {
                known.used.store(table.clock, Ordering::Relaxed);
                known.writes.fetch_or(open.writes, Ordering::Relaxed);
                return;
            }
        }
        let system = rustix::fs::fstatfs(seen).map_or(0, |system| system.f_type as u64);
        if WITHOUT_PAGES.contains(&(system & 0xffff_ffff)) {
            return;
        }
        let link = format!("/proc/self/fd/{}", seen.as_raw_fd());
        let path = std::fs::read_link(&link).unwrap_or_default();
        if !self.paths.is_empty() && !self.paths.iter().any(|dir| path.starts_with(dir)) {
            return;
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(&link, flags, Mode::empty());
        let Ok(file) = opened.map(File::from) else { return self.missed() };
        let size = stat.st_size as u64;
        let most = MOST_RANGES.min(MOST_RANGES_OF_ALL.saturating_sub(self.table.lock().ranges));
        let before =
            if is_new { Some((Vec::new(), false)) } else { resident_ranges(&file, size, most) };
        let Some((ranges, is_cut_off)) = before else { return self.missed() };
        let unknown_from = is_cut_off.then(|| ranges.last().map_or(0, |last| last.end));
        let before = Before { ranges, unknown_from };
        if let Some(watch) = &self.watch {
            let bytes = if is_cut_off { resident_in_layers(&file, size) } else { None };
            watch.saw(path, bytes.unwrap_or_else(|| before.bytes()));
        }
        self.insert(key, file, before, open.writes);
    }

    fn insert(&self, key: Key, file: File, before: Before, writes: bool) {
        let surplus = {
            let mut table = self.table.lock();
            if table.files.contains_key(&key) {
                return;
            }
            let surplus = if table.files.len() >= self.most { table.take_oldest() } else { None };
            table.ranges += before.ranges.len();
            let (writes, used) = (AtomicBool::new(writes), AtomicU64::new(table.clock));
            table.files.insert(key, Arc::new(Tracked { file, before, writes, used }));
            match surplus {
                Some(surplus) if table.finishing.len() < self.most / 4 => {
                    table.finishing.push(surplus);
                    None
                }
                surplus => surplus,
            }
        };
        // The rounds are behind.
        if let Some(surplus) = surplus {
            self.finish(&surplus);
        }
    }

    /// Starts to write what the command wrote, and drops new pages if there are more than the budget.
    pub(super) fn round(&self) {
        let (created, finishing, files) = {
            let mut table = self.table.lock();
            let files: Vec<_> =
                table.files.iter().map(|(key, file)| (*key, Arc::clone(file))).collect();
            (std::mem::take(&mut table.created), std::mem::take(&mut table.finishing), files)
        };
        for created in created {
            if !self.has_appeared(&created) && created.since.elapsed() < APPEARS_WITHIN {
                self.table.lock().created.push(created);
            }
        }
        for file in finishing {
            self.finish(&file);
        }
        let mut new = 0;
        for (key, tracked) in &files {
            let Ok(metadata) = tracked.file.metadata() else { continue };
            if metadata.nlink() == 0 {
                // Its pages go with it, and its blocks are not to be kept from the file system.
                self.table.lock().remove(key);
                continue;
            }
            if let Err(error) = tracked.start_writing() {
                self.table.lock().remove(key);
                self.could_not_write(tracked, error);
                continue;
            }
            new += tracked.new_bytes(metadata.len());
        }
        if new > self.budget {
            for (key, tracked) in &files {
                if let Err(error) = tracked.settled() {
                    self.table.lock().remove(key);
                    self.could_not_write(tracked, error);
                    continue;
                }
                self.drop_new(tracked);
            }
        }
    }

    /// Writes out and drops what is left, and closes all files.
    pub(super) fn end(&self) -> Totals {
        let (created, mut files) = {
            let mut table = std::mem::take(&mut *self.table.lock());
            table.finishing.extend(table.files.into_values());
            (table.created, table.finishing)
        };
        for created in created {
            self.has_appeared(&created);
        }
        files.extend(std::mem::take(&mut *self.table.lock()).files.into_values());
        files.retain(|file| match file.start_writing() {
            Ok(()) => true,
            Err(error) => {
                self.could_not_write(file, error);
                false
            }
        });
        for file in &files {
            self.finish(file);
        }
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let unwritten = std::mem::take(&mut *self.unwritten.lock());
        Totals { evicted: load(&self.evicted), unseen: load(&self.unseen), unwritten }
    }

    /// Writes and drops the pages of a file; twice, if the kernel was still busy with some of them.
    fn finish(&self, tracked: &Tracked) {
        for _ in 0..2 {
            if tracked.writes.load(Ordering::Relaxed)
                && let Err(error) = write_out(&tracked.file)
            {
                return self.could_not_write(tracked, error);
            }
            if self.drop_new(tracked) {
                return;
            }
        }
    }

    /// Keeps a report (5), unless the file has no name any more, so that its data is not missed.
    fn could_not_write(&self, tracked: &Tracked, error: std::io::Error) {
        if tracked.file.metadata().is_ok_and(|metadata| metadata.nlink() == 0) {
            return;
        }
        let link = format!("/proc/self/fd/{}", tracked.file.as_raw_fd());
        let path = std::fs::read_link(link).unwrap_or_default();
        if let Err(failure) = Err::<(), _>(error).asked(|| format!("write out {}", path.display()))
        {
            self.unwritten.lock().add(failure);
        }
    }

    /// Drops the clean pages of a file that were not cached before. Returns whether none is left.
    fn drop_new(&self, tracked: &Tracked) -> bool {
        let Ok(metadata) = tracked.file.metadata() else { return true };
        let new = tracked.new_bytes(metadata.len());
        if new == 0 {
            return true;
        }
        for gap in tracked.before.gaps() {
            drop_range(&tracked.file, gap.0, gap.1);
        }
        let left = tracked.new_bytes(metadata.len());
        self.evicted.fetch_add(new.saturating_sub(left), Ordering::Relaxed);
        left == 0
    }
}

impl Unwritten {
    fn add(&mut self, failure: Failure) {
        match self.named.len() < MOST_NAMED {
            true => self.named.push(failure),
            false => self.more += 1,
        }
    }

    /// A failure for each file that is named, and one for the others.
    pub(super) fn failures(self) -> Vec<Failure> {
        let further = |count| {
            Failure::new("write out further files", format!("{count} of them could not be written"))
        };
        let further = (self.more > 0).then(|| further(self.more));
        self.named.into_iter().chain(further).collect()
    }
}

impl Table {
    fn take_oldest(&mut self) -> Option<Arc<Tracked>> {
        let age = |file: &Arc<Tracked>| file.used.load(Ordering::Relaxed);
        let key = *self.files.iter().min_by_key(|(_, file)| age(file))?.0;
        self.remove(&key)
    }

    fn remove(&mut self, key: &Key) -> Option<Arc<Tracked>> {
        let file = self.files.remove(key)?;
        self.ranges -= file.before.ranges.len();
        Some(file)
    }
}

impl Tracked {
    /// Starts to write what the command wrote, and tells if that fails (5).
    fn start_writing(&self) -> std::io::Result<()> {
        match self.writes.load(Ordering::Relaxed) {
            true => start_writing(&self.file),
            false => Ok(()),
        }
    }

    /// Tells of a write of the file that has failed (5). What is dirty now is written first: to drop pages writes, too,
    /// and does not tell of a failure.
    fn settled(&self) -> std::io::Result<()> {
        let size = || self.file.metadata().map_or(0, |metadata| metadata.len());
        // For a stacked file this takes a sync, which is made only if there are pages to drop then.
        let is_due = || !is_stacked(&self.file) || self.new_bytes(size()) > 0;
        match self.writes.load(Ordering::Relaxed) && is_due() {
            true => start_writing(&self.file).and_then(|()| earlier_writes(&self.file)),
            false => Ok(()),
        }
    }

    /// Bytes of pages that have come into the cache.
    fn new_bytes(&self, size: u64) -> u64 {
        resident_in_layers(&self.file, size).unwrap_or(0).saturating_sub(self.before.bytes())
    }
}

impl Before {
    fn bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.end - range.start).sum()
    }

    /// The ranges that were not cached; `None` is the end of the file.
    fn gaps(&self) -> Vec<(u64, Option<u64>)> {
        let mut gaps = Vec::new();
        let mut at = 0;
        for range in &self.ranges {
            if at < range.start {
                gaps.push((at, Some(range.start)));
            }
            at = range.end;
        }
        match self.unknown_from {
            None => gaps.push((at, None)),
            Some(end) if at < end => gaps.push((at, Some(end))),
            Some(_) => {}
        }
        gaps
    }
}

/// The file that an open leads to, without access to its data.
fn found(base: &OwnedFd, open: &Open) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let path = Path::new(OsStr::from_bytes(&open.path));
    if path.is_absolute() {
        // By the root of the command, which may be another one.
        match openat2(base, path, flags, Mode::empty(), ResolveFlags::IN_ROOT) {
            Err(Errno::NOSYS | Errno::PERM) => {}
            outcome => return outcome,
        }
    }
    openat(base, path, flags, Mode::empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn gaps_lie_between_what_was_cached() {
        let before =
            |ranges: &[Range<u64>], unknown_from| Before { ranges: ranges.to_vec(), unknown_from };
        assert_eq!(before(&[], None).gaps(), [(0, None)]);
        assert_eq!(before(&[0..8, 12..16], None).gaps(), [(8, Some(12)), (16, None)]);
        assert_eq!(before(&[4..8], Some(8)).gaps(), [(0, Some(4))]);
        assert_eq!(before(&[], Some(0)).gaps(), []);
    }

    #[test]
    fn what_cannot_be_written_is_named() {
        let files = Files::new(Vec::new(), 0, None);
        for number in 0..20 {
            // A pipe can be neither written out nor synced.
            let (_, pipe) = std::io::pipe().unwrap();
            let file = File::from(OwnedFd::from(pipe));
            let before = Before { ranges: Vec::new(), unknown_from: None };
            files.insert((0, number), file, before, number < 18);
        }
        let failures = files.end().unwritten.failures();
        let said: Vec<_> = failures.iter().map(ToString::to_string).collect();
        let (last, named) = said.split_last().unwrap();
        assert_eq!(named.len(), MOST_NAMED, "{said:?}");
        assert!(named.iter().all(|said| said.starts_with("cannot write out pipe:[")), "{said:?}");
        assert_eq!(last, "cannot write out further files: 2 of them could not be written");
    }

    #[test]
    fn what_cannot_be_written_is_not_dropped_by_a_round() {
        let files = Files::new(Vec::new(), 0, None);
        let (_, pipe) = std::io::pipe().unwrap();
        // A file without a name would not count.
        let mut named = tempfile::NamedTempFile::new().unwrap();
        named.write_all(&[1; 4096]).unwrap();
        let cached = named.as_file().try_clone().unwrap();
        // What is new exceeds the budget.
        for (number, file) in [(1, File::from(OwnedFd::from(pipe))), (2, cached)] {
            let before = Before { ranges: Vec::new(), unknown_from: None };
            files.insert((0, number), file, before, number == 1);
        }
        let new = files.table.lock().files[&(0, 2)].new_bytes(4096);
        if new == 0 {
            return weir_skip::skip("the kernel does not tell what it has cached");
        }
        files.round();
        assert_eq!(files.unwritten.lock().named.len(), 1);
        assert!(!files.table.lock().files.contains_key(&(0, 1)));
        // It is reported once.
        let failures = files.end().unwritten.failures();
        assert_eq!(failures.len(), 1, "{failures:?}");
    }
}
