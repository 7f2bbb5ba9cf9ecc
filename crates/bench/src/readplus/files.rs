//! The files to read: all data, all hole, or alternating.

use crate::interrupt;
use crate::scratch::forget;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::str::FromStr;
use weir_stores::random::Random;
use weir_tools::failure::{Asked, Result};

const KIB: u64 = 1 << 10;

/// What a file is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Data only.
    Data,
    /// Nothing but a hole.
    Hole,
    /// Alternating data and holes, each of `block_bytes`.
    Mixed {
        /// Length of each.
        block_bytes: u64,
        /// Whether the file begins with data.
        data_first: bool,
    },
}

impl Kind {
    /// In the order of the original's table.
    pub fn all() -> Vec<Self> {
        let mixed = [true, false].into_iter().flat_map(|data_first| {
            [4, 8, 16, 32].map(|kib| Self::Mixed { block_bytes: kib * KIB, data_first })
        });
        [Self::Data, Self::Hole].into_iter().chain(mixed).collect()
    }

    /// The original's name: `mixed-4d` has blocks of 4 KiB and begins with data.
    pub fn name(self) -> String {
        match self {
            Self::Data => "data".into(),
            Self::Hole => "hole".into(),
            Self::Mixed { block_bytes, data_first } => {
                format!("mixed-{}{}", block_bytes / KIB, if data_first { 'd' } else { 'h' })
            }
        }
    }

    /// Bytes of data in a file of `size` bytes, a multiple of 64 KiB.
    pub fn data_bytes(self, size: u64) -> u64 {
        match self {
            Self::Data => size,
            Self::Hole => 0,
            Self::Mixed { .. } => size / 2,
        }
    }

    /// Creates such a file, which is on the device on return, and not in the kernel's cache.
    pub(crate) fn make(self, path: &Path, size: u64) -> Result<()> {
        let asked = || format!("write {}", path.display());
        let file = File::create(path).asked(asked)?;
        file.set_len(size).asked(asked)?;
        let (block, step, first) = match self {
            Self::Data => (KIB * KIB, KIB * KIB, 0),
            Self::Hole => (0, size, size),
            Self::Mixed { block_bytes, data_first } => {
                (block_bytes, 2 * block_bytes, if data_first { 0 } else { block_bytes })
            }
        };
        let content = Random::new(size).bytes(block as usize);
        for at in (first..size).step_by(step as usize) {
            if at % (16 * KIB * KIB) < step {
                interrupt::check()?;
            }
            let len = block.min(size - at) as usize;
            file.write_all_at(&content[..len], at).asked(asked)?;
        }
        file.sync_all().asked(asked)?;
        forget(path)
    }
}

impl FromStr for Kind {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::all().into_iter().find(|kind| kind.name() == text);
        found.ok_or("the files are data, hole, and mixed-4d, -8d, -16d, -32d, -4h, -8h, -16h, -32h")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_the_layout_of_their_names() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let size = 256 * KIB;
        for kind in Kind::all() {
            let path = dir.path().join(kind.name());
            kind.make(&path, size).unwrap();
            assert_eq!(kind.name().parse(), Ok(kind));
            let bytes = std::fs::read(&path).unwrap();
            assert_eq!(bytes.len() as u64, size);
            let (block, data_first) = match kind {
                Kind::Mixed { block_bytes, data_first } => (block_bytes, data_first),
                _ => (size, kind == Kind::Data),
            };
            for (index, block) in bytes.chunks(block as usize).enumerate() {
                let data = (index % 2 == 0) == data_first;
                assert_eq!(data, block.iter().any(|b| *b != 0), "{} {index}", kind.name());
            }
        }
        assert!("mixed-5d".parse::<Kind>().is_err());
        assert_eq!(Kind::all().len(), 10);
    }
}
