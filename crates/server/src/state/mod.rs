//! What the server remembers of its clients: their identity, sessions, opens and locks.
//!
//! Everything here is plain data and transitions: no I/O, no tasks and no waits; the monotonic time
//! is an argument. (`cargo xtask check` verifies that the code names no file, socket or store.) One
//! lock protects a [`State`] and is never held across an await. Requests in sessions use their slots
//! and leases without it ([`SlotTable`], [`SharedClient`]). Two things reach further. A transition
//! locks ranges in the store through a [`StoreLocks`], which the caller opens before. And file
//! handles have a type `F` that the state only stores and hands out: dropping the last copy of one
//! may close its file.
//!
//! 1. State belongs to a confirmed client and is freed with it ([`State::purge`]).
//! 2. A client that does not renew its lease keeps its state (courtesy) until another client needs
//!    what it holds, or until it has been silent for [`Limits::courtesy`]. A call in progress keeps
//!    it; in a session only what the client has in the exports that the call uses.
//! 3. A client gets opens only while it is on disk ([`Client::is_recorded`]). A client whose state
//!    was revoked may not reclaim it after a restart: the transition that revokes it adds the owner
//!    to [`State::take_unwritten`]. Until that is on disk, no transition grants an open, a lock or a
//!    reservation of a host ([`State::check_settled`]), and replies that grant state wait.
//! 4. Every table is bounded ([`Limits`]), and each client has a share of it. State of clients
//!    with an expired lease is reclaimed first (`quota`).

mod backchannel;
mod channel;
mod client;
#[cfg(test)]
mod consistency;
mod delegation;
mod error;
mod grace;
mod ids;
mod kept_replies;
mod limits;
mod load;
mod lock;
mod lock_waiters;
mod nlm;
mod open;
mod quota;
mod reclaim_denied;
mod record;
mod refused;
mod revoked;
mod session;
mod share;
mod shared_client;
mod slot;
mod slot_table;
mod stateid;
mod store_locks;
mod table;
mod tables;
mod tally;
#[cfg(test)]
mod tests;
mod unwritten;

pub(crate) use backchannel::{BackCall, BackOutcome, CallbackCred};
pub(crate) use channel::Channel;
pub(crate) use client::{CallbackService, Client, ClientId, Owner, OwnerName, Principal};
pub(crate) use error::StateError;
pub(crate) use grace::Grace;
pub(crate) use ids::{Ids, SessionId};
pub use limits::Limits;
pub use load::{LoadedFile, StateLoad};
pub(crate) use record::{LockHost, Record, RecordedLease};
pub(crate) use share::Share;
pub(crate) use shared_client::SharedClient;
pub(crate) use slot_table::{SequenceArgs, Sequenced, SlotTable, SlotTables};
pub(crate) use stateid::{StateId, StateKey, StateRef};
pub(crate) use table::State;
pub(crate) use tables::calls::CallUses;
pub(crate) use tables::delegation::{
    Answer, DelegationKind, DelegationRequest, Grant, Referring, Times, Touch, Wanted, WhyNot,
    Writer,
};
pub(crate) use tables::delegation_filter::{ChangeGuard, Filter};
pub(crate) use tables::lock::{Holder, LockError, LockOwner, LockRequest, LockTarget};
pub(crate) use tables::lock_waiters::Freed;
pub(crate) use tables::nlm::{GrantedLock, NlmError, NlmLock, NlmOwner, ReplyTo};
pub(crate) use tables::open::{Claim, Io, OpenRequest, Use, WriteInProgress};
pub(crate) use tables::reclaim_denied::ReclaimDenied;
pub(crate) use tables::store_locks::{OpenedStoreLocks, StoreLocks};
pub(crate) use tally::{Account, Removable, Tally};
pub(crate) use weir_vfs::{LockConflict as Conflict, LockRange as Range};
