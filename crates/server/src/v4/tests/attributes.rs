//! Attributes: every supported one, on every kind of file, read, compared and set.

use super::*;
use std::collections::HashMap;
use weir_nfs::v4::acl::{Ace, AceFlags, AceMask, AceType};
use weir_nfs::v4::attr::{self, ModeMasked, ModeUmask, SecLabel};
use weir_nfs::v4::op::io_advise::Hint;
use weir_nfs::v4::op::{
    commit, create, io_advise, nverify, read, readdir, setattr, setxattr, verify, write,
};
use weir_nfs::v4::types::{FileType, NfsTime, SetTime, StableHow};
use weir_nfs::v4::{Bitmap, attr::Fattr};
use weir_vfs::{
    Access, Acl, AclKind, AclWho, Caller, CreateMode, DirPage, EntryName, FileKind,
    FileSystemDecorator, FsStat, NewFile, ReaddirRequest, SpecialFile, UNCACHED_XATTR,
};

/// The expected value of an attribute, given the file system's attributes of the file.
type Check = fn(&Attrs, &weir_vfs::Attr, &FsStat) -> bool;

const CHECKS: &[(u32, Check)] = &[
    (attr::SUPPORTED_ATTRS, |a, _, _| a.supported_attrs.unwrap().contains(attr::SIZE)),
    (attr::TYPE, |a, f, _| match f.kind {
        FileKind::Directory => a.kind == Some(FileType::Directory),
        FileKind::Symlink => a.kind == Some(FileType::Symlink),
        FileKind::Fifo => a.kind == Some(FileType::Fifo),
        _ => a.kind == Some(FileType::Regular),
    }),
    (attr::FH_EXPIRE_TYPE, |a, _, _| a.fh_expire_type == Some(0)),
    (attr::CHANGE, |a, f, _| a.change == Some(f.change)),
    (attr::SIZE, |a, f, _| a.size == Some(f.size)),
    (attr::LINK_SUPPORT, |a, _, _| a.link_support == Some(true)),
    (attr::SYMLINK_SUPPORT, |a, _, _| a.symlink_support == Some(true)),
    (attr::NAMED_ATTR, |a, _, _| a.named_attr == Some(false)),
    (attr::FSID, |a, f, _| a.fsid.unwrap().major == f.fsid),
    (attr::UNIQUE_HANDLES, |a, _, _| a.unique_handles == Some(true)),
    (attr::LEASE_TIME, |a, _, _| a.lease_time == Some(90)),
    (attr::RDATTR_ERROR, |a, _, _| a.rdattr_error.is_none()),
    (attr::ACL, |a, f, _| a.acl.as_ref().unwrap().0.len() >= 3 || f.mode == 0),
    (attr::ACLSUPPORT, |a, _, _| a.aclsupport == Some(3)),
    (attr::CANSETTIME, |a, _, _| a.cansettime == Some(true)),
    (attr::CASE_INSENSITIVE, |a, _, _| a.case_insensitive == Some(false)),
    (attr::CASE_PRESERVING, |a, _, _| a.case_preserving == Some(true)),
    (attr::CHOWN_RESTRICTED, |a, _, _| a.chown_restricted == Some(true)),
    (attr::FILEHANDLE, |a, _, _| !a.filehandle.as_ref().unwrap().is_empty()),
    (attr::FILEID, |a, f, _| a.fileid == Some(f.id.ino)),
    (attr::FILES_AVAIL, |a, _, s| a.files_avail == Some(s.free_files)),
    (attr::FILES_FREE, |a, _, s| a.files_free == Some(s.free_files)),
    (attr::FILES_TOTAL, |a, _, s| a.files_total == Some(s.total_files)),
    (attr::FS_LOCATIONS, |a, _, _| a.fs_locations.as_ref().unwrap().locations.0.is_empty()),
    (attr::HOMOGENEOUS, |a, _, _| a.homogeneous == Some(true)),
    (attr::MAXFILESIZE, |a, _, s| a.maxfilesize == Some(s.max_file_size)),
    (attr::MAXLINK, |a, _, s| a.maxlink == Some(s.max_links)),
    (attr::MAXNAME, |a, _, s| a.maxname == Some(s.max_name)),
    (attr::MAXREAD, |a, _, _| a.maxread == Some(1 << 20)),
    (attr::MAXWRITE, |a, _, _| a.maxwrite == Some(1 << 20)),
    (attr::MODE, |a, f, _| a.mode == Some(f.mode)),
    (attr::NO_TRUNC, |a, _, _| a.no_trunc == Some(true)),
    (attr::NUMLINKS, |a, f, _| a.numlinks == Some(f.nlink)),
    (attr::OWNER, |a, f, _| a.owner.as_deref() == Some(f.uid.to_string().as_bytes())),
    (attr::OWNER_GROUP, |a, f, _| a.owner_group.as_deref() == Some(f.gid.to_string().as_bytes())),
    (attr::RAWDEV, |a, f, _| a.rawdev.unwrap().major == f.rdev.0),
    (attr::SPACE_AVAIL, |a, _, s| a.space_avail == Some(s.available_bytes)),
    (attr::SPACE_FREE, |a, _, s| a.space_free == Some(s.free_bytes)),
    (attr::SPACE_TOTAL, |a, _, s| a.space_total == Some(s.total_bytes)),
    (attr::SPACE_USED, |a, f, _| a.space_used == Some(f.allocated)),
    (attr::TIME_ACCESS, |a, f, _| a.time_access == Some(wire(f.atime))),
    (attr::TIME_CREATE, |a, f, _| a.time_create == f.btime.map(wire)),
    (attr::TIME_DELTA, |a, _, _| a.time_delta == Some(NfsTime { seconds: 0, nseconds: 1 })),
    (attr::TIME_METADATA, |a, f, _| a.time_metadata == Some(wire(f.ctime))),
    (attr::TIME_MODIFY, |a, f, _| a.time_modify == Some(wire(f.mtime))),
    (attr::MOUNTED_ON_FILEID, |a, f, _| a.mounted_on_fileid == Some(f.id.ino)),
    (attr::DACL, |a, _, _| a.dacl.as_ref().unwrap().flags.is_empty()),
    (attr::SUPPATTR_EXCLCREAT, |a, _, _| {
        let set = a.suppattr_exclcreat.unwrap();
        set.contains(attr::MODE) && !set.contains(attr::TIME_MODIFY_SET)
    }),
    (attr::FS_CHARSET_CAP, |a, _, _| a.fs_charset_cap == Some(1)),
    (attr::CLONE_BLKSIZE, |a, _, s| a.clone_blksize == Some(s.clone_bytes) && s.clone_bytes > 0),
    (attr::SPACE_FREED, |a, f, _| a.space_freed == Some(if f.nlink > 1 { 0 } else { f.allocated })),
    (attr::CHANGE_ATTR_TYPE, |a, _, _| a.change_attr_type == Some(4)),
    (attr::XATTR_SUPPORT, |a, _, _| a.xattr_support == Some(true)),
    (attr::OPEN_ARGUMENTS, |a, _, _| a.open_arguments.unwrap().open_claim.contains(4)),
    (attr::UNCACHEABLE_FILE_DATA, |a, _, _| a.uncacheable_file_data == Some(false)),
];

fn wire(time: std::time::SystemTime) -> NfsTime {
    let since = time.duration_since(std::time::UNIX_EPOCH).unwrap();
    NfsTime { seconds: since.as_secs() as i64, nseconds: since.subsec_nanos() }
}

async fn getattr(c: &mut Client, file: &FileHandle, asked: Bitmap) -> Attrs {
    match c.on(file, Op::Getattr(asked)).await {
        OpRes::Getattr(Ok(attrs)) => attrs,
        other => panic!("{other:?}"),
    }
}

async fn lookup(c: &mut Client, name: &'static str) -> FileHandle {
    let ops = vec![Op::Putrootfh(()), Op::Lookup(name.into()), Op::Getfh(())];
    handle(&c.ok(ops).await).unwrap()
}

async fn make(c: &mut Client, name: &'static str, kind: create::Kind, attrs: Attrs) -> Error {
    let args = create::Args { kind, name: name.into(), attrs: attrs.into() };
    c.run(vec![Op::Putrootfh(()), Op::Create(args)]).await.status.err().unwrap_or(Error::Io)
}

#[tokio::test]
async fn every_supported_attribute_is_right_on_every_kind_of_file() {
    let f = Fixture::new().await;
    let mut c = f.client("a").await;
    c.open("file").await;
    make(&mut c, "dir", create::Kind::Directory, Attrs::default()).await;
    make(&mut c, "link", create::Kind::Symlink("target".into()), Attrs::default()).await;
    make(&mut c, "fifo", create::Kind::Fifo, Attrs::default()).await;
    for name in ["file", "dir", "link", "fifo"] {
        let file = lookup(&mut c, name).await;
        let only = Bitmap::of(&[attr::SUPPORTED_ATTRS]);
        let supported = getattr(&mut c, &file, only).await.supported_attrs.unwrap();
        let readable = supported.difference(attr::WRITE_ONLY);
        let table = CHECKS.iter().fold(Bitmap::EMPTY, |mut set, (number, _)| {
            set.insert(*number);
            set
        });
        assert_eq!(readable, table, "an attribute without a check, or the other way round");
        let root = f.fs.root();
        let real = f.fs.lookup(&Caller::Own, root.entry(name.as_bytes())).await.unwrap();
        let stat = f.fs.statfs().await.unwrap();
        let all = getattr(&mut c, &file, readable).await;
        for (number, check) in CHECKS {
            assert!(check(&all, &real, &stat), "{name}: {:?}", attr::name(*number));
            // Requested alone it has the same value, and VERIFY agrees.
            let mut one = all.clone();
            one.retain(Bitmap::of(&[*number]));
            assert_eq!(getattr(&mut c, &file, Bitmap::of(&[*number])).await, one, "{number}");
            let same =
                |res| matches!(res, OpRes::Verify(Ok(())) | OpRes::Nverify(Err(Error::Same)));
            if *number != attr::RDATTR_ERROR {
                let args: verify::Args = one.clone().into();
                assert!(same(c.on(&file, Op::Verify(args)).await), "VERIFY {number} of {name}");
                let args: nverify::Args = one.into();
                assert!(same(c.on(&file, Op::Nverify(args)).await), "NVERIFY {number} of {name}");
            }
        }
    }
    // The server omits unsupported attributes without an error.
    let file = lookup(&mut c, "file").await;
    let others = Bitmap::of(&[attr::HIDDEN, attr::SEC_LABEL, attr::LAYOUT_TYPES, attr::SACL, 90]);
    assert_eq!(getattr(&mut c, &file, others).await, Attrs::default());
    let write_only = Bitmap::of(&[attr::TIME_MODIFY_SET]);
    assert!(matches!(
        c.on(&file, Op::Getattr(write_only)).await,
        OpRes::Getattr(Err(Error::Inval))
    ));
    let differs: verify::Args = Attrs { size: Some(99), ..Attrs::default() }.into();
    assert!(matches!(c.on(&file, Op::Verify(differs)).await, OpRes::Verify(Err(Error::NotSame))));
}

/// A client that calls as this user, with these groups.
async fn client_of(f: &Fixture, name: &'static str, uid: u32, gids: Vec<u32>) -> Client {
    let mut c = f.connect(name, 2).await;
    let cred = AuthSys {
        uid,
        gid: uid,
        gids: gids.into(),
        machine_name: name.into(),
        ..AuthSys::default()
    };
    c.cred = OpaqueAuth::from(&cred);
    c.begin_session(1 << 20).await;
    c.ok(vec![Op::ReclaimComplete(reclaim_complete::Args { one_fs: false })]).await;
    c
}

#[tokio::test]
async fn data_changes_clear_set_group_id_unless_the_caller_is_in_the_group() {
    use weir_nfs::v4::op::{allocate, clone, copy, deallocate};
    let f = Fixture::new().await;
    let (own, root) = (weir_vfs::Caller::Own, f.fs.root());
    let made = |mode| weir_vfs::SetAttr { mode: Some(mode), gid: Some(40), ..Default::default() };
    for (name, groups, kept) in [("out", vec![41], 0o666), ("in", vec![41, 40], 0o2666)] {
        let mut c = client_of(&f, name, 5, groups).await;
        for file_name in ["from", name] {
            f.fs.create(
                &own,
                root.entry(file_name.as_bytes()).with(&made(0o666)),
                CreateMode::MayExist,
            )
            .await
            .unwrap();
        }
        let id = f.fs.lookup(&own, root.entry(name.as_bytes())).await.unwrap().id;
        let ((from, source), (file, stateid)) = (c.open("from").await, c.open(name).await);
        let (offset, length) = (0, 4096);
        let data = Bytes::from(vec![7; 8192]);
        let stable = StableHow::Unstable;
        let write = |stateid| write::Args { stateid, offset, stable, data: data.clone().into() };
        c.on(&from, Op::Write(write(source))).await;
        let size =
            setattr::Args { stateid, attrs: Attrs { size: Some(99), ..Attrs::default() }.into() };
        let copy = copy::Args {
            source,
            destination: stateid,
            source_offset: 0,
            destination_offset: 0,
            count: 0,
            consecutive: true,
            synchronous: true,
            source_servers: List::default(),
        };
        let clone = clone::Args {
            source,
            destination: stateid,
            source_offset: 0,
            destination_offset: 0,
            count: 0,
        };
        let changes = [
            Op::Write(write(stateid)),
            Op::Setattr(size),
            Op::Allocate(allocate::Args { stateid, offset, length }),
            Op::Deallocate(deallocate::Args { stateid, offset, length }),
            Op::Copy(copy),
            Op::Clone(clone),
        ];
        for change in changes {
            let what = format!("{change:?}");
            f.fs.setattr(&own, id, &made(0o6666)).await.unwrap();
            let to = Op::Putfh(file.clone());
            let ops = vec![Op::Putfh(from.clone()), Op::Savefh(()), to, change];
            assert_eq!(c.run(ops).await.status, Ok(()), "{what}");
            let mode = f.fs.getattr(id).await.unwrap().mode;
            assert_eq!(mode, kept, "{name}: {what}");
        }
    }
}

#[tokio::test]
async fn setattr_of_size_and_mode_keeps_the_mode_bits_that_it_sets() {
    let f = Fixture::new().await;
    let (own, root) = (Caller::Own, f.fs.root());
    let (uid, gid) = (Some(5), Some(5));
    let made = |mode| weir_vfs::SetAttr { mode: Some(mode), uid, gid, ..Default::default() };
    let id =
        f.fs.create(&own, root.entry(b"file").with(&made(0o644)), CreateMode::MustBeNew)
            .await
            .unwrap()
            .attr
            .id;
    let mut c = client_of(&f, "a", 5, Vec::new()).await;
    let file = lookup(&mut c, "file").await;
    let masked = |mode, mask| Some(ModeMasked { mode, mask });
    for (before, set_masked, after) in [
        (0o755, masked(0o4000, 0o4000), 0o4755),
        (0o2775, masked(0o4000, 0o4000), 0o4775),
        (0o6775, masked(0o2000, 0o2000), 0o2775),
        (0o6775, masked(0o020, 0o020), 0o775),
        (0o6775, None, 0o775),
    ] {
        f.fs.setattr(&own, id, &made(before)).await.unwrap();
        let attrs = Attrs { size: Some(9), mode_set_masked: set_masked, ..Attrs::default() };
        let what = format!("{before:o} {set_masked:?}");
        assert_eq!(set(&mut c, &file, attrs).await.status, Ok(()), "{what}");
        assert_eq!(f.fs.getattr(id).await.unwrap().mode, after, "{what}");
    }
}

async fn set(c: &mut Client, file: &FileHandle, attrs: impl Into<Fattr>) -> setattr::Res {
    let args = setattr::Args { stateid: StateId::ANONYMOUS, attrs: attrs.into() };
    match c.on(file, Op::Setattr(args)).await {
        OpRes::Setattr(res) => res,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn every_settable_attribute_is_set_and_read_back() {
    let f = Fixture::new().await;
    let mut c = f.client("a").await;
    let (file, _) = c.open("file").await;
    for invalid in [
        Attrs { owner: Some("4294967295".into()), ..Attrs::default() },
        Attrs { owner_group: Some("4294967295".into()), ..Attrs::default() },
    ] {
        assert_eq!(set(&mut c, &file, invalid).await.status, Err(Error::Inval));
    }
    let time = NfsTime { seconds: 1_000_000_000, nseconds: 5 };
    let list = || {
        let ace = |who: &'static str, mask| Ace {
            kind: AceType::Allow,
            flags: AceFlags::empty(),
            mask,
            who: who.into(),
        };
        let write = AceMask::WRITE_DATA | AceMask::APPEND_DATA;
        vec![ace("OWNER@", AceMask::READ_DATA | write), ace("4321", AceMask::READ_DATA)].into()
    };
    let none = Attrs::default;
    // The attribute that is set, and the attribute that shows the result.
    type Holds = fn(&weir_vfs::Attr) -> bool;
    let cases: Vec<(Attrs, Holds)> = vec![
        (Attrs { size: Some(12345), ..none() }, |f| f.size == 12345),
        (Attrs { mode: Some(0o4751), ..none() }, |f| f.mode == 0o4751),
        (Attrs { mode_set_masked: Some(ModeMasked { mode: 0o777, mask: 0o027 }), ..none() }, |f| {
            f.mode == 0o4777
        }),
        (Attrs { owner: Some("17".into()), ..none() }, |f| f.uid == 17),
        (Attrs { owner_group: Some("18".into()), ..none() }, |f| f.gid == 18),
        (Attrs { owner: Some("root@here".into()), ..none() }, |f| f.uid == 0),
        (Attrs { time_access_set: Some(SetTime::ToClientTime(time)), ..none() }, |f| {
            wire(f.atime).nseconds == 5
        }),
        (Attrs { time_modify_set: Some(SetTime::ToClientTime(time)), ..none() }, |f| {
            wire(f.mtime).seconds == 1_000_000_000
        }),
        (Attrs { time_modify_set: Some(SetTime::ToServerTime), ..none() }, |f| {
            wire(f.mtime).seconds > 1_700_000_000
        }),
        (Attrs { acl: Some(list()), ..none() }, |f| f.mode & 0o777 == 0o640),
        (Attrs { uncacheable_file_data: Some(true), ..none() }, |_| true),
    ];
    for (attrs, shows) in cases {
        let asked = attrs.present();
        let res = set(&mut c, &file, attrs).await;
        assert_eq!((res.status, res.set), (Ok(()), asked), "{asked:?}");
        let real = f.fs.lookup(&Caller::Own, f.fs.root().entry(b"file")).await.unwrap();
        assert!(shows(&real), "{asked:?}: {real:?}");
    }
    let marked = Bitmap::of(&[attr::UNCACHEABLE_FILE_DATA]);
    assert_eq!(getattr(&mut c, &file, marked).await.uncacheable_file_data, Some(true));

    let label = SecLabel { format: 0, policy: 0, label: "x".into() };
    for (attrs, error) in [
        (Attrs { sec_label: Some(label), ..none() }, Error::AttrNotSupp),
        (Attrs { archive: Some(true), ..none() }, Error::AttrNotSupp),
        (Attrs { change: Some(1), ..none() }, Error::Inval),
        (Attrs { mode: Some(0o10000), ..none() }, Error::Inval),
        (Attrs { mode_umask: Some(ModeUmask { mode: 0, umask: 0 }), ..none() }, Error::Inval),
        (Attrs { owner: Some("no such user@here".into()), ..none() }, Error::BadOwner),
        (Attrs { owner: Some("".into()), ..none() }, Error::Inval),
        (Attrs { size: Some(u64::MAX), ..none() }, Error::FBig),
    ] {
        let res = set(&mut c, &file, attrs.clone()).await;
        assert_eq!((res.status, res.set), (Err(error), Bitmap::EMPTY), "{attrs:?}");
    }
    // The attributes that were set before SETATTR failed.
    let dir = make_dir(&mut c).await;
    let both = Attrs { size: Some(0), mode: Some(0o700), ..none() };
    assert_eq!(set(&mut c, &dir, both).await.status, Err(Error::IsDir));
    let marked = Attrs { uncacheable_file_data: Some(true), ..none() };
    assert_eq!(set(&mut c, &dir, marked).await.status, Err(Error::Inval));
}

async fn make_dir(c: &mut Client) -> FileHandle {
    make(c, "dir", create::Kind::Directory, Attrs::default()).await;
    lookup(c, "dir").await
}

#[tokio::test]
async fn creates_apply_the_umask_and_the_given_acl() {
    let f = Fixture::new().await;
    let mut c = f.client("a").await;
    let umask =
        Attrs { mode_umask: Some(ModeUmask { mode: 0o777, umask: 0o027 }), ..Attrs::default() };
    make(&mut c, "made", create::Kind::Directory, umask).await;
    let found = async |name: &[u8]| f.fs.lookup(&Caller::Own, f.fs.root().entry(name)).await;
    assert_eq!(found(b"made").await.unwrap().mode, 0o750);
    let heir = |flags| Ace {
        kind: AceType::Allow,
        flags,
        mask: AceMask::READ_DATA,
        who: "EVERYONE@".into(),
    };
    let acl = |flags| Attrs { acl: Some(vec![heir(flags)].into()), ..Attrs::default() };
    make(&mut c, "listed", create::Kind::Directory, acl(AceFlags::empty())).await;
    assert_eq!(found(b"listed").await.unwrap().mode, 0o444);
    // The server does not skip an unsupported ACL: it creates nothing.
    let error = make(&mut c, "unlisted", create::Kind::Directory, acl(AceFlags::INHERITED)).await;
    assert_eq!(error, Error::AttrNotSupp);
    assert_eq!(found(b"unlisted").await, Err(weir_vfs::Error::NotFound));
}

/// A store that takes a file of another user for a pipe that it has just made: a program has given it the pipe's name.
struct Overtaken(Arc<dyn FileSystem>);

#[async_trait::async_trait]
impl FileSystemDecorator for Overtaken {
    fn below(&self) -> &dyn FileSystem {
        &*self.0
    }

    async fn mknod(
        &self,
        caller: &Caller,
        new: NewFile<'_>,
        node: SpecialFile,
    ) -> weir_vfs::Result<weir_vfs::Attr> {
        self.0.mknod(caller, new, node).await?;
        self.0.lookup(&Caller::Own, self.0.root().entry(b"others")).await
    }
}

#[tokio::test]
async fn the_acl_of_a_new_file_is_not_set_on_a_file_of_another_user() {
    let f = Fixture::of(Arc::new(Overtaken(MemoryFs::new()))).await;
    let mut c = f.client("a").await;
    let (others, _) = c.open("others").await;
    let mode = |mode| Attrs { mode: Some(mode), ..Attrs::default() };
    assert_eq!(set(&mut c, &others, mode(0o600)).await.status, Ok(()));
    let root = weir_vfs::SetAttr { mode: Some(0o777), ..weir_vfs::SetAttr::default() };
    f.fs.setattr(&Caller::Own, f.fs.root(), &root).await.unwrap();
    c.cred = OpaqueAuth::from(&AuthSys { uid: 5, gid: 5, ..AuthSys::default() });
    let everyone = Ace {
        kind: AceType::Allow,
        flags: AceFlags::empty(),
        mask: AceMask::READ_DATA,
        who: "EVERYONE@".into(),
    };
    let acl = Attrs { acl: Some(vec![everyone].into()), ..Attrs::default() };
    assert_eq!(make(&mut c, "pipe", create::Kind::Fifo, acl.clone()).await, Error::Perm);
    let found = async |name: &[u8]| f.fs.lookup(&Caller::Own, f.fs.root().entry(name)).await;
    assert_eq!(found(b"others").await.unwrap().mode, 0o600);
    // The user's own directory gets it, although its mode denies the user everything else.
    make(&mut c, "own", create::Kind::Directory, Attrs { mode: Some(0), ..acl }).await;
    assert_eq!(found(b"own").await.unwrap().mode, 0o444);
}

#[tokio::test]
async fn io_on_a_file_marked_uncached_leaves_no_pages() {
    let f = Fixture::new().await;
    let mut c = f.client("a").await;
    let (file, stateid) = c.open("file").await;
    let data = Bytes::from(vec![7; 256 << 10]);
    let put =
        |stable| Op::Write(write::Args { stateid, offset: 0, stable, data: data.clone().into() });
    let get = || Op::Read(read::Args { stateid, offset: 0, count: 256 << 10 });
    c.on(&file, put(StableHow::FileSync)).await;
    c.on(&file, get()).await;
    let id = f.fs.lookup(&Caller::Own, f.fs.root().entry(b"file")).await.unwrap().id;
    let open = f.fs.open(&Caller::Own, id, Access::READ).await.unwrap();
    assert_eq!(open.resident(), std::slice::from_ref(&(0..256 << 10)));

    let marked = |mark| Attrs { uncacheable_file_data: Some(mark), ..Attrs::default() };
    assert_eq!(set(&mut c, &file, marked(true)).await.status, Ok(()));
    assert!(open.resident().is_empty(), "what was resident is still there");
    let before = f.fs.cache().stats();
    let OpRes::Read(Ok(read)) = c.on(&file, get()).await else { panic!() };
    assert_eq!(read.data.to_bytes(), data);
    c.on(&file, put(StableHow::FileSync)).await;
    let pruned = f.fs.cache().stats().pruned_pages - before.pruned_pages;
    assert!(open.resident().is_empty() && pruned >= 64, "{pruned} pages were pruned");
    // Advice brings pages in, and the next read drops them.
    let fills = || f.fs.cache().stats().fills;
    let (before, hints) = (fills(), Bitmap::of(&[Hint::WillNeed as u32]));
    let advice = io_advise::Args { stateid, offset: 0, count: 0, hints };
    assert!(matches!(c.on(&file, Op::IoAdvise(advice)).await, OpRes::IoAdvise(Ok(_))));
    assert!(fills() > before, "the advice is heeded");
    c.on(&file, get()).await;
    assert!(open.resident().is_empty(), "what the advice has brought in is still there");

    // The mark belongs to the file and outlives the cache.
    let name = UNCACHED_XATTR;
    assert_eq!(f.fs.get_xattr(&Caller::Own, id.xattr(name)).await, Ok(b"1".to_vec()));
    let config = Config { budget_bytes: 4 << 20, ..Config::default() };
    let again = Cache::new(config).unwrap().mount(f.fs.store().clone());
    let other = again.open(&Caller::Own, id, Access::READ).await.unwrap();
    let mut buf = vec![0; 256 << 10];
    other.read_at_async(&mut buf, 0, weir_vfs::IoFlags::empty()).await.unwrap();
    assert!(other.resident().is_empty());

    // An extended attribute stores the mark, so removing the attribute removes the mark.
    let args = setxattr::Args {
        mode: setxattr::Mode::Either,
        name: "weir.uncached".into(),
        value: "0".into(),
    };
    assert!(matches!(c.on(&file, Op::Setxattr(args)).await, OpRes::Setxattr(Ok(_))));
    c.on(&file, get()).await;
    assert_eq!(open.resident(), std::slice::from_ref(&(0..256 << 10)));
    assert_eq!(set(&mut c, &file, marked(false)).await.status, Ok(()));
    assert_eq!(set(&mut c, &file, marked(false)).await.status, Ok(()));
}

#[tokio::test]
async fn commit_writes_back_only_its_range() {
    let f = Fixture::new().await;
    let mut c = f.client("a").await;
    let (file, stateid) = c.open("file").await;
    for offset in [0, 1 << 20] {
        let data = Bytes::from(vec![7; 64 << 10]).into();
        let args = write::Args { stateid, offset, stable: StableHow::Unstable, data };
        c.on(&file, Op::Write(args)).await;
    }
    let dirty = || f.fs.cache().dirty_bytes();
    assert_eq!(dirty(), 128 << 10);
    let commit = |offset, count| Op::Commit(commit::Args { offset, count });
    assert!(matches!(c.on(&file, commit(0, 64 << 10)).await, OpRes::Commit(Ok(_))));
    assert_eq!(dirty(), 64 << 10);
    assert!(matches!(c.on(&file, commit(u64::MAX, 2)).await, OpRes::Commit(Err(Error::Inval))));
    assert!(matches!(c.on(&file, commit(1 << 20, 0)).await, OpRes::Commit(Ok(_))));
    assert_eq!(dirty(), 0);
}

#[tokio::test]
async fn readdir_returns_acls_and_errors_of_entries() {
    let f = Fixture::new().await;
    let mut c = f.client("a").await;
    c.open("file").await;
    let attrs = Bitmap::of(&[attr::ACL, attr::RDATTR_ERROR, attr::OWNER]);
    let args = readdir::Args { cookie: 0, verifier: [0; 8], dir_count: 0, max_count: 4096, attrs };
    let results = c.ok(vec![Op::Putrootfh(()), Op::Readdir(args)]).await;
    let Some(OpRes::Readdir(Ok(page))) = results.last() else { panic!("{results:?}") };
    let entry = &page.entries.0[0].attrs;
    assert_eq!((entry.present(), entry.rdattr_error), (attrs, Some(Ok(()))));
}

/// A store that cannot look up one of its files.
struct Unreadable(Arc<dyn FileSystem>, weir_vfs::Error);

#[async_trait::async_trait]
impl FileSystemDecorator for Unreadable {
    fn below(&self) -> &dyn FileSystem {
        &*self.0
    }

    async fn lookup(
        &self,
        caller: &Caller,
        entry: EntryName<'_>,
    ) -> weir_vfs::Result<weir_vfs::Attr> {
        if entry.name == b"broken" {
            return Err(self.1);
        }
        self.0.lookup(caller, entry).await
    }

    async fn readdir(&self, caller: &Caller, request: ReaddirRequest) -> weir_vfs::Result<DirPage> {
        let mut page = self.0.readdir(caller, request).await?;
        page.entries.iter_mut().for_each(|entry| entry.attr = None);
        Ok(page)
    }
}

/// Programs that mirror a tree would remove what they do not see.
#[tokio::test]
async fn readdir_leaves_out_no_name_of_a_file_that_cannot_be_looked_up() {
    for (fails, error, without_errors) in [
        (weir_vfs::Error::Io, Some(Error::Io), Err(Error::Io)),
        (weir_vfs::Error::AccessDenied, Some(Error::Access), Ok(1)),
        (weir_vfs::Error::NotFound, None, Ok(1)),
    ] {
        let store = MemoryFs::new();
        for name in [b"broken", b"usable"] {
            let set = weir_vfs::SetAttr::default();
            let new = store.root().entry(name).with(&set);
            store.create(&Caller::Own, new, CreateMode::MustBeNew).await.unwrap();
        }
        let f = Fixture::of(Arc::new(Unreadable(store, fails))).await;
        let mut c = f.client("a").await;
        let mut list = async |asked: &[u32]| {
            let attrs = Bitmap::of(asked);
            let (cookie, verifier) = (0, [0; 8]);
            let args = readdir::Args { cookie, verifier, dir_count: 0, max_count: 4096, attrs };
            let results = c.run(vec![Op::Putrootfh(()), Op::Readdir(args)]).await.results;
            let Some(OpRes::Readdir(listed)) = results.into_iter().next_back() else { panic!() };
            listed.map(|page| {
                let entry = |entry: readdir::Entry| (entry.name.to_vec(), entry.attrs);
                page.entries.0.into_iter().map(entry).collect::<HashMap<_, _>>()
            })
        };
        let listed = list(&[attr::SIZE, attr::RDATTR_ERROR]).await.unwrap();
        let usable = &listed[&b"usable"[..]];
        assert_eq!((usable.size, usable.rdattr_error), (Some(0), Some(Ok(()))));
        let broken = listed.get(&b"broken"[..]).map(|attrs| (attrs.present(), attrs.rdattr_error));
        let only = Bitmap::of(&[attr::RDATTR_ERROR]);
        assert_eq!(broken, error.map(|error| (only, Some(Err(error)))));
        // A client that takes no errors of entries.
        assert_eq!(list(&[attr::SIZE]).await.map(|listed| listed.len()), without_errors);
    }
}

#[tokio::test]
async fn an_acl_that_exceeds_the_reply_is_refused() {
    let f = Fixture::new().await;
    let mut big = f.client("a").await;
    let (file, _) = big.open("file").await;
    let named = (0..30).map(|id| (AclWho::User(id), 4));
    let classes = [AclWho::Owner, AclWho::Group, AclWho::Mask, AclWho::Other].map(|who| (who, 4));
    let acl = Acl::new(named.chain(classes)).unwrap();
    let id = f.fs.lookup(&Caller::Own, f.fs.root().entry(b"file")).await.unwrap().id;
    f.fs.set_acl(&Caller::Own, id.acl(AclKind::Access), Some(&acl)).await.unwrap();
    let mut c = f.connect("small", 2).await;
    c.begin_session(600).await;
    let asked = Bitmap::of(&[attr::ACL]);
    let reply = c.run(vec![Op::Putfh(file.clone()), Op::Getattr(asked)]).await;
    assert_eq!(reply.status, Err(Error::RepTooBig));
    assert!(reply.bytes.len() <= 600);
    assert_eq!(getattr(&mut big, &file, asked).await.acl.unwrap().0.len(), 33);
}
