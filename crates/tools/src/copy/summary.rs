//! The results of a copy.

use serde::Serialize;

/// The results of a copy; `weir cp --json` prints them.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// Regular files copied.
    pub files: u64,
    /// Directories created, or found existing.
    pub directories: u64,
    /// Symbolic links made.
    pub symlinks: u64,
    /// Hard links created to files copied before.
    pub hard_links: u64,
    /// Devices, named pipes and sockets created.
    pub special_files: u64,
    /// Sizes of all files, holes included.
    pub size_bytes: u64,
    /// Bytes of data read from the sources.
    pub read_bytes: u64,
    /// Bytes over connections to servers, in both directions.
    pub wire_bytes: u64,
    /// Bytes written to the destination.
    pub written_bytes: u64,
    /// Bytes that the copies share with their sources (CLONE, reflinks), holes included.
    pub cloned_bytes: u64,
    /// Bytes of data that servers copied themselves (COPY).
    pub server_copied_bytes: u64,
    /// Holes of the sources.
    pub holes_skipped: u64,
    /// Their size in bytes.
    pub hole_bytes: u64,
    /// Zeros read as data that became holes.
    pub zero_bytes: u64,
    /// From start to end.
    pub seconds: f64,
    /// Size divided by time, in millions of bytes per second.
    pub mb_per_s: f64,
    /// Bytes of earlier copies that were continued.
    pub resumed_bytes: u64,
    /// Files that already existed with the same size and time.
    pub up_to_date: u64,
    /// Files that exist and were to stay.
    pub kept: u64,
    /// Bytes of copies read back.
    pub verified_bytes: u64,
    /// Bytes of files that changed which the destination had already, holes included.
    pub matched_bytes: u64,
    /// Files and directories that a synchronization removed.
    pub removed: u64,
    /// The failures, as messages.
    pub failures: Vec<String>,
    /// Messages about attributes that `--preserve` could not keep.
    pub not_preserved: Vec<String>,
    /// The effect of each file on the page cache, with [`Options::stats`](super::Options::stats).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stats: Vec<FileStats>,
}

/// The effect of copying one file on the page cache.
#[derive(Clone, Debug, Serialize)]
pub struct FileStats {
    /// Its source.
    pub from: String,
    /// Its destination.
    pub to: String,
    /// Pages of both files that the copy's uncached operations brought in.
    pub brought_in_pages: u64,
    /// Of these, pages dropped after use.
    pub pruned_pages: u64,
    /// Of these, pages kept because other users accessed them.
    pub claimed_pages: u64,
    /// Pages of other users that were evicted.
    pub lost_pages: u64,
}
