//! A store that misbehaves by rules: delays, errors, short reads, and calls held back until a test
//! releases them. Deterministic for one seed and one order of calls.
//!
//! ```
//! use weir_stores::fault::{Call, Fault, Rule, What, When};
//! use weir_stores::memory::MemoryFs;
//! use weir_vfs::Error;
//!
//! let fs = Fault::over(MemoryFs::new(), 1);
//! fs.add(Rule { call: Call::Write, when: When::Nth(3), what: What::Fail(Error::NoSpace) });
//! ```

mod file;
mod rules;
mod timer;

use async_trait::async_trait;
use file::FaultFile;
use parking_lot::Mutex;
use rules::Rules;
pub use rules::{Call, Rule, What, When};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use timer::Timer;
use tokio::sync::oneshot;
use weir_vfs::{
    Access, Attr, Caller, CreateMode, Created, Error, FileId, FileSystem, FileSystemDecorator,
    FileSystemMethod, FsStat, NewFile, OpenFile, Result, WholeFile, WholeRead, WholeRequest,
};

/// A store over another, with rules for its failures.
pub struct Fault {
    inner: Arc<dyn FileSystem>,
    faults: Arc<Faults>,
}

/// The rules, and the calls that they hold back.
struct Faults {
    rules: Mutex<Rules>,
    held: Mutex<Vec<Box<dyn FnOnce() + Send>>>,
    timer: Timer,
    max_file_size: AtomicU64,
}

impl Fault {
    /// A store that behaves like `inner` until rules are added.
    pub fn over(inner: Arc<dyn FileSystem>, seed: u64) -> Arc<Self> {
        let faults = Faults {
            rules: Mutex::new(Rules::new(seed)),
            held: Mutex::default(),
            timer: Timer::default(),
            max_file_size: AtomicU64::new(u64::MAX),
        };
        Arc::new(Self { inner, faults: Arc::new(faults) })
    }

    /// Adds a rule after the existing ones.
    pub fn add(&self, rule: Rule) {
        self.faults.rules.lock().add(rule);
    }

    /// Sets the largest file size, in bytes. Call it before the store is used.
    pub fn set_max_file_size(&self, bytes: u64) {
        self.faults.max_file_size.store(bytes, Relaxed);
    }

    /// Removes all rules; held calls stay held.
    pub fn clear(&self) {
        self.faults.rules.lock().clear();
    }

    /// Number of calls that a rule has applied to.
    pub fn injected(&self) -> u64 {
        self.faults.rules.lock().injected
    }

    /// Number of calls held back.
    pub fn held(&self) -> usize {
        self.faults.held.lock().len()
    }

    /// Releases all held calls, the oldest first.
    pub fn release(&self) {
        let held = std::mem::take(&mut *self.faults.held.lock());
        for go in held {
            go();
        }
    }

    /// Releases the oldest held call; returns whether there was one.
    pub fn release_one(&self) -> bool {
        let go = {
            let mut held = self.faults.held.lock();
            if held.is_empty() { None } else { Some(held.remove(0)) }
        };
        go.map(|go| go()).is_some()
    }
}

impl Faults {
    fn decide(&self, call: Call, bytes: Range<u64>) -> Option<What> {
        self.rules.lock().decide(call, bytes)
    }

    fn hold(&self, go: impl FnOnce() + Send + 'static) {
        self.held.lock().push(Box::new(go));
    }

    /// Lets an asynchronous call continue, or fail.
    async fn pass(&self, call: Call) -> Result<()> {
        let wait = match self.decide(call, 0..0) {
            None | Some(What::Short(_)) => return Ok(()),
            Some(What::Fail(error)) => return Err(error),
            Some(What::Delay(delay)) => {
                let (tx, rx) = oneshot::channel();
                self.timer.after(delay, move || {
                    let _ = tx.send(()); // the call may have been given up
                });
                rx
            }
            Some(What::Hold) => {
                let (tx, rx) = oneshot::channel();
                self.hold(move || {
                    let _ = tx.send(()); // the call may have been given up
                });
                rx
            }
        };
        wait.await.map_err(|_| Error::Io)
    }
}

/// The call that rules know this method by; `None` if no rule applies to it.
fn call_of(method: FileSystemMethod) -> Option<Call> {
    use FileSystemMethod as M;
    Some(match method {
        M::Statfs => Call::Statfs,
        M::Getattr => Call::Getattr,
        M::Setattr => Call::Setattr,
        M::Access | M::CheckAccess => Call::Access,
        M::Lookup => Call::Lookup,
        M::Parent => Call::Parent,
        M::Readdir => Call::Readdir,
        M::Readlink => Call::Readlink,
        M::Create | M::CreateOpen => Call::Create,
        M::Mkdir => Call::Mkdir,
        M::Symlink => Call::Symlink,
        M::Mknod => Call::Mknod,
        M::Link => Call::Link,
        M::Unlink | M::UnlinkCounted => Call::Unlink,
        M::Rmdir => Call::Rmdir,
        M::Rename | M::RenameCounted => Call::Rename,
        M::Open | M::OpenToExecute => Call::Open,
        M::SyncNode => Call::SyncNode,
        M::GetXattr | M::SetXattr | M::ListXattrs | M::RemoveXattr => Call::Xattr,
        M::GetAcl | M::SetAcl => Call::Acl,
        M::PutWhole | M::GetWhole | M::PathOf | M::Unmount => return None,
    })
}

#[async_trait]
impl FileSystemDecorator for Fault {
    fn below(&self) -> &dyn FileSystem {
        &*self.inner
    }

    async fn before(&self, method: FileSystemMethod) -> Result<()> {
        match call_of(method) {
            Some(call) => self.faults.pass(call).await,
            None => Ok(()),
        }
    }

    fn max_file_size(&self) -> u64 {
        self.inner.max_file_size().min(self.faults.max_file_size.load(Relaxed))
    }

    async fn statfs(&self) -> Result<FsStat> {
        self.before(FileSystemMethod::Statfs).await?;
        let mut stat = self.inner.statfs().await?;
        stat.max_file_size = FileSystem::max_file_size(self);
        Ok(stat)
    }

    /// Returns no open file, so that the rules on opening and on data apply to new files, too.
    async fn create_open(
        &self,
        caller: &Caller,
        new: NewFile<'_>,
        mode: CreateMode,
    ) -> Result<(Created, Option<Arc<dyn OpenFile>>)> {
        self.before(FileSystemMethod::CreateOpen).await?;
        Ok((self.inner.create(caller, new, mode).await?, None))
    }

    /// Has none, so that the rules on the single operations apply.
    async fn put_whole(&self, _: &Caller, _: FileId, _: &WholeFile) -> Result<Option<Attr>> {
        Ok(None)
    }

    /// Has none, so that the rules on the single operations apply.
    async fn get_whole(&self, _: &Caller, _: WholeRequest) -> Result<Option<WholeRead>> {
        Ok(None)
    }

    async fn open(&self, caller: &Caller, id: FileId, access: Access) -> Result<Arc<dyn OpenFile>> {
        self.before(FileSystemMethod::Open).await?;
        let inner = self.inner.open(caller, id, access).await?;
        Ok(Arc::new(FaultFile { inner, faults: self.faults.clone() }))
    }

    async fn open_to_execute(&self, caller: &Caller, id: FileId) -> Result<Arc<dyn OpenFile>> {
        self.before(FileSystemMethod::OpenToExecute).await?;
        let inner = self.inner.open_to_execute(caller, id).await?;
        Ok(Arc::new(FaultFile { inner, faults: self.faults.clone() }))
    }
}
