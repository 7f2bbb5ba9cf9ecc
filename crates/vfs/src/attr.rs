//! Attributes, identities and callers.

use std::time::SystemTime;

/// Identity of a file: unique within its file system, even after the name and the inode are reused,
/// and stable over restarts of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    /// Inode number, as shown to users.
    pub ino: u64,
    /// Distinguishes files that had the same inode number at different times.
    pub generation: u64,
}

/// Type of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// Regular file.
    Regular,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Block device.
    Block,
    /// Character device.
    Char,
    /// Named pipe.
    Fifo,
    /// Socket.
    Socket,
}

/// Attributes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Identity.
    pub id: FileId,
    /// Type.
    pub kind: FileKind,
    /// Permission bits, with set-id and sticky: `0o7777` at most.
    pub mode: u32,
    /// Hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Owning group.
    pub gid: u32,
    /// Size in bytes.
    pub size: u64,
    /// Bytes of storage in use.
    pub allocated: u64,
    /// Device numbers (major, minor) of a device file.
    pub rdev: (u32, u32),
    /// Identity of the file system that the file lies on.
    pub fsid: u64,
    /// Last access.
    pub atime: SystemTime,
    /// Last change of data.
    pub mtime: SystemTime,
    /// Last change of data or attributes.
    pub ctime: SystemTime,
    /// Creation, if known.
    pub btime: Option<SystemTime>,
    /// Advances with every change of data or attributes.
    pub change: u64,
}

/// Attributes that a store keeps, and returns without looking at the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptAttributes {
    /// Those that it keeps for some time, in which the file may change.
    Timed,
    /// Those too that it keeps because it would be told of a change (a delegation).
    All,
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The store's own clock.
    Now,
    /// This time.
    To(SystemTime),
}

/// Attributes to set; `None` leaves one unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits.
    pub mode: Option<u32>,
    /// The permission bits that `mode` sets; an existing file keeps its others. `None`: all. The
    /// store makes no other change of them in between, and as few changes of other programs as
    /// possible come between. No effect on a new file.
    pub mode_mask: Option<u32>,
    /// Permission bits to remove from a new file, unless its directory has a default ACL, which
    /// then determines them. No effect on an existing file.
    pub umask: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Owning group.
    pub gid: Option<u32>,
    /// Size in bytes: truncates, or extends with a hole.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of data.
    pub mtime: Option<SetTime>,
}

impl SetAttr {
    /// Whether no attribute is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The new permission bits of a file with the bits `before`.
    pub fn mode_of(&self, before: u32) -> Option<u32> {
        let mask = self.mode_mask.unwrap_or(u32::MAX);
        self.mode.map(|mode| before & !mask | mode & mask)
    }
}

/// Rejects the owner or group 2^32 - 1, which chown(2) reads as "leave unchanged".
///
/// # Errors
/// [`Error::Invalid`](crate::Error::Invalid).
pub fn check_owners(uid: Option<u32>, gid: Option<u32>) -> crate::Result<()> {
    match uid == Some(u32::MAX) || gid == Some(u32::MAX) {
        true => Err(crate::Error::Invalid),
        false => Ok(()),
    }
}

/// The user on whose behalf an operation runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cred {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

/// Space and file counts of a file system (statfs(2)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FsStat {
    /// Total bytes.
    pub total_bytes: u64,
    /// Bytes free.
    pub free_bytes: u64,
    /// Bytes free to ordinary users.
    pub available_bytes: u64,
    /// Total files.
    pub total_files: u64,
    /// Files that can still be created.
    pub free_files: u64,
    /// Longest name, in bytes.
    pub max_name: u32,
    /// Largest file size, in bytes.
    pub max_file_size: u64,
    /// Most hard links to a file.
    pub max_links: u32,
    /// Shared ranges begin and end at multiples of this many bytes, or at the end of a file; 0 if
    /// sharing is not supported.
    pub clone_bytes: u32,
}
