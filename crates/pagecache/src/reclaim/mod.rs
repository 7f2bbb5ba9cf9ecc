//! Which pages leave the cache under memory pressure.

pub(crate) mod s3fifo;
