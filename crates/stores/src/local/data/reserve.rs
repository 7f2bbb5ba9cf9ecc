//! Reserving space (fallocate(2)), all of it or none.
//!
//! ext4 and XFS reserve piece by piece: when the disk or a quota is full, they keep the pieces that
//! fitted, and ext4 extends the file for them.
//!
//! 1. A request that is known not to fit fails before anything is reserved, so that the disk is not
//!    full for others even for a moment.
//! 2. After a failure, ranges that had no space before have none again, and the file has its old
//!    length. Space reserved earlier stays.
//! 3. Data that another program wrote there meanwhile stays, too: only ranges without data are
//!    freed.
//!
//! Where the file system does not report which ranges have space (FIEMAP), or a range has more than
//! [`MAX_GAPS`] pieces, only the file's length is restored.

use crate::local::sys::{self, proc_path};
use rustix::fs::{FallocateFlags, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use tracing::debug;

/// Most ranges without space that one call records.
const MAX_GAPS: usize = 4096;
/// The largest block of a file system, and the largest page.
const MAX_BLOCK: u64 = 64 << 10;

/// Reserves space for a range, and extends the file to its end.
pub(in crate::local) fn reserve(file: BorrowedFd<'_>, range: Range<u64>) -> io::Result<()> {
    let size = size_of(file)?;
    let gaps = sys::gaps(file, range.clone(), MAX_GAPS);
    if let Ok(Some(gaps)) = &gaps {
        let wanted: u64 = gaps.iter().map(|gap| gap.end - gap.start).sum();
        let stat = rustix::fs::fstatvfs(file)?;
        if wanted > stat.f_bfree.saturating_mul(stat.f_frsize) {
            return Err(Errno::NOSPC.into());
        }
    }
    let mode = FallocateFlags::empty();
    let done = rustix::fs::fallocate(file, mode, range.start, range.end - range.start);
    if let Err(error) = done {
        let gaps = gaps.ok().flatten().unwrap_or_default();
        if let Err(error) = take_back(file, size, range.end, &gaps) {
            debug!("space that was reserved in vain stays reserved: {error}");
        }
        return Err(error.into());
    }
    Ok(())
}

/// Frees the space reserved for ranges that had none, and restores the file's length.
fn take_back(file: BorrowedFd<'_>, size: u64, end: u64, gaps: &[Range<u64>]) -> io::Result<()> {
    for gap in gaps {
        let mut at = gap.start;
        let within = gap.end.min(size);
        while at < within {
            let data = next_data(file, at)?.min(within);
            if at < data {
                let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(file, mode, at, data - at)?;
            }
            at = if data < within { rustix::fs::seek(file, SeekFrom::Hole(data))? } else { within };
        }
    }
    // Also when it did not grow: space past the end goes with this.
    if end > size && size_of(file)? <= end && !has_data(file, size)? {
        rustix::fs::ftruncate(file, size)?;
    }
    Ok(())
}

/// Whether another program has written data at or after `size`, the file's length before it was
/// extended. The rest of the last block before it counts as data for the file system, and is zeros.
fn has_data(file: BorrowedFd<'_>, size: u64) -> io::Result<bool> {
    let data = next_data(file, size)?;
    if data != size {
        return Ok(data != u64::MAX);
    }
    let block = rustix::fs::fstatvfs(file)?.f_bsize.clamp(1, MAX_BLOCK);
    // What is read becomes data for some file systems, so reading comes last.
    let hole = rustix::fs::seek(file, SeekFrom::Hole(size))?;
    if hole > size.next_multiple_of(block) || next_data(file, hole)? != u64::MAX {
        return Ok(true);
    }
    // The file may be open for writing alone.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::open(proc_path(file), flags, Mode::empty())?;
    let mut rest = vec![0; (hole - size) as usize];
    let mut done = 0;
    while done < rest.len() {
        match rustix::io::pread(&file, &mut rest[done..], size + done as u64)? {
            // Another program has truncated the file.
            0 => break,
            read => done += read,
        }
    }
    Ok(rest.iter().any(|&byte| byte != 0))
}

/// The start of the next data at or after `at`; `u64::MAX` if there is none.
fn next_data(file: BorrowedFd<'_>, at: u64) -> io::Result<u64> {
    match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(data) => Ok(data),
        Err(Errno::NXIO) => Ok(u64::MAX),
        Err(error) => Err(error.into()),
    }
}

fn size_of(file: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(rustix::fs::fstat(file)?.st_size.cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    const MIB: u64 = 1 << 20;

    fn blocks(file: &File) -> i64 {
        rustix::fs::fstat(file).unwrap().st_blocks
    }

    /// Data, space reserved earlier, and a hole in between; the gaps of its first 8 MiB.
    fn sparse() -> Option<(File, Vec<Range<u64>>)> {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; MIB as usize], MIB).unwrap();
        file.set_len(6 * MIB).unwrap();
        if rustix::fs::fallocate(&file, FallocateFlags::empty(), 4 * MIB, MIB).is_err() {
            weir_skip::skip("the file system of temporary files reserves no space");
            return None;
        }
        file.sync_all().unwrap();
        match sys::gaps(file.as_fd(), 0..8 * MIB, MAX_GAPS) {
            Ok(gaps) => Some((file, gaps.unwrap())),
            Err(error) => {
                weir_skip::skip(format!("no FIEMAP of temporary files: {error}"));
                None
            }
        }
    }

    #[test]
    fn a_failed_reservation_is_undone_exactly() {
        let Some((file, gaps)) = sparse() else { return };
        assert_eq!(gaps, [0..MIB, 2 * MIB..4 * MIB, 5 * MIB..8 * MIB]);
        let before = blocks(&file);
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 8 * MIB).unwrap();
        // Another program writes into a gap meanwhile.
        file.write_all_at(b"mine", 3 * MIB).unwrap();
        take_back(file.as_fd(), 6 * MIB, 8 * MIB, &gaps).unwrap();
        assert_eq!(size_of(file.as_fd()).unwrap(), 6 * MIB);
        let mut found = [0; 4];
        file.read_exact_at(&mut found, 3 * MIB).unwrap();
        assert_eq!(&found, b"mine");
        assert!(blocks(&file) <= before + 2 * 128, "{before} blocks, then {}", blocks(&file));
        assert_eq!(sys::gaps(file.as_fd(), 4 * MIB..5 * MIB, MAX_GAPS).unwrap().unwrap(), []);
    }

    #[test]
    fn a_failed_reservation_leaves_a_length_within_a_block() {
        let Some((file, _)) = sparse() else { return };
        let size = 6 * MIB + 100;
        for (appended, left) in [(None, size), (Some(size + 5), 8 * MIB), (Some(7 * MIB), 8 * MIB)]
        {
            file.set_len(size).unwrap();
            file.write_all_at(b"x", size - 1).unwrap();
            file.sync_all().unwrap();
            let gaps = sys::gaps(file.as_fd(), 0..8 * MIB, MAX_GAPS).unwrap().unwrap();
            rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 8 * MIB).unwrap();
            // Another program appends meanwhile.
            if let Some(at) = appended {
                file.write_all_at(b"mine", at).unwrap();
            }
            // As by a client that has the file open for writing alone.
            let path = proc_path(file.as_fd());
            let writing = std::fs::OpenOptions::new().write(true).open(path).unwrap();
            take_back(writing.as_fd(), size, 8 * MIB, &gaps).unwrap();
            assert_eq!(size_of(file.as_fd()).unwrap(), left);
        }
    }

    #[test]
    fn a_reservation_that_cannot_fit_is_refused_first() {
        let Some((file, _)) = sparse() else { return };
        let before = blocks(&file);
        let stat = rustix::fs::fstatvfs(&file).unwrap();
        let free = stat.f_blocks * stat.f_frsize;
        let error = reserve(file.as_fd(), 0..free + 8 * MIB).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
        assert_eq!((size_of(file.as_fd()).unwrap(), blocks(&file)), (6 * MIB, before));
        reserve(file.as_fd(), 0..8 * MIB).unwrap();
        assert_eq!(size_of(file.as_fd()).unwrap(), 8 * MIB);
    }

    #[test]
    fn ranges_in_too_many_pieces_are_not_remembered() {
        let Some((file, _)) = sparse() else { return };
        assert_eq!(sys::gaps(file.as_fd(), 0..8 * MIB, 2).unwrap(), None);
    }
}
