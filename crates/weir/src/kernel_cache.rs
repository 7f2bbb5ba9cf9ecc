//! What the kernel's page cache holds of a local file (cachestat(2), Linux 6.5).
//!
//! Sound because the one system call here gets pointers to live structures of the layout that it
//! reads and fills, and a descriptor borrowed for the length of the call.
#![allow(unsafe_code)]

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use weir_base::PAGE_SIZE;

const PAGE: u64 = PAGE_SIZE as u64;
/// Its number on every architecture; younger than the headers that libc knows.
const SYS_CACHESTAT: i64 = 451;
/// Most ranges reported, so that a file cached in every other page costs bounded memory and time.
const MOST_RANGES: usize = 64 << 10;

/// The byte ranges below `size` that are cached, in order, as far as [`MOST_RANGES`] go; `None`
/// where the kernel does not say.
pub(crate) fn cached_ranges(file: &File, size: u64) -> Option<Vec<Range<u64>>> {
    let mut found: Vec<Range<u64>> = Vec::new();
    // Halves are put on a stack, so that the left one is looked at first.
    let mut ahead = vec![0..size.div_ceil(PAGE)];
    while let Some(pages) = ahead.pop().filter(|_| found.len() < MOST_RANGES) {
        if pages.is_empty() {
            continue;
        }
        let cached = count(file, &pages)?;
        if cached == pages.end - pages.start {
            let bytes = pages.start * PAGE..(pages.end * PAGE).min(size);
            match found.last_mut() {
                Some(last) if last.end == bytes.start => last.end = bytes.end,
                _ => found.push(bytes),
            }
        } else if cached > 0 {
            let middle = pages.start + (pages.end - pages.start) / 2;
            ahead.push(middle..pages.end);
            ahead.push(pages.start..middle);
        }
    }
    Some(found)
}

/// How many of these pages are cached.
fn count(file: &File, pages: &Range<u64>) -> Option<u64> {
    #[repr(C)]
    struct Asked {
        offset: u64,
        len: u64,
    }
    #[repr(C)]
    #[derive(Default)]
    struct Found {
        cached: u64,
        dirty: u64,
        writeback: u64,
        evicted: u64,
        recently_evicted: u64,
    }
    let asked = Asked { offset: pages.start * PAGE, len: (pages.end - pages.start) * PAGE };
    let mut found = Found::default();
    // SAFETY: both structures live through the call and have the kernel's layout.
    let result = unsafe {
        libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &raw const asked, &raw mut found, 0u32)
    };
    (result == 0).then_some(found.cached)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn pages_just_written_are_cached_and_holes_are_not() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1000 * PAGE).unwrap();
        file.write_all_at(&[1; 3 * PAGE_SIZE], 10 * PAGE).unwrap();
        file.write_all_at(&[1], 999 * PAGE + 7).unwrap();
        // Kernels before 6.5, and sandboxes, do not say.
        let Some(found) = cached_ranges(&file, 999 * PAGE + 8) else { return };
        assert_eq!(found, [10 * PAGE..13 * PAGE, 999 * PAGE..999 * PAGE + 8]);
    }
}
