//! Names and attributes.

use super::{attr, new_file, own, scratch, write};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use weir_vfs::{
    Acl, AclKind, AclWho, Capabilities, CreateMode, DirEntry, Error, FileId, FileKind, FileSystem,
    ReaddirRequest, RenameFlags, SetAttr, SetTime, SpecialFile, XattrMode,
};

pub(super) async fn all(fs: &Arc<dyn FileSystem>) {
    let dir = scratch(fs, "names").await;
    files_are_made_once(fs, dir).await;
    odd_names_are_kept_and_impossible_ones_refused(fs, dir).await;
    attributes_are_set(fs, dir).await;
    links_count(fs, dir).await;
    symlinks_are_kept_and_not_followed(fs, dir).await;
    special_files(fs, dir).await;
    directories_nest_and_know_their_parents(fs, dir).await;
    removal_tells_directories_from_files(fs, dir).await;
    renames_move_replace_and_exchange(fs, dir).await;
    identities_stay_through_renames(fs, dir).await;
    gone_files_are_stale(fs, dir).await;
    listings_are_complete_and_resumable(fs, dir).await;
    listings_survive_removal_behind_the_cookie(fs, dir).await;
    if fs.capabilities().contains(Capabilities::XATTR) {
        extended_attributes(fs, dir).await;
    }
    if fs.capabilities().contains(Capabilities::POSIX_ACL) {
        access_control_lists(fs, dir).await;
        default_lists_are_inherited_and_umasks_then_have_no_say(fs, dir).await;
    }
    let stat = fs.statfs().await.unwrap();
    assert!(stat.total_bytes >= stat.free_bytes && stat.max_name >= 255);
}

fn mode(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode), ..SetAttr::default() }
}

async fn mkdir(fs: &Arc<dyn FileSystem>, dir: FileId, name: &str) -> FileId {
    fs.mkdir(&own(), dir.entry(name.as_bytes()).with(&mode(0o755))).await.unwrap().id
}

async fn make(fs: &Arc<dyn FileSystem>, dir: FileId, name: &str) -> FileId {
    fs.create(&own(), dir.entry(name.as_bytes()).with(&mode(0o644)), CreateMode::MustBeNew)
        .await
        .unwrap()
        .attr
        .id
}

async fn find(fs: &Arc<dyn FileSystem>, dir: FileId, name: &str) -> Option<FileId> {
    match fs.lookup(&own(), dir.entry(name.as_bytes())).await {
        Ok(attr) => Some(attr.id),
        Err(Error::NotFound) => None,
        Err(error) => panic!("lookup of {name}: {error}"),
    }
}

async fn list(fs: &Arc<dyn FileSystem>, dir: FileId, at_a_time: usize) -> Vec<DirEntry> {
    let mut all: Vec<DirEntry> = Vec::new();
    loop {
        let cookie = all.last().map_or(0, |e| e.cookie);
        let page = fs
            .readdir(
                &own(),
                ReaddirRequest { dir, cookie, max_entries: at_a_time, with_attr: false },
            )
            .await
            .unwrap();
        assert!(page.entries.len() <= at_a_time);
        assert!(page.eof || !page.entries.is_empty(), "no progress");
        all.extend(page.entries);
        if page.eof {
            return all;
        }
    }
}

async fn files_are_made_once(fs: &Arc<dyn FileSystem>, dir: FileId) {
    let first =
        fs.create(&own(), dir.entry(b"f").with(&mode(0o640)), CreateMode::MayExist).await.unwrap();
    assert!(first.created);
    assert_eq!(first.attr.kind, FileKind::Regular);
    assert_eq!((first.attr.mode, first.attr.size, first.attr.nlink), (0o640, 0, 1));
    let second =
        fs.create(&own(), dir.entry(b"f").with(&mode(0o600)), CreateMode::MayExist).await.unwrap();
    assert!(!second.created);
    assert_eq!((second.attr.id, second.attr.mode), (first.attr.id, 0o640));
    let third = fs.create(&own(), dir.entry(b"f").with(&mode(0o600)), CreateMode::MustBeNew).await;
    assert_eq!(third.unwrap_err(), Error::Exists);
    assert_eq!(
        fs.mkdir(&own(), dir.entry(b"f").with(&mode(0o755))).await.unwrap_err(),
        Error::Exists
    );
    assert_eq!(fs.lookup(&own(), dir.entry(b"f")).await.unwrap(), first.attr);
    assert_eq!(attr(fs, first.attr.id).await, first.attr);
    assert_eq!(find(fs, dir, "absent").await, None);
    let not_a_dir = fs.lookup(&own(), first.attr.id.entry(b"x")).await;
    assert_eq!(not_a_dir.unwrap_err(), Error::NotDirectory);
    let inside =
        fs.create(&own(), first.attr.id.entry(b"x").with(&mode(0o600)), CreateMode::MayExist).await;
    assert_eq!(inside.unwrap_err(), Error::NotDirectory);
    // Exact modes: the process's umask does not apply.
    for (name, bits) in [("m0", 0o000), ("m777", 0o777), ("m666", 0o666)] {
        let made = fs
            .create(&own(), dir.entry(name.as_bytes()).with(&mode(bits)), CreateMode::MustBeNew)
            .await
            .unwrap();
        assert_eq!(made.attr.mode, bits);
    }
    assert_eq!(fs.mkdir(&own(), dir.entry(b"d777").with(&mode(0o777))).await.unwrap().mode, 0o777);
    let size = SetAttr { size: Some(12_345), ..mode(0o644) };
    let sized =
        fs.create(&own(), dir.entry(b"sized").with(&size), CreateMode::MustBeNew).await.unwrap();
    assert_eq!(sized.attr.size, 12_345);
    // If a store returns an open file, it is the new one, regardless of its mode.
    let (made, open) = fs
        .create_open(&own(), dir.entry(b"open").with(&mode(0o400)), CreateMode::MustBeNew)
        .await
        .unwrap();
    assert!(made.created);
    if let Some(open) = open {
        write(&*open, 0, b"text").await.unwrap();
        assert_eq!(open.getattr().await.unwrap().id, made.attr.id);
        assert_eq!(attr(fs, made.attr.id).await.size, 4);
    }
    let (found, open) = fs
        .create_open(&own(), dir.entry(b"open").with(&mode(0o600)), CreateMode::MayExist)
        .await
        .unwrap();
    assert_eq!((found.attr.id, found.created, open.is_none()), (made.attr.id, false, true));
}

async fn odd_names_are_kept_and_impossible_ones_refused(fs: &Arc<dyn FileSystem>, dir: FileId) {
    let dir = mkdir(fs, dir, "odd").await;
    let names: [&[u8]; 6] = [b"...", b" ", b"\xff\xfe\x01", b"-rf", b"a\nb", &[b'n'; 255]];
    for name in names {
        fs.create(&own(), dir.entry(name).with(&mode(0o644)), CreateMode::MustBeNew).await.unwrap();
        fs.lookup(&own(), dir.entry(name)).await.unwrap();
    }
    let listed: HashSet<_> = list(fs, dir, 100).await.into_iter().map(|e| e.name).collect();
    assert_eq!(listed, names.iter().map(|n| n.to_vec()).collect());
    for name in [&b""[..], b".", b"..", b"a/b", b"/", b"nul\0"] {
        let made =
            fs.create(&own(), dir.entry(name).with(&mode(0o644)), CreateMode::MayExist).await;
        assert_eq!(made.unwrap_err(), Error::Invalid, "{name:?}");
        assert_eq!(
            fs.lookup(&own(), dir.entry(name)).await.unwrap_err(),
            Error::Invalid,
            "{name:?}"
        );
        assert_eq!(
            fs.unlink(&own(), dir.entry(name)).await.unwrap_err(),
            Error::Invalid,
            "{name:?}"
        );
    }
    let long =
        fs.create(&own(), dir.entry(&[b'n'; 256]).with(&mode(0o644)), CreateMode::MayExist).await;
    assert_eq!(long.unwrap_err(), Error::NameTooLong);
}

async fn attributes_are_set(fs: &Arc<dyn FileSystem>, dir: FileId) {
    let file = new_file(fs, dir, "attrs").await;
    let id = file.getattr().await.unwrap().id;
    let time = |secs| SystemTime::UNIX_EPOCH + Duration::new(secs, 123_456_789);
    let set = SetAttr {
        mode: Some(0o4711),
        atime: Some(SetTime::To(time(1_000_000_000))),
        mtime: Some(SetTime::To(time(1_100_000_000))),
        ..SetAttr::default()
    };
    let got = fs.setattr(&own(), id, &set).await.unwrap();
    assert_eq!(got.mode, 0o4711);
    assert_eq!((got.atime, got.mtime), (time(1_000_000_000), time(1_100_000_000)));
    assert_eq!(attr(fs, id).await, got);
    let some =
        |mode, mask| SetAttr { mode: Some(mode), mode_mask: Some(mask), ..SetAttr::default() };
    for (set, expected) in [
        (some(0o7066, 0o0070), 0o4761),
        (some(0, 0o4000), 0o0761),
        (some(0o7777, 0o2004), 0o2765),
        // One of the bits that the kernel clears together.
        (some(0o7777, 0o4000), 0o6765),
        (some(0, 0o4000), 0o2765),
        (some(0, 0o7000), 0o0765),
        (some(0o2000, 0o2070), 0o2705),
        (some(0, 0o2000), 0o0705),
        (some(0o7777, 0), 0o0705),
        (mode(0o4711), 0o4711),
    ] {
        assert_eq!(fs.setattr(&own(), id, &set).await.unwrap().mode, expected, "{set:?}");
        assert_eq!(attr(fs, id).await.mode, expected);
    }
    write(&*file, 0, b"x").await.unwrap();
    assert!(attr(fs, id).await.mtime > got.mtime, "a write moves the time");
    let set = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
    assert_eq!(fs.setattr(&own(), id, &set).await.unwrap().atime, got.atime);
    assert_eq!(fs.setattr(&own(), id, &SetAttr::default()).await.unwrap().mode, 0o4711);
    let sized = SetAttr { size: Some(1), ..SetAttr::default() };
    assert!(fs.setattr(&own(), dir, &sized).await.is_err(), "directories have no size to set");
    let invalid = [
        SetAttr { uid: Some(u32::MAX), ..SetAttr::default() },
        SetAttr { gid: Some(u32::MAX), mode: Some(0o600), ..SetAttr::default() },
    ];
    for set in invalid {
        assert_eq!(fs.setattr(&own(), id, &set).await.unwrap_err(), Error::Invalid);
        let made = fs.create(&own(), dir.entry(b"unowned").with(&set), CreateMode::MustBeNew).await;
        assert_eq!(made.unwrap_err(), Error::Invalid);
        assert_eq!(find(fs, dir, "unowned").await, None);
    }
    assert_eq!(attr(fs, id).await.mode, 0o4711);
}

async fn links_count(fs: &Arc<dyn FileSystem>, dir: FileId) {
    let id = make(fs, dir, "one").await;
    let other = mkdir(fs, dir, "links").await;
    let linked = fs.link(&own(), id, other.entry(b"two")).await.unwrap();
    assert_eq!((linked.id, linked.nlink), (id, 2));
    assert_eq!(find(fs, other, "two").await, Some(id));
    assert_eq!(fs.link(&own(), id, other.entry(b"two")).await.unwrap_err(), Error::Exists);
    assert!(
        fs.link(&own(), other, dir.entry(b"dirlink")).await.is_err(),
        "directories have one name"
    );
    fs.unlink(&own(), dir.entry(b"one")).await.unwrap();
    assert_eq!(attr(fs, id).await.nlink, 1, "found by its other name");
    fs.unlink(&own(), other.entry(b"two")).await.unwrap();
}

async fn symlinks_are_kept_and_not_followed(fs: &Arc<dyn FileSystem>, dir: FileId) {
    make(fs, dir, "target").await;
    for target in [&b"target"[..], b"/etc/passwd", b"../../..", b"\xff", &[b'x'; 1000]] {
        let link =
            fs.symlink(&own(), dir.entry(b"link").with(&SetAttr::default()), target).await.unwrap();
        assert_eq!((link.kind, link.size), (FileKind::Symlink, target.len() as u64));
        assert_eq!(fs.lookup(&own(), dir.entry(b"link")).await.unwrap().kind, FileKind::Symlink);
        assert_eq!(fs.readlink(&own(), link.id).await.unwrap(), target);
        assert!(fs.lookup(&own(), link.id.entry(b"passwd")).await.is_err());
        fs.unlink(&own(), dir.entry(b"link")).await.unwrap();
    }
    let file = find(fs, dir, "target").await.unwrap();
    assert_eq!(fs.readlink(&own(), file).await.unwrap_err(), Error::Invalid);
}

async fn special_files(fs: &Arc<dyn FileSystem>, dir: FileId) {
    let fifo =
        fs.mknod(&own(), dir.entry(b"fifo").with(&mode(0o600)), SpecialFile::Fifo).await.unwrap();
    assert_eq!((fifo.kind, fifo.mode), (FileKind::Fifo, 0o600));
    assert_eq!(find(fs, dir, "fifo").await, Some(fifo.id));
    let socket = fs.mknod(&own(), dir.entry(b"sock").with(&mode(0o600)), SpecialFile::Socket).await;
    assert_eq!(socket.unwrap().kind, FileKind::Socket);
    let read = fs.open(&own(), fifo.id, weir_vfs::Access::READ).await;
    assert!(read.is_err(), "only regular files have data");
}

async fn directories_nest_and_know_their_parents(fs: &Arc<dyn FileSystem>, dir: FileId) {
    let mut at = dir;
    for depth in 0..20 {
        let below = mkdir(fs, at, &format!("d{depth}")).await;
        assert_eq!(fs.parent(below).await.unwrap().id, at);
        at = below;
    }
    assert_eq!(fs.parent(fs.root()).await.unwrap().id, fs.root());
    let file = make(fs, at, "leaf").await;
    assert_eq!(fs.parent(file).await.unwrap_err(), Error::NotDirectory);
    assert_eq!(attr(fs, dir).await.kind, FileKind::Directory);
}

async fn removal_tells_directories_from_files(fs: &Arc<dyn FileSystem>, dir: FileId) {
    let sub = mkdir(fs, dir, "sub").await;
    make(fs, sub, "inside").await;
    assert_eq!(fs.rmdir(&own(), dir.entry(b"sub")).await, Err(Error::NotEmpty));
    assert_eq!(fs.unlink(&own(), dir.entry(b"sub")).await, Err(Error::IsDirectory));
    assert_eq!(fs.rmdir(&own(), sub.entry(b"inside")).await, Err(Error::NotDirectory));
    fs.unlink(&own(), sub.entry(b"inside")).await.unwrap();
    assert_eq!(fs.unlink(&own(), sub.entry(b"inside")).await, Err(Error::NotFound));
    fs.rmdir(&own(), dir.entry(b"sub")).await.unwrap();
    assert_eq!(fs.rmdir(&own(), dir.entry(b"sub")).await, Err(Error::NotFound));
}

async fn renames_move_replace_and_exchange(fs: &Arc<dyn FileSystem>, dir: FileId) {
    let rename = async |from_dir: FileId, from: &str, to_dir: FileId, to: &str, flags| {
        fs.rename(&own(), from_dir.entry(from.as_bytes()), to_dir.entry(to.as_bytes()), flags).await
    };
    use RenameFlags::{Exchange, NoReplace, Replace};
    let dir = mkdir(fs, dir, "rename").await;
    let sub = mkdir(fs, dir, "sub").await;
    let a = make(fs, dir, "a").await;
    let b = make(fs, dir, "b").await;
    assert_eq!(rename(dir, "a", dir, "b", NoReplace).await, Err(Error::Exists));
    // The protocol may have no such operation (NFS has none).
    let exchanges = rename(dir, "a", dir, "b", Exchange).await != Err(Error::NotSupported);
    if exchanges {
        assert_eq!((find(fs, dir, "a").await, find(fs, dir, "b").await), (Some(b), Some(a)));
        assert_eq!(rename(dir, "a", dir, "absent", Exchange).await, Err(Error::NotFound));
        rename(dir, "a", dir, "b", Exchange).await.unwrap();
    }
    rename(dir, "b", dir, "a", Replace).await.unwrap();
    rename(dir, "a", dir, "b", NoReplace).await.unwrap();
    assert_eq!((find(fs, dir, "a").await, find(fs, dir, "b").await), (None, Some(b)));
    assert_eq!(fs.getattr(a).await.unwrap_err(), Error::Stale, "the replaced file is gone");
    rename(dir, "b", sub, "c", NoReplace).await.unwrap();
    assert_eq!(find(fs, sub, "c").await, Some(b));
    rename(sub, "c", sub, "c", Replace).await.unwrap();
    fs.link(&own(), b, sub.entry(b"c2")).await.unwrap();
    rename(sub, "c", sub, "c2", Replace).await.unwrap();
    assert_eq!(find(fs, sub, "c").await, Some(b), "two names of one file both stay");
    assert_eq!(rename(dir, "absent", dir, "x", Replace).await, Err(Error::NotFound));
    assert_eq!(rename(dir, "sub", sub, "below", Replace).await, Err(Error::Invalid));
    let file = make(fs, dir, "file").await;
    assert_eq!(rename(dir, "sub", dir, "file", Replace).await, Err(Error::NotDirectory));
    assert_eq!(rename(dir, "file", dir, "sub", Replace).await, Err(Error::IsDirectory));
    let other = mkdir(fs, dir, "other").await;
    assert_eq!(rename(dir, "other", dir, "sub", Replace).await, Err(Error::NotEmpty));
    rename(dir, "sub", dir, "other", Replace).await.unwrap();
    assert_eq!(fs.getattr(other).await.unwrap_err(), Error::Stale);
    if exchanges {
        rename(dir, "other", dir, "file", Exchange).await.unwrap();
        assert_eq!(
            (find(fs, dir, "file").await, find(fs, dir, "other").await),
            (Some(sub), Some(file))
        );
    }
}

async fn identities_stay_through_renames(fs: &Arc<dyn FileSystem>, dir: FileId) {
    let top = mkdir(fs, dir, "top").await;
    let mid = mkdir(fs, top, "mid").await;
    let leaf = make(fs, mid, "leaf").await;
    fs.rename(&own(), dir.entry(b"top"), dir.entry(b"summit"), RenameFlags::Replace).await.unwrap();
    assert_eq!(attr(fs, leaf).await.id, leaf, "below a renamed directory");
    assert_eq!(fs.lookup(&own(), mid.entry(b"leaf")).await.unwrap().id, leaf);
    fs.rename(&own(), top.entry(b"mid"), dir.entry(b"moved"), RenameFlags::Replace).await.unwrap();
    assert_eq!(fs.parent(mid).await.unwrap().id, dir);
    fs.rename(&own(), mid.entry(b"leaf"), top.entry(b"blatt"), RenameFlags::Replace).await.unwrap();
    assert_eq!(attr(fs, leaf).await.id, leaf);
    assert_eq!(find(fs, top, "blatt").await, Some(leaf));
    assert_eq!(find(fs, mid, "leaf").await, None);
}

async fn gone_files_are_stale(fs: &Arc<dyn FileSystem>, dir: FileId) {
    let id = make(fs, dir, "brief").await;
    fs.unlink(&own(), dir.entry(b"brief")).await.unwrap();
    assert_eq!(fs.getattr(id).await.unwrap_err(), Error::Stale);
    assert_eq!(fs.open(&own(), id, weir_vfs::Access::READ).await.err(), Some(Error::Stale));
    let again = make(fs, dir, "brief").await;
    assert_ne!(again, id, "a file made anew is another one");
    assert_eq!(fs.getattr(id).await.unwrap_err(), Error::Stale);
    let sub = mkdir(fs, dir, "briefdir").await;
    fs.rmdir(&own(), dir.entry(b"briefdir")).await.unwrap();
    assert_eq!(fs.getattr(sub).await.unwrap_err(), Error::Stale);
    assert!(
        fs.readdir(
            &own(),
            ReaddirRequest { dir: sub, cookie: 0, max_entries: 10, with_attr: false }
        )
        .await
        .is_err()
    );
    assert!(
        fs.create(&own(), sub.entry(b"x").with(&mode(0o644)), CreateMode::MayExist).await.is_err()
    );
    let unknown = FileId { ino: u64::MAX - 5, generation: 77 };
    assert_eq!(fs.getattr(unknown).await.unwrap_err(), Error::Stale);
}

async fn listings_are_complete_and_resumable(fs: &Arc<dyn FileSystem>, dir: FileId) {
    let dir = mkdir(fs, dir, "many").await;
    assert!(list(fs, dir, 10).await.is_empty());
    let mut want = HashSet::new();
    for i in 0..300 {
        let name = format!("entry number {i}");
        want.insert((name.clone().into_bytes(), make(fs, dir, &name).await.ino));
    }
    for at_a_time in [1, 7, 100, 10_000] {
        let all = list(fs, dir, at_a_time).await;
        let cookies: HashSet<_> = all.iter().map(|e| e.cookie).collect();
        assert_eq!(cookies.len(), all.len(), "cookies are unique");
        assert!(!cookies.iter().any(|&c| c <= 2), "cookies 0, 1 and 2 are not given");
        assert_eq!(all.len(), want.len());
        assert_eq!(all.into_iter().map(|e| (e.name, e.ino)).collect::<HashSet<_>>(), want);
    }
    let page = fs
        .readdir(&own(), ReaddirRequest { dir, cookie: 0, max_entries: 1000, with_attr: true })
        .await
        .unwrap();
    for entry in page.entries {
        let found = fs.lookup(&own(), dir.entry(&entry.name)).await.unwrap();
        assert_eq!(entry.attr, Some(found));
    }
    let file = make(fs, dir, "no directory").await;
    let read = fs
        .readdir(&own(), ReaddirRequest { dir: file, cookie: 0, max_entries: 10, with_attr: false })
        .await;
    assert_eq!(read.unwrap_err(), Error::NotDirectory);
}

async fn listings_survive_removal_behind_the_cookie(fs: &Arc<dyn FileSystem>, dir: FileId) {
    let dir = mkdir(fs, dir, "removing").await;
    for i in 0..200 {
        make(fs, dir, &format!("{i}")).await;
    }
    // Like `rm -r` over NFS: list some, remove them, continue the listing.
    let mut cookie = 0;
    let mut removed = 0;
    loop {
        let page = fs
            .readdir(&own(), ReaddirRequest { dir, cookie, max_entries: 16, with_attr: false })
            .await
            .unwrap();
        for entry in &page.entries {
            cookie = entry.cookie;
            fs.unlink(&own(), dir.entry(&entry.name)).await.unwrap();
            removed += 1;
        }
        if page.eof {
            break;
        }
    }
    assert_eq!(removed, 200);
    assert!(list(fs, dir, 100).await.is_empty());
}

async fn extended_attributes(fs: &Arc<dyn FileSystem>, dir: FileId) {
    let sub = mkdir(fs, dir, "xattrdir").await;
    for id in [make(fs, dir, "xattrs").await, sub] {
        let get = async |name: &[u8]| fs.get_xattr(&own(), id.xattr(name)).await;
        let set = async |name: &[u8], value: &[u8], mode| {
            fs.set_xattr(&own(), id.xattr(name), value, mode).await
        };
        assert_eq!(get(b"user.a").await, Err(Error::NoAttribute));
        assert_eq!(set(b"user.a", b"1", XattrMode::Replace).await, Err(Error::NoAttribute));
        set(b"user.a", b"1", XattrMode::Create).await.unwrap();
        assert_eq!(set(b"user.a", b"2", XattrMode::Create).await, Err(Error::Exists));
        set(b"user.a", &[0, 255, 7], XattrMode::Either).await.unwrap();
        set(b"user.empty", b"", XattrMode::Either).await.unwrap();
        assert_eq!(get(b"user.a").await.unwrap(), [0, 255, 7]);
        assert_eq!(get(b"user.empty").await.unwrap(), b"");
        let mut names = fs.list_xattrs(&own(), id).await.unwrap();
        names.retain(|n| n.starts_with(b"user."));
        names.sort();
        assert_eq!(names, [&b"user.a"[..], b"user.empty"]);
        fs.remove_xattr(&own(), id.xattr(b"user.a")).await.unwrap();
        assert_eq!(fs.remove_xattr(&own(), id.xattr(b"user.a")).await, Err(Error::NoAttribute));
    }
}

/// Owner, user 4321, owning group, mask, others.
fn acl(owner: u8, user: u8, group: u8, mask: u8, other: u8) -> Acl {
    let entries = [
        (AclWho::Owner, owner),
        (AclWho::User(4321), user),
        (AclWho::Group, group),
        (AclWho::Mask, mask),
        (AclWho::Other, other),
    ];
    Acl::new(entries).unwrap()
}

async fn access_control_lists(fs: &Arc<dyn FileSystem>, dir: FileId) {
    let file = make(fs, dir, "listed").await;
    let get = async |kind| fs.get_acl(file.acl(kind)).await;
    let set = async |kind, acl: Option<&Acl>| fs.set_acl(&own(), file.acl(kind), acl).await;
    assert_eq!(get(AclKind::Access).await, Ok(None));
    let before = attr(fs, file).await;
    set(AclKind::Access, Some(&acl(6, 7, 4, 6, 0))).await.unwrap();
    assert_eq!(get(AclKind::Access).await, Ok(Some(acl(6, 7, 4, 6, 0))));
    let after = attr(fs, file).await;
    assert_eq!(after.mode, 0o660, "the group's bits show the mask");
    assert!(after.ctime >= before.ctime);

    fs.setattr(&own(), file, &mode(0o4715)).await.unwrap();
    assert_eq!(get(AclKind::Access).await, Ok(Some(acl(7, 7, 4, 1, 5))), "chmod sets the mask");
    set(AclKind::Access, Some(&Acl::of_mode(0o640))).await.unwrap();
    assert_eq!(get(AclKind::Access).await, Ok(None), "the mode says it all");
    assert_eq!(attr(fs, file).await.mode, 0o4640);
    set(AclKind::Access, Some(&acl(6, 6, 6, 6, 6))).await.unwrap();
    set(AclKind::Access, None).await.unwrap();
    set(AclKind::Access, None).await.unwrap();
    assert_eq!(get(AclKind::Access).await, Ok(None));

    assert_eq!(get(AclKind::Default).await, Ok(None));
    assert_eq!(set(AclKind::Default, Some(&Acl::of_mode(0))).await, Err(Error::AccessDenied));
    let link = fs
        .symlink(&own(), dir.entry(b"listed link").with(&SetAttr::default()), b"t")
        .await
        .unwrap()
        .id;
    assert_eq!(fs.get_acl(link.acl(AclKind::Access)).await, Err(Error::NotSupported));
    let gone = FileId { ino: u64::MAX, generation: 7 };
    assert_eq!(fs.get_acl(gone.acl(AclKind::Access)).await, Err(Error::Stale));
}

async fn default_lists_are_inherited_and_umasks_then_have_no_say(
    fs: &Arc<dyn FileSystem>,
    dir: FileId,
) {
    let masked =
        |mode, umask| SetAttr { mode: Some(mode), umask: Some(umask), ..SetAttr::default() };
    let without = mkdir(fs, dir, "without default").await;
    let made = fs
        .create(&own(), without.entry(b"f").with(&masked(0o666, 0o027)), CreateMode::MustBeNew)
        .await
        .unwrap();
    assert_eq!(made.attr.mode, 0o640);
    let made = fs.mkdir(&own(), without.entry(b"d").with(&masked(0o777, 0o077))).await.unwrap();
    assert_eq!(made.mode, 0o700);

    let with = mkdir(fs, dir, "with default").await;
    let default = acl(7, 7, 5, 7, 0);
    fs.set_acl(&own(), with.acl(AclKind::Default), Some(&default)).await.unwrap();
    assert_eq!(fs.get_acl(with.acl(AclKind::Default)).await, Ok(Some(default.clone())));
    assert_eq!(fs.get_acl(with.acl(AclKind::Access)).await, Ok(None));
    let made = fs
        .create(&own(), with.entry(b"f").with(&masked(0o666, 0o077)), CreateMode::MustBeNew)
        .await
        .unwrap()
        .attr;
    assert_eq!(made.mode, 0o660);
    assert_eq!(fs.get_acl(made.id.acl(AclKind::Access)).await, Ok(Some(acl(6, 7, 5, 6, 0))));
    // The same without a umask.
    let made = fs
        .create(&own(), with.entry(b"g").with(&mode(0o622)), CreateMode::MustBeNew)
        .await
        .unwrap()
        .attr;
    assert_eq!(made.mode, 0o620);
    let made = fs.mkdir(&own(), with.entry(b"d").with(&masked(0o777, 0o777))).await.unwrap();
    assert_eq!(made.mode, 0o770);
    assert_eq!(fs.get_acl(made.id.acl(AclKind::Default)).await, Ok(Some(default)));
    fs.set_acl(&own(), with.acl(AclKind::Default), None).await.unwrap();
    let made = fs
        .create(&own(), with.entry(b"h").with(&masked(0o666, 0o022)), CreateMode::MustBeNew)
        .await
        .unwrap()
        .attr;
    assert_eq!(made.mode, 0o644);
}
