//! The source of a copy: checks that it does not change while it is read, and is not the target.
//!
//! 1. The check compares size, both times and the change attribute from before the first byte was
//!    read and after the last one. A change that alters none of these is not detected. Reading is
//!    no change: Linux also advances the change attribute of XFS with the access time (before 6.6),
//!    so the change attribute alone proves nothing if the access time has changed.
//! 2. Linux stamps changes with a clock that ticks every few milliseconds (before 6.13): two
//!    changes within a tick look like one. So a recently changed file is examined again after the
//!    tick, before it is read.

use crate::failure::{Asked, Failure, Result};
use crate::mounts::Place;
use futures_util::{StreamExt, stream};
use std::time::{Duration, SystemTime};
use weir_base::number_elsewhere;
use weir_pagecache::File;
use weir_vfs::{Attr, FileId, FileKind, WholeRead};

/// Longer than a tick of any clock that stamps files (10 ms).
const TICK: Duration = Duration::from_millis(20);
/// Most looks at a file that keeps changing; the later comparison will detect further changes.
const MOST_LOOKS: usize = 3;
/// Directories that are looked at at a time.
const LOOKS_AT_ONCE: usize = 32;

/// The attributes of an open file before it is read.
///
/// # Errors
/// Those of the store.
pub async fn look(file: &File) -> weir_vfs::Result<Attr> {
    settled(|| file.getattr()).await
}

/// The attributes that `get` gets, a tick after the last change if it comes to that.
pub(crate) async fn settled<F>(get: impl Fn() -> F) -> weir_vfs::Result<Attr>
where
    F: Future<Output = weir_vfs::Result<Attr>>,
{
    let mut attr = get().await?;
    for _ in 1..MOST_LOOKS {
        let now = SystemTime::now();
        // A server's clock may be ahead.
        let age = now.duration_since(attr.ctime).unwrap_or_else(|ahead| ahead.duration());
        if age >= TICK {
            break;
        }
        tokio::time::sleep(TICK).await;
        attr = get().await?;
    }
    Ok(attr)
}

/// Whether attributes were fetched, at `asked` or later, so long after the last change that another
/// one would show.
pub fn is_settled(attr: &Attr, asked: SystemTime) -> bool {
    asked.duration_since(attr.ctime).is_ok_and(|age| age >= TICK)
}

/// Whether a file that was read whole is the regular file `id`, and did not change meanwhile.
pub fn is_whole(read: &WholeRead, id: FileId) -> bool {
    let WholeRead { before, after, began, data, .. } = read;
    before.id == id
        && before.kind == FileKind::Regular
        && data.len() as u64 == before.size
        && is_settled(before, *began)
        && is_unchanged(before, after)
}

/// Fails if an open file has changed since its attributes were `before`.
pub async fn unchanged(file: &File, before: &Attr, shown: &str) -> Result<()> {
    let after = file.getattr().await.asked(|| format!("read {shown}"))?;
    if is_unchanged(before, &after) { Ok(()) } else { Err(changed(shown)) }
}

/// The failures of directories that have changed since they had these attributes, or cannot be looked at.
pub(crate) async fn changed_directories<'a>(
    read: impl Iterator<Item = (&'a Place, &'a Attr)>,
) -> Vec<Failure> {
    // A store may show another change attribute for an unchanged directory once its stamp is old.
    let times = |attr: &Attr| (attr.mtime, attr.ctime);
    let looks = stream::iter(read).map(async |(place, before)| {
        let after = place.found_again(before.id, || place.fs.getattr(before.id)).await;
        match after.asked(|| format!("read {}", place.shown)) {
            Ok(after) if times(before) == times(&after) => None,
            Ok(_) => {
                let asked = format!("read the directory {}", place.shown);
                let failure = Failure::new(asked, "it changed while it was read");
                Some(failure.advice("repeat the command when nothing is moved or created in it"))
            }
            Err(failure) => Some(failure),
        }
    });
    let looks: Vec<Option<Failure>> = looks.buffer_unordered(LOOKS_AT_ONCE).collect().await;
    looks.into_iter().flatten().collect()
}

/// Whether a file did not change between two looks at it.
pub fn is_unchanged(before: &Attr, after: &Attr) -> bool {
    let state = |attr: &Attr| (attr.size, attr.mtime, attr.ctime);
    let is_counted = before.change != after.change && before.atime == after.atime;
    state(before) == state(after) && !is_counted
}

/// The failure of a copy whose source changed.
pub fn changed(shown: &str) -> Failure {
    Failure::new(format!("read {shown}"), "it changed while it was read")
        .advice("read it again when nothing writes to it")
}

/// Whether two sets of current attributes are of one file. Two views of a file, local and over NFS
/// or through two servers, have only its inode number, size and times in common.
pub fn is_same(a: &Attr, b: &Attr) -> bool {
    let times = |attr: &Attr| (attr.kind, attr.size, attr.mtime, attr.ctime);
    match is_one_file_system(a, b) {
        true => a.id.ino == b.id.ino,
        false => may_be_same(a, b) && times(a) == times(b),
    }
}

/// Whether two files may be one by their inode numbers.
pub(crate) fn may_be_same(a: &Attr, b: &Attr) -> bool {
    is_shown_as(a, b.id.ino) || is_shown_as(b, a.id.ino)
}

/// Whether the file may be shown with this inode number: its own, or that on a mount of several file systems.
pub fn is_shown_as(attr: &Attr, ino: u64) -> bool {
    attr.id.ino == ino || number_elsewhere(attr.fsid, attr.id.ino) == ino
}

/// Tells the file of one name from that of another name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    /// Of the store ([`FileSystem::numbering`](weir_vfs::FileSystem::numbering)).
    numbering: u64,
    fsid: u64,
    id: FileId,
}

impl Identity {
    pub(crate) fn of(place: &Place, attr: &Attr) -> Self {
        Self { numbering: place.fs.store().numbering(), fsid: attr.fsid, id: attr.id }
    }
}

/// Whether two files are in one file system, by its number. 0 says nothing: each server may have an export of that
/// number (exports(5): `fsid=0`).
pub(crate) fn is_one_file_system(a: &Attr, b: &Attr) -> bool {
    a.fsid == b.fsid && a.fsid != 0
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let zero = Attr { fsid: 0, ..local.clone() };
        assert!(is_same(&zero, &zero.clone()), "the same");
        assert!(!is_same(&zero, &Attr { ctime: at(4), ..zero.clone() }), "exports of two servers");
        let id = FileId { ino: number_elsewhere(1, 5), generation: 0 };
        let mounted = Attr { id, fsid: 3, ..local.clone() };
        assert!(is_same(&local, &mounted) && is_same(&mounted, &local), "on a mount of several");
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
