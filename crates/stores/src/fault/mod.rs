//! A store that misbehaves by rule: delays, errors, short reads, calls held back until a test lets
//! them go. What happens is the same for the same seed and the same order of calls.
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
    Access, Acl, AclKind, Attr, Caller, Capabilities, Created, DirPage, Error, FileId, FileKind,
    FileSystem, FsStat, OpenFile, RenameFlags, Result, SetAttr, Unnamed, XattrMode,
};

/// A store over another, with rules on what goes wrong.
pub struct Fault {
    inner: Arc<dyn FileSystem>,
    faults: Arc<Faults>,
}

/// The rules, and what they hold back.
struct Faults {
    rules: Mutex<Rules>,
    held: Mutex<Vec<Box<dyn FnOnce() + Send>>>,
    timer: Timer,
    max_file_size: AtomicU64,
}

impl Fault {
    /// A store that does what `inner` does, until rules are added.
    pub fn over(inner: Arc<dyn FileSystem>, seed: u64) -> Arc<Self> {
        let faults = Faults {
            rules: Mutex::new(Rules::new(seed)),
            held: Mutex::default(),
            timer: Timer::default(),
            max_file_size: AtomicU64::new(u64::MAX),
        };
        Arc::new(Self { inner, faults: Arc::new(faults) })
    }

    /// Adds a rule behind those that there are.
    pub fn add(&self, rule: Rule) {
        self.faults.rules.lock().add(rule);
    }

    /// Files may be at most this long, in bytes. It is to be said before the store is used.
    pub fn set_max_file_size(&self, bytes: u64) {
        self.faults.max_file_size.store(bytes, Relaxed);
    }

    /// Takes all rules away; what is held stays so.
    pub fn clear(&self) {
        self.faults.rules.lock().clear();
    }

    /// How many calls were interfered with.
    pub fn injected(&self) -> u64 {
        self.faults.rules.lock().injected
    }

    /// How many calls are held back.
    pub fn held(&self) -> usize {
        self.faults.held.lock().len()
    }

    /// Lets every call go that is held back, the oldest first.
    pub fn release(&self) {
        let held = std::mem::take(&mut *self.faults.held.lock());
        for go in held {
            go();
        }
    }

    /// Lets the oldest call go that is held back; whether there was one.
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

    /// Lets an asynchronous call go on, or fail.
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

#[async_trait]
impl FileSystem for Fault {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn root(&self) -> FileId {
        self.inner.root()
    }

    fn is_locked_by_programs(&self) -> bool {
        self.inner.is_locked_by_programs()
    }

    fn max_file_size(&self) -> u64 {
        self.inner.max_file_size().min(self.faults.max_file_size.load(Relaxed))
    }

    async fn statfs(&self) -> Result<FsStat> {
        self.faults.pass(Call::Statfs).await?;
        let mut stat = self.inner.statfs().await?;
        stat.max_file_size = self.max_file_size();
        Ok(stat)
    }

    async fn getattr(&self, id: FileId) -> Result<Attr> {
        self.faults.pass(Call::Getattr).await?;
        self.inner.getattr(id).await
    }

    async fn setattr(&self, caller: &Caller, id: FileId, set: &SetAttr) -> Result<Attr> {
        self.faults.pass(Call::Setattr).await?;
        self.inner.setattr(caller, id, set).await
    }

    async fn access(&self, caller: &Caller, id: FileId, mask: u32) -> Result<u32> {
        self.faults.pass(Call::Access).await?;
        self.inner.access(caller, id, mask).await
    }

    async fn lookup(&self, caller: &Caller, dir: FileId, name: &[u8]) -> Result<Attr> {
        self.faults.pass(Call::Lookup).await?;
        self.inner.lookup(caller, dir, name).await
    }

    async fn parent(&self, dir: FileId) -> Result<Attr> {
        self.faults.pass(Call::Parent).await?;
        self.inner.parent(dir).await
    }

    async fn readdir(
        &self,
        caller: &Caller,
        dir: FileId,
        cookie: u64,
        max_entries: usize,
        with_attr: bool,
    ) -> Result<DirPage> {
        self.faults.pass(Call::Readdir).await?;
        self.inner.readdir(caller, dir, cookie, max_entries, with_attr).await
    }

    async fn readlink(&self, caller: &Caller, id: FileId) -> Result<Vec<u8>> {
        self.faults.pass(Call::Readlink).await?;
        self.inner.readlink(caller, id).await
    }

    async fn create(
        &self,
        caller: &Caller,
        dir: FileId,
        name: &[u8],
        set: &SetAttr,
        exclusive: bool,
    ) -> Result<Created> {
        self.faults.pass(Call::Create).await?;
        self.inner.create(caller, dir, name, set, exclusive).await
    }

    async fn mkdir(
        &self,
        caller: &Caller,
        dir: FileId,
        name: &[u8],
        set: &SetAttr,
    ) -> Result<Attr> {
        self.faults.pass(Call::Mkdir).await?;
        self.inner.mkdir(caller, dir, name, set).await
    }

    async fn symlink(
        &self,
        caller: &Caller,
        dir: FileId,
        name: &[u8],
        target: &[u8],
        set: &SetAttr,
    ) -> Result<Attr> {
        self.faults.pass(Call::Symlink).await?;
        self.inner.symlink(caller, dir, name, target, set).await
    }

    async fn mknod(
        &self,
        caller: &Caller,
        dir: FileId,
        name: &[u8],
        kind: FileKind,
        rdev: (u32, u32),
        set: &SetAttr,
    ) -> Result<Attr> {
        self.faults.pass(Call::Mknod).await?;
        self.inner.mknod(caller, dir, name, kind, rdev, set).await
    }

    async fn link(&self, caller: &Caller, id: FileId, dir: FileId, name: &[u8]) -> Result<Attr> {
        self.faults.pass(Call::Link).await?;
        self.inner.link(caller, id, dir, name).await
    }

    async fn unlink(&self, caller: &Caller, dir: FileId, name: &[u8]) -> Result<()> {
        self.faults.pass(Call::Unlink).await?;
        self.inner.unlink(caller, dir, name).await
    }

    async fn unlink_counted(
        &self,
        caller: &Caller,
        dir: FileId,
        name: &[u8],
    ) -> Result<Option<Unnamed>> {
        self.faults.pass(Call::Unlink).await?;
        self.inner.unlink_counted(caller, dir, name).await
    }

    async fn rmdir(&self, caller: &Caller, dir: FileId, name: &[u8]) -> Result<()> {
        self.faults.pass(Call::Rmdir).await?;
        self.inner.rmdir(caller, dir, name).await
    }

    async fn rename(
        &self,
        caller: &Caller,
        from_dir: FileId,
        from: &[u8],
        to_dir: FileId,
        to: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        self.faults.pass(Call::Rename).await?;
        self.inner.rename(caller, from_dir, from, to_dir, to, flags).await
    }

    async fn rename_counted(
        &self,
        caller: &Caller,
        from_dir: FileId,
        from: &[u8],
        to_dir: FileId,
        to: &[u8],
        flags: RenameFlags,
    ) -> Result<Option<Unnamed>> {
        self.faults.pass(Call::Rename).await?;
        self.inner.rename_counted(caller, from_dir, from, to_dir, to, flags).await
    }

    fn names_change_here(&self) -> bool {
        self.inner.names_change_here()
    }

    async fn open(&self, caller: &Caller, id: FileId, access: Access) -> Result<Arc<dyn OpenFile>> {
        self.faults.pass(Call::Open).await?;
        let inner = self.inner.open(caller, id, access).await?;
        Ok(Arc::new(FaultFile { inner, faults: self.faults.clone() }))
    }

    async fn sync_node(&self, id: FileId) -> Result<()> {
        self.faults.pass(Call::SyncNode).await?;
        self.inner.sync_node(id).await
    }

    async fn get_xattr(&self, caller: &Caller, id: FileId, name: &[u8]) -> Result<Vec<u8>> {
        self.faults.pass(Call::Xattr).await?;
        self.inner.get_xattr(caller, id, name).await
    }

    async fn set_xattr(
        &self,
        caller: &Caller,
        id: FileId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        self.faults.pass(Call::Xattr).await?;
        self.inner.set_xattr(caller, id, name, value, mode).await
    }

    async fn list_xattrs(&self, caller: &Caller, id: FileId) -> Result<Vec<Vec<u8>>> {
        self.faults.pass(Call::Xattr).await?;
        self.inner.list_xattrs(caller, id).await
    }

    async fn remove_xattr(&self, caller: &Caller, id: FileId, name: &[u8]) -> Result<()> {
        self.faults.pass(Call::Xattr).await?;
        self.inner.remove_xattr(caller, id, name).await
    }

    async fn get_acl(&self, id: FileId, kind: AclKind) -> Result<Option<Acl>> {
        self.faults.pass(Call::Acl).await?;
        self.inner.get_acl(id, kind).await
    }

    async fn set_acl(
        &self,
        caller: &Caller,
        id: FileId,
        kind: AclKind,
        acl: Option<&Acl>,
    ) -> Result<()> {
        self.faults.pass(Call::Acl).await?;
        self.inner.set_acl(caller, id, kind, acl).await
    }
}
