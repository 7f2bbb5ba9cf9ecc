//! Options of the READ_PLUS benchmark.

use super::files::Kind;
use super::network::Rate;
use crate::peers::Wanted;
use std::path::PathBuf;
use weir_client::Version;

/// Options of the benchmark.
#[derive(Clone, Debug)]
pub struct Options {
    /// The server. If it is given by a URL, it must export `dir`.
    pub server: Wanted,
    /// The client.
    pub client: ClientKind,
    /// File systems; if empty, those that can be created here, or that of `dir`.
    pub file_systems: Vec<FileSystemKind>,
    /// Files; all if empty.
    pub files: Vec<Kind>,
    /// Versions; all if empty.
    pub versions: Vec<Version>,
    /// Size of each file, a multiple of 64 KiB.
    pub file_bytes: u64,
    /// Rate of the link; by default 1 Gbit/s for root, else unlimited.
    pub link: Option<Rate>,
    /// Number of measurements of each figure.
    pub rounds: u32,
    /// Directory for files or file systems: needs room for about six times the size.
    pub dir: PathBuf,
}

/// Who reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientKind {
    /// This program, with its page cache.
    Weir,
    /// The Linux kernel, in a guest, with its page cache.
    Linux,
    /// The Linux kernel, in a guest, bypassing its page cache (O_DIRECT).
    LinuxDirect,
}

impl ClientKind {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Weir => "weir",
            Self::Linux => "linux",
            Self::LinuxDirect => "linux-direct",
        }
    }

    /// Whether the client is the guest.
    pub(crate) fn in_guest(self) -> bool {
        self != Self::Weir
    }

    /// Parameters of dd in the guest: the size of one call, and its flags.
    pub(crate) fn dd(self) -> &'static str {
        match self {
            // One call has as much in flight as read-ahead would have.
            Self::LinuxDirect => "bs=16M iflag=direct",
            _ => "bs=1M",
        }
    }
}

/// A file system for the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystemKind {
    /// Made for the run.
    Ext4,
    /// Made for the run.
    Xfs,
    /// Made for the run.
    Btrfs,
    /// Made for the run.
    Ext3,
    /// That of the directory.
    Own,
}

impl FileSystemKind {
    pub(crate) const MADE: [Self; 4] = [Self::Ext4, Self::Xfs, Self::Btrfs, Self::Ext3];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
            Self::Ext3 => "ext3",
            Self::Own => "own",
        }
    }
}
