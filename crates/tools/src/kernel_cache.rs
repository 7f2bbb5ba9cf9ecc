//! The part of a local file in the kernel's page cache (cachestat(2), Linux 6.5).
//!
//! Sound because the only system call here gets pointers to live structures of the layout that it
//! reads and writes, and a descriptor borrowed for the duration of the call.
#![allow(unsafe_code, reason = "system calls and mappings that rustix does not wrap")]

use rustix::fs::{Advice, SeekFrom, fadvise, seek};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use weir_base::PAGE_SIZE;

const PAGE: u64 = PAGE_SIZE as u64;
/// Its number on every architecture; newer than libc's headers.
const SYS_CACHESTAT: i64 = 451;
/// Bytes that are read at a time to warm a file.
const WARM_BYTES: usize = 1 << 20;
/// overlayfs, which containers have.
const OVERLAY_MAGIC: rustix::fs::FsWord = 0x794c_7630;
/// Bytes that are mapped at a time to look at their pages.
const WINDOW_BYTES: u64 = 1 << 30;
/// An offset that no file reaches.
const BEHIND_ALL_PAGES: i64 = 1 << 62;
/// Most ranges reported, so that a file with every other page cached costs bounded memory and time.
const MOST_RANGES: usize = 64 << 10;

/// What is cached of a file.
#[derive(Debug, PartialEq, Eq)]
pub struct Cached {
    /// Bytes in all.
    pub bytes: u64,
    /// Cached bytes of each requested part.
    pub parts: Vec<u64>,
    /// The first ranges, in order.
    pub ranges: Vec<Range<u64>>,
    /// There are more ranges.
    pub is_cut_off: bool,
}

/// The cached part of the first `size` bytes, and of each of `parts`, which are whole pages; `None`
/// if the kernel does not report it. At most 65,536 ranges are listed; the counts cover all.
pub fn cached(file: &File, size: u64, parts: impl Iterator<Item = Range<u64>>) -> Option<Cached> {
    let bytes = |part: &Range<u64>| {
        let pages = count(file, &(part.start / PAGE..part.end.div_ceil(PAGE)))?;
        Some(pages.saturating_mul(PAGE).min(part.end - part.start))
    };
    let (ranges, is_cut_off) = cached_ranges(file, size, MOST_RANGES)?;
    let parts = parts.map(|part| bytes(&part)).collect::<Option<_>>()?;
    Some(Cached { bytes: bytes(&(0..size))?, parts, ranges, is_cut_off })
}

/// Bytes of a file's cached pages, whole pages; `None` if the kernel does not report them.
pub fn resident_bytes(file: &File, size: u64) -> Option<u64> {
    Some(count(file, &(0..size.div_ceil(PAGE)))? * PAGE)
}

/// The cached byte ranges of a file's first `size` bytes, whole pages, in order, at most `most` of them, and
/// whether there are more; `None` if the kernel does not report them. It reports all pages of files that
/// this user may neither own nor write as cached, or none.
pub fn resident_ranges(file: &File, size: u64, most: usize) -> Option<(Vec<Range<u64>>, bool)> {
    let whole = size.next_multiple_of(PAGE);
    match is_stacked(file) {
        false => cached_ranges(file, whole, most).or_else(|| mapped_ranges(file, whole, most)),
        true => mapped_ranges(file, whole, most),
    }
}

/// As [`resident_bytes`], for a file of any file system.
pub fn resident_in_layers(file: &File, size: u64) -> Option<u64> {
    if !is_stacked(file)
        && let Some(bytes) = resident_bytes(file, size)
    {
        return Some(bytes);
    }
    let (ranges, _) = mapped_ranges(file, size, usize::MAX)?;
    Some(ranges.iter().map(|range| range.end - range.start).sum())
}

/// Whether the pages of a file are those of a file in another file system, which cachestat does not count.
pub fn is_stacked(file: &File) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|system| system.f_type == OVERLAY_MAGIC)
}

/// As [`cached_ranges`], by a mapping and mincore(2), which looks at each page.
fn mapped_ranges(file: &File, size: u64, most: usize) -> Option<(Vec<Range<u64>>, bool)> {
    let mut found: Vec<Range<u64>> = Vec::new();
    for start in (0..size).step_by(WINDOW_BYTES as usize) {
        let pages = pages_in_memory(file, start, (size - start).min(WINDOW_BYTES))?;
        for (index, _) in pages.iter().enumerate().filter(|(_, page)| **page & 1 == 1) {
            let at = start + index as u64 * PAGE;
            let is_full = found.len() >= most;
            match found.last_mut() {
                Some(last) if last.end == at => last.end += PAGE,
                _ if is_full => return Some((found, true)),
                _ => found.push(at..at + PAGE),
            }
        }
    }
    Some((found, false))
}

/// A byte for each page: its lowest bit says whether the page is cached.
fn pages_in_memory(file: &File, start: u64, len: u64) -> Option<Vec<u8>> {
    let mut pages = vec![0; len.div_ceil(PAGE) as usize];
    let (fd, len) = (file.as_raw_fd(), len as usize);
    // SAFETY: a new mapping, of which no page is accessed; it is unmapped below, and `pages` has a byte for
    // each of its pages.
    unsafe {
        let at = libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ,
            libc::MAP_SHARED,
            fd,
            start as libc::off_t,
        );
        if at == libc::MAP_FAILED {
            return None;
        }
        let done = libc::mincore(at, len, pages.as_mut_ptr());
        libc::munmap(at, len);
        (done == 0).then_some(pages)
    }
}

/// Has the kernel start to write a file's dirty pages, without waiting for them. Where it does not tell of what fails
/// ([`is_stacked`], among others), [`write_out`] writes them.
///
/// # Errors
/// The file cannot be written. No later call may tell so (ext4 that cannot allocate blocks).
pub fn start_writing(file: &File) -> io::Result<()> {
    if !has_ranges(file) {
        return Ok(());
    }
    match sync_range(file, 0, 0, libc::SYNC_FILE_RANGE_WRITE) {
        // The pages are dirty still.
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::OutOfMemory) => {
            Ok(())
        }
        started => started,
    }
}

/// Has the kernel report a write of the file that has failed, without waiting for those in progress. If only a sync
/// tells, as for stacked files ([`is_stacked`]), the file is synced.
///
/// # Errors
/// As [`write_out`].
pub fn earlier_writes(file: &File) -> io::Result<()> {
    match has_ranges(file) {
        // No page is there to wait for.
        true => sync_range(file, BEHIND_ALL_PAGES, 1, libc::SYNC_FILE_RANGE_WAIT_BEFORE),
        false => file.sync_data(),
    }
}

/// Writes a file's dirty pages, so that the kernel can drop them, and waits until it is done. The file is not
/// durable thereby.
///
/// # Errors
/// The file cannot be written, or what was written before could not be. The kernel reports that once: a second call
/// may succeed, and so may the sync of a program that opens the file later.
pub fn write_out(file: &File) -> io::Result<()> {
    let waits = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    match has_ranges(file) {
        true => sync_range(file, 0, 0, waits | libc::SYNC_FILE_RANGE_WRITE),
        false => file.sync_data(),
    }
}

/// Whether sync_file_range(2) works on a file, and tells of its failed writes. This takes no report of one.
fn has_ranges(file: &File) -> bool {
    !is_stacked(file) && sync_range(file, 0, 0, 0).is_ok()
}

/// sync_file_range(2): to the end of the file, if `len` is 0.
fn sync_range(file: &File, start: i64, len: i64, flags: libc::c_uint) -> io::Result<()> {
    // SAFETY: it takes numbers only.
    match unsafe { libc::sync_file_range(file.as_raw_fd(), start, len, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Has the kernel drop the clean pages of a range that no program maps; `None` for its end is that of the file.
pub fn drop_range(file: &File, start: u64, end: Option<u64>) {
    let len = end.and_then(|end| std::num::NonZeroU64::new(end - start));
    // What is not dropped is counted as cached.
    let _ = fadvise(file, start, len, Advice::DontNeed);
}

/// Reads the data of a file into the cache, without its holes; returns how many bytes of whole pages
/// that are.
///
/// # Errors
/// The file cannot be read.
pub fn warm(file: &File) -> io::Result<u64> {
    let size = file.metadata()?.len();
    let (mut buffer, mut at, mut read) = (vec![0; WARM_BYTES], 0, 0);
    while at < size {
        let data = match seek(file, SeekFrom::Data(at)) {
            Ok(data) => data,
            // Only a hole follows.
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let hole = seek(file, SeekFrom::Hole(data))?;
        at = data / PAGE * PAGE;
        while at < hole {
            let most = (hole - at).min(WARM_BYTES as u64) as usize;
            let bytes = file.read_at(&mut buffer[..most], at)?;
            if bytes == 0 {
                return Ok(read);
            }
            read += (bytes as u64).next_multiple_of(PAGE);
            at += bytes as u64;
        }
    }
    Ok(read)
}

/// Writes a file's dirty pages to its file system, and has the kernel drop its pages. Those that
/// programs map or use stay.
///
/// # Errors
/// The file cannot be written or the advice is refused.
pub fn evict(file: &File) -> io::Result<()> {
    file.sync_data()?;
    Ok(fadvise(file, 0, None, Advice::DontNeed)?)
}

/// The cached byte ranges below `size`, in order, at most `most` of them, and whether there are
/// more; `None` if the kernel does not report them.
fn cached_ranges(file: &File, size: u64, most: usize) -> Option<(Vec<Range<u64>>, bool)> {
    let mut found: Vec<Range<u64>> = Vec::new();
    // A stack of halves, so that the left one is examined first.
    let mut ahead = vec![0..size.div_ceil(PAGE)];
    while let Some(pages) = ahead.pop() {
        if pages.is_empty() {
            continue;
        }
        let cached = count(file, &pages)?;
        if cached == pages.end - pages.start {
            let bytes = pages.start * PAGE..(pages.end * PAGE).min(size);
            let is_full = found.len() >= most;
            match found.last_mut() {
                Some(last) if last.end == bytes.start => last.end = bytes.end,
                _ if is_full => return Some((found, true)),
                _ => found.push(bytes),
            }
        } else if cached > 0 {
            let middle = pages.start + (pages.end - pages.start) / 2;
            ahead.push(middle..pages.end);
            ahead.push(pages.start..middle);
        }
    }
    Some((found, false))
}

/// Number of these pages that are cached.
fn count(file: &File, pages: &Range<u64>) -> Option<u64> {
    #[repr(C)]
    struct CachestatRange {
        offset: u64,
        len: u64,
    }
    #[repr(C)]
    #[derive(Default)]
    struct Cachestat {
        cached: u64,
        dirty: u64,
        writeback: u64,
        evicted: u64,
        recently_evicted: u64,
    }
    let asked =
        CachestatRange { offset: pages.start * PAGE, len: (pages.end - pages.start) * PAGE };
    let mut found = Cachestat::default();
    // SAFETY: both structures outlive the call and have the kernel's layout.
    let result = unsafe {
        libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &raw const asked, &raw mut found, 0u32)
    };
    (result == 0).then_some(found.cached)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_just_written_are_cached_and_holes_are_not() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1000 * PAGE).unwrap();
        file.write_all_at(&[1; 3 * PAGE_SIZE], 10 * PAGE).unwrap();
        file.write_all_at(&[1], 999 * PAGE + 7).unwrap();
        // Kernels before 6.5, and sandboxes, do not report it.
        let size = 999 * PAGE + 8;
        let parts = [0..11 * PAGE, 11 * PAGE..999 * PAGE, 999 * PAGE..size];
        let Some(found) = cached(&file, size, parts.into_iter()) else { return };
        assert_eq!(found.ranges, [10 * PAGE..13 * PAGE, 999 * PAGE..size]);
        assert_eq!((found.parts, found.is_cut_off), (vec![PAGE, 2 * PAGE, 8], false));
        assert_eq!(found.bytes, 4 * PAGE);
        // The list is bounded, the count is not.
        assert_eq!(cached_ranges(&file, size, 1), Some((vec![10 * PAGE..13 * PAGE], true)));
    }

    #[test]
    fn a_mapping_shows_the_pages_that_cachestat_counts() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let mut options = File::options();
        let file =
            options.read(true).write(true).create_new(true).open(dir.path().join("file")).unwrap();
        file.set_len(1000 * PAGE).unwrap();
        file.write_all_at(&[1; 3 * PAGE_SIZE], 10 * PAGE).unwrap();
        file.write_all_at(&[1], 999 * PAGE + 7).unwrap();
        let expected = vec![10 * PAGE..13 * PAGE, 999 * PAGE..1000 * PAGE];
        assert_eq!(mapped_ranges(&file, 1000 * PAGE, 9), Some((expected.clone(), false)));
        assert_eq!(mapped_ranges(&file, 1000 * PAGE, 1), Some((expected[..1].to_vec(), true)));
        assert_eq!(resident_ranges(&file, 999 * PAGE + 8, 9), Some((expected, false)));
        assert_eq!(resident_in_layers(&file, 1000 * PAGE), Some(4 * PAGE));
    }

    #[test]
    fn a_file_is_evicted_and_warmed_without_its_holes() {
        // Files of tmpfs have no other place than the cache.
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = dir.path().join("file");
        let mut options = File::options();
        let file = options.read(true).write(true).create_new(true).open(path).unwrap();
        file.set_len(1000 * PAGE).unwrap();
        file.write_all_at(&[1; 3 * PAGE_SIZE], 10 * PAGE).unwrap();
        file.write_all_at(&[1], 999 * PAGE + 7).unwrap();
        let size = file.metadata().unwrap().len();
        let resident = || resident_bytes(&file, size);
        if resident() != Some(4 * PAGE) {
            return; // Kernels before 6.5, and sandboxes, do not report it.
        }
        evict(&file).unwrap();
        assert_eq!(resident(), Some(0));
        assert_eq!(warm(&file).unwrap(), 4 * PAGE);
        // The kernel reads ahead, but this file has no more data.
        assert!(resident().unwrap() >= 4 * PAGE);
    }
}
