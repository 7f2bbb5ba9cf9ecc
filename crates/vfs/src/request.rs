//! What the operations of a [`FileSystem`](crate::FileSystem) are asked: names, and their options.

use crate::{AclKind, FileId, SetAttr};

/// A name in a directory, as a caller gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EntryName<'a> {
    /// The directory.
    pub dir: FileId,
    /// The name; any bytes but NUL and slash.
    pub name: &'a [u8],
}

/// The name of an extended attribute, and its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct XattrName<'a> {
    /// The file.
    pub id: FileId,
    /// The full name (`user.x`).
    pub name: &'a [u8],
}

/// One of a file's two access control lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AclName {
    /// The file.
    pub id: FileId,
    /// Which list.
    pub kind: AclKind,
}

impl FileId {
    /// The entry of this directory with the name `name`.
    pub fn entry(self, name: &[u8]) -> EntryName<'_> {
        EntryName { dir: self, name }
    }

    /// The extended attribute of this file with the full name `name`.
    pub fn xattr(self, name: &[u8]) -> XattrName<'_> {
        XattrName { id: self, name }
    }

    /// An access control list of this file.
    pub fn acl(self, kind: AclKind) -> AclName {
        AclName { id: self, kind }
    }
}

/// A file of any type to create.
#[derive(Clone, Copy, Debug)]
pub struct NewFile<'a> {
    /// Its first name.
    pub at: EntryName<'a>,
    /// Its attributes; those that are not set have the store's defaults.
    pub set: &'a SetAttr,
}

impl<'a> EntryName<'a> {
    /// A file to create with this name, and with the attributes in `set`.
    pub fn with(self, set: &'a SetAttr) -> NewFile<'a> {
        NewFile { at: self, set }
    }
}

/// Treatment of an existing name when a regular file is created (open(2), `O_EXCL`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateMode {
    /// Find the file that has it.
    MayExist,
    /// Fail with [`Error::Exists`](crate::Error::Exists).
    MustBeNew,
}

/// Treatment of an existing target of a rename (renameat2(2)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RenameFlags {
    /// Replace it.
    #[default]
    Replace,
    /// Fail with [`Error::Exists`](crate::Error::Exists).
    NoReplace,
    /// Swap the two.
    Exchange,
}

/// Which entries of a directory to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReaddirRequest {
    /// The directory.
    pub dir: FileId,
    /// The cookie of the entry before the first one; 0: from the start.
    pub cookie: u64,
    /// Largest number of entries.
    pub max_entries: usize,
    /// Whether to read the entries' attributes, too.
    pub with_attr: bool,
}

/// The extended attribute that marks a file as uncached, if its value is [`UNCACHED_MARK`].
pub const UNCACHED_XATTR: &[u8] = b"user.weir.uncached";
/// The value of [`UNCACHED_XATTR`] that marks a file.
pub const UNCACHED_MARK: &[u8] = b"1";

/// Precondition for setting an extended attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    /// Either.
    Either,
    /// It must not exist yet.
    Create,
    /// It must exist.
    Replace,
}
