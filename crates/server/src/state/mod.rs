//! What the server remembers of its clients: their identity, sessions, opens and locks.
//!
//! Everything here is plain data and transitions: no I/O and no tasks; the monotonic time is an
//! argument. One lock protects a [`State`] and is never held across an await. File handles have a
//! type `F` that the state only stores and hands out.
//!
//! 1. State belongs to a confirmed client and is freed with it ([`State::purge`]).
//! 2. A client that does not renew its lease keeps its state (courtesy) until another client needs
//!    what it holds, or until it has been silent for [`Limits::courtesy`].
//! 3. A client gets opens only while it is on disk ([`Client::is_recorded`]). A client whose state
//!    was revoked may not reclaim it after a restart: the transition that revokes it adds the owner
//!    to [`State::take_unwritten`], and the reply waits until that is on disk.
//! 4. Every table is bounded ([`Limits`]), and each client has a share of it. Clients with an
//!    expired lease make room first (`room`).

mod client;
mod delegation;
mod error;
mod grace;
mod ids;
mod limits;
mod lock;
mod lock_waiters;
mod nlm;
mod open;
mod reclaim_denied;
mod record;
mod revoked;
mod room;
mod session;
mod share;
mod slot;
mod stateid;
mod store_locks;
mod table;
mod tables;
#[cfg(test)]
mod tests;

pub use client::{
    CallbackService, Client, ClientId, Clients, Exchanged, Introduction, Owner, OwnerName,
    Principal,
};
pub use error::StateError;
pub use grace::Grace;
pub use ids::Ids;
pub use limits::Limits;
pub use record::{LockHost, Record};
pub use session::{
    BackCall, BackOutcome, CallbackCred, Channel, Request, Sequenced, Session, SessionId, Sessions,
};
pub use share::Share;
pub use stateid::{StateId, StateKey, StateRef, check_seq, next_seq};
pub(crate) use store_locks::machine_of;
pub use table::State;
pub use tables::delegation::{
    Answer, Ask, DelegationKind, Grant, Order, Recalled, Referring, Times, Touch, Wanted, WhyNot,
    Writer,
};
pub use tables::delegation_filter::{ChangeGuard, Filter};
pub use tables::lock::{Holder, LockError, LockOwner, LockRequest, LockTarget};
pub use tables::lock_waiters::Freed;
pub use tables::nlm::{Granted, NlmError, NlmLock, NlmOwner, ReplyTo};
pub use tables::open::{Claim, Io, OpenRequest, Opened, Use};
pub use tables::reclaim_denied::ReclaimDenied;
pub use tables::revoked::{Revoked, Why};
pub use tables::store_locks::Machine;
pub use weir_vfs::{LockConflict as Conflict, LockRange as Range, RangeLocks, TO_END};
