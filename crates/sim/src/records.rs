//! The disk that a server's records of clients lie on: a volatile and a durable half of one file.

use parking_lot::Mutex;
use redb::{Database, DatabaseError, StorageBackend};
use std::io;
use std::sync::Arc;
use weir_stores::random::Random;

/// Bytes that a power cut keeps or loses together.
const SECTOR: usize = 512;

/// The file, whichever server uses it.
pub(crate) struct Records {
    inner: Mutex<Inner>,
    /// A planted defect: syncs do nothing.
    lies: bool,
}

struct Inner {
    now: Vec<u8>,
    durable: Vec<u8>,
    /// Writes that are not synced.
    pending: Vec<(usize, Vec<u8>)>,
    generation: u64,
    random: Random,
}

impl Records {
    pub(crate) fn new(seed: u64, lies: bool) -> Arc<Self> {
        let (now, durable, pending) = Default::default();
        let inner = Inner { now, durable, pending, generation: 0, random: Random::new(seed) };
        Arc::new(Self { inner: Mutex::new(inner), lies })
    }

    /// Opens the database for the server of a generation; fails for one that is gone.
    pub(crate) fn open(self: &Arc<Self>, generation: u64) -> Result<Database, DatabaseError> {
        Database::builder().create_with_backend(Backend { records: self.clone(), generation })
    }

    /// That of a server that starts now.
    pub(crate) fn generation(&self) -> u64 {
        self.inner.lock().generation
    }

    pub(crate) fn kill(&self) {
        self.inner.lock().generation += 1;
    }

    pub(crate) fn cut_power(&self) {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        inner.generation += 1;
        let odds = inner.random.below(5);
        for (offset, bytes) in std::mem::take(&mut inner.pending) {
            for (at, part) in bytes.chunks(SECTOR).enumerate() {
                if inner.random.below(4) < odds {
                    write(&mut inner.durable, offset + at * SECTOR, part);
                }
            }
        }
        inner.now = inner.durable.clone();
    }
}

fn write(file: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    let end = offset + bytes.len();
    if file.len() < end {
        file.resize(end, 0);
    }
    file[offset..end].copy_from_slice(bytes);
}

struct Backend {
    records: Arc<Records>,
    generation: u64,
}

impl std::fmt::Debug for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "records of run {}", self.generation)
    }
}

impl Backend {
    fn with<T>(&self, f: impl FnOnce(&mut Inner) -> T) -> io::Result<T> {
        let mut inner = self.records.inner.lock();
        if inner.generation == self.generation {
            Ok(f(&mut inner))
        } else {
            Err(io::Error::other("the server of this database is gone"))
        }
    }
}

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        self.with(|inner| inner.now.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let offset = offset as usize;
        self.with(|inner| out.copy_from_slice(&inner.now[offset..offset + out.len()]))
    }

    /// Durable at once: what a file system does with a file's size is its own affair.
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.with(|inner| {
            inner.now.resize(len as usize, 0);
            inner.durable.resize(len as usize, 0);
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        let lies = self.records.lies;
        self.with(|inner| {
            if !lies {
                inner.pending.clear();
                inner.durable = inner.now.clone();
            }
        })
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.with(|inner| {
            write(&mut inner.now, offset as usize, data);
            inner.pending.push((offset as usize, data.to_vec()));
        })
    }
}
