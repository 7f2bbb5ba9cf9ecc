//! Attributes of a file, with the names of `std::fs::Metadata`.

use std::time::SystemTime;
use weir_vfs::{Attr, FileKind};

/// Attributes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata(pub(super) Attr);

impl Metadata {
    /// Everything that is known of the file.
    pub fn attr(&self) -> &Attr {
        &self.0
    }

    /// The type.
    pub fn kind(&self) -> FileKind {
        self.0.kind
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.0.kind == FileKind::Directory
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.0.kind == FileKind::Regular
    }

    /// Whether it is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.0.kind == FileKind::Symlink
    }

    /// The size in bytes.
    #[allow(clippy::len_without_is_empty, reason = "the name that std::fs::Metadata uses")]
    pub fn len(&self) -> u64 {
        self.0.size
    }

    /// The permission bits, `0o7777` at most.
    pub fn mode(&self) -> u32 {
        self.0.mode
    }

    /// When the data last changed.
    pub fn modified(&self) -> SystemTime {
        self.0.mtime
    }

    /// When the data was last read, as far as the server keeps that.
    pub fn accessed(&self) -> SystemTime {
        self.0.atime
    }

    /// When the file was created, if the server knows.
    pub fn created(&self) -> Option<SystemTime> {
        self.0.btime
    }
}
