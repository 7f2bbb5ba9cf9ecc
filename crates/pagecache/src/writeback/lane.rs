//! A store's lane: the threads that work for it in the background.
//!
//! 1. A store whose calls block (a dead hard mount) stops only its own lane. Each mounted store has
//!    its own list of dirty files with a flusher, and its own queue of tasks; the threads that all
//!    stores share (reclaim, callers of other stores) never call it. They leave closing its files
//!    to its tasks.
//! 2. A store has at most two threads: `weir-flush`, from the first dirty or idle file, and
//!    `weir-tasks`, from the first task, until there was no work for two seconds. A cache has one
//!    more, `weir-reclaim`.
//! 3. After an unmount, the store's flusher writes all dirty pages at once, and ends when nothing
//!    is dirty.
//! 4. A thread that gives the flusher work holds the lock of the list that it adds to; the
//!    flusher's thread ends with these locks held and the lists empty. So no work is left without a
//!    thread.

use crate::memory::Memory;
use crate::tasks::Tasks;
use crate::thread::{self, Background, Signal};
use crate::writeback::flusher::{DirtyFiles, Round};
use crate::writeback::throttle::Writeback;
use std::sync::{Arc, Weak};
use std::time::Instant;
use weir_base::sync::Mutex;
use weir_base::sync::atomic::{AtomicBool, Ordering};
use weir_vfs::OpenFile;

/// Unfinished tasks of a store at which no file is dropped to make room for others, and none is
/// prepared for its close.
const BACKLOG: usize = 1024;

/// A mounted store's idle files, as its flusher sees them.
pub(crate) trait IdleFiles: Send + Sync {
    /// Takes out the store's files that have been idle for long enough, or prepares that; the
    /// caller closes them.
    fn close_idle(self: Arc<Self>, now: Instant) -> Vec<Arc<dyn OpenFile>>;

    /// Calls `f`, under the lock of the list of idle files, with whether there are any.
    fn with_list(&self, f: &mut dyn FnMut(bool) -> bool) -> bool;
}

/// The background work of one store.
pub(crate) struct Lane {
    this: Weak<Lane>,
    memory: Weak<Memory>,
    pub(super) writeback: Arc<Writeback>,
    pub(super) idle: Weak<dyn IdleFiles>,
    /// Files that may have dirty pages.
    pub(crate) files: Mutex<DirtyFiles>,
    pub(crate) flusher: Signal,
    /// Whether the flusher has a thread.
    pub(crate) running: AtomicBool,
    pub(crate) tasks: Arc<Tasks>,
    /// The flusher's, with [`Background::Rounds`].
    round: Mutex<Option<Round>>,
}

impl Lane {
    /// The lane of a store that is being mounted.
    pub(crate) fn new(
        memory: &Arc<Memory>,
        writeback: &Arc<Writeback>,
        idle: Weak<dyn IdleFiles>,
    ) -> Arc<Self> {
        let lane = Arc::new_cyclic(|this| Self {
            this: this.clone(),
            memory: Arc::downgrade(memory),
            writeback: writeback.clone(),
            idle,
            files: Mutex::default(),
            flusher: Signal::default(),
            running: AtomicBool::new(false),
            tasks: Arc::new(Tasks::new(writeback.background)),
            round: Mutex::default(),
        });
        let mut lanes = writeback.lanes.write();
        lanes.retain(|lane| lane.strong_count() > 0);
        lanes.push(Arc::downgrade(&lane));
        lane
    }

    /// Wakes the flusher.
    pub(crate) fn kick(&self) {
        self.flusher.kick();
        // Starting the thread may have failed before.
        if !self.running.load(Ordering::SeqCst) && !self.files.lock().is_empty() {
            self.start();
        }
    }

    /// Starts the flusher's thread, unless it runs. The caller holds the lock of the list that it
    /// has added to.
    pub(crate) fn start(&self) {
        // A model runs only the threads that it starts itself.
        if cfg!(shuttle) || self.running.swap(true, Ordering::SeqCst) {
            return;
        }
        if self.writeback.background == Background::Rounds {
            return;
        }
        let (Some(lane), Some(memory)) = (self.this.upgrade(), self.memory.upgrade()) else {
            return;
        };
        let run = move || thread::restart_on_panic("weir-flush", || lane.flush_loop(&memory));
        if let Err(error) = thread::try_spawn("weir-flush", run) {
            // The next kick retries.
            tracing::error!("cannot start thread weir-flush: {error}");
            self.running.store(false, Ordering::SeqCst);
        }
    }

    /// With [`Background::Rounds`]: a round of the flusher if it has something to do, and the tasks
    /// that can go on.
    pub(crate) fn round(&self, memory: &Memory) {
        if self.running.load(Ordering::SeqCst) {
            let mut round = self.round.lock();
            if self.flush_round(memory, round.get_or_insert_with(|| Round::new(memory))) {
                *round = None;
            }
        }
        self.tasks.run_ready();
    }

    /// Whether the store's backlog is so long that nothing may be added to make room for others.
    pub(crate) fn is_behind(&self) -> bool {
        self.room_for_tasks() == 0
    }

    /// Waits while the backlog is so long.
    pub(crate) async fn catch_up(&self) {
        self.tasks.room_below(BACKLOG).await;
    }

    /// Number of deferrable tasks that may be added now.
    pub(crate) fn room_for_tasks(&self) -> usize {
        BACKLOG.saturating_sub(self.tasks.alive())
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use crate::{Cache, Config};
    use std::sync::Arc;
    use std::thread::yield_now;
    use weir_base::sync::atomic::Ordering;
    use weir_stores::fault::{Call, Fault, Rule, What, When};
    use weir_stores::memory::MemoryFs;
    use weir_vfs::{Access, Caller, CreateMode, FileSystem, FileSystemDecorator, IoFlags, SetAttr};

    fn running(fs: &crate::CachedFs) -> bool {
        fs.shared.dirty.lane.running.load(Ordering::SeqCst)
    }

    fn make(fs: &crate::CachedFs, name: &[u8], access: Access) -> crate::File {
        pollster::block_on(async {
            let set = SetAttr::default();
            let made = fs
                .create(&Caller::Own, fs.root().entry(name).with(&set), CreateMode::MustBeNew)
                .await
                .unwrap();
            fs.open(&Caller::Own, made.attr.id, access).await.unwrap()
        })
    }

    #[test]
    fn a_store_has_a_flusher_while_there_is_something_to_do() {
        let cache = Cache::new(Config::default()).unwrap();
        let store = Fault::over(MemoryFs::new(), 1);
        let (fs, unused) = (cache.mount(store.clone()), cache.mount(MemoryFs::new()));
        let mut open = Vec::new();
        for name in [b"f", b"g"] {
            let (call, when) = (Call::Write, When::Always);
            store.add(Rule { call, when, what: What::Hold });
            assert!(!running(&fs) && !running(&unused));
            let file = make(&fs, name, Access::WRITE);
            file.write_at(&[1; 4096], 0, IoFlags::UNCACHED).unwrap();
            assert!(running(&fs) && !running(&unused));
            store.clear();
            while cache.dirty_bytes() > 0 || running(&fs) {
                store.release();
                yield_now();
            }
            open.push(file);
        }
    }

    /// A store that other machines change.
    struct Remote(Arc<MemoryFs>);

    impl FileSystemDecorator for Remote {
        fn below(&self) -> &dyn FileSystem {
            &*self.0
        }

        fn names_change_here(&self) -> bool {
            false
        }
    }

    #[test]
    fn a_store_whose_files_are_not_closed_needs_no_flusher_for_files_that_were_read() {
        let cache = Cache::new(Config::default()).unwrap();
        let (here, remote) =
            (cache.mount(MemoryFs::new()), cache.mount(Arc::new(Remote(MemoryFs::new()))));
        for (fs, closes) in [(&here, true), (&remote, false)] {
            drop(make(fs, b"f", Access::READ));
            assert_eq!(running(fs), closes);
        }
    }
}
