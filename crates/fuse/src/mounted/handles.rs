//! Open files and directories.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Once;
use weir_pagecache::File;
use weir_vfs::{DirEntry, IoFlags};

/// An open file.
pub(crate) struct OpenFile {
    pub(crate) file: File,
    pub(crate) node: u64,
    /// Its reads and writes leave the cache as it was.
    pub(super) uncached: bool,
    /// The kernel keeps what is read and written.
    pub(super) by_kernel: bool,
    /// The change attribute at the open, if the kernel drops its pages when it gets the reply.
    pub(super) drops_pages_of: Option<u64>,
    /// Set when the kernel has got the reply.
    pub(super) is_known: Once,
}

impl OpenFile {
    pub(super) fn flags(&self) -> IoFlags {
        if self.uncached { IoFlags::UNCACHED } else { IoFlags::empty() }
    }
}

/// An open directory.
#[derive(Default)]
pub(crate) struct Directory {
    pub(super) ahead: Mutex<Ahead>,
}

/// Entries that were read and not sent yet.
#[derive(Default)]
pub(super) struct Ahead {
    /// The position before the first of them.
    pub(super) at: u64,
    /// Whether the first of them is sent with attributes.
    pub(super) with_attr: bool,
    pub(super) entries: VecDeque<DirEntry>,
    /// Whether the directory ends after them.
    pub(super) eof: bool,
}
