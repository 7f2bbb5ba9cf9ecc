//! Flags, with the kernel's names and values if it has them.

bitflags::bitflags! {
    /// Per-operation I/O flags: the values of `RWF_*` in preadv2(2).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct IoFlags: u32 {
        /// High priority: poll for completion where supported.
        const HIPRI = 0x01;
        /// Data is durable when the write returns.
        const DSYNC = 0x02;
        /// Data and attributes are durable when the write returns.
        const SYNC = 0x04;
        /// Fail with [`Error::WouldBlock`](crate::Error::WouldBlock) rather than wait.
        const NOWAIT = 0x08;
        /// Write at the end of the file; the offset has no effect.
        const APPEND = 0x10;
        /// Write at the offset although the file was opened for appending.
        const NOAPPEND = 0x20;
        /// After a crash, either all of the write exists or none of it.
        const ATOMIC = 0x40;
        /// Use the cache, but leave it as it was (Linux: `RWF_DONTCACHE`).
        const UNCACHED = 0x80;
        /// The name under which Linux merged [`UNCACHED`](Self::UNCACHED).
        const DONTCACHE = 0x80;
    }
}

bitflags::bitflags! {
    /// Capabilities of a store.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Capabilities: u32 {
        /// The size is available without a lock, so cached reads may take the fast path.
        const FAST_READ = 1;
        /// Uncached operations are supported.
        const UNCACHED = 2;
        /// Holes are reported and can be punched.
        const HOLES = 4;
        /// Space can be reserved.
        const ALLOCATE = 8;
        /// Ranges can be shared between files.
        const CLONE = 16;
        /// Extended attributes are supported.
        const XATTR = 32;
        /// POSIX access control lists are supported.
        const POSIX_ACL = 64;
        /// Byte ranges can be locked.
        const LOCKS = 128;
        /// The store sets the time of each write, by one clock for all writers, so that a cache
        /// sets none of its own.
        const WRITE_TIMES = 256;
        /// Small files can be written whole ([`FileSystem::put_whole`](crate::FileSystem::put_whole)).
        const WHOLE_FILES = 512;
        /// Ranges can be copied between files ([`OpenFile::copy_range`](crate::OpenFile::copy_range)).
        const COPY = 1024;
    }
}

bitflags::bitflags! {
    /// The access that a file is open for.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// Reading.
        const READ = 1;
        /// Writing.
        const WRITE = 2;
    }
}

bitflags::bitflags! {
    /// A caller's permissions for a file, with the values of access(2).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Permissions: u32 {
        /// Executing a file, searching a directory.
        const EXECUTE = 1;
        /// Writing.
        const WRITE = 2;
        /// Reading.
        const READ = 4;
    }
}

impl From<Access> for Permissions {
    /// The permissions that an open with this access needs.
    fn from(access: Access) -> Self {
        let mut needed = Self::empty();
        needed.set(Self::READ, access.contains(Access::READ));
        needed.set(Self::WRITE, access.contains(Access::WRITE));
        needed
    }
}

/// The expected use of a range (posix_fadvise(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Advice {
    /// No advice.
    Normal,
    /// Sequential: read far ahead.
    Sequential,
    /// Random: do not read ahead.
    Random,
    /// Soon: bring it in.
    WillNeed,
    /// Not soon: clean pages may go.
    DontNeed,
    /// Once: this open file's operations are uncached.
    NoReuse,
}
