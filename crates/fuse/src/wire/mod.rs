//! The kernel's FUSE protocol: types and codec.

pub(crate) mod abi;
pub(crate) mod reply;
pub(crate) mod request;
