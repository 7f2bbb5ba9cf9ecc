//! How to copy.

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
    /// Directories and special files, too.
    pub recursive: bool,
    /// Keep mode, owner, times and hard links.
    pub preserve: bool,
    /// Which zeros become holes.
    pub sparse: Sparse,
    /// For every read and write of data.
    pub flags: IoFlags,
    /// Files copied at a time.
    pub jobs: usize,
    /// Permission bits that new files do not get.
    pub umask: u32,
    /// Go on where an earlier copy ended, and make that possible every so many bytes.
    pub resume_bytes: Option<u64>,
    /// Write over files that exist, rather than replace them.
    pub in_place: bool,
    /// Read copies back and compare.
    pub checksum: bool,
    /// Report what each file's pages did to the cache.
    pub stats: bool,
}

impl Default for Options {
    /// Regular files only, 16 at a time: zeros become holes, and new files get all permission bits but
    /// those that others could write with.
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
