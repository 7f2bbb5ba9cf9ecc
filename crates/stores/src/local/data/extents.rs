//! The known data and holes of a file.
//!
//! 1. The extents known are those of one moment since which the file has not changed: a write in
//!    flight, or a new change attribute, discards them ([`Known::forget`]).
//! 2. Data is rounded outward to pages, so holes begin and end at pages, or at the end of the file.

use crate::local::attr::change_of;
use crate::local::sys;
use rustix::fs::{SeekFrom, Statx, StatxFlags, seek};
use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use weir_base::PAGE_SIZE;
use weir_vfs::{Extent, Result, SegmentKind};

const PAGE: u64 = PAGE_SIZE as u64;

/// Most known extents of a file: 1.5 MiB at about 48 bytes each.
const MAX_EXTENTS: usize = 32 * 1024;

/// How often to look for a hole at the end of a file that changes meanwhile.
const LOOKS: u32 = 3;

/// The known extents of a file.
#[derive(Debug, Default)]
pub(in crate::local) struct Known {
    extents: BTreeMap<u64, (u64, SegmentKind)>,
}

impl Known {
    /// Forgets everything.
    pub(in crate::local) fn forget(&mut self) {
        self.extents.clear();
    }

    /// The known extent around `offset`, clipped to begin there.
    pub(in crate::local) fn at(&self, offset: u64) -> Option<Extent> {
        let (_, &(end, kind)) = self.extents.range(..=offset).next_back()?;
        (end > offset).then_some(Extent { kind, start: offset, end })
    }

    /// Adds an extent that begins where nothing is known.
    pub(in crate::local) fn learn(&mut self, extent: Extent) {
        if self.extents.len() >= MAX_EXTENTS {
            self.extents.clear();
        }
        let Extent { kind, start, end } = extent;
        match self.extents.range_mut(..=start).next_back() {
            Some((_, (last, same))) if *last == start && *same == kind => *last = end,
            _ => {
                self.extents.insert(start, (end, kind));
            }
        }
    }
}

/// Asks the file system for the extent around `offset`, which is below the size in `stat`. Returns also whether no
/// change since `stat` was seen; only a hole at the end is checked for that.
///
/// There is no hole where another program has cut off the file since: a read of that as data finds the file's end.
pub(in crate::local) fn extent_at(
    file: BorrowedFd<'_>,
    offset: u64,
    stat: &Statx,
) -> Result<(Extent, bool)> {
    let state = |stat: &Statx| (stat.stx_size, change_of(stat));
    let size = stat.stx_size;
    let mut before = state(stat);
    for look in 0..LOOKS {
        let extent = seek_extent(file, offset, size)?;
        if extent.kind == SegmentKind::Data || extent.end < size {
            return Ok((extent, look == 0));
        }
        let mask = StatxFlags::SIZE | StatxFlags::CTIME;
        let after = state(&sys::stat_fd(file, mask).map_err(std::io::Error::from)?);
        if after == before {
            return Ok((extent, look == 0));
        }
        if after.0 < size {
            break;
        }
        before = after;
    }
    Ok((Extent { kind: SegmentKind::Data, start: offset, end: size }, false))
}

/// File systems without support for holes report data up to the end.
fn seek_extent(file: BorrowedFd<'_>, offset: u64, size: u64) -> Result<Extent> {
    let found = |kind, end: u64| Ok(Extent { kind, start: offset, end: end.clamp(offset, size) });
    let data = match seek(file, SeekFrom::Data(offset)) {
        Ok(at) => at,
        Err(rustix::io::Errno::NXIO) => return found(SegmentKind::Hole, size),
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::OPNOTSUPP) => {
            return found(SegmentKind::Data, size);
        }
        Err(error) => return Err(std::io::Error::from(error).into()),
    };
    // A page that has any data is data.
    let data = data / PAGE * PAGE;
    if data > offset {
        return found(SegmentKind::Hole, data);
    }
    // At least this page: it may have become a hole since.
    let least = (offset + 1).next_multiple_of(PAGE);
    match seek(file, SeekFrom::Hole(offset)) {
        Ok(hole) => found(SegmentKind::Data, hole.next_multiple_of(PAGE).max(least)),
        // Truncated meanwhile.
        Err(rustix::io::Errno::NXIO) => found(SegmentKind::Data, size),
        Err(error) => Err(std::io::Error::from(error).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    #[test]
    fn learnt_extents_are_found_again() {
        let mut known = Known::default();
        known.learn(Extent { kind: SegmentKind::Data, start: 0, end: 100 });
        known.learn(Extent { kind: SegmentKind::Data, start: 100, end: 200 });
        known.learn(Extent { kind: SegmentKind::Hole, start: 300, end: 400 });
        assert_eq!(known.extents.len(), 2, "neighbours of a kind are one");
        let found = known.at(150).unwrap();
        assert_eq!((found.kind, found.start, found.end), (SegmentKind::Data, 150, 200));
        assert_eq!(known.at(200), None);
        assert_eq!(known.at(399).unwrap().end, 400);
        known.forget();
        assert_eq!(known.at(0), None);
    }

    #[test]
    fn the_file_system_is_asked() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(100 * PAGE).unwrap();
        file.write_all_at(b"x", 10 * PAGE + 5).unwrap();
        let at = |offset| seek_extent(file.as_fd(), offset, 100 * PAGE).unwrap();
        let hole = Extent { kind: SegmentKind::Hole, start: 7, end: 10 * PAGE };
        assert_eq!(at(7), hole);
        let data = Extent { kind: SegmentKind::Data, start: 10 * PAGE, end: 11 * PAGE };
        assert_eq!(at(10 * PAGE), data);
        assert_eq!(at(50 * PAGE).end, 100 * PAGE);
    }
}
