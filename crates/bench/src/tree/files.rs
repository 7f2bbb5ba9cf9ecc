//! A tree of files with the sizes of a Linux source tree.

use std::fs;
use std::path::Path;
use weir_stores::random::Random;
use weir_tools::failure::{Asked, Result};

/// Sizes in bytes below which the given part of the files of Linux 6 lies, in thousandths. Those
/// between are spread evenly; the largest, generated headers of megabytes, are left out.
const SIZES: [(u64, u64); 9] = [
    (0, 0),
    (100, 450),
    (250, 1_400),
    (500, 4_600),
    (750, 13_500),
    (900, 28_000),
    (950, 45_000),
    (980, 85_000),
    (1000, 250_000),
];
/// Files in a directory, and directories in one.
const FILES: u32 = 16;
const DIRECTORIES: u32 = 12;

/// Makes a tree of `count` files at `root`, the same each time; returns their bytes.
pub(super) fn make(root: &Path, count: u32) -> Result<u64> {
    let mut random = Random::new(count.into());
    let text = random.bytes(512 << 10);
    let mut bytes = 0;
    for number in 0..count {
        let directory = number / FILES;
        let mut dir = root.join(format!("group-{}", directory / DIRECTORIES));
        dir.push(format!("directory-{}", directory % DIRECTORIES));
        if number % FILES == 0 {
            fs::create_dir_all(&dir).asked(|| format!("make {}", dir.display()))?;
        }
        let size = size(random.below(1000), random.below(1000));
        let at = random.below(text.len() as u64 - size) as usize;
        let path = dir.join(format!("file-{number}.c"));
        let written = fs::write(&path, &text[at..at + size as usize]);
        written.asked(|| format!("write {}", path.display()))?;
        bytes += size;
    }
    Ok(bytes)
}

/// The size at a rank, in thousandths, and a position, in thousandths, between its neighbours.
fn size(rank: u64, position: u64) -> u64 {
    let above = SIZES.partition_point(|(part, _)| *part <= rank).min(SIZES.len() - 1);
    let (low, high) = (SIZES[above - 1].1, SIZES[above].1);
    low + (high - low) * position / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_files_are_below_the_median() {
        let sizes: Vec<u64> = (0..1000).map(|rank| size(rank, 500)).collect();
        assert_eq!(sizes.iter().filter(|size| **size < 4_600).count(), 500);
        assert!(sizes.iter().all(|size| *size < 250_000));
    }
}
