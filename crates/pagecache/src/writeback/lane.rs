//! A store's lane: the threads that work for it in the background.
//!
//! 1. A store whose calls block (a dead hard mount) stops its own lane, and no other. Each mounted
//!    store has a list of dirty files with a flusher, and a queue of tasks, of its own; the threads
//!    that all stores share (reclaim, callers of other stores) never call it. What they let go of is
//!    closed by its tasks.
//! 2. A store has two threads at most: `weir-flush`, from the first file that is dirty or idle until
//!    there has been nothing to do for two seconds, and `weir-tasks`, as long as there are tasks. A
//!    cache has one more, `weir-reclaim`.
//! 3. The flusher of a store that is not mounted any more writes what is dirty at once, and ends
//!    when nothing is.
//! 4. A thread that gives the flusher something to do holds the lock of the list that it is put in; the
//!    thread ends with these locks held and the lists empty. So none is left without a thread.

use crate::memory::Memory;
use crate::tasks::Tasks;
use crate::thread::{self, Signal};
use crate::writeback::flusher::DirtyFiles;
use crate::writeback::throttle::Writeback;
use std::sync::{Arc, Weak};
use std::time::Instant;
use weir_base::sync::Mutex;
use weir_base::sync::atomic::{AtomicBool, Ordering};
use weir_vfs::OpenFile;

/// Tasks of a store that are not done, at which nothing is let go of for other stores' sake, and no
/// file is prepared to be closed.
const BACKLOG: usize = 1024;

/// A mounted store's files that no program has open, as its flusher sees them.
pub(crate) trait IdleFiles: Send + Sync {
    /// Takes the store's files away that have been idle for long enough, or prepares that. The
    /// caller closes them.
    fn close_idle(self: Arc<Self>, now: Instant) -> Vec<Arc<dyn OpenFile>>;

    /// Calls `f` under the lock of the list of idle files, with whether there are any.
    fn with_list(&self, f: &mut dyn FnMut(bool) -> bool) -> bool;
}

/// The background work of one store.
pub(crate) struct Lane {
    this: Weak<Lane>,
    memory: Weak<Memory>,
    pub(super) writeback: Arc<Writeback>,
    pub(super) idle: Weak<dyn IdleFiles>,
    /// Files that may have something dirty.
    pub(crate) files: Mutex<DirtyFiles>,
    pub(crate) flusher: Signal,
    /// The flusher has a thread.
    pub(crate) running: AtomicBool,
    pub(crate) tasks: Arc<Tasks>,
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
            tasks: Arc::default(),
        });
        let mut lanes = writeback.lanes.write();
        lanes.retain(|lane| lane.strong_count() > 0);
        lanes.push(Arc::downgrade(&lane));
        lane
    }

    /// Has the flusher look now.
    pub(crate) fn kick(&self) {
        self.flusher.kick();
        // The thread may have failed to start.
        if !self.running.load(Ordering::SeqCst) && !self.files.lock().is_empty() {
            self.start();
        }
    }

    /// Starts the flusher's thread, unless it is there. The lock of the list that it is to look at
    /// is held.
    pub(crate) fn start(&self) {
        // A model has the threads that it starts itself.
        if cfg!(shuttle) || self.running.swap(true, Ordering::SeqCst) {
            return;
        }
        let (Some(lane), Some(memory)) = (self.this.upgrade(), self.memory.upgrade()) else {
            return;
        };
        let run = move || thread::restart_on_panic("weir-flush", || lane.flush_loop(&memory));
        if let Err(error) = thread::try_spawn("weir-flush", run) {
            // The next kick tries again.
            tracing::error!("cannot start thread weir-flush: {error}");
            self.running.store(false, Ordering::SeqCst);
        }
    }

    /// Whether so much is waiting for the store that no more is to be added for others' sake.
    pub(crate) fn is_behind(&self) -> bool {
        self.room_for_tasks() == 0
    }

    /// How many tasks may be added that can as well be added later.
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
    use weir_stores::memory::MemoryFs;
    use weir_vfs::{Access, Caller, FileSystem, FileSystemDecorator, IoFlags, SetAttr};

    fn running(fs: &crate::CachedFs) -> bool {
        fs.shared.dirty.lane.running.load(Ordering::SeqCst)
    }

    fn make(fs: &crate::CachedFs, name: &[u8], access: Access) -> crate::File {
        pollster::block_on(async {
            let set = SetAttr::default();
            let made = fs.create(&Caller::Own, fs.root(), name, &set, true).await.unwrap();
            fs.open(&Caller::Own, made.attr.id, access).await.unwrap()
        })
    }

    #[test]
    fn a_store_has_a_flusher_while_there_is_something_to_do() {
        let cache = Cache::new(Config::default()).unwrap();
        let (fs, unused) = (cache.mount(MemoryFs::new()), cache.mount(MemoryFs::new()));
        let mut open = Vec::new();
        for name in [b"f", b"g"] {
            assert!(!running(&fs) && !running(&unused));
            let file = make(&fs, name, Access::WRITE);
            file.write_at(&[1; 4096], 0, IoFlags::UNCACHED).unwrap();
            assert!(running(&fs) && !running(&unused));
            while cache.dirty_bytes() > 0 || running(&fs) {
                yield_now();
            }
            open.push(file);
        }
    }

    /// A store that programs of other machines change.
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
