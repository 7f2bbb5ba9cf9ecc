//! Creation while other programs look at, and rename, files in the same directory.

use super::LocalFs;
use crate::local::options::LocalOptions;
use rustix::fs::{Mode, OFlags, RenameFlags};
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, UNIX_EPOCH};
use weir_vfs::{Caller, CreateMode, Cred, Error, FileKind, FileSystem, SetAttr, SetTime};

const USER: u32 = 4321;
const OTHER: u32 = 4322;

#[test]
fn a_file_of_another_user_with_the_name_of_a_new_one_is_not_taken_for_it() {
    if !weir_skip::is_root("only root may act as others") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let fs = LocalFs::open(dir.path(), LocalOptions::default()).unwrap();
    if !fs.keeps_owners {
        return weir_skip::skip("the file system may give new files to other users");
    }
    let caller = Caller::As(Cred { uid: USER, gid: USER, groups: Vec::new() });
    let others = dir.path().join("others");
    std::fs::create_dir(&others).unwrap();
    let plain = dir.path().join("plain");
    std::fs::write(&plain, "secret").unwrap();
    for path in [&others, &plain] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o700)).unwrap();
        chown(path, Some(OTHER), Some(OTHER)).unwrap();
    }
    // Of what is set, only the times need a right to the file. Then the new file would be removed again.
    let times =
        SetAttr { atime: Some(SetTime::Now), mtime: Some(SetTime::Now), ..SetAttr::default() };
    for set in [SetAttr::default(), times] {
        for by in [&others, &plain] {
            let mine = by.file_name().unwrap().to_str().unwrap();
            let exchange = |dir: BorrowedFd<'_>, name: &CStr, mode: Mode| {
                rustix::fs::mkdirat(dir, name, mode)?;
                rustix::fs::renameat_with(dir, name, dir, mine, RenameFlags::EXCHANGE)
            };
            let new = fs.root().entry(b"new").with(&set);
            let made = fs.make(&caller, new, (FileKind::Directory, 0o755), exchange);
            assert_eq!(made.map(|attr| attr.id.ino), Err(Error::Busy), "{by:?}");
            let new = dir.path().join("new").symlink_metadata().unwrap();
            assert_eq!((new.uid(), new.mode() & 0o777), (OTHER, 0o700), "{by:?}");
            let made = by.symlink_metadata().unwrap();
            assert_eq!((made.uid(), made.is_dir()), (USER, true));
            std::fs::remove_dir(by).unwrap();
            std::fs::rename(dir.path().join("new"), by).unwrap();
        }
    }
    let make = |dir: BorrowedFd<'_>, name: &CStr, mode: Mode| rustix::fs::mkdirat(dir, name, mode);
    let new = SetAttr::default();
    let new = fs.root().entry(b"new").with(&new);
    let made = fs.make(&caller, new, (FileKind::Directory, 0o755), make).unwrap();
    assert_eq!((made.uid, made.kind), (USER, FileKind::Directory));
}

/// Another program may give the new file's name to another user's file between the last look and the removal.
#[test]
fn a_new_file_is_removed_with_its_creators_rights() {
    if !weir_skip::is_root("only root may act as others") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o1777)).unwrap();
    let fs = LocalFs::open(dir.path(), LocalOptions::default()).unwrap();
    let dir_fd = std::fs::File::open(dir.path()).unwrap();
    let caller = Caller::As(Cred { uid: USER, gid: USER, groups: Vec::new() });
    for owner in [OTHER, USER] {
        let path = dir.path().join("new");
        std::fs::write(&path, "").unwrap();
        chown(&path, Some(owner), Some(owner)).unwrap();
        let named = std::fs::File::open(&path).unwrap().into();
        let removed = fs.remove_made(&caller, (dir_fd.as_fd(), c"new"), &named);
        assert_eq!(removed.is_ok(), owner == USER, "{removed:?}");
        assert_eq!(path.exists(), owner == OTHER);
    }
}

/// An exclusive creation is recognized by its times when it is repeated, also after a kill of this process.
#[test]
fn a_new_file_has_its_times_when_its_name_appears() {
    const FILES: u64 = 3000;
    let dir = tempfile::tempdir().unwrap();
    let fs = LocalFs::open(dir.path(), LocalOptions::default()).unwrap();
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    if rustix::fs::open(dir.path(), flags, Mode::RUSR).is_err() {
        return weir_skip::skip("the file system has no O_TMPFILE");
    }
    let time = UNIX_EPOCH + Duration::from_secs(7);
    let set = SetAttr { mtime: Some(SetTime::To(time)), ..SetAttr::default() };
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            for n in 0..FILES {
                let path = dir.path().join(n.to_string());
                while !is_done.load(Ordering::Relaxed) {
                    if let Ok(found) = path.symlink_metadata() {
                        assert_eq!(found.modified().unwrap(), time, "{n}");
                        break;
                    }
                }
            }
        });
        for n in 0..FILES {
            let name = n.to_string();
            let new = fs.root().entry(name.as_bytes()).with(&set);
            let create = || fs.create_held(&Caller::Own, new, CreateMode::MustBeNew);
            assert_eq!(create().unwrap().0.attr.mtime, time);
            assert_eq!(create().err(), Some(Error::Exists));
        }
        is_done.store(true, Ordering::Relaxed);
        watch.join().unwrap();
    });
}
