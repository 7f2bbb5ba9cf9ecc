//! Listings that the next request continues.
//!
//! 1. On file systems whose positions in a directory are indexes (merged directories of overlayfs, tmpfs before Linux
//!    6.6), the removal of a name moves the names after it: who opens the directory anew and seeks misses one. Only an
//!    open directory that is read on shows each name that stays (readdir(3)). So a listing that has not ended stays
//!    open, with the names that the kernel has already given.
//! 2. At most [`MOST`] stay, each with a descriptor and the names of one buffer. A request without one seeks.
//! 3. A request continues no listing that was begun before its own. Of two that have come to one position, the one
//!    begun last stays.

use super::{DIR_BUFFER_BYTES, Name};
use hashlink::LruCache;
use parking_lot::Mutex;
use rustix::fs::{FileType, RawDir, SeekFrom};
use std::collections::VecDeque;
use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use weir_vfs::{FileId, Result};

/// Most listings that stay open.
const MOST: usize = 32;

/// Listings by their directories and the positions that they have come to.
pub(super) struct Listings(Mutex<Kept>);

struct Kept {
    listings: LruCache<(FileId, u64), (u64, Listing)>,
    begun: u64,
}

/// A directory that is being listed.
pub(super) struct Listing {
    dir: OwnedFd,
    position: u64,
    /// Names that the kernel has given already.
    rest: VecDeque<Entry>,
}

struct Entry {
    name: CString,
    ino: u64,
    next: u64,
    kind: FileType,
}

impl Listings {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Kept { listings: LruCache::new(MOST), begun: 0 }))
    }

    /// The listing of a directory that has come to a position, with its number.
    pub(super) fn take(&self, dir: FileId, position: u64) -> Option<(u64, Listing)> {
        self.0.lock().listings.remove(&(dir, position))
    }

    /// The number of a listing that begins now.
    pub(super) fn number(&self) -> u64 {
        let mut kept = self.0.lock();
        kept.begun += 1;
        kept.begun
    }

    /// Keeps a listing for the request that continues it.
    pub(super) fn keep(&self, dir: FileId, number: u64, listing: Listing) {
        let mut kept = self.0.lock();
        let key = (dir, listing.position);
        if kept.listings.peek(&key).is_none_or(|(other, _)| *other < number) {
            kept.listings.insert(key, (number, listing));
        }
    }

    /// Closes all.
    pub(super) fn close(&self) {
        self.0.lock().listings.clear();
    }
}

impl Listing {
    /// A listing of an open directory from a position on.
    pub(super) fn at(dir: OwnedFd, position: u64) -> io::Result<Self> {
        if position != 0 {
            rustix::fs::seek(&dir, SeekFrom::Start(position))?;
        }
        Ok(Self { dir, position, rest: VecDeque::new() })
    }

    /// Calls `each` for the next names, except `.` and `..`, until it returns false; returns whether the end was
    /// reached. A name for which it returns false comes again, if the listing `is_kept`.
    pub(super) fn each(
        &mut self,
        is_kept: bool,
        mut each: impl FnMut(Name<'_>) -> bool,
    ) -> Result<bool> {
        while let Some(Entry { name, ino, next, kind }) = self.rest.front() {
            if !each(Name { name, ino: *ino, next: *next, kind: *kind }) {
                return Ok(false);
            }
            self.position = *next;
            self.rest.pop_front();
        }
        let mut buffer = [const { MaybeUninit::uninit() }; DIR_BUFFER_BYTES];
        let mut entries = RawDir::new(&self.dir, &mut buffer);
        let mut is_full = false;
        while !(is_full && entries.is_buffer_empty())
            && let Some(entry) = entries.next()
        {
            let entry = entry.map_err(io::Error::from)?;
            let (name, ino, kind) = (entry.file_name(), entry.ino(), entry.file_type());
            let next = entry.next_entry_cookie();
            if name == c"." || name == c".." {
                continue;
            }
            is_full = is_full || !each(Name { name, ino, next, kind });
            if is_full && !is_kept {
                return Ok(false);
            }
            match is_full {
                true => self.rest.push_back(Entry { name: name.to_owned(), ino, next, kind }),
                false => self.position = next,
            }
        }
        Ok(!is_full)
    }
}
