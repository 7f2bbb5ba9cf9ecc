//! Places where files live, each a [`weir_vfs::FileSystem`]: [`memory`], whose files know their
//! holes natively, and which tests of every other layer run over.

pub mod memory;
mod rules;
#[cfg(feature = "testing")]
pub mod testing;
