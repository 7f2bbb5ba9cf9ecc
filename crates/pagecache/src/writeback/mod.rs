//! Writing dirty pages back: when (the flusher of each store), how much may be dirty (the throttle), and
//! what is kept of writes that failed. `mapping/writeback.rs` says how a page comes into the store.

pub(crate) mod durability;
pub(crate) mod errseq;
pub(crate) mod failing;
pub(crate) mod flusher;
pub(crate) mod lane;
pub(crate) mod throttle;
