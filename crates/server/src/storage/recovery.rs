//! The recovery database: the run number, and the clients that had state.
//!
//! 1. A run's number is on disk before it is used, so stateids and client numbers are never reused.
//! 2. The record of a client, with the principal that may speak for it, or of a host that uses NLM,
//!    is durable before the reply that lets it acquire state. Revoked state is recorded before the
//!    reply that gives it to another client.
//! 3. The database knows the longest lease by which a client may renew that may reclaim its state: grace lasts that
//!    long, also if the server was started again with a shorter lease.
//! 4. After a failed write, the next write reopens the database: redb accepts no more transactions
//!    after an I/O error, even a transient one such as a full disk.

use crate::handle::Node;
use crate::state::{LockHost, Owner, Principal, ReclaimDenied, Record, RecordedLease};
use crate::storage::database_file::DatabaseFile;
use bytes::{Buf, BufMut, Bytes};
use parking_lot::Mutex;
use redb::{Database, DatabaseError, ReadableTable, TableDefinition, WriteTransaction};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use weir_vfs::FileId;

const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
const CLIENTS: TableDefinition<'_, (bool, &[u8]), ()> = TableDefinition::new("clients");
/// For clients in `CLIENTS`: state that they may not reclaim, if any. The name is that of
/// earlier versions.
const RECLAIM_DENIED: TableDefinition<'_, (bool, &[u8]), &[u8]> = TableDefinition::new("barred");
/// For clients in `CLIENTS`: the principal that may speak for them, as flavor and user. Earlier
/// versions did not write it.
const PRINCIPALS: TableDefinition<'_, (bool, &[u8]), (u32, u32)> =
    TableDefinition::new("client principals");
/// Addresses, as text, of hosts that hold NLM locks, and the server's address that they used.
const HOSTS: TableDefinition<'_, &str, &str> = TableDefinition::new("lock hosts");
const RUN: &str = "run";
/// In `META`: the longest lease that clients with a record may know, in milliseconds. Earlier versions did not write
/// it.
const LEASE: &str = "lease";
const FILE: &str = "state.redb";

/// Opens a database that is not in a file. Its reads and writes must not block, because the
/// server's tasks execute them.
pub type OpenRecords = Arc<dyn Fn() -> Result<Database, DatabaseError> + Send + Sync>;

/// Where the database is stored.
#[derive(Clone)]
enum Location {
    File(PathBuf),
    Other(OpenRecords),
}

impl Location {
    fn open(&self) -> Result<Database, DatabaseError> {
        match self {
            Self::File(path) => Database::builder().create_with_backend(DatabaseFile::open(path)?),
            Self::Other(open) => open(),
        }
    }
}

impl std::fmt::Debug for Location {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => path.fmt(f),
            Self::Other(_) => f.write_str("in memory"),
        }
    }
}

/// The database.
#[derive(Clone, Debug)]
pub(crate) struct Recovery {
    /// `None` after a failed write.
    db: Arc<Mutex<Option<Database>>>,
    location: Arc<Location>,
}

/// The contents of the database at start.
#[derive(Debug)]
pub(crate) struct Recovered {
    /// The number of this run; runs are counted from 1.
    pub run: u32,
    /// Clients that had state in the previous run.
    pub clients: Vec<(Owner, Record)>,
    /// Hosts that held NLM locks.
    pub hosts: Vec<LockHost>,
    /// The longest lease that these clients may know.
    pub lease: Duration,
}

impl Recovery {
    /// Opens or creates the database in `state_dir`, and begins a run with a lease.
    ///
    /// # Errors
    /// The database cannot be opened (another server has it open, say), read or written.
    pub(crate) fn open(
        state_dir: &Path,
        lease: Duration,
    ) -> Result<(Self, Recovered), redb::Error> {
        Self::open_in(Location::File(state_dir.join(FILE)), lease)
    }

    /// As [`open`](Self::open), with a database that is not in a file.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(crate) fn open_with(
        records: OpenRecords,
        lease: Duration,
    ) -> Result<(Self, Recovered), redb::Error> {
        Self::open_in(Location::Other(records), lease)
    }

    fn open_in(location: Location, own: Duration) -> Result<(Self, Recovered), redb::Error> {
        let db = location.open()?;
        let txn = db.begin_write()?;
        let recovered = {
            let mut meta = txn.open_table(META)?;
            let run = meta.get(RUN)?.map_or(0, |run| run.value()) as u32;
            let run = run.checked_add(1).unwrap_or(1);
            meta.insert(RUN, u64::from(run))?;
            let mut clients = Vec::new();
            let reclaim_denied = txn.open_table(RECLAIM_DENIED)?;
            let principals = txn.open_table(PRINCIPALS)?;
            for entry in txn.open_table(CLIENTS)?.iter()? {
                let (key, _) = entry?;
                let (sessions, name) = key.value();
                let reclaim_denied = reclaim_denied.get((sessions, name))?;
                let reclaim_denied = reclaim_denied
                    .map_or_else(ReclaimDenied::default, |files| reclaim_denied_of(files.value()));
                let principal = principals.get((sessions, name))?.map(|principal| {
                    let (flavor, uid) = principal.value();
                    Principal { flavor, uid }
                });
                let owner = Owner { sessions, name: Bytes::copy_from_slice(name) };
                clients.push((owner, Record { reclaim_denied, principal }));
            }
            let mut hosts = Vec::new();
            for entry in txn.open_table(HOSTS)?.iter()? {
                let (host, server) = entry?;
                if let (Ok(host), Ok(server)) = (host.value().parse(), server.value().parse()) {
                    hosts.push(LockHost { host, server });
                }
            }
            let known = meta.get(LEASE)?.map_or(own, |lease| Duration::from_millis(lease.value()));
            let lease = if clients.is_empty() { own } else { own.max(known) };
            meta.insert(LEASE, millis(lease))?;
            Recovered { run, clients, hosts, lease }
        };
        txn.commit()?;
        Ok((Self { db: Arc::new(Mutex::new(Some(db))), location: Arc::new(location) }, recovered))
    }

    /// Writes the record of each client, or removes it (`None`), and the lease. Returns when the change is durable.
    ///
    /// # Errors
    /// It could not be written.
    pub(crate) async fn write_clients(
        &self,
        records: Vec<(Owner, Option<Record>)>,
        lease: RecordedLease,
    ) -> Result<(), redb::Error> {
        self.write(move |txn| {
            let mut meta = txn.open_table(META)?;
            let known = meta.get(LEASE)?.map_or(0, |lease| lease.value());
            let least = if lease.may_be_shorter { 0 } else { known };
            meta.insert(LEASE, millis(lease.time).max(least))?;
            let mut clients = txn.open_table(CLIENTS)?;
            let mut all_denied = txn.open_table(RECLAIM_DENIED)?;
            let mut principals = txn.open_table(PRINCIPALS)?;
            for (owner, record) in &records {
                let key = (owner.sessions, &*owner.name);
                match record {
                    Some(_) => clients.insert(key, ())?,
                    None => clients.remove(key)?,
                };
                match record.as_ref().and_then(|record| record.principal.as_ref()) {
                    Some(principal) => principals.insert(key, (principal.flavor, principal.uid))?,
                    None => principals.remove(key)?,
                };
                let reclaim_denied = record.as_ref().map(|record| &record.reclaim_denied);
                match reclaim_denied.filter(|reclaim_denied| !reclaim_denied.is_empty()) {
                    Some(reclaim_denied) => all_denied.insert(key, &*bytes_of(reclaim_denied))?,
                    None => all_denied.remove(key)?,
                };
            }
            Ok(())
        })
        .await
    }

    /// Records a host that uses NLM. Returns when the record is durable.
    ///
    /// # Errors
    /// It could not be written.
    pub(crate) async fn remember_host(&self, host: LockHost) -> Result<(), redb::Error> {
        self.write(move |txn| {
            let LockHost { host, server } = host;
            txn.open_table(HOSTS)?.insert(&*host.to_string(), &*server.to_string())?;
            Ok(())
        })
        .await
    }

    /// Removes the records of hosts that used NLM. Returns when the change is durable.
    ///
    /// # Errors
    /// It could not be written.
    pub(crate) async fn forget_hosts(&self, hosts: Vec<IpAddr>) -> Result<(), redb::Error> {
        self.write(move |txn| {
            let mut table = txn.open_table(HOSTS)?;
            for host in hosts {
                table.remove(&*host.to_string())?;
            }
            Ok(())
        })
        .await
    }

    /// Blocks writes to the database while the returned transaction lives.
    #[cfg(test)]
    pub(crate) fn hold(&self) -> WriteTransaction {
        self.db.lock().as_ref().unwrap().begin_write().unwrap()
    }

    async fn write(
        &self,
        change: impl FnOnce(&WriteTransaction) -> Result<(), redb::Error> + Send + 'static,
    ) -> Result<(), redb::Error> {
        let (db, location) = (self.db.clone(), self.location.clone());
        let blocks = matches!(*location, Location::File(_));
        let write = move || {
            // The lock serializes writers, which redb does in any case.
            let mut opened = db.lock();
            let db = match opened.take() {
                Some(db) => db,
                None => location.open()?,
            };
            let txn = db.begin_write()?;
            change(&txn)?;
            txn.commit()?;
            *opened = Some(db);
            Ok(())
        };
        if !blocks {
            return write();
        }
        match tokio::task::spawn_blocking(write).await {
            Ok(result) => result,
            Err(error) => Err(redb::Error::Io(std::io::Error::other(error))),
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Bytes of a file's identity on disk: its export, inode and generation.
const NODE_BYTES: usize = 2 + 8 + 8;

/// The files in sequence; a single byte means all files.
fn bytes_of(reclaim_denied: &ReclaimDenied) -> Vec<u8> {
    if reclaim_denied.all {
        return vec![0];
    }
    let mut bytes = Vec::with_capacity(reclaim_denied.files.len() * NODE_BYTES);
    for Node { export, id } in &reclaim_denied.files {
        bytes.put_u16(*export);
        bytes.put_u64(id.ino);
        bytes.put_u64(id.generation);
    }
    bytes
}

fn reclaim_denied_of(bytes: &[u8]) -> ReclaimDenied {
    let (files, rest) = bytes.as_chunks::<NODE_BYTES>();
    if !rest.is_empty() {
        return ReclaimDenied::all();
    }
    let node = |mut file: &[u8]| {
        let export = file.get_u16();
        Node { export, id: FileId { ino: file.get_u64(), generation: file.get_u64() } }
    };
    ReclaimDenied { all: false, files: files.iter().map(|file| node(file)).collect() }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use redb::StorageBackend;
    use redb::backends::InMemoryBackend;
    use std::io;
    use std::sync::atomic::{AtomicBool, Ordering};

    const LEASE_TIME: Duration = Duration::from_secs(90);
    const SAME: RecordedLease = RecordedLease { time: LEASE_TIME, may_be_shorter: false };

    #[tokio::test]
    async fn runs_increase_and_client_records_persist() {
        let owner = |sessions| Owner { sessions, name: Bytes::from_static(b"host") };
        let host = |number| LockHost {
            host: IpAddr::from([192, 0, 2, number]),
            server: IpAddr::from([192, 0, 2, 99]),
        };
        let dir = tempfile::tempdir().unwrap();
        {
            let (recovery, recovered) = Recovery::open(dir.path(), LEASE_TIME).unwrap();
            assert_eq!((recovered.run, recovered.clients.len()), (1, 0));
            let here = |sessions| (owner(sessions), Some(record()));
            recovery.write_clients(vec![here(true)], SAME).await.unwrap();
            recovery.write_clients(vec![here(true), here(false)], SAME).await.unwrap();
            recovery.write_clients(vec![(owner(false), None)], SAME).await.unwrap();
            recovery.remember_host(host(1)).await.unwrap();
            recovery.remember_host(host(2)).await.unwrap();
            recovery.forget_hosts(vec![host(1).host]).await.unwrap();
        }
        let (_, recovered) = Recovery::open(dir.path(), LEASE_TIME).unwrap();
        assert_eq!((recovered.run, recovered.clients), (2, vec![(owner(true), record())]));
        assert_eq!(recovered.hosts, [host(2)]);
    }

    fn record() -> Record {
        let principal = Some(Principal { flavor: 1, uid: 1000 });
        Record { reclaim_denied: ReclaimDenied::default(), principal }
    }

    #[tokio::test]
    async fn a_record_without_principal_belongs_to_the_superuser() {
        let name = &b"host"[..];
        let dir = tempfile::tempdir().unwrap();
        {
            // As an earlier version left it.
            let db = Database::create(dir.path().join(FILE)).unwrap();
            let txn = db.begin_write().unwrap();
            txn.open_table(CLIENTS).unwrap().insert((true, name), ()).unwrap();
            txn.open_table(META).unwrap().insert(RUN, 4).unwrap();
            txn.commit().unwrap();
        }
        let (recovery, recovered) = Recovery::open(dir.path(), LEASE_TIME).unwrap();
        let [(owner, found)] = &recovered.clients[..] else { panic!("{recovered:?}") };
        assert_eq!((recovered.run, &owner.name[..], found), (5, name, &Record::default()));
        let user = |flavor, uid| Principal { flavor, uid };
        assert!(
            found.is_of(&user(1, 0)) && !found.is_of(&user(1, 1000)) && !found.is_of(&user(0, 0))
        );
        assert!(record().is_of(&user(1, 1000)) && !record().is_of(&user(1, 0)));
        recovery.write_clients(vec![(owner.clone(), Some(record()))], SAME).await.unwrap();
        drop(recovery);
        let (_, recovered) = Recovery::open(dir.path(), LEASE_TIME).unwrap();
        assert_eq!(recovered.clients, [(owner.clone(), record())]);
    }

    #[tokio::test]
    async fn revoked_state_is_recorded_with_its_client() {
        let owner = Owner { sessions: true, name: Bytes::from_static(b"host") };
        let dir = tempfile::tempdir().unwrap();
        let file = |ino| Node { export: 7, id: FileId { ino, generation: u64::MAX } };
        let some = ReclaimDenied { all: false, files: [file(1), file(2)].into() };
        for reclaim_denied in [some, ReclaimDenied::all(), ReclaimDenied::default()] {
            let (recovery, _) = Recovery::open(dir.path(), LEASE_TIME).unwrap();
            let record = Record { reclaim_denied, ..record() };
            recovery
                .write_clients(vec![(owner.clone(), Some(record.clone()))], SAME)
                .await
                .unwrap();
            drop(recovery);
            let (recovery, recovered) = Recovery::open(dir.path(), LEASE_TIME).unwrap();
            assert_eq!(recovered.clients, [(owner.clone(), record)]);
            recovery.write_clients(vec![(owner.clone(), None)], SAME).await.unwrap();
            drop(recovery);
            assert_eq!(Recovery::open(dir.path(), LEASE_TIME).unwrap().1.clients, []);
        }
        assert_eq!(
            reclaim_denied_of(&[1; NODE_BYTES + 1]),
            ReclaimDenied::all(),
            "what cannot be read denies all"
        );
    }

    /// A full disk.
    #[derive(Debug, Default)]
    struct Full {
        inner: InMemoryBackend,
        is_full: Arc<AtomicBool>,
    }

    impl StorageBackend for Full {
        fn len(&self) -> io::Result<u64> {
            self.inner.len()
        }

        fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            self.inner.read(offset, out)
        }

        fn set_len(&self, len: u64) -> io::Result<()> {
            self.inner.set_len(len)
        }

        fn sync_data(&self) -> io::Result<()> {
            self.inner.sync_data()
        }

        fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
            match self.is_full.load(Ordering::Relaxed) {
                true => Err(io::ErrorKind::StorageFull.into()),
                false => self.inner.write(offset, data),
            }
        }
    }

    /// Has the next write fail, as on a full disk. The one after it succeeds.
    pub(crate) fn fill_disk(recovery: &Recovery) {
        let full = Full::default();
        let is_full = full.is_full.clone();
        let db = Database::builder().create_with_backend(full).unwrap();
        is_full.store(true, Ordering::Relaxed);
        *recovery.db.lock() = Some(db);
    }

    #[tokio::test]
    async fn records_are_written_again_after_the_disk_was_full() {
        let owner = Owner { sessions: true, name: Bytes::from_static(b"host") };
        let dir = tempfile::tempdir().unwrap();
        let (recovery, _) = Recovery::open(dir.path(), LEASE_TIME).unwrap();
        fill_disk(&recovery);
        let write = || recovery.write_clients(vec![(owner.clone(), Some(record()))], SAME);
        assert!(write().await.is_err());
        write().await.unwrap();
        drop(recovery);
        let (_, recovered) = Recovery::open(dir.path(), LEASE_TIME).unwrap();
        assert_eq!(recovered.clients, [(owner, record())]);
    }

    #[tokio::test]
    async fn the_database_keeps_space_for_the_next_start() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir().unwrap();
        let reserved = |at_least: u64| {
            let found = std::fs::metadata(dir.path().join(FILE)).unwrap();
            let blocks = found.blocks() * 512;
            assert!(blocks >= found.len() + at_least, "{blocks} of {} bytes", found.len());
        };
        let probe = tempfile::tempfile_in(dir.path()).unwrap();
        let mode = rustix::fs::FallocateFlags::KEEP_SIZE;
        if rustix::fs::fallocate(&probe, mode, 0, 4096).is_err() {
            return weir_skip::skip("the file system of temporary files reserves no space");
        }
        for _ in 0..3 {
            let (recovery, _) = Recovery::open(dir.path(), LEASE_TIME).unwrap();
            reserved(256 << 10);
            let owner = Owner { sessions: true, name: Bytes::from_static(b"host") };
            recovery.write_clients(vec![(owner, Some(record()))], SAME).await.unwrap();
            drop(recovery);
            reserved(256 << 10);
        }
    }

    #[test]
    fn a_second_server_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let _first = Recovery::open(dir.path(), LEASE_TIME).unwrap();
        assert!(Recovery::open(dir.path(), LEASE_TIME).is_err());
    }
}
