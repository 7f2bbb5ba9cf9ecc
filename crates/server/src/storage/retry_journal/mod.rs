//! The retry journal: which changes of names earlier runs of the server made, for requests that
//! clients send again after a restart.
//!
//! A client that loses its connection sends its unanswered requests again. The reply caches of the
//! running server (slots of sessions, [`reply_cache`](crate::operation::reply_cache)) end with the
//! process. Without the journal, the next run would execute a RENAME twice, and report that the file
//! does not exist.
//!
//! 1. [`RetryJournal::begin`] records the change with write(2) before the store makes it, so no kill
//!    of the process leaves a change without a record. [`Begun::end`] notes the outcome.
//! 2. The outcome of a failed change is written at once, that of a successful one together with the
//!    next change, before that change is made, or when the server stops. So at a kill, no name of a
//!    change without a written outcome has been removed, renamed or linked since, and the next run
//!    reads the outcome from the file system ([`Change::find_made`]). This needs the server to be the only
//!    program that changes these names between the change and the restart; but a file counts as created only if
//!    it was born when the creation began, so that one that another program makes later is not taken for it. The
//!    handlers hold the directory's lock from the beginning to the end of a change; opens that create files hold it,
//!    too.
//! 3. The next run resolves such changes before it serves requests. When a request is sent again, a
//!    handler skips a change that was made, makes it durable, and reports success; it executes the
//!    rest of the request.
//! 4. A log of an earlier boot of the machine is ignored, because the changes that it names may not
//!    have reached the disk.
//! 5. A request is identified by what identifies it in the reply caches, except for the port:
//!    clients reconnect from another one. Sessions end with the run; a request in a session of an
//!    earlier run is answered only if one of its changes was made ([`retried`](crate::v4::retried)).
//! 6. A change counts for [`MAX_AGE`]. If the log cannot be read or written, it is removed, requests
//!    that are sent again are executed again, and nothing fails.
//! 7. A handler that skips a change checks the caller's rights to the directory as for any request
//!    ([`Context::target`](crate::v4::context::Context::target)), and changes nothing with the server's
//!    own rights.

mod log;

use self::log::{Change, Entry, Event, Log, MAX_NAME_BYTES, Record};
use crate::export::ExportTable;
use crate::handle::Node;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::OnceCell;
use tracing::warn;
use weir_pagecache::CachedFs;
use weir_vfs::{Attr, Caller};
use weir_xdr::{Opaque, xdr_struct};

/// How long a change counts. By then a client has given up retransmitting.
const MAX_AGE: Duration = Duration::from_secs(300);
/// How long a start waits for the outcomes of changes, for all file systems together. Those that are
/// still unknown then count as not made.
const MAX_WAIT: Duration = Duration::from_secs(2);
/// How long before the record of its creation a file may be born: the clock of file systems advances in steps.
const CLOCK_STEP: Duration = Duration::from_millis(20);
/// How long after the record of its creation a file may be born. If a store takes longer, and the server is killed
/// before the outcome is written, the repetition fails.
const BORN_WITHIN: Duration = Duration::from_secs(2);

/// Identifies a request: a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestKey([u8; 16]);

xdr_struct! {
    /// Identifies an operation of a request.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub(crate) struct ChangeKey { request: [u8; 16], position: u32 }
}

impl RequestKey {
    /// The key of the request that these parts identify. Their lengths must follow from the first
    /// part.
    pub(crate) fn of(parts: &[&[u8]]) -> Self {
        let mut hasher = blake3::Hasher::new();
        for part in parts {
            hasher.update(part);
        }
        let mut key = [0; 16];
        key.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        Self(key)
    }

    /// The operation at this position.
    pub(crate) fn at(self, position: u32) -> ChangeKey {
        ChangeKey { request: self.0, position }
    }
}

/// A change that an earlier run made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MadeBefore {
    /// The file that has the new name, or had the one that is gone.
    pub(crate) file: Option<Node>,
    /// Whether the whole operation ended with success. If not, the server was killed after the names
    /// had changed; attributes that are set afterwards may be missing.
    pub(crate) complete: bool,
}

/// A change of names that a handler is about to make. All names are in one export.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NameChange<'a> {
    /// Creates a file.
    Create { dir: Node, name: &'a [u8] },
    /// Adds a name for a file.
    Link { file: Node, dir: Node, name: &'a [u8] },
    /// Removes a name.
    Remove { dir: Node, name: &'a [u8] },
    /// Renames a file.
    Rename { from: (Node, &'a [u8]), to: (Node, &'a [u8]) },
}

/// The journal.
#[derive(Debug)]
pub(crate) struct RetryJournal {
    writer: Mutex<Writer>,
    earlier: Mutex<Earlier>,
    resolved: OnceCell<()>,
}

#[derive(Debug, Default)]
struct Writer {
    /// `None`: off.
    log: Option<Log>,
    /// Outcomes that the next change writes.
    due: Vec<Record>,
}

/// The changes of earlier runs.
#[derive(Debug, Default)]
struct Earlier {
    /// With the times of the changes, in nanoseconds since 1970.
    made: HashMap<ChangeKey, (MadeBefore, u64)>,
    /// Without an outcome.
    unresolved: HashMap<ChangeKey, (Change, u64)>,
    /// When all are too old.
    until: Option<Instant>,
}

/// A change that is being made. If it is dropped without [`end`](Self::end), the next run finds out
/// the outcome.
#[must_use]
pub(crate) struct Begun<'a> {
    /// `None` without a journal.
    change: Option<(&'a RetryJournal, ChangeKey, Option<Node>)>,
    /// Whether the request is in a session of an earlier run, and so has no slot that keeps its reply.
    resumed: bool,
}

impl RetryJournal {
    /// A journal that is off: requests that are sent again after a restart are executed again.
    pub(crate) fn off(state_dir: &Path) -> Self {
        Log::remove(state_dir);
        Self {
            writer: Mutex::default(),
            earlier: Mutex::default(),
            resolved: OnceCell::new_with(Some(())),
        }
    }

    /// Opens the journal in `state_dir`, and reads the changes of earlier runs. It is off if it cannot be
    /// read or written. No other server may use `state_dir`.
    pub(crate) fn open(state_dir: &Path) -> Self {
        Self::try_open(state_dir).unwrap_or_else(|error| {
            warn!(
                "cannot use the retry journal in {}: {error}; requests that clients send again after a \
                 restart may be executed twice",
                state_dir.display()
            );
            Self::off(state_dir)
        })
    }

    fn try_open(state_dir: &Path) -> io::Result<Self> {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let (log, records) = Log::open(state_dir, boot.trim())?;
        let mut earlier = Earlier { until: Some(Instant::now() + MAX_AGE), ..Earlier::default() };
        for Record { key, since, event } in records.into_iter().filter(|r| counts(r.since)) {
            earlier.made.remove(&key);
            earlier.unresolved.remove(&key);
            match event {
                Event::Begun(change) => drop(earlier.unresolved.insert(key, (change, since))),
                Event::Made(file) => earlier.insert(key, file, true, since),
                Event::FoundMade(file) => earlier.insert(key, file, false, since),
                Event::NotMade => {}
            }
        }
        Ok(Self {
            writer: Mutex::new(Writer { log: Some(log), due: Vec::new() }),
            earlier: Mutex::new(earlier),
            resolved: OnceCell::new(),
        })
    }

    /// Finds out the outcomes of the changes that earlier runs had begun when they ended. Call this
    /// before the first request is served; later calls return at once.
    pub(crate) async fn resolve(&self, exports: &ExportTable) {
        self.resolved.get_or_init(|| self.resolve_now(exports)).await;
    }

    async fn resolve_now(&self, exports: &ExportTable) {
        let unresolved = std::mem::take(&mut self.earlier.lock().unresolved);
        let deadline = tokio::time::Instant::now() + MAX_WAIT;
        for (key, (change, since)) in unresolved {
            let found = tokio::time::timeout_at(deadline, change.find_made(exports, since)).await;
            // After an error, the request is executed again.
            let file = found.unwrap_or(Ok(None)).unwrap_or(None);
            let event = match file {
                Some(file) => {
                    self.earlier.lock().insert(key, Some(file), false, since);
                    Event::FoundMade(Some(file))
                }
                None => Event::NotMade,
            };
            self.writer.lock().due.push(Record { key, since, event });
        }
        self.flush();
    }

    /// Writes the outcomes that the next change would write. Call this when the server has ended all
    /// requests: other programs may change the names before it starts again.
    pub(crate) fn flush(&self) {
        self.writer.lock().append(None);
    }

    /// Whether no change of an earlier run counts.
    pub(crate) fn is_empty(&self) -> bool {
        self.earlier.lock().made.is_empty()
    }

    /// The change of an earlier run with this key.
    pub(crate) fn made_before(&self, key: ChangeKey) -> Option<MadeBefore> {
        let mut earlier = self.earlier.lock();
        if earlier.until.is_some_and(|until| Instant::now() > until) {
            *earlier = Earlier::default();
        }
        let (made, _) = earlier.made.get(&key).filter(|(_, since)| counts(*since))?;
        Some(*made)
    }

    /// Records a change that is about to be made in `fs`, unless it would fail. The caller holds the
    /// locks of the directories until it has ended the change. `resumed`: the request is in a session
    /// of an earlier run.
    pub(crate) async fn begin(
        &self,
        key: ChangeKey,
        fs: &CachedFs,
        change: NameChange<'_>,
        resumed: bool,
    ) -> Begun<'_> {
        if self.writer.lock().log.is_none() {
            return Begun::NONE;
        }
        let change = change.record(fs).await;
        let file = change.as_ref().map(|change| change.file);
        let begun = change.map(|change| Record::now(key, Event::Begun(change)));
        self.writer.lock().append(begun);
        Begun { change: file.map(|file| (self, key, file)), resumed }
    }
}

impl Begun<'_> {
    /// No journal, or no change.
    pub(crate) const NONE: Begun<'static> = Begun { change: None, resumed: false };

    /// Ends the change.
    pub(crate) fn end<T, E>(self, outcome: &Result<T, E>) {
        self.finish(outcome.is_ok(), None);
    }

    /// Ends the creation of a file.
    pub(crate) fn end_create<E>(self, file: Result<Node, E>) {
        self.finish(file.is_ok(), file.ok());
    }

    fn finish(self, made: bool, created: Option<Node>) {
        let Some((journal, key, file)) = self.change else { return };
        let file = created.or(file);
        let event = if made { Event::Made(file) } else { Event::NotMade };
        let record = Record::now(key, event);
        if made && self.resumed {
            journal.earlier.lock().insert(key, file, true, record.since);
        }
        let mut writer = journal.writer.lock();
        writer.due.push(record);
        if !made {
            writer.append(None);
        }
    }
}

impl Earlier {
    fn insert(&mut self, key: ChangeKey, file: Option<Node>, complete: bool, since: u64) {
        self.made.insert(key, (MadeBefore { file, complete }, since));
    }
}

impl Writer {
    /// Writes the due outcomes, and the beginning of a change.
    fn append(&mut self, begun: Option<Record>) {
        let mut records = std::mem::take(&mut self.due);
        records.extend(begun);
        let Some(log) = &mut self.log else { return };
        if let Err(error) = log.append(&records) {
            warn!(
                "cannot write the retry journal: {error}; requests that clients send again after a \
                 restart may be executed twice, until the server is restarted"
            );
            Log::remove(log.dir());
            self.log = None;
        }
    }
}

impl Record {
    fn now(key: ChangeKey, event: Event) -> Self {
        Self { key, since: unix_nanos(), event }
    }
}

impl NameChange<'_> {
    /// The record of the change; `None` if it would fail or change nothing.
    async fn record(self, fs: &CachedFs) -> Option<Change> {
        let (file, gone, new) = match self {
            Self::Create { dir, name } => (None, None, Some(Entry::of(dir, name)?)),
            Self::Link { file, dir, name } => (Some(file), None, Some(Entry::of(dir, name)?)),
            Self::Remove { dir, name } => {
                let gone = Entry::of(dir, name)?;
                (Some(gone.file(fs).await.ok()??), Some(gone), None)
            }
            Self::Rename { from, to } => {
                let gone = Entry::of(from.0, from.1)?;
                (Some(gone.file(fs).await.ok()??), Some(gone), Some(Entry::of(to.0, to.1)?))
            }
        };
        // A name that exists fails a creation or a link; a file renamed to itself stays.
        if let Some(new) = &new
            && let Some(found) = new.file(fs).await.ok()?
            && (gone.is_none() || file == Some(found))
        {
            return None;
        }
        Some(Change { file, gone, new })
    }
}

impl Change {
    /// The file that was changed, if the names are as after the change, which began at `since`.
    async fn find_made(&self, exports: &ExportTable, since: u64) -> weir_vfs::Result<Option<Node>> {
        let Some(any) = self.new.as_ref().or(self.gone.as_ref()) else { return Ok(None) };
        let Ok(export) = exports.get(any.dir.export) else { return Ok(None) };
        let (fs, mut file) = (export.fs(), self.file);
        if let Some(new) = &self.new {
            let Some(found) = new.find(fs).await? else { return Ok(None) };
            // Another machine's clock says nothing.
            let born = found.btime.filter(|_| fs.store().names_change_here());
            if file.is_none() && !may_be_born_of(since, born) {
                return Ok(None);
            }
            let found = Node { id: found.id, ..new.dir };
            if *file.get_or_insert(found) != found {
                return Ok(None);
            }
        }
        if let Some(gone) = &self.gone
            && gone.file(fs).await? == self.file
        {
            return Ok(None);
        }
        Ok(file)
    }
}

impl Entry {
    /// `None` if the name is too long.
    fn of(dir: Node, name: &[u8]) -> Option<Self> {
        (name.len() <= MAX_NAME_BYTES).then(|| Self { dir, name: Opaque::copy_from(name) })
    }

    /// The file with this name, if it exists.
    async fn file(&self, fs: &CachedFs) -> weir_vfs::Result<Option<Node>> {
        Ok(self.find(fs).await?.map(|found| Node { id: found.id, ..self.dir }))
    }

    /// The attributes of the file with this name, if it exists.
    async fn find(&self, fs: &CachedFs) -> weir_vfs::Result<Option<Attr>> {
        match fs.lookup(&Caller::Own, self.dir.id.entry(&self.name)).await {
            Ok(found) => Ok(Some(found)),
            Err(weir_vfs::Error::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Whether a change of this time (in nanoseconds since 1970) is recent enough. One of the future is from
/// before the clock was set back.
fn counts(since: u64) -> bool {
    unix_nanos().checked_sub(since).is_some_and(|age| Duration::from_nanos(age) <= MAX_AGE)
}

/// Whether a file of this time of birth may have been created by a change that began at `since` (in nanoseconds since
/// 1970). One whose birth is unknown may.
fn may_be_born_of(since: u64, born: Option<SystemTime>) -> bool {
    let Some(born) = born else { return true };
    let begun = UNIX_EPOCH + Duration::from_nanos(since);
    match born.duration_since(begun) {
        Ok(after) => after <= BORN_WITHIN,
        // Some file systems keep whole seconds.
        Err(before) if born.duration_since(UNIX_EPOCH).is_ok_and(|at| at.subsec_nanos() == 0) => {
            before.duration() < Duration::from_secs(1)
        }
        Err(before) => before.duration() <= CLOCK_STEP,
    }
}

fn unix_nanos() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::{Export, ExportOptions, Exports};
    use crate::handle::Handles;
    use std::sync::Arc;
    use weir_pagecache::{Cache, Config};
    use weir_stores::memory::MemoryFs;
    use weir_vfs::{ReaddirRequest, RenameFlags, SetAttr};

    struct Fixture {
        dir: tempfile::TempDir,
        exports: Exports,
        fs: CachedFs,
    }

    fn fixture() -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let fs = Cache::new(Config::default()).unwrap().mount(MemoryFs::new());
        let options = ExportOptions::default();
        let export = Export { path: "/".into(), source: "".into(), fs: fs.clone(), options };
        let exports = Exports::open(vec![export], Handles::new([7; 32]), dir.path()).unwrap();
        Fixture { dir, exports, fs }
    }

    impl Fixture {
        /// The journal of the next run.
        async fn next_run(&self) -> RetryJournal {
            let journal = RetryJournal::open(self.dir.path());
            journal.resolve(&self.exports.table()).await;
            journal
        }

        fn root(&self) -> Node {
            self.exports.table().all().next().unwrap().root()
        }

        async fn mkdir(&self, name: &[u8]) -> Node {
            let set = SetAttr::default();
            let made =
                self.fs.mkdir(&Caller::Own, self.fs.root().entry(name).with(&set)).await.unwrap();
            Node { id: made.id, ..self.root() }
        }

        async fn rename(&self, from: &[u8], to: &[u8]) {
            let root = self.fs.root();
            let (from, to) = (root.entry(from), root.entry(to));
            self.fs.rename(&Caller::Own, from, to, RenameFlags::Replace).await.unwrap();
        }

        async fn names(&self) -> Vec<weir_vfs::DirEntry> {
            let dir = self.fs.root();
            let request = ReaddirRequest { dir, cookie: 0, max_entries: 9, with_attr: false };
            self.fs.readdir(&Caller::Own, request).await.unwrap().entries
        }

        async fn rmdir(&self, name: &[u8]) {
            self.fs.rmdir(&Caller::Own, self.fs.root().entry(name)).await.unwrap();
        }
    }

    fn key(number: u32) -> ChangeKey {
        RequestKey::of(&[b"request"]).at(number)
    }

    #[tokio::test]
    async fn a_kill_before_the_outcome_is_noted_is_resolved_from_the_file_system() {
        let f = fixture();
        let root = f.root();
        let (a, b) = (f.mkdir(b"a").await, f.mkdir(b"b").await);
        let changes = [
            NameChange::Create { dir: root, name: b"new" },
            NameChange::Rename { from: (root, b"a"), to: (root, b"moved") },
            NameChange::Remove { dir: root, name: b"b" },
        ];
        for killed_before_the_change in [true, false] {
            let journal = f.next_run().await;
            for (number, change) in (0..).zip(changes) {
                drop(journal.begin(key(number), &f.fs, change, false).await);
            }
            let mut new = None;
            if !killed_before_the_change {
                new = Some(f.mkdir(b"new").await);
                f.rename(b"a", b"moved").await;
                f.rmdir(b"b").await;
            }
            // The outcome holds in later runs, too, even when the names change again.
            for _ in 0..2 {
                let journal = f.next_run().await;
                let made = |number| journal.made_before(key(number)).map(|made| made.file);
                let expected = [new, new.map(|_| a), new.map(|_| b)].map(|file| file.map(Some));
                assert_eq!([made(0), made(1), made(2)], expected);
                if !killed_before_the_change && f.names().await.len() == 2 {
                    f.rename(b"moved", b"b").await;
                    f.rmdir(b"new").await;
                }
            }
        }
    }

    #[tokio::test]
    async fn an_outcome_is_written_before_the_next_change_is_made() {
        let f = fixture();
        let (root, a) = (f.root(), f.mkdir(b"a").await);
        let journal = f.next_run().await;
        let there = NameChange::Rename { from: (root, b"a"), to: (root, b"b") };
        let begun = journal.begin(key(0), &f.fs, there, false).await;
        f.rename(b"a", b"b").await;
        begun.end(&Ok::<_, ()>(()));
        let back = NameChange::Rename { from: (root, b"b"), to: (root, b"a") };
        let begun = journal.begin(key(1), &f.fs, back, false).await;
        f.rename(b"b", b"a").await;
        drop(begun);
        // The names alone would say that the first one was not made.
        let journal = f.next_run().await;
        let made = |number| journal.made_before(key(number)).unwrap();
        assert_eq!(made(0), MadeBefore { file: Some(a), complete: true });
        assert_eq!(made(1), MadeBefore { file: Some(a), complete: false });
    }

    #[tokio::test]
    async fn a_change_that_fails_or_cannot_succeed_is_not_made() {
        let f = fixture();
        let root = f.root();
        f.mkdir(b"a").await;
        let journal = f.next_run().await;
        let fails = [
            NameChange::Create { dir: root, name: b"a" },
            NameChange::Remove { dir: root, name: b"missing" },
            NameChange::Rename { from: (root, b"missing"), to: (root, b"b") },
            NameChange::Rename { from: (root, b"a"), to: (root, b"a") },
        ];
        for (number, change) in (0..).zip(fails) {
            assert!(
                journal.begin(key(number), &f.fs, change, false).await.change.is_none(),
                "{change:?}"
            );
        }
        let refused = NameChange::Remove { dir: root, name: b"a" };
        journal.begin(key(9), &f.fs, refused, false).await.end(&Err::<(), _>(()));
        let other = NameChange::Create { dir: root, name: b"other" };
        drop(journal.begin(key(10), &f.fs, other, false).await);
        // Another program removes it later.
        f.rmdir(b"a").await;
        let journal = f.next_run().await;
        assert!((0..=10).all(|number| journal.made_before(key(number)).is_none()));
    }

    #[tokio::test]
    async fn a_refused_creation_is_not_resolved_to_a_file_that_an_open_creates_later() {
        let f = fixture();
        let journal = f.next_run().await;
        let change = NameChange::Create { dir: f.root(), name: b"a" };
        journal.begin(key(0), &f.fs, change, false).await.end_create(Err::<Node, _>(()));
        f.mkdir(b"a").await;
        assert_eq!(f.next_run().await.made_before(key(0)), None);
    }

    #[tokio::test]
    async fn outcomes_are_written_before_a_change_without_a_record_and_when_the_server_stops() {
        let f = fixture();
        let root = f.root();
        f.mkdir(b"a").await;
        for stop in [false, true] {
            let journal = f.next_run().await;
            let change = NameChange::Rename { from: (root, b"a"), to: (root, b"b") };
            let begun = journal.begin(key(0), &f.fs, change, false).await;
            f.rename(b"a", b"b").await;
            begun.end(&Ok::<_, ()>(()));
            if stop {
                journal.flush();
            } else {
                let change = NameChange::Remove { dir: root, name: b"missing" };
                journal.begin(key(1), &f.fs, change, false).await.end(&Ok::<_, ()>(()));
            }
            f.rename(b"b", b"a").await;
            assert!(f.next_run().await.made_before(key(0)).is_some_and(|made| made.complete));
        }
    }

    #[tokio::test]
    async fn a_change_of_a_resumed_request_counts_in_this_run_and_others_do_not() {
        let f = fixture();
        let journal = f.next_run().await;
        for (number, name, resumed) in [(0, b"a", true), (1, b"b", false)] {
            let change = NameChange::Create { dir: f.root(), name };
            let begun = journal.begin(key(number), &f.fs, change, resumed).await;
            begun.end_create(Ok::<_, ()>(f.mkdir(name).await));
            assert_eq!(journal.made_before(key(number)).is_some(), resumed);
        }
    }

    #[tokio::test]
    async fn a_run_without_a_journal_leaves_no_changes_to_the_next_one() {
        let f = fixture();
        let journal = f.next_run().await;
        let change = NameChange::Create { dir: f.root(), name: b"a" };
        let begun = journal.begin(key(0), &f.fs, change, false).await;
        begun.end_create(Ok::<_, ()>(f.mkdir(b"a").await));
        journal.flush();
        assert!(f.next_run().await.made_before(key(0)).is_some());
        drop(RetryJournal::off(f.dir.path()));
        assert_eq!(f.next_run().await.made_before(key(0)), None);
    }

    /// The client would take it for its own: with a file that is a lock, two would hold it.
    #[tokio::test]
    async fn a_file_that_another_program_makes_after_a_kill_is_not_taken_for_the_created_one() {
        let f = fixture();
        let journal = f.next_run().await;
        // Right before, so that the writing of the records does not count.
        let now = unix_nanos();
        let new = f.mkdir(b"new").await;
        for (number, seconds) in (0..).zip([0, 10]) {
            let since = now - Duration::from_secs(seconds).as_nanos() as u64;
            let change = Change { file: None, gone: None, new: Entry::of(f.root(), b"new") };
            let begun = Record { key: key(number), since, event: Event::Begun(change) };
            journal.writer.lock().append(Some(begun));
        }
        let journal = f.next_run().await;
        let made = [0, 1].map(|number| journal.made_before(key(number)));
        assert_eq!(made, [Some(MadeBefore { file: Some(new), complete: false }), None]);
    }

    #[test]
    fn a_created_file_is_born_when_its_creation_begins() {
        let now = SystemTime::now();
        let since = now.duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
        let ms = Duration::from_millis;
        for born in [Some(now - ms(10)), Some(now), Some(now + ms(1500)), None] {
            assert!(may_be_born_of(since, born), "{born:?}");
        }
        let whole = UNIX_EPOCH + Duration::from_secs(since / 1_000_000_000);
        assert!(may_be_born_of(since, Some(whole)), "in whole seconds");
        assert!(!may_be_born_of(since, Some(whole - ms(1000))));
        for born in [now - ms(500), now + ms(2500)] {
            assert!(!may_be_born_of(since, Some(born)), "{born:?}");
        }
    }

    #[test]
    fn changes_count_for_five_minutes_and_not_before_the_clock_was_set_back() {
        let now = unix_nanos();
        let seconds = |seconds| Duration::from_secs(seconds).as_nanos() as u64;
        assert!(counts(now) && counts(now - seconds(290)));
        assert!(!counts(now - seconds(310)) && !counts(now + seconds(100)));
    }

    #[tokio::test]
    async fn a_journal_that_cannot_be_written_is_turned_off_and_fails_nothing() {
        let f = fixture();
        let journal = Arc::new(f.next_run().await);
        journal.writer.lock().log.as_mut().unwrap().make_read_only();
        let change = || NameChange::Create { dir: f.root(), name: b"a" };
        drop(journal.begin(key(0), &f.fs, change(), false).await);
        assert!(journal.writer.lock().log.is_none());
        assert!(journal.begin(key(1), &f.fs, change(), false).await.change.is_none());
    }
}
