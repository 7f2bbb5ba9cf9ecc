//! A mount's knowledge of its files: cached attributes, opens and silly renames, its own changes,
//! and files that are closed in the background.

pub(crate) mod attribute_cache;
pub(crate) mod change_spans;
pub(crate) mod deferred_close;
pub(crate) mod lock_owners;
pub(crate) mod opened;
pub(crate) mod silly_rename;
