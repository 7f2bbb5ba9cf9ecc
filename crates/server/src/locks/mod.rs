//! Locking beyond the tables of `state`: NFSv3's lock manager and status monitor, and notifications
//! of freed locks.

pub(crate) mod nlm;
pub(crate) mod notify;
pub(crate) mod nsm;
