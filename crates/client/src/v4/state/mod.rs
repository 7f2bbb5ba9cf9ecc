//! Opens, locks and delegations, and how they come back after a restart of the server.

pub(crate) mod change;
pub(crate) mod delegation;
pub(crate) mod lock;
pub(crate) mod lock_state;
pub(crate) mod open;
pub(crate) mod open_state;
