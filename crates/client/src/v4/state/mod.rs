//! Opens, locks and delegations, and their reclaim after a server restart.

pub(crate) mod change;
pub(crate) mod close;
pub(crate) mod delegation;
pub(crate) mod lock;
pub(crate) mod lock_state;
pub(crate) mod numbered;
pub(crate) mod open;
pub(crate) mod open_state;
