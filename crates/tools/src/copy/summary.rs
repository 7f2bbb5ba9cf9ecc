//! What a copy did.

use serde::Serialize;

/// What a copy did; serializes to what `weir cp --json` prints.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// Regular files copied.
    pub files: u64,
    /// Directories made, or found there.
    pub directories: u64,
    /// Symbolic links made.
    pub symlinks: u64,
    /// Hard links made to files that were copied before.
    pub hard_links: u64,
    /// Devices, named pipes and sockets made.
    pub special_files: u64,
    /// Sizes of all files, holes included.
    pub size_bytes: u64,
    /// Data that the sources yielded.
    pub read_bytes: u64,
    /// Bytes that went over connections to servers, in both directions.
    pub wire_bytes: u64,
    /// Bytes given to the destination.
    pub written_bytes: u64,
    /// Holes of the sources.
    pub holes_skipped: u64,
    /// Their size in bytes.
    pub hole_bytes: u64,
    /// Zeros that the sources yielded as data and that became holes.
    pub zero_bytes: u64,
    /// From start to end.
    pub seconds: f64,
    /// Size by time, in millions of bytes a second.
    pub mb_per_s: f64,
    /// Bytes of earlier copies that were gone on with.
    pub resumed_bytes: u64,
    /// Files that were there already, with the same size and time.
    pub up_to_date: u64,
    /// Bytes of copies that were read back.
    pub verified_bytes: u64,
    /// What failed, as people read it.
    pub failures: Vec<String>,
    /// What `--preserve` could not keep.
    pub not_preserved: Vec<String>,
    /// What each file did to the page cache, with [`Options::stats`](super::Options::stats).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stats: Vec<FileStats>,
}

/// What copying one file did to the page cache.
#[derive(Clone, Debug, Serialize)]
pub struct FileStats {
    /// Its source.
    pub from: String,
    /// Its destination.
    pub to: String,
    /// Pages that the uncached operations of the copy brought in, of both files.
    pub brought_in_pages: u64,
    /// Of these, dropped when done with.
    pub pruned_pages: u64,
    /// Of these, kept since others used them.
    pub claimed_pages: u64,
    /// Pages of others that were lost to it.
    pub lost_pages: u64,
}
