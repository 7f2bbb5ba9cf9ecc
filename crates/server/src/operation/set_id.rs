//! Clearing set-user-ID and set-group-ID when a file's data changes, unless the superuser changes
//! it.
//!
//! The kernel does this when a process writes itself. Here the cache writes later, on behalf of all
//! callers. Without this, a user that may write to a set-user-ID program could act as its owner.

use weir_pagecache::CachedFs;
use weir_vfs::{Attr, Caller, Cred, FileKind, Result, SetAttr};

const SET_UID: u32 = 0o4000;
const SET_GID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o0010;

/// Clears the bits that `caller`'s change of the data clears. The server clears them with its own
/// rights, so call this only for a caller that has changed the data or has the right to.
///
/// # Errors
/// Those of the store.
pub(crate) async fn clear(fs: &CachedFs, caller: &Caller, attr: &Attr) -> Result<()> {
    clear_except(fs, caller, attr, 0).await
}

/// As [`clear`], except for the mode bits in `kept`, which the caller set with the same change.
///
/// # Errors
/// Those of the store.
pub(crate) async fn clear_except(
    fs: &CachedFs,
    caller: &Caller,
    attr: &Attr,
    kept: u32,
) -> Result<()> {
    let Caller::As(cred) = caller else { return Ok(()) };
    let cleared = set_id_bits(attr, cred) & !kept;
    if cleared == 0 {
        return Ok(());
    }
    // Only these bits: other requests may have changed the mode since `attr` was read.
    let set = SetAttr { mode: Some(0), mode_mask: Some(cleared), ..SetAttr::default() };
    fs.setattr(&Caller::Own, attr.id, &set).await?;
    Ok(())
}

/// The mode bits of a regular file that a change of its data by `cred` clears, as in Linux's
/// `setattr_should_drop_suidgid`: none if the superuser makes the change; set-user-ID always;
/// set-group-ID if the group may execute the file or the caller is not in the group.
fn set_id_bits(attr: &Attr, cred: &Cred) -> u32 {
    if cred.uid == 0 || attr.kind != FileKind::Regular {
        return 0;
    }
    let member = cred.gid == attr.gid || cred.groups.contains(&attr.gid);
    let keeps_group = attr.mode & GROUP_EXECUTE == 0 && member;
    let group = if keeps_group { 0 } else { attr.mode & SET_GID };
    attr.mode & SET_UID | group
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;
    use weir_pagecache::{Cache, Config};
    use weir_stores::memory::MemoryFs;
    use weir_vfs::{CreateMode, FileId};

    fn attr(kind: FileKind, mode: u32) -> Attr {
        let time = UNIX_EPOCH;
        Attr {
            id: FileId { ino: 1, generation: 1 },
            kind,
            mode,
            nlink: 1,
            uid: 1,
            gid: 2,
            size: 0,
            allocated: 0,
            rdev: (0, 0),
            fsid: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: None,
            change: 0,
        }
    }

    #[tokio::test]
    async fn clearing_set_id_keeps_concurrent_changes_of_other_mode_bits() {
        let cache = Cache::new(Config::default()).expect("memory");
        let fs = cache.mount(MemoryFs::new());
        let mode = |mode| SetAttr { mode: Some(mode), ..SetAttr::default() };
        let made = fs
            .create(
                &Caller::Own,
                fs.root().entry(b"file").with(&mode(0o6755)),
                CreateMode::MustBeNew,
            )
            .await;
        let before = made.expect("made").attr;
        fs.setattr(&Caller::Own, before.id, &mode(0o6700)).await.expect("set");
        let writer = Caller::As(Cred { uid: 5, gid: 5, groups: Vec::new() });
        clear(&fs, &writer, &before).await.expect("cleared");
        assert_eq!(fs.getattr(before.id).await.expect("there").mode, 0o700);
    }

    #[test]
    fn cleared_bits_depend_on_the_callers_groups_and_group_execution() {
        let cleared = |uid, gid, groups: &[u32], mode| {
            let cred = Cred { uid, gid, groups: groups.to_vec() };
            set_id_bits(&attr(FileKind::Regular, mode), &cred)
        };
        let outside = |mode| cleared(5, 5, &[6], mode);
        assert_eq!(outside(0o6755), 0o6000);
        assert_eq!(outside(0o6745), 0o6000);
        assert_eq!(outside(0o2755), 0o2000);
        assert_eq!(outside(0o2666), 0o2000);
        assert_eq!(outside(0o1777), 0);
        for (gid, groups) in [(2, &[][..]), (5, &[2])] {
            assert_eq!(cleared(5, gid, groups, 0o6745), 0o4000);
            assert_eq!(cleared(5, gid, groups, 0o2666), 0);
            assert_eq!(cleared(5, gid, groups, 0o2755), 0o2000);
        }
        assert_eq!(cleared(0, 0, &[], 0o6777), 0, "the superuser takes nothing away");
        let cred = Cred { uid: 5, gid: 5, groups: Vec::new() };
        assert_eq!(set_id_bits(&attr(FileKind::Directory, 0o2777), &cred), 0);
    }
}
