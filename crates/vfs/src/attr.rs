//! Attributes, identities and callers.

use std::time::SystemTime;

/// Which file: unique within its file system, also after the name and the inode are used again,
/// and the same after a restart of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    /// Inode number, as people see it.
    pub ino: u64,
    /// Tells apart files that had the same inode number at different times.
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
    /// Which file.
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
    /// Changes whenever data or attributes change.
    pub change: u64,
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The store's own clock.
    Now,
    /// This time.
    To(SystemTime),
}

/// Attributes to set; `None` leaves one as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Which of the permission bits `mode` sets; the others of a file that exists stay as they are.
    /// `None`: all. No other change of them through the store comes between, and as few as can be of those
    /// that others make. Means nothing for a new file.
    pub mode_mask: Option<u32>,
    /// Permission bits that a new file does not get, unless its directory has a default ACL, which
    /// says what it gets then. Means nothing for a file that exists.
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
    /// Whether nothing is to be set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The permission bits of a file that has these.
    pub fn mode_of(&self, before: u32) -> Option<u32> {
        let mask = self.mode_mask.unwrap_or(u32::MAX);
        self.mode.map(|mode| before & !mask | mode & mask)
    }
}

/// On whose behalf an operation is done.
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
    /// Bytes in all.
    pub total_bytes: u64,
    /// Bytes free.
    pub free_bytes: u64,
    /// Bytes free to ordinary users.
    pub available_bytes: u64,
    /// Files in all.
    pub total_files: u64,
    /// Files that can still be made.
    pub free_files: u64,
    /// Longest name, in bytes.
    pub max_name: u32,
    /// Largest file size, in bytes.
    pub max_file_size: u64,
    /// Most hard links to a file.
    pub max_links: u32,
    /// Ranges that files share begin and end at multiples of this, in bytes, or at the end of a file;
    /// 0 where none are shared.
    pub clone_bytes: u32,
}
