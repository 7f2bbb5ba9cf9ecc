//! Change attributes that are finer than time stamps, and changes that other programs make.

pub(super) mod directories;
pub(super) mod foreign;
pub(super) mod watch;
