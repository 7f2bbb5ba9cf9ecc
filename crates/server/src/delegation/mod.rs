//! Making way for a change: delegations are recalled before another client gets what they exclude.

pub(crate) mod recall;
