//! Recalls delegations before another client gets access that conflicts with them.

pub(crate) mod recall;
