//! Data of open files: one operation as many calls.

pub(crate) mod read;
pub(crate) mod write;
