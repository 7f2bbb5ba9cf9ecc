//! Places where files live, each a [`weir_vfs::FileSystem`]: [`memory`], whose files know their
//! holes natively, and which tests of every other layer run over; [`local`], a directory of the
//! machine.

pub mod local;
pub mod memory;
mod rules;
#[cfg(feature = "testing")]
pub mod testing;
