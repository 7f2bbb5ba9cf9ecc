//! The source of a copy: that it stays the same while it is read, and is not the target as well.
//!
//! 1. What is compared is size, both times and the change attribute, as they were before the first
//!    byte was read and as they are after the last one. A change that moves none of these is not
//!    seen. Reading is no change: Linux counts up the change attribute of XFS also for the time of
//!    access (before 6.6), so it says nothing by itself where that time has moved.
//! 2. Linux stamps changes with a clock that ticks every few milliseconds (before 6.13): two changes
//!    within a tick look like one. So a file that was changed a moment ago is looked at again when
//!    the tick is over, before it is read.

use crate::failure::{Asked, Failure, Result};
use std::time::{Duration, SystemTime};
use weir_pagecache::File;
use weir_vfs::Attr;

/// Longer than a tick of any clock that stamps files (10 ms).
const TICK: Duration = Duration::from_millis(20);
/// Looks at a file that is changed all the time; what follows will notice that it still is.
const MOST_LOOKS: usize = 3;

/// The attributes of an open file that is to be read.
pub async fn look(file: &File) -> weir_vfs::Result<Attr> {
    let mut attr = file.getattr().await?;
    for _ in 1..MOST_LOOKS {
        let now = SystemTime::now();
        // A server's clock may be ahead.
        let age = now.duration_since(attr.ctime).unwrap_or_else(|ahead| ahead.duration());
        if age >= TICK {
            break;
        }
        tokio::time::sleep(TICK).await;
        attr = file.getattr().await?;
    }
    Ok(attr)
}

/// Fails if an open file is not any more what it was when its attributes were `before`.
pub async fn unchanged(file: &File, before: &Attr, shown: &str) -> Result<()> {
    let after = file.getattr().await.asked(|| format!("read {shown}"))?;
    if is_unchanged(before, &after) { Ok(()) } else { Err(changed(shown)) }
}

/// Whether nothing happened to a file between two looks at it.
pub fn is_unchanged(before: &Attr, after: &Attr) -> bool {
    let state = |attr: &Attr| (attr.size, attr.mtime, attr.ctime);
    let is_counted = before.change != after.change && before.atime == after.atime;
    state(before) == state(after) && !is_counted
}

/// The failure of a copy whose source did not stay the same.
pub fn changed(shown: &str) -> Failure {
    Failure::new(format!("read {shown}"), "it changed while it was read")
        .advice("read it again when nothing writes to it")
}

/// Whether two sets of attributes, each as it is now, are of one file. Two views of a file, local
/// and over NFS or through two servers, have nothing but its inode number, size and times in common.
pub fn is_same(a: &Attr, b: &Attr) -> bool {
    let times = |attr: &Attr| (attr.kind, attr.size, attr.mtime, attr.ctime);
    a.id.ino == b.id.ino && (a.fsid == b.fsid || times(a) == times(b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_vfs::{FileId, FileKind};

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn attr() -> Attr {
        Attr {
            id: FileId { ino: 5, generation: 1 },
            kind: FileKind::Regular,
            mode: 0o644,
            nlink: 1,
            uid: 0,
            gid: 0,
            size: 7,
            allocated: 4096,
            rdev: (0, 0),
            fsid: 1,
            atime: at(1),
            mtime: at(2),
            ctime: at(3),
            btime: None,
            change: 9,
        }
    }

    #[test]
    fn views_of_a_file_are_one_file_and_namesakes_are_not() {
        let local = attr();
        let remote = Attr { id: FileId { ino: 5, generation: 0 }, fsid: 2, ..local.clone() };
        assert!(is_same(&local, &remote), "the same through a server");
        assert!(!is_same(&local, &Attr { ctime: at(4), ..remote.clone() }), "the number alone");
        assert!(is_same(&local, &Attr { size: 8, ctime: at(4), ..local.clone() }), "one inode");
        let id = FileId { ino: 6, generation: 1 };
        assert!(!is_same(&local, &Attr { id, ..local.clone() }));
    }

    #[test]
    fn reading_is_no_change() {
        let before = attr();
        let read = Attr { atime: at(9), change: 10, ..attr() };
        assert!(is_unchanged(&before, &attr()) && is_unchanged(&before, &read));
        for changed in [
            Attr { change: 10, ..attr() },
            Attr { size: 8, ..read.clone() },
            Attr { mtime: at(9), ..read.clone() },
            Attr { ctime: at(9), ..read },
        ] {
            assert!(!is_unchanged(&before, &changed));
        }
    }
}
