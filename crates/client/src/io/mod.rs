//! Data of open files: one operation becomes several calls.

pub(crate) mod read;
pub(crate) mod write;
