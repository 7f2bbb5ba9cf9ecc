//! Small files that are written or read whole, in as few requests to a remote store as possible.

use crate::{Acl, Attr, FileId, Result};
use std::time::SystemTime;

/// A regular file to create with all of its data and attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WholeFile {
    /// The name of the file until it is complete. No other program uses it.
    pub temporary: Vec<u8>,
    /// Its final name.
    pub name: Vec<u8>,
    /// The file that has the final name, as far as the caller knows.
    pub replaced: Option<FileId>,
    /// Runs of data, in order, none of them empty; holes are between them.
    pub data: Vec<(u64, Vec<u8>)>,
    /// The size: the end of the last run, or more.
    pub size: u64,
    /// The permission bits. Until the file is complete, no other user may open it.
    pub mode: u32,
    /// Owner and group; `None`: those that the store chooses.
    pub owner: Option<(u32, u32)>,
    /// Access and modification time; `None`: those that result.
    pub times: Option<(SystemTime, SystemTime)>,
}

/// A regular file to read whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WholeRequest {
    /// The file.
    pub id: FileId,
    /// Its largest size, in bytes.
    pub max_bytes: usize,
    /// Whether to read the names of its extended attributes, and its access control list, too.
    pub with_xattrs: bool,
}

/// A regular file that was read whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WholeRead {
    /// Attributes from before the first byte was read.
    pub before: Attr,
    /// Attributes from after the last byte was read.
    pub after: Attr,
    /// When the read began.
    pub began: SystemTime,
    /// All of its data. Holes are zeros.
    pub data: Vec<u8>,
    /// Full names of the extended attributes, if they were requested and the store told them in the
    /// same request.
    pub xattrs: Option<Vec<Vec<u8>>>,
    /// What [`FileSystem::get_acl`](crate::FileSystem::get_acl) returns of its access list, on the same condition.
    pub access_list: Option<Result<Option<Acl>>>,
}
