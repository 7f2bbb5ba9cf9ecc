//! What the tables of the state hold. The transitions are beside this folder.

pub(super) mod calls;
pub(super) mod delegation;
pub(super) mod delegation_filter;
pub(super) mod grant_log;
pub(super) mod lapsed;
pub(super) mod lock;
pub(super) mod lock_states;
pub(super) mod lock_waiters;
pub(super) mod nlm;
pub(super) mod open;
pub(super) mod opens;
pub(super) mod ranges;
pub(super) mod reclaim_denied;
pub(super) mod revoked;
pub(super) mod store_locks;
