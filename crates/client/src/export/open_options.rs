//! How to open a file.

use weir_vfs::{Access, Error, Result};

/// How to open a file, with the names of `std::fs::OpenOptions`. There is no `append`: NFS has no
/// request that writes at the end of a file, wherever that is at the time.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    read: bool,
    write: bool,
    pub(super) create: bool,
    pub(super) create_new: bool,
    pub(super) truncate: bool,
    pub(super) mode: u32,
}

impl OpenOptions {
    /// Nothing is set; a new file has mode 0644.
    pub fn new() -> Self {
        Self {
            read: false,
            write: false,
            create: false,
            create_new: false,
            truncate: false,
            mode: 0o644,
        }
    }

    /// To read it.
    pub fn read(mut self, read: bool) -> Self {
        self.read = read;
        self
    }

    /// To write to it.
    pub fn write(mut self, write: bool) -> Self {
        self.write = write;
        self
    }

    /// Create it if it does not exist; needs `write`.
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Create it, and fail if the name exists, be it a symbolic link; needs `write`. Of several
    /// clients that try, one succeeds.
    pub fn create_new(mut self, create_new: bool) -> Self {
        self.create_new = create_new;
        self
    }

    /// Set the size to 0; needs `write`.
    pub fn truncate(mut self, truncate: bool) -> Self {
        self.truncate = truncate;
        self
    }

    /// The permission bits of a new file. The program's umask has no effect.
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = mode & 0o7777;
        self
    }

    pub(super) fn access(&self) -> Result<Access> {
        let mut access = Access::empty();
        access.set(Access::READ, self.read);
        access.set(Access::WRITE, self.write);
        let changes = self.create || self.create_new || self.truncate;
        if access.is_empty() || changes && !self.write {
            return Err(Error::Invalid);
        }
        Ok(access)
    }
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self::new()
    }
}
