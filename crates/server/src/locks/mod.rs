//! Locks beyond the tables of `state`: NFSv3's lock manager and status monitor, and who is told that a lock is free.

pub(crate) mod nlm;
pub(crate) mod notify;
pub(crate) mod nsm;
