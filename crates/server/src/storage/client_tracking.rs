//! The records of clients on disk, by which clients may reclaim their state after a restart.
//!
//! 1. A client's record is durable before the reply to its first open ([`State::open`] refuses the
//!    open until then). If the server revokes a client's state, it records that before the reply
//!    that gives the state to another client. If a client destroys itself, its record is removed
//!    before the reply.
//! 2. A client without opens needs no record. Its record is removed after a while, so that no grace
//!    period waits for the client. No reply waits for this, and none fails because of it.
//! 3. Changes are serialized, and each one reads the state again: a removal that was decided
//!    earlier cannot undo a record written since.
//! 4. A change counts as unwritten until it is durable: also while a task writes it, and again if
//!    the write fails or its task is dropped. So no reply is sent before the changes that it
//!    depends on are durable. While the database cannot be written, clients are told to try again
//!    later; each attempt writes what is due. A failure that outlasts a lease is an error for them,
//!    unless the disk is full: that ends without a repair, and clients then go on.
//! 5. A client may go while its record is being written, and a write that failed or was dropped may
//!    have left a record. In both cases the owner is treated as idle and its record checked again,
//!    so no record outlives its client.

use crate::state::{ClientId, Owner, State};
use crate::storage::recovery::Recovery;
use parking_lot::Mutex;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tracing::error;
use weir_base::Clock;
use weir_pagecache::File;

/// How often a transition is tried that waits until what was revoked is on disk. Others may revoke state as fast as it
/// is written.
pub(crate) const SETTLE_ATTEMPTS: usize = 8;

/// The database cannot be written; the reason was logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotWritten {
    /// A later attempt may succeed.
    Yet,
    /// It has failed for longer than a lease.
    Anymore,
}

/// Writes that fail, one after another.
#[derive(Debug)]
struct Failing {
    /// When they began to fail for another reason than a full disk, if the last one did.
    since: Option<Duration>,
    last: Duration,
    error: String,
}

/// The records of clients.
pub(crate) struct ClientTracking {
    state: Arc<Mutex<State<File>>>,
    recovery: Recovery,
    write_lock: tokio::sync::Mutex<()>,
    /// Some changes are unwritten, or a task is writing them ([`State::records_due`]).
    due: Arc<AtomicBool>,
    clock: Arc<dyn Clock>,
    /// Set if the last write failed.
    failing: Mutex<Option<Failing>>,
}

impl ClientTracking {
    pub(crate) fn new(
        state: Arc<Mutex<State<File>>>,
        recovery: Recovery,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let due = state.lock().records_due().clone();
        let (write_lock, failing) = (tokio::sync::Mutex::default(), Mutex::default());
        Self { state, recovery, write_lock, due, clock, failing }
    }

    /// Notes the outcome of a write to the database, and logs its error.
    ///
    /// # Errors
    /// [`NotWritten`].
    pub(crate) fn outcome(&self, written: Result<(), redb::Error>) -> Result<(), NotWritten> {
        let Err(error) = written else {
            *self.failing.lock() = None;
            return Ok(());
        };
        let (now, lease) = (self.clock.monotonic(), self.state.lock().lease());
        let mut failing = self.failing.lock();
        // A failure that no attempt has followed for long says nothing about the time between.
        let before = failing.take().filter(|before| now.saturating_sub(before.last) <= lease);
        let text = error.to_string();
        if before.as_ref().is_none_or(|before| before.error != text) {
            error!("cannot write the state database: {text}");
        }
        let earlier = before.and_then(|before| before.since);
        let since = (!is_full(&error)).then(|| earlier.unwrap_or(now));
        *failing = Some(Failing { since, last: now, error: text });
        Err(match since.is_some_and(|since| now.saturating_sub(since) > lease) {
            true => NotWritten::Anymore,
            false => NotWritten::Yet,
        })
    }

    /// Whether the last write to the database failed.
    pub(crate) fn is_failing(&self) -> bool {
        self.failing.lock().is_some()
    }

    /// Writes a client's record, unless it is on disk.
    ///
    /// # Errors
    /// [`NotWritten`].
    pub(crate) async fn record(&self, id: ClientId) -> Result<(), NotWritten> {
        let _write_lock = self.write_lock.lock().await;
        let (record, lease) = {
            let state = self.state.lock();
            (state.new_record(id), state.lease_of_records())
        };
        let Ok(Some((owner, record))) = record else { return Ok(()) };
        let idle = vec![owner.clone()];
        let mut taken = Taken { records: self, owners: Vec::new(), idle, lease: false };
        self.outcome(self.recovery.write_clients(vec![(owner, Some(record))], lease).await)?;
        let mut state = self.state.lock();
        if let Ok(client) = state.clients.get_mut(id) {
            (client.is_recorded, client.idle_since) = (true, None);
            taken.idle.clear();
        }
        // Unlocked before `taken` is dropped, which takes the lock.
        drop(state);
        Ok(())
    }

    /// Writes the changes that earlier transitions made to clients' records. Callers do this before
    /// they send a reply that may depend on them. Returns once all changes due at the call are
    /// durable, including those that another task writes. Takes no lock if none is due.
    ///
    /// # Errors
    /// [`NotWritten`].
    pub(crate) async fn write_due(&self) -> Result<(), NotWritten> {
        if self.due.load(Ordering::Acquire) { self.write().await } else { Ok(()) }
    }

    /// As [`write_due`](Self::write_due), and removes the records of idle clients.
    ///
    /// # Errors
    /// [`NotWritten`].
    pub(crate) async fn write_all(&self) -> Result<(), NotWritten> {
        if self.state.lock().has_idle() { self.write().await } else { self.write_due().await }
    }

    async fn write(&self) -> Result<(), NotWritten> {
        let _write_lock = self.write_lock.lock().await;
        let (mut taken, records, lease) = {
            let mut state = self.state.lock();
            let (owners, idle) = (state.take_unwritten(), state.take_idle());
            let lease = state.take_unwritten_lease();
            if owners.is_empty() && idle.is_empty() && !lease {
                return Ok(());
            }
            let record = |owner: &Owner| (owner.clone(), state.record_of(owner));
            let records = owners.iter().chain(&idle).map(record).collect();
            (Taken { records: self, owners, idle, lease }, records, state.lease_of_records())
        };
        self.outcome(self.recovery.write_clients(records, lease).await)?;
        (taken.owners, taken.idle, taken.lease) = Default::default();
        Ok(())
    }
}

/// Whether a write failed because there is no space.
fn is_full(error: &redb::Error) -> bool {
    let redb::Error::Io(error) = error else { return false };
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

/// What is being written. What is left when this is dropped is marked again.
struct Taken<'a> {
    records: &'a ClientTracking,
    owners: Vec<Owner>,
    /// Owners without state, or that may have gone.
    idle: Vec<Owner>,
    lease: bool,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut state = self.records.state.lock();
        self.owners.drain(..).for_each(|owner| state.is_to_be_written(owner));
        self.idle.drain(..).for_each(|owner| state.is_idle_on_disk(owner));
        if self.lease {
            state.lease_is_to_be_written();
        }
        // The write lock is still held, so no other task is writing.
        state.records_written();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{Grace, Ids, Limits, Principal};
    use bytes::Bytes;
    use weir_base::ManualClock;

    fn owner() -> Owner {
        Owner { sessions: true, name: Bytes::from_static(b"host") }
    }

    /// Records of which that of `owner` is unwritten. The transaction blocks writes to the
    /// database.
    fn held() -> (Arc<ClientTracking>, redb::WriteTransaction, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let (recovery, _) = Recovery::open(dir.path(), Limits::default().lease).unwrap();
        let hold = recovery.hold();
        let ids = Ids::new(1, [7; 32]);
        let state = Arc::new(Mutex::new(State::new(ids, Limits::default(), Grace::default())));
        state.lock().is_to_be_written(owner());
        (
            Arc::new(ClientTracking::new(state, recovery, Arc::new(ManualClock::default()))),
            hold,
            dir,
        )
    }

    /// Whether a task is writing records, and no more are to be written.
    fn is_writing(records: &ClientTracking) -> bool {
        let state = records.state.lock();
        records.due.load(Ordering::Acquire) && !state.has_unwritten()
    }

    async fn until(done: impl Fn() -> bool) {
        while !done() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[test]
    fn a_write_that_fails_for_longer_than_a_lease_is_an_error_unless_the_disk_is_full() {
        const LEASE: Duration = Duration::from_secs(90);
        let (recovery, _) =
            Recovery::open(tempfile::tempdir().unwrap().path(), Limits::default().lease).unwrap();
        let state = State::new(Ids::new(1, [7; 32]), Limits::default(), Grace::default());
        let clock = Arc::new(ManualClock::default());
        let records = ClientTracking::new(Arc::new(Mutex::new(state)), recovery, clock.clone());
        let fail = |kind: ErrorKind| records.outcome(Err(redb::Error::Io(kind.into())));
        let broken = || fail(ErrorKind::Other);
        let again_for = |time: Duration, fail: &dyn Fn() -> Result<(), NotWritten>| {
            let end = clock.monotonic() + time;
            while clock.monotonic() < end {
                clock.advance(LEASE / 3);
                assert_eq!(fail(), Err(NotWritten::Yet), "{:?}", clock.monotonic());
            }
            clock.advance(LEASE / 3);
        };
        assert_eq!(broken(), Err(NotWritten::Yet));
        again_for(LEASE, &broken);
        for _ in 0..3 {
            assert_eq!(broken(), Err(NotWritten::Anymore));
        }
        // The disk may be in order again, and full.
        for kind in [ErrorKind::StorageFull, ErrorKind::QuotaExceeded] {
            again_for(LEASE * 3, &|| fail(kind));
        }
        assert_eq!(broken(), Err(NotWritten::Yet));
        again_for(LEASE * 2 / 3, &broken);
        assert!(records.is_failing());
        records.outcome(Ok(())).unwrap();
        assert!(!records.is_failing());
        assert_eq!(broken(), Err(NotWritten::Yet), "it has worked meanwhile");
        clock.advance(LEASE * 2);
        assert_eq!(broken(), Err(NotWritten::Yet), "nothing was tried meanwhile");
    }

    #[tokio::test]
    async fn a_reply_waits_for_a_record_that_another_task_writes() {
        let (records, hold, _dir) = held();
        let write = || {
            let records = records.clone();
            tokio::spawn(async move { records.write_due().await })
        };
        let first = write();
        until(|| is_writing(&records)).await;
        let second = write();
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(!first.is_finished() && !second.is_finished(), "it is not on disk yet");
        drop(hold);
        first.await.unwrap().unwrap();
        second.await.unwrap().unwrap();
        assert!(!records.state.lock().has_unwritten());
        assert!(!records.due.load(Ordering::Acquire));
    }

    #[tokio::test]
    async fn removing_the_record_of_an_idle_client_delays_no_reply() {
        let (records, hold, _dir) = held();
        {
            let mut state = records.state.lock();
            let idle = state.take_unwritten().remove(0);
            state.records_written();
            state.is_idle_on_disk(idle);
        }
        records.write_due().await.unwrap();
        let (tasks_records, taken) = (records.clone(), records.clone());
        let sweeper = tokio::spawn(async move { tasks_records.write_all().await });
        until(|| !taken.state.lock().has_idle()).await;
        // Nor while another task writes the removal.
        records.write_due().await.unwrap();
        sweeper.abort();
        assert!(sweeper.await.unwrap_err().is_cancelled());
        assert!(records.state.lock().has_idle() && !records.state.lock().has_unwritten());
        drop(hold);
        records.write_all().await.unwrap();
        assert!(!records.state.lock().has_idle());
    }

    #[tokio::test]
    async fn a_client_removed_during_its_write_does_not_stay_on_disk() {
        let principal = Principal { flavor: 1, uid: 0 };
        for drops in [false, true] {
            let (records, hold, dir) = held();
            let id = {
                let mut state = records.state.lock();
                state.take_unwritten();
                state.records_written();
                let now = Duration::ZERO;
                let made =
                    state.clients.exchange_id(owner(), [0; 8], principal.clone(), false, now);
                let id = made.unwrap().id;
                state.confirm(id, &principal, now).unwrap();
                id
            };
            let task = tokio::spawn({
                let records = records.clone();
                async move { records.record(id).await }
            });
            until(|| records.write_lock.try_lock().is_err()).await;
            if drops {
                // The write of a dropped task may still complete.
                task.abort();
                assert!(task.await.unwrap_err().is_cancelled());
                records.state.lock().destroy_client(id).unwrap();
                drop(hold);
            } else {
                records.state.lock().destroy_client(id).unwrap();
                drop(hold);
                task.await.unwrap().unwrap();
            }
            records.write_all().await.unwrap();
            drop(records);
            let clients = Recovery::open(dir.path(), Limits::default().lease).unwrap().1.clients;
            assert_eq!(clients, [], "dropped: {drops}");
        }
    }

    #[tokio::test]
    async fn the_next_task_writes_the_record_of_a_dropped_one() {
        let (records, hold, _dir) = held();
        let (tasks_records, writing) = (records.clone(), records.clone());
        let task = tokio::spawn(async move { tasks_records.write_due().await });
        until(|| is_writing(&writing)).await;
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        assert!(records.state.lock().has_unwritten() && records.due.load(Ordering::Acquire));
        drop(hold);
        records.write_due().await.unwrap();
        assert!(!records.state.lock().has_unwritten());
    }
}
