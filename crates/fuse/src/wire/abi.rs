//! The structures and constants of the kernel's FUSE protocol, 7.31 to 7.45 (`linux/fuse.h`). Byte
//! order and alignment are the machine's.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The major version spoken.
pub(crate) const MAJOR: u32 = 7;
/// The newest minor version spoken.
pub(crate) const MINOR: u32 = 45;
/// The oldest minor version spoken: that of Linux 5.4, the first with all requests used here.
pub(crate) const LEAST_MINOR: u32 = 31;
/// The node of the root directory.
pub(crate) const ROOT: u64 = 1;

/// Declares structures that are read from or written to the device as they are.
macro_rules! structures {
    ($($(#[$meta:meta])* $name:ident { $($field:ident: $type:ty,)* })*) => {
        $(
            $(#[$meta])*
            #[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
            #[repr(C)]
            pub(crate) struct $name { $(pub(crate) $field: $type,)* }
        )*
    };
}

structures! {
    /// Begins every request.
    InHeader {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32,
        total_extlen: u16, padding: u16,
    }
    /// Begins every reply and notification.
    OutHeader { len: u32, error: i32, unique: u64, }
    InitIn { major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11], }
    InitOut {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16,
        congestion_threshold: u16, max_write: u32, time_gran: u32, max_pages: u16,
        map_alignment: u16, flags2: u32, max_stack_depth: u32, request_timeout: u16,
        unused: [u16; 11],
    }
    NodeAttr {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32,
        mtimensec: u32, ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32,
        blksize: u32, flags: u32,
    }
    EntryOut {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32,
        attr_valid_nsec: u32, attr: NodeAttr,
    }
    AttrOut { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: NodeAttr, }
    GetattrIn { getattr_flags: u32, dummy: u32, fh: u64, }
    SetattrIn {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64,
        ctime: u64, atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32,
        uid: u32, gid: u32, unused5: u32,
    }
    MknodIn { mode: u32, rdev: u32, umask: u32, padding: u32, }
    MkdirIn { mode: u32, umask: u32, }
    RenameIn { newdir: u64, }
    Rename2In { newdir: u64, flags: u32, padding: u32, }
    LinkIn { oldnodeid: u64, }
    OpenIn { flags: u32, open_flags: u32, }
    CreateIn { flags: u32, mode: u32, umask: u32, open_flags: u32, }
    OpenOut { fh: u64, open_flags: u32, backing_id: i32, }
    ReleaseIn { fh: u64, flags: u32, release_flags: u32, lock_owner: u64, }
    FlushIn { fh: u64, unused: u32, padding: u32, lock_owner: u64, }
    ReadIn {
        fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    WriteIn {
        fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32,
        padding: u32,
    }
    WriteOut { size: u32, padding: u32, }
    StatfsOut {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32,
        frsize: u32, padding: u32, spare: [u32; 6],
    }
    FsyncIn { fh: u64, fsync_flags: u32, padding: u32, }
    SetxattrIn { size: u32, flags: u32, }
    GetxattrIn { size: u32, padding: u32, }
    GetxattrOut { size: u32, padding: u32, }
    LkIn { fh: u64, owner: u64, start: u64, end: u64, kind: u32, pid: u32, lk_flags: u32, padding: u32, }
    LkOut { start: u64, end: u64, kind: u32, pid: u32, }
    AccessIn { mask: u32, padding: u32, }
    InterruptIn { unique: u64, }
    ForgetIn { nlookup: u64, }
    BatchForgetIn { count: u32, dummy: u32, }
    ForgetOne { nodeid: u64, nlookup: u64, }
    FallocateIn { fh: u64, offset: u64, length: u64, mode: u32, padding: u32, }
    LseekIn { fh: u64, offset: u64, whence: u32, padding: u32, }
    LseekOut { offset: u64, }
    CopyFileRangeIn {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64,
    }
    CopyFileRangeOut { bytes_copied: u64, }
    /// Precedes the name of a directory entry; each entry is padded to 8 bytes.
    Dirent { ino: u64, off: u64, namelen: u32, kind: u32, }
    InvalInodeOut { ino: u64, off: i64, len: i64, }
}

/// Kinds of requests.
pub(crate) mod opcode {
    macro_rules! opcodes {
        ($($upper:ident $lower:ident = $number:literal,)*) => {
            $(pub(crate) const $upper: u32 = $number;)*

            /// The name of a kind in small letters; `None` for a kind that this server does not know.
            pub(crate) fn name(opcode: u32) -> Option<&'static str> {
                match opcode {
                    $($number => Some(stringify!($lower)),)*
                    _ => None,
                }
            }
        };
    }

    // As in linux/fuse.h.
    opcodes! {
        LOOKUP lookup = 1,
        FORGET forget = 2,
        GETATTR getattr = 3,
        SETATTR setattr = 4,
        READLINK readlink = 5,
        SYMLINK symlink = 6,
        MKNOD mknod = 8,
        MKDIR mkdir = 9,
        UNLINK unlink = 10,
        RMDIR rmdir = 11,
        RENAME rename = 12,
        LINK link = 13,
        OPEN open = 14,
        READ read = 15,
        WRITE write = 16,
        STATFS statfs = 17,
        RELEASE release = 18,
        FSYNC fsync = 20,
        SETXATTR setxattr = 21,
        GETXATTR getxattr = 22,
        LISTXATTR listxattr = 23,
        REMOVEXATTR removexattr = 24,
        FLUSH flush = 25,
        INIT init = 26,
        OPENDIR opendir = 27,
        READDIR readdir = 28,
        RELEASEDIR releasedir = 29,
        FSYNCDIR fsyncdir = 30,
        GETLK getlk = 31,
        SETLK setlk = 32,
        SETLKW setlkw = 33,
        ACCESS access = 34,
        CREATE create = 35,
        INTERRUPT interrupt = 36,
        DESTROY destroy = 38,
        BATCH_FORGET batch_forget = 42,
        FALLOCATE fallocate = 43,
        READDIRPLUS readdirplus = 44,
        RENAME2 rename2 = 45,
        LSEEK lseek = 46,
        COPY_FILE_RANGE copy_file_range = 47,
        SYNCFS syncfs = 50,
        TMPFILE tmpfile = 51,
        COPY_FILE_RANGE_64 copy_file_range_64 = 53,
    }
}

bitflags::bitflags! {
    /// Abilities that kernel and server agree on (FUSE_INIT).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct InitFlags: u64 {
        const ASYNC_READ = 1 << 0;
        const POSIX_LOCKS = 1 << 1;
        const BIG_WRITES = 1 << 5;
        /// The server applies the umask.
        const DONT_MASK = 1 << 6;
        const FLOCK_LOCKS = 1 << 10;
        /// The kernel drops a file's pages when its times or size have changed.
        const AUTO_INVAL_DATA = 1 << 12;
        const DO_READDIRPLUS = 1 << 13;
        const READDIRPLUS_AUTO = 1 << 14;
        const ASYNC_DIO = 1 << 15;
        const PARALLEL_DIROPS = 1 << 18;
        const POSIX_ACL = 1 << 20;
        const MAX_PAGES = 1 << 22;
        const CACHE_SYMLINKS = 1 << 23;
        /// The server clears set-id bits where a change requires it.
        const HANDLE_KILLPRIV_V2 = 1 << 28;
        /// `flags2` is in use.
        const INIT_EXT = 1 << 30;
        /// Files with direct I/O can be mapped.
        const DIRECT_IO_ALLOW_MMAP = 1 << 36;
    }
}

bitflags::bitflags! {
    /// The attributes that SETATTR sets.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Fattr: u32 {
        const MODE = 1 << 0;
        const UID = 1 << 1;
        const GID = 1 << 2;
        const SIZE = 1 << 3;
        const ATIME = 1 << 4;
        const MTIME = 1 << 5;
        const FH = 1 << 6;
        const ATIME_NOW = 1 << 7;
        const MTIME_NOW = 1 << 8;
        const KILL_SUIDGID = 1 << 11;
    }
}

bitflags::bitflags! {
    /// How the kernel treats an open file (OPEN's reply).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct OpenFlags: u32 {
        /// Its reads and writes do not use the kernel's page cache.
        const DIRECT_IO = 1 << 0;
        /// The kernel keeps the pages that it has.
        const KEEP_CACHE = 1 << 1;
        /// The kernel keeps the entries of the directory.
        const CACHE_DIR = 1 << 3;
        /// Writes with direct I/O may be concurrent.
        const PARALLEL_DIRECT_WRITES = 1 << 6;
    }
}

/// GETATTR names an open file.
pub(crate) const GETATTR_FH: u32 = 1;
/// A lock of flock(2), not fcntl(2).
pub(crate) const LK_FLOCK: u32 = 1;
/// The last descriptor is closed: release its lock of flock(2).
pub(crate) const RELEASE_FLOCK_UNLOCK: u32 = 2;
/// The write comes from the kernel's page cache.
pub(crate) const WRITE_CACHE: u32 = 1;
/// The write clears set-id bits.
pub(crate) const WRITE_KILL_SUIDGID: u32 = 4;
/// The truncation at open clears set-id bits.
pub(crate) const OPEN_KILL_SUIDGID: u32 = 1;
/// OPEN by execve(2): the kernel's `FMODE_EXEC`, which no program can give to open(2).
pub(crate) const OPEN_TO_EXECUTE: u32 = 0x20;
/// FSYNC of the data alone.
pub(crate) const FSYNC_FDATASYNC: u32 = 1;
/// Notification: attributes or data of a node are not valid any more.
pub(crate) const NOTIFY_INVAL_INODE: i32 = 2;
/// Notification: no name is valid any more (7.44).
pub(crate) const NOTIFY_INC_EPOCH: i32 = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::size_of;

    /// The sizes in `linux/fuse.h`.
    #[test]
    fn structures_have_the_kernels_sizes() {
        let sizes = [
            (size_of::<InHeader>(), 40),
            (size_of::<OutHeader>(), 16),
            (size_of::<InitIn>(), 64),
            (size_of::<InitOut>(), 64),
            (size_of::<NodeAttr>(), 88),
            (size_of::<EntryOut>(), 128),
            (size_of::<AttrOut>(), 104),
            (size_of::<SetattrIn>(), 88),
            (size_of::<ReadIn>(), 40),
            (size_of::<WriteIn>(), 40),
            (size_of::<StatfsOut>(), 80),
            (size_of::<LkIn>(), 48),
            (size_of::<LkOut>(), 24),
            (size_of::<FallocateIn>(), 32),
            (size_of::<CopyFileRangeIn>(), 56),
            (size_of::<Dirent>(), 24),
        ];
        for (at, (is, should)) in sizes.into_iter().enumerate() {
            assert_eq!(is, should, "structure {at}");
        }
    }
}
