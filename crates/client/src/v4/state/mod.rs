//! Opens, locks and delegations, and how they come back after a restart of the server.

pub(crate) mod change;
pub(crate) mod delegation;
pub(crate) mod lock;
pub(crate) mod open;
