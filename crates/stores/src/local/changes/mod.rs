//! Change attributes finer than time stamps, and detection of changes by other programs.

pub(super) mod directories;
pub(super) mod foreign;
pub(super) mod watch;
