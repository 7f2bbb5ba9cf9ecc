//! What has to survive a restart: which run this is, and which clients had state.
//!
//! 1. A run's number is on disk before it is used, so stateids and client numbers are never used
//!    twice.
//! 2. A client (or a host that uses NLM) is on disk before the reply that lets it take state, and off it before the reply
//!    that gives its state to somebody else.

use super::Owner;
use bytes::Bytes;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
const CLIENTS: TableDefinition<'_, (bool, &[u8]), ()> = TableDefinition::new("clients");
/// Addresses of hosts with locks by NLM, and of the server as they knew it; as text.
const HOSTS: TableDefinition<'_, &str, &str> = TableDefinition::new("lock hosts");
const RUN: &str = "run";
const FILE: &str = "state.redb";

/// The database.
#[derive(Clone, Debug)]
pub struct Recovery {
    db: Arc<Database>,
}

/// A host with locks by NLM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockHost {
    /// Its address.
    pub host: IpAddr,
    /// This server's address, as the host knew it.
    pub server: IpAddr,
}

/// What the database said at start.
#[derive(Debug)]
pub struct Recovered {
    /// The number of this run; goes up from 1.
    pub run: u32,
    /// Clients that had state in the run before.
    pub clients: Vec<Owner>,
    /// Hosts that had locks by NLM.
    pub hosts: Vec<LockHost>,
}

impl Recovery {
    /// Opens or makes the database in `state_dir`, and begins a run.
    ///
    /// # Errors
    /// The database cannot be opened (another server has it, say), read or written.
    pub fn open(state_dir: &Path) -> Result<(Self, Recovered), redb::Error> {
        let db = Database::create(state_dir.join(FILE))?;
        let txn = db.begin_write()?;
        let recovered = {
            let mut meta = txn.open_table(META)?;
            let run = meta.get(RUN)?.map_or(0, |run| run.value()) as u32;
            let run = run.checked_add(1).unwrap_or(1);
            meta.insert(RUN, u64::from(run))?;
            let mut clients = Vec::new();
            for entry in txn.open_table(CLIENTS)?.iter()? {
                let (key, _) = entry?;
                let (sessions, name) = key.value();
                clients.push(Owner { sessions, name: Bytes::copy_from_slice(name) });
            }
            let mut hosts = Vec::new();
            for entry in txn.open_table(HOSTS)?.iter()? {
                let (host, server) = entry?;
                if let (Ok(host), Ok(server)) = (host.value().parse(), server.value().parse()) {
                    hosts.push(LockHost { host, server });
                }
            }
            Recovered { run, clients, hosts }
        };
        txn.commit()?;
        Ok((Self { db: Arc::new(db) }, recovered))
    }

    /// Remembers a client. Returns when it is durable.
    ///
    /// # Errors
    /// It could not be written.
    pub async fn remember(&self, owner: Owner) -> Result<(), redb::Error> {
        if self.knows(&owner)? {
            return Ok(());
        }
        self.change(vec![owner], true).await
    }

    /// Forgets clients. Returns when that is durable.
    ///
    /// # Errors
    /// It could not be written.
    pub async fn forget(&self, owners: Vec<Owner>) -> Result<(), redb::Error> {
        self.change(owners, false).await
    }

    fn knows(&self, owner: &Owner) -> Result<bool, redb::Error> {
        let clients = self.db.begin_read()?.open_table(CLIENTS)?;
        Ok(clients.get((owner.sessions, &*owner.name))?.is_some())
    }

    async fn change(&self, owners: Vec<Owner>, present: bool) -> Result<(), redb::Error> {
        self.write(move |txn| {
            let mut clients = txn.open_table(CLIENTS)?;
            for owner in &owners {
                let key = (owner.sessions, &*owner.name);
                if present {
                    clients.insert(key, ())?;
                } else {
                    clients.remove(key)?;
                }
            }
            Ok(())
        })
        .await
    }

    /// Remembers a host that uses NLM. Returns when it is durable.
    ///
    /// # Errors
    /// It could not be written.
    pub async fn remember_host(&self, host: LockHost) -> Result<(), redb::Error> {
        self.write(move |txn| {
            let LockHost { host, server } = host;
            txn.open_table(HOSTS)?.insert(&*host.to_string(), &*server.to_string())?;
            Ok(())
        })
        .await
    }

    /// Forgets hosts that use NLM. Returns when that is durable.
    ///
    /// # Errors
    /// It could not be written.
    pub async fn forget_hosts(&self, hosts: Vec<IpAddr>) -> Result<(), redb::Error> {
        self.write(move |txn| {
            let mut table = txn.open_table(HOSTS)?;
            for host in hosts {
                table.remove(&*host.to_string())?;
            }
            Ok(())
        })
        .await
    }

    async fn write(
        &self,
        change: impl FnOnce(&WriteTransaction) -> Result<(), redb::Error> + Send + 'static,
    ) -> Result<(), redb::Error> {
        let db = self.db.clone();
        let write = move || {
            let txn = db.begin_write()?;
            change(&txn)?;
            txn.commit()?;
            Ok(())
        };
        match tokio::task::spawn_blocking(write).await {
            Ok(result) => result,
            Err(error) => Err(redb::Error::Io(std::io::Error::other(error))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn runs_count_up_and_clients_are_remembered() {
        let owner = |sessions| Owner { sessions, name: Bytes::from_static(b"host") };
        let host = |number| LockHost {
            host: IpAddr::from([192, 0, 2, number]),
            server: IpAddr::from([192, 0, 2, 99]),
        };
        let dir = tempfile::tempdir().unwrap();
        {
            let (recovery, recovered) = Recovery::open(dir.path()).unwrap();
            assert_eq!((recovered.run, recovered.clients.len()), (1, 0));
            recovery.remember(owner(true)).await.unwrap();
            recovery.remember(owner(true)).await.unwrap();
            recovery.remember(owner(false)).await.unwrap();
            recovery.forget(vec![owner(false)]).await.unwrap();
            recovery.remember_host(host(1)).await.unwrap();
            recovery.remember_host(host(2)).await.unwrap();
            recovery.forget_hosts(vec![host(1).host]).await.unwrap();
        }
        let (_, recovered) = Recovery::open(dir.path()).unwrap();
        assert_eq!((recovered.run, recovered.clients), (2, vec![owner(true)]));
        assert_eq!(recovered.hosts, [host(2)]);
    }

    #[test]
    fn a_second_server_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let _first = Recovery::open(dir.path()).unwrap();
        assert!(Recovery::open(dir.path()).is_err());
    }
}
