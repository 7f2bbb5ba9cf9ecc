//! Which pages leave the cache: S3-FIFO under pressure, and the pages of uncached operations.

pub(crate) mod s3fifo;
pub(crate) mod uncached;
