//! Which clients are on disk, so that they may reclaim after a restart what they have.
//!
//! 1. A client is on disk before its first open is told of ([`State::open`] refuses it until then).
//!    What is taken from it is said there before the reply to whoever gets it; with its own
//!    goodbye it is off it.
//! 2. A client without opens needs no record: it is taken off the disk when it has had none for a
//!    while, so that no restart waits for it.
//! 3. Changes are made one after the other, each after a look at the state as it is then: a record
//!    that is written is not taken away by a change that was decided on earlier.

use crate::state::{ClientId, Owner, Recovery, State};
use parking_lot::Mutex;
use std::sync::Arc;
use weir_pagecache::File;

/// The records of clients.
pub(crate) struct Records {
    state: Arc<Mutex<State<File>>>,
    recovery: Recovery,
    turn: tokio::sync::Mutex<()>,
}

impl Records {
    pub(crate) fn new(state: Arc<Mutex<State<File>>>, recovery: Recovery) -> Self {
        Self { state, recovery, turn: tokio::sync::Mutex::default() }
    }

    /// Puts a client on disk, unless it is there.
    ///
    /// # Errors
    /// The database cannot be written.
    pub(crate) async fn record(&self, id: ClientId) -> Result<(), redb::Error> {
        let _turn = self.turn.lock().await;
        let record = self.state.lock().new_record(id);
        let Ok(Some((owner, barred))) = record else { return Ok(()) };
        self.recovery.write_clients(vec![(owner, Some(barred))]).await?;
        if let Ok(client) = self.state.lock().clients.get_mut(id) {
            (client.is_recorded, client.idle_since) = (true, None);
        }
        Ok(())
    }

    /// Puts on disk what the last transitions took from clients. Called before a reply goes out
    /// that gives it to somebody else.
    ///
    /// # Errors
    /// The database cannot be written.
    pub(crate) async fn write_due(&self) -> Result<(), redb::Error> {
        let owners = self.state.lock().take_unwritten();
        self.write(owners).await
    }

    /// Writes of clients what is to be on disk of them now.
    ///
    /// # Errors
    /// The database cannot be written.
    pub(crate) async fn write(&self, owners: Vec<Owner>) -> Result<(), redb::Error> {
        if owners.is_empty() {
            return Ok(());
        }
        let _turn = self.turn.lock().await;
        let records = {
            let state = self.state.lock();
            let record = |owner| {
                let record = state.record_of(&owner);
                (owner, record)
            };
            owners.into_iter().map(record).collect()
        };
        self.recovery.write_clients(records).await
    }
}
