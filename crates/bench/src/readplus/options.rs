//! What to read, from whom, over which link.

use super::files::Kind;
use super::network::Rate;
use crate::peers::Wanted;
use std::path::PathBuf;
use weir_client::Version;

/// What to measure, and where.
#[derive(Clone, Debug)]
pub struct Options {
    /// The server. One that a URL names must export `dir`.
    pub server: Wanted,
    /// The client.
    pub client: ClientKind,
    /// File systems; those that can be made here, or that of `dir`, if there are none.
    pub file_systems: Vec<FileSystemKind>,
    /// Files; all if there are none.
    pub files: Vec<Kind>,
    /// Versions; all if there are none.
    pub versions: Vec<Version>,
    /// Size of each file, a multiple of 64 KiB.
    pub file_bytes: u64,
    /// Rate of the link; 1 Gbit/s for root, else unlimited, if it is not given.
    pub link: Option<Rate>,
    /// How often each figure is measured.
    pub rounds: u32,
    /// Where files or file systems are made: about six times the size has to fit.
    pub dir: PathBuf,
}

/// Who reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientKind {
    /// This program, through its page cache.
    Weir,
    /// The Linux kernel, in a guest, through its page cache.
    Linux,
    /// The Linux kernel, in a guest, past its page cache (O_DIRECT).
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

    /// How dd reads in the guest: the sizes of one call, and its flags.
    pub(crate) fn dd(self) -> &'static str {
        match self {
            // One call has as much in flight as read-ahead would.
            Self::LinuxDirect => "bs=16M iflag=direct",
            _ => "bs=1M",
        }
    }
}

/// A file system to have the files on.
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
