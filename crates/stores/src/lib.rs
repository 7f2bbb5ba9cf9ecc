//! Places where files live, each a [`weir_vfs::FileSystem`]: [`memory`], whose files know their
//! holes natively, and which tests of every other layer run over; [`local`], a directory of the
//! machine; and [`fault`], which makes any of them misbehave by rule.

pub mod fault;
pub mod local;
pub mod memory;
pub mod random;
mod rules;
#[cfg(feature = "testing")]
pub mod testing;
