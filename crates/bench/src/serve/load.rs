//! A load on one mounted server: reads, writes and metadata, each measured separately.
//!
//! 1. Nothing is cached on this side: every operation goes over the wire.
//! 2. Reads and writes keep a fixed number of operations in flight; each completion starts the next
//!    one, on the completing thread.

use crate::interrupt;
use crate::measure::{Walk, histogram, processor_seconds_of};
use crate::observer::Observer;
use crate::peers::Peer;
use futures_util::{StreamExt, TryStreamExt, stream};
use hdrhistogram::Histogram;
use std::future::Future;
use std::io;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use weir_client::{MountOptions, NfsFs, NfsUrl, Version, blocking};
use weir_stores::random::Random;
use weir_tools::failure::{Asked, Failure, Result};
use weir_vfs::{
    Access, Buffer, Caller, CreateMode, Error, FileId, FileSystem, Layout, OpenFile, ReadOp,
    RenameFlags, SetAttr, Source, WriteOp,
};

/// Large transfers in flight: enough that neither side waits for the other.
const STREAM_DEPTH: usize = 4;
/// Interval at which a waiting thread checks for the end of the run.
const LOOK: Duration = Duration::from_millis(200);
/// Time limit for a server to remove the load's files when the run is stopped.
const CLEAN_UP: Duration = Duration::from_secs(5);
const LARGE: u64 = 1 << 20;
const SMALL: u64 = 4 << 10;

/// A kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Random 4 KiB reads, one at a time.
    SmallReads,
    /// The same by a thread that waits for each.
    BlockingReads,
    /// Random 4 KiB reads, many in flight.
    DeepReads,
    /// Sequential 1 MiB reads, one at a time.
    SingleReads,
    /// Sequential 1 MiB reads, several in flight.
    Reads,
    /// Sequential 1 MiB writes, several in flight, committed.
    Writes,
    /// Making empty files.
    Create,
    /// Looking them up.
    Stat,
    /// Renaming them there and back: two renames count as one operation.
    Rename,
    /// Removing them.
    Remove,
    /// Creating empty files, many in flight.
    DeepCreate,
    /// The same, many in flight.
    DeepRename,
    /// Removing them, many in flight.
    DeepRemove,
}

impl Work {
    /// In execution order: files are created before they are looked up and removed.
    pub const ALL: [Self; 13] = [
        Self::SmallReads,
        Self::BlockingReads,
        Self::DeepReads,
        Self::SingleReads,
        Self::Reads,
        Self::Writes,
        Self::Create,
        Self::Stat,
        Self::Rename,
        Self::Remove,
        Self::DeepCreate,
        Self::DeepRename,
        Self::DeepRemove,
    ];

    /// Its name in tables.
    pub(crate) fn name(self, depth: usize) -> String {
        match self {
            Self::SmallReads => "4 KiB reads, one at a time".into(),
            Self::BlockingReads => "4 KiB reads by a waiting thread".into(),
            Self::DeepReads => format!("4 KiB reads, {depth} at a time"),
            Self::SingleReads => "1 MiB reads, one at a time".into(),
            Self::Reads => format!("1 MiB reads, {STREAM_DEPTH} at a time"),
            Self::Writes => format!("1 MiB writes, {STREAM_DEPTH} at a time"),
            Self::Create => "create".into(),
            Self::Stat => "stat".into(),
            Self::Rename => "rename and back".into(),
            Self::Remove => "remove".into(),
            Self::DeepCreate => format!("create, {depth} at a time"),
            Self::DeepRename => format!("rename and back, {depth} at a time"),
            Self::DeepRemove => format!("remove, {depth} at a time"),
        }
    }

    /// The operation on small files, if there is one, and how many run at a time.
    fn metadata(self, depth: usize) -> Option<(Self, usize)> {
        match self {
            Self::Create | Self::Stat | Self::Rename | Self::Remove => Some((self, 1)),
            Self::DeepCreate => Some((Self::Create, depth)),
            Self::DeepRename => Some((Self::Rename, depth)),
            Self::DeepRemove => Some((Self::Remove, depth)),
            _ => None,
        }
    }

    /// Whether its processor time is reported per operation rather than per gigabyte.
    pub(crate) fn is_small(self) -> bool {
        !matches!(self, Self::SingleReads | Self::Reads | Self::Writes)
    }
}

/// How much work.
#[derive(Clone, Copy, Debug)]
pub struct Amount {
    /// Size of the file that is read and written.
    pub file_bytes: u64,
    /// Duration of reads and writes.
    pub time: Duration,
    /// Small reads in flight.
    pub depth: usize,
    /// Small files.
    pub files: u32,
}

/// The cost of a piece of work.
#[derive(Clone, Debug)]
pub(crate) struct Taken {
    pub(crate) operations: u64,
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
    /// Of each operation, in nanoseconds.
    pub(crate) latency: Histogram<u64>,
    /// Processor seconds of this process.
    pub(crate) client_s: f64,
    /// Processor seconds of the server, if its processes are known.
    pub(crate) server_s: Option<f64>,
}

/// The place of the load: its own directory on a mounted server.
pub(crate) struct Target {
    fs: Arc<NfsFs>,
    url: NfsUrl,
    version: Version,
    /// The directory. An interrupted run does not know whether the server has created it.
    dir: Option<FileId>,
    name: String,
    /// Open until the end.
    file: Option<Arc<dyn OpenFile>>,
    /// Files of [`Work::Create`] that still exist.
    made: u32,
    runtime: tokio::runtime::Runtime,
    observer: Arc<dyn Observer>,
}

const FILE: &[u8] = b"data";

/// Mounts a server with this version.
pub(crate) fn mount(url: &NfsUrl, version: Version) -> Result<Arc<NfsFs>> {
    let mounted = block_on(&runtime()?, NfsFs::mount(url, &with_version(version)))?;
    mounted.map_err(|error| {
        Failure::new(format!("mount {url} with vers={version}"), error.to_string())
    })
}

fn with_version(version: Version) -> MountOptions {
    MountOptions { vers: Some(version), ..MountOptions::default() }
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    runtime.asked(|| "start a load".into())
}

/// Waits for `work`, which a dead server may block forever.
fn block_on<T>(runtime: &tokio::runtime::Runtime, work: impl Future<Output = T>) -> Result<T> {
    runtime.block_on(interrupt::unless_interrupted(work))
}

impl Target {
    /// Mounts `url` with `version`, and creates a directory there, with a file that is in the
    /// server's cache afterwards.
    pub(crate) fn new(
        url: &NfsUrl,
        version: Version,
        amount: Amount,
        observer: &Arc<dyn Observer>,
    ) -> Result<Self> {
        // Complete before anything is created, so that a failure removes it, too.
        let mut target = Self {
            fs: mount(url, version)?,
            url: url.clone(),
            version,
            dir: None,
            name: format!("weir-bench-{}-{version}", std::process::id()),
            file: None,
            made: 0,
            runtime: runtime()?,
            observer: Arc::clone(observer),
        };
        let (fs, name) = (Arc::clone(&target.fs), target.name.clone());
        let asked = || format!("make {name} at {url}");
        let set = SetAttr { mode: Some(0o755), ..SetAttr::default() };
        let made = fs.mkdir(&Caller::Own, fs.root().entry(name.as_bytes()).with(&set));
        let dir = block_on(&target.runtime, made)?.asked(asked)?.id;
        target.dir = Some(dir);
        let open = async {
            let set = SetAttr { mode: Some(0o644), ..SetAttr::default() };
            let made =
                fs.create(&Caller::Own, dir.entry(FILE).with(&set), CreateMode::MustBeNew).await?;
            fs.open(&Caller::Own, made.attr.id, Access::READ | Access::WRITE).await
        };
        target.file = Some(block_on(&target.runtime, open)?.asked(asked)?);
        // The first pass creates it, the second brings it into the cache for reads.
        for (work, access) in [(Work::Writes, "write"), (Work::Reads, "read")] {
            let whole = amount.file_bytes / LARGE;
            let done = target.pipeline(work, amount, Until::Operations(whole));
            done.map_err(|f| {
                Failure::new(format!("{access} {asked}", asked = asked()), f.to_string())
            })?;
        }
        Ok(target)
    }

    /// Does some work; `server` is the server that does the other half.
    pub(crate) fn run(&mut self, work: Work, amount: Amount, server: &Peer) -> Result<Taken> {
        interrupt::check()?;
        let metadata = work.metadata(amount.depth);
        if self.made == 0 && metadata.is_some_and(|(work, _)| work != Work::Create) {
            self.metadata(Work::Create, amount.files, amount.depth)?;
        }
        if self.made > 0 && metadata.is_some_and(|(work, _)| work == Work::Create) {
            self.metadata(Work::Remove, amount.files, amount.depth)?;
        }
        let own = std::process::id();
        let before = (processor_seconds_of(own), server.processor_seconds());
        let begun = Instant::now();
        let (latency, bytes) = match metadata {
            Some((work, depth)) => (self.metadata(work, amount.files, depth)?, 0),
            None if work == Work::BlockingReads => self.blocking_reads(amount)?,
            None => self.pipeline(work, amount, Until::Time(amount.time))?,
        };
        let seconds = begun.elapsed().as_secs_f64();
        let after = (processor_seconds_of(own), server.processor_seconds());
        Ok(Taken {
            operations: latency.len(),
            bytes,
            seconds,
            latency,
            client_s: after.0.zip(before.0).map_or(0.0, |(after, before)| after - before),
            server_s: after.1.zip(before.1).map(|(after, before)| after - before),
        })
    }

    /// Runs an operation on each small file, `depth` of them at a time.
    fn metadata(&mut self, work: Work, files: u32, depth: usize) -> Result<Histogram<u64>> {
        let mut latency = histogram();
        let Some(dir) = self.dir else { return Ok(latency) };
        let files = if work == Work::Create { files } else { self.made };
        if work == Work::Create {
            // A failed call may have created any of them.
            self.made = files;
        }
        let fs = &self.fs;
        let timed = |index: u32| async move {
            let begun = Instant::now();
            one(fs, dir, work, index).await.map(|()| nanos_since(begun))
        };
        let all = async {
            let mut done = stream::iter(0..files).map(timed).buffer_unordered(depth);
            while let Some(nanos) = done.try_next().await? {
                latency.saturating_record(nanos);
            }
            Ok::<_, Error>(())
        };
        let done = block_on(&self.runtime, all)?;
        done.asked(|| format!("{} files in {}", work.name(1), self.name))?;
        if work == Work::Remove {
            self.made = 0;
        }
        Ok(latency)
    }

    /// Keeps operations in flight; returns their latencies, and the bytes moved.
    fn pipeline(&self, work: Work, amount: Amount, until: Until) -> Result<(Histogram<u64>, u64)> {
        let (depth, block) = match work {
            Work::SmallReads => (1, SMALL),
            Work::DeepReads => (amount.depth, SMALL),
            Work::SingleReads => (1, LARGE),
            _ => (STREAM_DEPTH, LARGE),
        };
        let walk = match block {
            SMALL => Walk::random(amount.file_bytes, block, 1),
            _ => Walk::sequential(amount.file_bytes, block, 0),
        };
        let Some(file) = &self.file else { return Ok((histogram(), 0)) };
        let (finished, all_done) = sync_channel(1);
        let pipeline = Arc::new(Pipeline {
            file: Arc::clone(file),
            deadline: match until {
                Until::Time(time) => Instant::now() + time,
                Until::Operations(_) => Instant::now() + Duration::from_secs(24 * 3600),
            },
            finished,
            state: Mutex::new(State {
                walk,
                left: match until {
                    Until::Time(_) => u64::MAX,
                    Until::Operations(n) => n,
                },
                in_flight: depth,
                ahead: depth,
                latency: histogram(),
                bytes: 0,
                failed: None,
            }),
        });
        let content = Random::new(1).bytes(block as usize);
        for _ in 0..depth {
            match work {
                Work::Writes => Arc::clone(&pipeline).write(Box::new(content.clone())),
                _ => Arc::clone(&pipeline).read(Box::new(vec![0_u8; block as usize])),
            }
        }
        // The sender exists as long as an operation is in flight; with a dead server, that may be
        // forever.
        while let Err(RecvTimeoutError::Timeout) = all_done.recv_timeout(LOOK) {
            interrupt::check()?;
        }
        let mut state = pipeline.state();
        let latency = std::mem::replace(&mut state.latency, histogram());
        match state.failed {
            Some(error) => Err(error).asked(|| format!("do {} at {}", work.name(depth), self.name)),
            None => Ok((latency, state.bytes)),
        }
    }
}

impl Target {
    /// Reads small blocks on a thread that waits for each, by a mount of its own.
    fn blocking_reads(&self, amount: Amount) -> Result<(Histogram<u64>, u64)> {
        let asked = || format!("do {} at {}", Work::BlockingReads.name(1), self.name);
        let (url, options) = (self.url.clone(), with_version(self.version));
        let path = format!("{}/{}", self.name, String::from_utf8_lossy(FILE));
        let (finished, done) = sync_channel(1);
        let read = move || -> io::Result<_> {
            let export = blocking::Export::connect_with(&url, &options)?;
            let file = export.open(&path)?;
            let mut walk = Walk::random(amount.file_bytes, SMALL, 1);
            let (mut latency, mut bytes, end) = (histogram(), 0, Instant::now() + amount.time);
            while Instant::now() < end && !interrupt::is_interrupted() {
                let begun = Instant::now();
                let data = file.read_at(walk.step(), SMALL as usize)?;
                if data.len() as u64 != SMALL {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                latency.saturating_record(nanos_since(begun));
                bytes += SMALL;
            }
            Ok((latency, bytes))
        };
        // Of a thread that waits for a dead server for ever, a stopped run learns nothing.
        std::thread::spawn(move || drop(finished.send(read())));
        loop {
            match done.recv_timeout(LOOK) {
                Ok(outcome) => {
                    interrupt::check()?;
                    return outcome.asked(asked);
                }
                Err(RecvTimeoutError::Timeout) => interrupt::check()?,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Failure::new(asked(), "the thread ended"));
                }
            }
        }
    }

    /// Removes the load's files from the server.
    async fn remove(&self) -> weir_vfs::Result<()> {
        let there = |done: weir_vfs::Result<()>| match done {
            Err(Error::NotFound) => Ok(()),
            done => done,
        };
        let (fs, own, name) = (&self.fs, &Caller::Own, self.name.as_bytes());
        let dir = match self.dir {
            Some(dir) => dir,
            None => match fs.lookup(own, fs.root().entry(name)).await {
                Ok(attr) => attr.id,
                Err(error) => return there(Err(error)),
            },
        };
        for index in 0..self.made {
            // It may have been removed before the failure; otherwise rmdir reports it.
            for name in [format!("file-{index:06}"), format!("moved-{index:06}")] {
                let _ = fs.unlink(own, dir.entry(name.as_bytes())).await;
            }
        }
        there(fs.unlink(own, dir.entry(FILE)).await)?;
        there(fs.rmdir(own, fs.root().entry(name)).await)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // In versions without opens, a file that is removed while open survives under another name;
        // and the last operation's thread may still have it open.
        if let Some(file) = self.file.take() {
            let waited = Instant::now();
            while Arc::strong_count(&file) > 1 && waited.elapsed() < Duration::from_secs(1) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let gone = async {
            let fs = &self.fs;
            let gone = self.remove().await;
            fs.unmount().await;
            gone
        };
        let late = async {
            interrupt::interrupted().await;
            tokio::time::sleep(CLEAN_UP).await;
        };
        let gone = self.runtime.block_on(async {
            tokio::select! {
                gone = gone => gone,
                () = late => Err(Error::TimedOut),
            }
        });
        if let Err(error) = gone {
            self.observer.notice(&format!(
                "{} may stay behind at {}: {error}; look, and remove it",
                self.name, self.url
            ));
        }
    }
}

/// Runs an operation on one small file.
async fn one(fs: &NfsFs, dir: FileId, work: Work, index: u32) -> weir_vfs::Result<()> {
    let (name, other) = (format!("file-{index:06}"), format!("moved-{index:06}"));
    let (name, other) = (name.as_bytes(), other.as_bytes());
    let own = &Caller::Own;
    match work {
        Work::Create => {
            let set = SetAttr { mode: Some(0o644), ..SetAttr::default() };
            fs.create(own, dir.entry(name).with(&set), CreateMode::MustBeNew).await.map(drop)
        }
        Work::Stat => fs.lookup(own, dir.entry(name)).await.map(drop),
        Work::Rename => {
            fs.rename(own, dir.entry(name), dir.entry(other), RenameFlags::Replace).await?;
            fs.rename(own, dir.entry(other), dir.entry(name), RenameFlags::Replace).await
        }
        _ => fs.unlink(own, dir.entry(name)).await,
    }
}

/// When a pipeline ends.
#[derive(Clone, Copy)]
enum Until {
    Time(Duration),
    Operations(u64),
}

/// Operations in flight on one file.
struct Pipeline {
    file: Arc<dyn OpenFile>,
    deadline: Instant,
    finished: SyncSender<()>,
    state: Mutex<State>,
}

struct State {
    walk: Walk,
    /// Operations that may still be started.
    left: u64,
    in_flight: usize,
    /// Operations that are started even after the deadline: starting them may take longer than the time.
    ahead: usize,
    latency: Histogram<u64>,
    bytes: u64,
    failed: Option<Error>,
}

impl Pipeline {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(self: Arc<Self>, buffer: Box<dyn Buffer>) {
        let Some(offset) = self.next() else { return };
        let (this, begun, len) = (Arc::clone(&self), Instant::now(), buffer.len() as u64);
        self.file.submit_read(ReadOp::new(offset, buffer, move |buffer, done| {
            let whole = |layout: &Layout| layout.end(offset) >= offset + len;
            // All written data is there.
            let done = done.and_then(|layout| if whole(&layout) { Ok(()) } else { Err(Error::Io) });
            this.done(begun, len, done);
            this.read(buffer);
        }));
    }

    fn write(self: Arc<Self>, source: Box<dyn Source>) {
        let Some(offset) = self.next() else { return };
        let (this, begun, len) = (Arc::clone(&self), Instant::now(), source.len() as u64);
        self.file.submit_write(WriteOp::new(offset, source, move |source, done| {
            this.done(begun, len, done);
            this.write(source);
        }));
    }

    /// The offset of the next operation; `None` if there is none.
    fn next(&self) -> Option<u64> {
        let mut state = self.state();
        let over = state.left == 0 || state.failed.is_some() || interrupt::is_interrupted();
        if over || (state.ahead == 0 && Instant::now() >= self.deadline) {
            state.in_flight -= 1;
            if state.in_flight == 0 {
                // The run no longer waits if it was stopped.
                let _ = self.finished.try_send(());
            }
            return None;
        }
        state.left -= 1;
        state.ahead = state.ahead.saturating_sub(1);
        Some(state.walk.step())
    }

    fn done(&self, begun: Instant, len: u64, done: weir_vfs::Result<()>) {
        let nanos = nanos_since(begun);
        let mut state = self.state();
        match done {
            Ok(()) => {
                state.latency.saturating_record(nanos);
                state.bytes += len;
            }
            Err(error) => state.failed = Some(error),
        }
    }
}

fn nanos_since(begun: Instant) -> u64 {
    u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
