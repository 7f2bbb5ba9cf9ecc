//! Data of open files: one operation as many calls, and what counts as another client's change.

pub(crate) mod change_spans;
pub(crate) mod read;
pub(crate) mod write;
