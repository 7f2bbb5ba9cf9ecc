//! Writeback's policy: when to write (the flusher of each store), how much may be dirty (the
//! throttle), and the record of failed writes. `mapping/writeback.rs` writes the pages.

pub(crate) mod durability;
pub(crate) mod errseq;
pub(crate) mod failing;
pub(crate) mod flusher;
pub(crate) mod lane;
pub(crate) mod node_syncs;
pub(crate) mod outage;
pub(crate) mod syncs;
pub(crate) mod throttle;
