//! Options of a copy.

use weir_vfs::IoFlags;

/// Which zeros become holes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sparse {
    /// Holes of the source.
    Auto,
    /// Holes of the source, and pages of zeros.
    Always,
    /// None: zeros are written out.
    Never,
}

/// How to copy.
#[derive(Clone, Debug)]
pub struct Options {
    /// Copy directories and special files, too.
    pub recursive: bool,
    /// Keep mode, owner, times and hard links.
    pub preserve: bool,
    /// Which zeros become holes.
    pub sparse: Sparse,
    /// Flags of every read and write of data.
    pub flags: IoFlags,
    /// Files copied at a time.
    pub jobs: usize,
    /// Permission bits to remove from new files.
    pub umask: u32,
    /// Continue earlier copies, and make this one resumable every so many bytes.
    pub resume_bytes: Option<u64>,
    /// Overwrite existing files rather than replace them.
    pub in_place: bool,
    /// Read copies back and compare.
    pub checksum: bool,
    /// Report the effect of each file on the cache.
    pub stats: bool,
}

impl Default for Options {
    /// Regular files only, 16 at a time: zeros become holes, and new files get all permission bits
    /// except write permission for group and others.
    fn default() -> Self {
        Self {
            recursive: false,
            preserve: false,
            sparse: Sparse::Always,
            flags: IoFlags::empty(),
            jobs: 16,
            umask: 0o022,
            resume_bytes: None,
            in_place: false,
            checksum: false,
            stats: false,
        }
    }
}
