//! Locking beyond the tables of `state`: NFSv3's lock manager and status monitor, notifications
//! of freed locks, and locks in the store against local programs.

pub(crate) mod host_network;
mod in_progress;
pub(crate) mod nlm;
pub(crate) mod notify;
pub(crate) mod nsm;
pub(crate) mod store_locks;
