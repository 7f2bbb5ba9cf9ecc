//! Stores, each a [`weir_vfs::FileSystem`]: [`memory`], which tracks holes natively and serves the
//! tests of all other layers; [`local`], a directory of the machine; and [`fault`], which makes any
//! of them misbehave by rules.

pub mod fault;
pub mod local;
pub mod memory;
pub mod random;
mod rules;
#[cfg(feature = "testing")]
pub mod testing;
