//! Locks, as the kernel asks for them.

use super::{Kernel, Remote, eventually};
use crate::mounted::{Keeper, Settings};
use crate::wire::abi::{self, opcode};
use std::sync::Arc;
use std::time::Duration;
use weir_pagecache::{Cache, Config};
use weir_stores::fault::{Call, Fault, Rule, What, When};
use weir_stores::memory::MemoryFs;
use weir_vfs::{
    Access, Attr, Caller, CreateMode, Created, Error, FileId, FileSystem, FileSystemDecorator,
    IoFlags, NewFile, OpenFile, OpenFileDecorator, Result,
};
use zerocopy::{FromBytes, IntoBytes};

const EXCLUSIVE: i32 = libc::F_WRLCK;
const SHARED: i32 = libc::F_RDLCK;
const NONE: i32 = libc::F_UNLCK;

fn lock(fh: u64, owner: u64, kind: i32) -> abi::LkIn {
    abi::LkIn { fh, owner, end: i64::MAX as u64, kind: kind.cast_unsigned(), ..Default::default() }
}

impl Kernel {
    /// F_SETLK; returns the error.
    fn set_lock(&mut self, node: u64, lock: &abi::LkIn) -> i32 {
        self.call(opcode::SETLK, node, &[lock.as_bytes()]).0
    }

    fn release(&mut self, node: u64, args: &abi::ReleaseIn) {
        assert_eq!(self.call(opcode::RELEASE, node, &[args.as_bytes()]).0, 0);
    }

    /// Interrupts a request that waits for a lock; returns its error. Its wait may not have begun: then the
    /// kernel is asked to interrupt it again.
    fn interrupt(&mut self, waiting: u64) -> i32 {
        loop {
            let number = self.ask(opcode::INTERRUPT, 0, &[waiting.as_bytes()]);
            let (unique, error) = loop {
                match self.receive() {
                    (0, ..) => {}
                    (unique, error, _) => break (unique, error),
                }
            };
            if unique == waiting {
                return error;
            }
            assert_eq!((unique, error), (number, -libc::EAGAIN));
        }
    }
}

#[test]
fn an_interrupted_wait_for_a_lock_ends() {
    let mut kernel = Kernel::start();
    let (node, fh) = kernel.create(b"f");
    assert_eq!(kernel.set_lock(node, &lock(fh, 1, EXCLUSIVE)), 0);
    assert_eq!(kernel.set_lock(node, &lock(fh, 2, EXCLUSIVE)), -libc::EAGAIN);
    let waiting = kernel.ask(opcode::SETLKW, node, &[lock(fh, 2, EXCLUSIVE).as_bytes()]);
    assert_eq!(kernel.interrupt(waiting), -libc::EINTR);
    // Closing releases the process's locks.
    assert_eq!(kernel.flush(node, fh, 1), 0);
    assert_eq!(kernel.set_lock(node, &lock(fh, 2, EXCLUSIVE)), 0);
}

#[test]
fn an_interrupted_upgrade_keeps_the_lock_that_was_held() {
    let mut kernel = Kernel::start();
    let (node, fh) = kernel.create(b"f");
    assert_eq!(kernel.set_lock(node, &lock(fh, 1, SHARED)), 0);
    assert_eq!(kernel.set_lock(node, &lock(fh, 2, SHARED)), 0);
    let waiting = kernel.ask(opcode::SETLKW, node, &[lock(fh, 1, EXCLUSIVE).as_bytes()]);
    assert_eq!(kernel.interrupt(waiting), -libc::EINTR);
    assert_eq!(kernel.set_lock(node, &lock(fh, 2, EXCLUSIVE)), -libc::EAGAIN);
    assert_eq!(kernel.set_lock(node, &lock(fh, 1, NONE)), 0);
    assert_eq!(kernel.set_lock(node, &lock(fh, 2, EXCLUSIVE)), 0);
}

/// flock(2): "Converting a lock is not guaranteed to be atomic: the existing lock is first removed".
#[test]
fn two_upgrades_of_flock_do_not_wait_for_each_other() {
    let mut kernel = Kernel::start();
    let (node, fh) = kernel.create(b"f");
    let flock = |owner, kind| abi::LkIn { lk_flags: abi::LK_FLOCK, ..lock(fh, owner, kind) };
    assert_eq!(kernel.set_lock(node, &flock(1, SHARED)), 0);
    assert_eq!(kernel.set_lock(node, &flock(2, SHARED)), 0);
    let first = kernel.ask(opcode::SETLKW, node, &[flock(1, EXCLUSIVE).as_bytes()]);
    let second = kernel.ask(opcode::SETLK, node, &[flock(2, EXCLUSIVE).as_bytes()]);
    let mut granted = false;
    for _ in 0..2 {
        match kernel.receive() {
            (number, 0, _) if number == first => granted = true,
            // The first one has given its lock up, and waits.
            (number, 0, _) if number == second => {
                let released = kernel.ask(opcode::SETLK, node, &[flock(2, NONE).as_bytes()]);
                while kernel.receive().0 != released {
                    granted = true;
                }
            }
            (number, error, _) => assert_eq!((number, error), (second, -libc::EAGAIN)),
        }
        if granted {
            break;
        }
    }
    assert!(granted || kernel.reply(first).0 == 0);
}

/// The kernel gives an open file description as the owner of its locks, and no owner when it is closed.
#[test]
fn locks_of_an_open_file_description_end_with_it() {
    let mut kernel = Kernel::start();
    let (node, fh) = kernel.create(b"f");
    let description = kernel.open(node);
    assert_eq!(kernel.set_lock(node, &lock(description, 77, EXCLUSIVE)), 0);
    assert_eq!(kernel.flush(node, description, 1), 0);
    assert_eq!(kernel.set_lock(node, &lock(fh, 1, EXCLUSIVE)), -libc::EAGAIN);
    kernel.release(node, &abi::ReleaseIn { fh: description, ..Default::default() });
    assert_eq!(kernel.set_lock(node, &lock(fh, 1, EXCLUSIVE)), 0);
    // A process's locks that it got through another open file stay.
    let other = kernel.open(node);
    assert_eq!(kernel.set_lock(node, &lock(other, 1, SHARED)), 0);
    kernel.release(node, &abi::ReleaseIn { fh, ..Default::default() });
    assert_eq!(kernel.set_lock(node, &lock(other, 2, EXCLUSIVE)), -libc::EAGAIN);
}

#[test]
fn a_removed_file_that_is_open_can_be_locked() {
    let mut kernel = Kernel::start();
    let (node, fh) = kernel.create(b"f");
    assert_eq!(kernel.call(opcode::UNLINK, abi::ROOT, &[b"f\0"]).0, 0);
    assert_eq!(kernel.set_lock(node, &lock(fh, 1, EXCLUSIVE)), 0);
    assert_eq!(kernel.set_lock(node, &lock(fh, 2, EXCLUSIVE)), -libc::EAGAIN);
    assert_eq!(kernel.flush(node, fh, 1), 0);
    assert_eq!(kernel.set_lock(node, &lock(fh, 2, EXCLUSIVE)), 0);
}

#[test]
fn a_lock_that_a_killed_thread_gets_is_released() {
    let store = Fault::over(MemoryFs::new(), 1);
    let mut kernel = Kernel::start_over(store.clone());
    let (node, fh) = kernel.create(b"f");
    store.add(Rule { call: Call::Open, when: When::First(1), what: What::Hold });
    let number = kernel.ask(opcode::SETLK, node, &[lock(fh, 1, EXCLUSIVE).as_bytes()]);
    while store.held() == 0 {
        std::thread::yield_now();
    }
    kernel.ask(opcode::INTERRUPT, 0, &[abi::InterruptIn { unique: number }.as_bytes()]);
    assert_eq!(kernel.reply(number).0, -libc::EINTR);
    // Its process closes the file before the lock is granted.
    assert_eq!(kernel.flush(node, fh, 1), 0);
    store.release();
    // Through the open file that the first request has opened.
    assert!(eventually(|| kernel.set_lock(node, &lock(fh, 2, EXCLUSIVE)) == 0));
}

/// A lock of flock(2) on the whole file.
fn flock(fh: u64, owner: u64, kind: i32) -> abi::LkIn {
    abi::LkIn { lk_flags: abi::LK_FLOCK, ..lock(fh, owner, kind) }
}

const EXCLUSIVELY: weir_vfs::Lock =
    weir_vfs::Lock { range: weir_vfs::LockRange::ALL, exclusive: true };
const OTHER: weir_vfs::LockOwner = weir_vfs::LockOwner(9);

/// A session over a store that can hold calls, one open file of it, and the same file in the store, opened by
/// another program.
struct Contended {
    kernel: Kernel,
    store: Arc<Fault>,
    runtime: tokio::runtime::Runtime,
    node: u64,
    fh: u64,
    other: Arc<dyn OpenFile>,
}

impl Contended {
    fn new() -> Self {
        let store = Fault::over(MemoryFs::new(), 1);
        let mut kernel = Kernel::start_over(store.clone());
        let (node, fh) = kernel.create(b"f");
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let other = runtime.block_on(async {
            let id = kernel.fs.lookup(&Caller::Own, kernel.fs.root().entry(b"f")).await.unwrap().id;
            let both = Access::READ | Access::WRITE;
            kernel.fs.store().open(&Caller::Own, id, both).await.unwrap()
        });
        Self { kernel, store, runtime, node, fh, other }
    }

    /// Whether the other program gets a lock now; with that, it holds one exclusively.
    fn other_locks(&self, lock: weir_vfs::Lock) -> bool {
        match self.runtime.block_on(self.other.lock(OTHER, lock, false)) {
            Ok(()) => true,
            Err(error) => {
                assert_eq!(error, Error::WouldBlock);
                false
            }
        }
    }

    fn other_unlocks(&self) {
        self.runtime.block_on(self.other.unlock(OTHER, EXCLUSIVELY.range)).unwrap();
    }

    /// Kills the thread of a request for a lock that is granted: `grants` has the store grant it.
    fn kill_when_granted(&mut self, number: u64, grants: impl FnOnce(&Self)) {
        // With the lock, it looks at what others have written.
        self.store.add(Rule { call: Call::Getattr, when: When::Always, what: What::Hold });
        grants(self);
        while self.store.held() == 0 {
            std::thread::yield_now();
        }
        self.kernel.ask(opcode::INTERRUPT, 0, &[abi::InterruptIn { unique: number }.as_bytes()]);
        assert_eq!(self.kernel.reply(number).0, -libc::EINTR);
        self.store.clear();
        self.store.release();
    }

    fn other_gets_the_lock(&self) -> bool {
        eventually(|| self.other_locks(EXCLUSIVELY))
    }
}

#[test]
fn a_lock_of_flock_that_a_killed_thread_gets_is_released_although_it_was_denied_before() {
    let mut file = Contended::new();
    let (node, wanted) = (file.node, flock(file.fh, 1, EXCLUSIVE));
    assert!(file.other_locks(EXCLUSIVELY));
    assert_eq!(file.kernel.set_lock(node, &wanted), -libc::EAGAIN);
    let number = file.kernel.ask(opcode::SETLKW, node, &[wanted.as_bytes()]);
    file.kill_when_granted(number, Contended::other_unlocks);
    assert!(file.other_gets_the_lock());
}

/// The shared lock ended when the upgrade began to wait.
#[test]
fn an_upgrade_of_flock_that_a_killed_thread_gets_is_released() {
    let mut file = Contended::new();
    let (node, fh) = (file.node, file.fh);
    assert!(file.other_locks(weir_vfs::Lock { exclusive: false, ..EXCLUSIVELY }));
    assert_eq!(file.kernel.set_lock(node, &flock(fh, 1, SHARED)), 0);
    let number = file.kernel.ask(opcode::SETLKW, node, &[flock(fh, 1, EXCLUSIVE).as_bytes()]);
    while !file.other_locks(EXCLUSIVELY) {
        std::thread::yield_now();
    }
    file.kill_when_granted(number, Contended::other_unlocks);
    assert!(file.other_gets_the_lock());
}

/// Processes that share an open file share its lock.
#[test]
fn a_killed_thread_does_not_release_a_lock_of_flock_that_its_open_file_holds() {
    let mut file = Contended::new();
    let (node, held) = (file.node, flock(file.fh, 1, EXCLUSIVE));
    assert_eq!(file.kernel.set_lock(node, &held), 0);
    file.store.add(Rule { call: Call::Getattr, when: When::Always, what: What::Hold });
    let number = file.kernel.ask(opcode::SETLKW, node, &[held.as_bytes()]);
    file.kill_when_granted(number, |_| {});
    for _ in 0..100 {
        std::thread::sleep(Duration::from_millis(1));
        assert!(!file.other_locks(EXCLUSIVELY));
    }
    assert_eq!(file.kernel.set_lock(node, &flock(file.fh, 1, NONE)), 0);
    assert!(file.other_locks(EXCLUSIVELY));
}

/// Both wait through one open file, so each has what the other one gets.
#[test]
fn two_killed_threads_with_one_open_file_leave_no_lock_of_flock() {
    let mut file = Contended::new();
    let (node, wanted) = (file.node, flock(file.fh, 1, EXCLUSIVE));
    assert!(file.other_locks(EXCLUSIVELY));
    let numbers = [0; 2].map(|_| file.kernel.ask(opcode::SETLKW, node, &[wanted.as_bytes()]));
    file.store.add(Rule { call: Call::Getattr, when: When::Always, what: What::Hold });
    file.other_unlocks();
    while file.store.held() == 0 {
        std::thread::yield_now();
    }
    for number in numbers {
        assert_eq!(file.kernel.interrupt(number), -libc::EINTR);
    }
    file.store.clear();
    file.store.release();
    assert!(file.other_gets_the_lock());
}

/// What the store has of a file, when another lock on it is free.
async fn once_free(file: &Arc<dyn OpenFile>, owner: u64) -> u64 {
    let lock = weir_vfs::Lock { range: weir_vfs::LockRange::ALL, exclusive: true };
    file.lock(weir_vfs::LockOwner(owner), lock, true).await.unwrap();
    file.getattr().await.unwrap().size
}

#[test]
fn data_is_in_the_store_before_its_lock_is_released() {
    let store = Fault::over(MemoryFs::new(), 1);
    let mut kernel = Kernel::start_over(store.clone());
    let (node, fh) = kernel.create(b"f");
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let id = runtime.block_on(kernel.fs.lookup(&Caller::Own, kernel.fs.root().entry(b"f")));
    let both = Access::READ | Access::WRITE;
    let open = runtime.block_on(kernel.fs.store().open(&Caller::Own, id.unwrap().id, both));
    let other = open.unwrap();
    let flock = abi::LkIn { lk_flags: abi::LK_FLOCK, ..lock(fh, 5, EXCLUSIVE) };
    let ways: [&[(u32, Vec<u8>)]; 3] = [
        &[(opcode::SETLK, lock(fh, 1, NONE).as_bytes().to_vec())],
        &[(
            opcode::FLUSH,
            abi::FlushIn { fh, lock_owner: 1, ..Default::default() }.as_bytes().to_vec(),
        )],
        &[(opcode::SETLK, abi::LkIn { kind: NONE.cast_unsigned(), ..flock }.as_bytes().to_vec())],
    ];
    for (at, requests) in ways.into_iter().enumerate() {
        let size = at as u64 + 1;
        let taken = if at == 2 { flock } else { lock(fh, 1, EXCLUSIVE) };
        assert_eq!(kernel.set_lock(node, &taken), 0);
        // The data is on its way to the store, and the lock is held as long as it is.
        store.add(Rule { call: Call::Write, when: When::Always, what: What::Hold });
        kernel.write(node, fh, at as u64, b"x");
        let numbers: Vec<_> =
            requests.iter().map(|(opcode, args)| kernel.ask(*opcode, node, &[args])).collect();
        while store.held() == 0 {
            std::thread::yield_now();
        }
        let lock = weir_vfs::Lock { range: weir_vfs::LockRange::ALL, exclusive: true };
        let denied = runtime.block_on(other.lock(weir_vfs::LockOwner(9), lock, false));
        assert_eq!(denied, Err(Error::WouldBlock), "way {at}");
        store.clear();
        store.release();
        assert_eq!(runtime.block_on(once_free(&other, 9)), size, "way {at}");
        for number in numbers {
            assert_eq!(kernel.reply(number).0, 0);
        }
        let free = other.unlock(weir_vfs::LockOwner(9), weir_vfs::LockRange::ALL);
        runtime.block_on(free).unwrap();
    }
}

#[test]
fn what_others_wrote_is_seen_under_a_lock() {
    let store = MemoryFs::new();
    let mut kernel = Kernel::start_over(store.clone());
    let (node, fh) = kernel.create(b"f");
    kernel.write(node, fh, 0, b"ours");
    assert_eq!(kernel.flush(node, fh, 1), 0);
    assert_eq!(kernel.read(node, fh, 0, 10), b"ours");
    let cache = Cache::new(Config { budget_bytes: 1 << 20, ..Config::default() }).unwrap();
    let others = cache.mount(store);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let id = others.lookup(&Caller::Own, others.root().entry(b"f")).await.unwrap().id;
        let file = others.open(&Caller::Own, id, Access::READ | Access::WRITE).await.unwrap();
        file.write_at_async(b"theirs", 0, IoFlags::empty()).await.unwrap();
        file.sync_async(false).await.unwrap();
    });
    assert_eq!(kernel.set_lock(node, &lock(fh, 1, SHARED)), 0);
    assert_eq!(kernel.read(node, fh, 0, 10), b"theirs");
}

/// A store whose change attributes may be time stamps.
struct Stamped {
    store: Arc<MemoryFs>,
    is_exact: bool,
}

struct StampedFile {
    file: Arc<dyn OpenFile>,
    is_exact: bool,
}

#[async_trait::async_trait]
impl FileSystemDecorator for Stamped {
    fn below(&self) -> &dyn FileSystem {
        &*self.store
    }

    async fn open(&self, caller: &Caller, id: FileId, access: Access) -> Result<Arc<dyn OpenFile>> {
        let file = self.store.open(caller, id, access).await?;
        Ok(Arc::new(StampedFile { file, is_exact: self.is_exact }))
    }

    async fn create_open(
        &self,
        caller: &Caller,
        new: NewFile<'_>,
        mode: CreateMode,
    ) -> Result<(Created, Option<Arc<dyn OpenFile>>)> {
        Ok((self.store.create(caller, new, mode).await?, None))
    }
}

impl OpenFileDecorator for StampedFile {
    fn below(&self) -> &dyn OpenFile {
        &*self.file
    }

    fn change_is_exact(&self, _: &Attr) -> bool {
        self.is_exact
    }
}

#[test]
fn a_lock_drops_the_kernels_pages_unless_the_change_attribute_proves_them() {
    for is_exact in [true, false] {
        let settings = Settings { keeper: Keeper::Kernel, ..Settings::default() };
        let store = Arc::new(Stamped { store: MemoryFs::new(), is_exact });
        let mut kernel = Kernel::start_with(store, settings);
        let (node, fh) = kernel.create(b"f");
        kernel.write(node, fh, 0, b"data");
        // Sets the times in the store, which else the flusher does some time: a change of the file, too.
        assert_eq!(kernel.fsync(node, fh), 0);
        let mut dropped = Vec::new();
        for _ in 0..4 {
            let number = kernel.ask(opcode::SETLK, node, &[lock(fh, 1, SHARED).as_bytes()]);
            let mut drops = false;
            loop {
                match kernel.receive() {
                    (0, abi::NOTIFY_INVAL_INODE, content) => {
                        let out = abi::InvalInodeOut::read_from_bytes(&content).unwrap();
                        // A negative offset means the attributes alone.
                        drops |= out.off >= 0;
                    }
                    (0, ..) => {}
                    reply => break assert_eq!((reply.0, reply.1), (number, 0)),
                }
            }
            dropped.push(drops);
            assert_eq!(kernel.set_lock(node, &lock(fh, 1, NONE)), 0);
        }
        // Before, the write was its own change.
        assert_eq!(dropped[2..], [!is_exact; 2], "exact: {is_exact}");
    }
}

/// A downgrade lets others write.
#[test]
fn nothing_is_written_after_a_downgrade_although_other_data_was_lost() {
    let store = Fault::over(MemoryFs::new(), 1);
    let mut kernel = Kernel::start_over(Arc::new(Remote(store.clone())));
    let (node, fh) = kernel.create(b"f");
    kernel.write(node, fh, 0, &[1; 12_288]);
    assert_eq!(kernel.fsync(node, fh), 0);
    assert_eq!(kernel.set_lock(node, &lock(fh, 1, EXCLUSIVE)), 0);
    let what = What::Fail(Error::NoSpace);
    store.add(Rule { call: Call::Write, when: When::Touching(0..10), what });
    store.add(Rule { call: Call::Write, when: When::Touching(8192..8202), what: What::Hold });
    kernel.write(node, fh, 0, &[2; 10]);
    kernel.write(node, fh, 8192, &[2; 10]);
    let downgrade = kernel.ask(opcode::SETLK, node, &[lock(fh, 1, SHARED).as_bytes()]);
    assert!(eventually(|| store.held() == 1 && store.injected() > 1));
    std::thread::sleep(Duration::from_millis(200));
    // This one has no reply before the other only if that waits for the data.
    let (error, found) = kernel.call(opcode::GETLK, node, &[lock(fh, 2, SHARED).as_bytes()]);
    assert_eq!(error, 0);
    let found = abi::LkOut::read_from_bytes(&found).unwrap();
    assert_eq!(found.kind, EXCLUSIVE.cast_unsigned());
    store.clear();
    store.release();
    assert_eq!(kernel.reply(downgrade).0, 0);
}
