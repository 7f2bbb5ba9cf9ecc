//! The process that is asked, and the way of its replies.

use crate::protocol::{Reply, Status, line};
use std::io;
use std::path::PathBuf;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::WriteHalf;
use weir_pagecache::CachedFs;

/// A process that is asked.
pub trait Process: Send + Sync + 'static {
    /// Its counters.
    fn status(&self) -> Status;

    /// The directories whose files it has: canonical paths, and the files as its users see them.
    fn file_systems(&self) -> Vec<(PathBuf, CachedFs)>;
}

/// Takes the replies to one request.
pub(crate) struct Out<'a>(WriteHalf<'a>);

impl<'a> Out<'a> {
    pub(crate) fn new(to: WriteHalf<'a>) -> Self {
        Self(to)
    }

    /// Sends a reply.
    pub(crate) async fn reply(&mut self, reply: &Reply) -> io::Result<()> {
        self.0.write_all(&line(reply)?).await
    }
}
