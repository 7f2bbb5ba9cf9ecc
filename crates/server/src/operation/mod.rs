//! Parts of operations that all protocol versions share.

pub(crate) mod copies;
pub(crate) mod exclusive_create;
pub(crate) mod gather;
pub(crate) mod patience;
pub(crate) mod reply_cache;
pub(crate) mod set_id;
