//! A disk with a volatile and a durable half, as a store.
//!
//! 1. A change is made to the volatile half at once, and noted. A sync makes those changes of its node
//!    durable that were made before it began, and no others.
//! 2. A power cut keeps any subset of the changes that were not synced: of names, each operation or
//!    none of it; of data, any of its sectors. What then has no name is gone.
//! 3. A sync that fails may lose what it was to make durable: later syncs do not bring it back, though
//!    reads still show it.
//! 4. A store of before a crash does nothing more: its calls fail.

mod image;
mod store;

use image::{Change, Image, Inode};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
pub(crate) use store::Store;
use weir_stores::random::Random;
use weir_vfs::{Error, Result};

/// Bytes that a power cut keeps or loses together.
const SECTOR: usize = 512;

/// What goes wrong now.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Trouble {
    /// One in so many calls fails with an I/O error; 0: none.
    pub(crate) io_error_in: u64,
    /// Writes and new names find no space.
    pub(crate) full: bool,
    /// Longest time of a call, in milliseconds.
    pub(crate) slow_ms: u64,
}

/// A defect that is planted in the disk, to see that the simulation finds it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lies {
    /// Syncs of directories and attributes do nothing.
    pub(crate) node_syncs: bool,
    /// Syncs of data do nothing.
    pub(crate) data_syncs: bool,
    /// One in 64 writes is not made.
    pub(crate) writes: bool,
}

/// The disk, whichever server uses it.
pub(crate) struct Disk {
    inner: Mutex<Inner>,
    lies: Lies,
}

struct Inner {
    now: Image,
    durable: Image,
    /// Changes that are not durable, in their order.
    pending: Vec<Pending>,
    next_change: u64,
    next_ino: u64,
    /// Crashes so far.
    generation: u64,
    trouble: Trouble,
    random: Random,
    failed_with_io: bool,
    failed_with_no_space: bool,
}

struct Pending {
    number: u64,
    change: Change,
    /// A sync of it failed: it will never be durable.
    lost: bool,
}

impl Disk {
    pub(crate) fn new(seed: u64, lies: Lies) -> Arc<Self> {
        let image = Image::new();
        let inner = Inner {
            now: image.clone(),
            durable: image,
            pending: Vec::new(),
            next_change: 1,
            next_ino: image::ROOT + 1,
            generation: 0,
            trouble: Trouble { slow_ms: 16, ..Trouble::default() },
            random: Random::new(seed),
            failed_with_io: false,
            failed_with_no_space: false,
        };
        Arc::new(Self { inner: Mutex::new(inner), lies })
    }

    /// The store of a server that starts now.
    pub(crate) fn store(self: &Arc<Self>) -> Arc<Store> {
        Arc::new(Store::new(self.clone(), self.inner.lock().generation))
    }

    pub(crate) fn trouble(&self, change: impl FnOnce(&mut Trouble)) {
        change(&mut self.inner.lock().trouble);
    }

    /// Whether calls have failed with an I/O error, and for want of space.
    pub(crate) fn failures(&self) -> (bool, bool) {
        let inner = self.inner.lock();
        (inner.failed_with_io, inner.failed_with_no_space)
    }

    /// The server's process ends: what it has handed over stays.
    pub(crate) fn kill(&self) {
        self.inner.lock().generation += 1;
    }

    /// The power fails. Returns how many changes were kept, and of how many.
    pub(crate) fn cut_power(&self) -> (usize, usize) {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        inner.generation += 1;
        let all = inner.pending.len();
        // Some cuts keep almost all, some almost nothing.
        let odds = inner.random.below(5);
        let mut kept = 0;
        for pending in std::mem::take(&mut inner.pending) {
            if pending.lost {
                continue;
            }
            let mut keeps = || inner.random.below(4) < odds;
            for part in pending.change.parts(SECTOR) {
                if keeps() {
                    kept += 1;
                    inner.durable.apply(&part);
                }
            }
        }
        inner.durable.drop_nameless();
        inner.now = inner.durable.clone();
        (kept, all)
    }
}

impl Inner {
    fn change(&mut self, change: Change) {
        self.now.apply(&change);
        let number = self.next_change;
        self.next_change += 1;
        self.pending.push(Pending { number, change, lost: false });
    }

    fn check(&self, generation: u64) -> Result<()> {
        if self.generation == generation { Ok(()) } else { Err(Error::Io) }
    }

    /// Fails the call by chance.
    fn fault(&mut self) -> Result<()> {
        let odds = self.trouble.io_error_in;
        if odds > 0 && self.random.one_in(odds) {
            self.failed_with_io = true;
            return Err(Error::Io);
        }
        Ok(())
    }

    fn space(&mut self) -> Result<()> {
        if self.trouble.full {
            self.failed_with_no_space = true;
            return Err(Error::NoSpace);
        }
        Ok(())
    }

    /// Half the time of a call.
    fn latency(&mut self) -> Duration {
        Duration::from_millis(1 + self.random.below(self.trouble.slow_ms / 2))
    }

    /// Ends a sync of what was done to a node before `until`. A disk that `lies` syncs nothing.
    fn sync_or_lose(&mut self, ino: u64, until: u64, lies: bool) -> Result<()> {
        let synced = self.fault();
        match synced {
            Ok(()) if lies => {}
            Ok(()) => self.sync(ino, until),
            Err(_) => self.lose(ino, until),
        }
        synced
    }

    /// Makes what was done to a node before `until` durable.
    fn sync(&mut self, ino: u64, until: u64) {
        let (durable, pending) = (&mut self.durable, &mut self.pending);
        pending.retain(|pending| {
            let now = !pending.lost && pending.number < until && pending.change.is_of(ino);
            if now {
                durable.apply(&pending.change);
            }
            !now
        });
    }

    /// A sync has failed: some of what it was to make durable never will be.
    fn lose(&mut self, ino: u64, until: u64) {
        for pending in &mut self.pending {
            if pending.number < until && pending.change.is_of(ino) && self.random.one_in(2) {
                pending.lost = true;
            }
        }
    }

    fn inode(&self, ino: u64) -> Result<&Inode> {
        self.now.inodes.get(&ino).ok_or(Error::Stale)
    }
}
