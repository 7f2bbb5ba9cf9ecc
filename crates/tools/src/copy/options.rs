//! Options of a copy.

use super::mirror::Mirror;
use std::sync::Arc;
use weir_vfs::{IoFlags, RenameFlags};

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

/// Whether stores copy data themselves: by sharing it (CLONE, reflinks), or by a copy within a server
/// (COPY, RFC 7862 section 15.2). What they copy keeps the holes of the source; zeros in its data stay
/// data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reflink {
    /// Where they can, unless all zeros are to be written out, or data is to be compared.
    Auto,
    /// All data is shared, or the copy of the file fails.
    Always,
    /// Never: all data moves through this program.
    Never,
}

/// What happens to files that the destination has already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overwrite {
    /// The copy replaces them.
    Replace,
    /// They stay, also those that appear while the copy runs.
    Keep,
    /// They stay unless the source was changed later.
    Update,
}

/// How to copy.
#[derive(Clone, Debug)]
pub struct Options {
    /// Copy directories and special files, too.
    pub recursive: bool,
    /// What happens to files that exist.
    pub overwrite: Overwrite,
    /// Copy what symbolic links below the top lead to, instead of the links.
    pub dereference: bool,
    /// Do not copy what is in other file systems: directories where they are mounted are made empty.
    pub one_file_system: bool,
    /// Ask [`Progress::may_replace`](super::Progress::may_replace) before a file is replaced.
    pub asks: bool,
    /// Change nothing: report what would be copied.
    pub dry_run: bool,
    /// Most bytes per second that move through this program.
    pub bytes_per_second: Option<u64>,
    /// Keep mode, owner, times and hard links.
    pub preserve: bool,
    /// The sources are removed afterwards: a directory of theirs that changes while it is copied fails, since another
    /// program may have moved files from where they were not yet listed to where they are listed no more.
    pub moves: bool,
    /// Which zeros become holes.
    pub sparse: Sparse,
    /// Whether stores copy data themselves.
    pub reflink: Reflink,
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
    /// Synchronize: skip what is up to date, and write only what changed.
    pub mirror: Option<Arc<Mirror>>,
}

impl Options {
    /// Whether what is at a destination decides about the copy, so that an old listing of it does not do.
    pub(crate) fn heeds_existing(&self) -> bool {
        self.asks || self.overwrite == Overwrite::Update
    }

    /// How a complete copy gets its name.
    pub(crate) fn publishes(&self) -> RenameFlags {
        match self.overwrite {
            Overwrite::Keep => RenameFlags::NoReplace,
            Overwrite::Replace | Overwrite::Update => RenameFlags::Replace,
        }
    }
}

impl Default for Options {
    /// Regular files only, 16 at a time: stores copy data themselves where they can, zeros become
    /// holes otherwise, and new files get all permission bits except write permission for group and
    /// others.
    fn default() -> Self {
        Self {
            recursive: false,
            dereference: false,
            one_file_system: false,
            overwrite: Overwrite::Replace,
            asks: false,
            dry_run: false,
            bytes_per_second: None,
            preserve: false,
            moves: false,
            sparse: Sparse::Always,
            reflink: Reflink::Auto,
            flags: IoFlags::empty(),
            jobs: 16,
            umask: 0o022,
            resume_bytes: None,
            in_place: false,
            checksum: false,
            stats: false,
            mirror: None,
        }
    }
}
