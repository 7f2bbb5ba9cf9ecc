//! GETATTR, SETATTR, ACCESS, FSSTAT, FSINFO, PATHCONF.

use super::*;
use weir_nfs::v3::op::access::{self, Rights};
use weir_nfs::v3::op::fsinfo::Properties;
use weir_nfs::v3::op::{fsinfo, fsstat, pathconf, setattr, write};
use weir_nfs::v3::types::{FileType, SetTime, Time};

fn set(object: &FileHandle, set: SetAttr) -> setattr::Args {
    setattr::Args { object: object.clone(), set, guard: None }
}

#[tokio::test]
async fn setattr_results_appear_in_getattr() {
    on_every_store(async |f| {
        let mut c = f.client().await;
        let root = c.root.clone();
        assert_eq!(c.attr(&root).await.kind, FileType::Dir);
        let file = c.file("file").await;
        let attr = c.attr(&file).await;
        assert_eq!((attr.kind, attr.mode, attr.size, attr.nlink), (FileType::Reg, 0o644, 0, 1));
        assert_eq!(attr.uid, f.uid);

        let mtime = Time { seconds: 1_000_000_000, nseconds: 123_456_789 };
        let changes = SetAttr {
            mode: Some(0o4750),
            size: Some(5000),
            atime: SetTime::Now,
            mtime: SetTime::To(mtime),
            ..SetAttr::NONE
        };
        let after = c.call(&set(&file, changes)).await.unwrap().after.unwrap();
        assert_eq!((after.mode, after.size, after.mtime), (0o4750, 5000, mtime));
        assert_eq!(c.attr(&file).await, after);
        let shrink = SetAttr { size: Some(7), ..SetAttr::NONE };
        assert_eq!(c.call(&set(&file, shrink)).await.unwrap().after.unwrap().size, 7);

        let bad = SetTime::To(Time { seconds: 1, nseconds: 1_000_000_000 });
        let bad = SetAttr { mtime: bad, ..SetAttr::NONE };
        assert_eq!(status(c.call(&set(&file, bad)).await), Error::Inval);
        let size_of_dir = SetAttr { size: Some(7), ..SetAttr::NONE };
        assert_eq!(status(c.call(&set(&root, size_of_dir)).await), Error::IsDir);
        let invalid = SetAttr { uid: Some(u32::MAX), size: Some(1), ..SetAttr::NONE };
        assert_eq!(status(c.call(&set(&file, invalid)).await), Error::Inval);
        assert_eq!(c.attr(&file).await.size, 7);
    })
    .await;
}

#[tokio::test]
async fn data_changes_clear_set_group_id_unless_the_caller_is_in_the_group() {
    on_every_store(async |f| {
        let mut owner = f.client().await;
        let file = owner.file("tool").await;
        let mode = async |c: &mut Client, mode| {
            let wanted = SetAttr { mode: Some(mode), ..SetAttr::NONE };
            c.call(&set(&file, wanted)).await.unwrap();
        };
        let by = f.uid + 1;
        for (member, kept) in [(false, 0o666), (true, 0o2666)] {
            let mut other = f.connect(by).await;
            let gid = owner.attr(&file).await.gid;
            let groups = if member { vec![gid] } else { vec![gid + 7] };
            let cred = AuthSys { uid: by, gid: gid + 8, gids: groups.into(), ..AuthSys::default() };
            other.cred = OpaqueAuth::from(&cred);
            mode(&mut owner, 0o2666).await;
            let size = SetAttr { size: Some(3), ..SetAttr::NONE };
            other.call(&set(&file, size)).await.unwrap();
            assert_eq!(owner.attr(&file).await.mode, kept, "SETATTR of the size");
            mode(&mut owner, 0o6666).await;
            let args = write::Args {
                file: file.clone(),
                offset: 0,
                count: 1,
                stable: write::Stability::Unstable,
                data: Bytes::from_static(b"x").into(),
            };
            other.call(&args).await.unwrap();
            assert_eq!(owner.attr(&file).await.mode, kept, "WRITE");
            mode(&mut owner, 0o2676).await;
            other.call(&args).await.unwrap();
            assert_eq!(owner.attr(&file).await.mode, 0o676, "a program of the group");
        }
    })
    .await;
}

#[tokio::test]
async fn a_guarded_setattr_with_another_ctime_is_refused() {
    on_every_store(async |f| {
        let mut c = f.client().await;
        let file = c.file("file").await;
        let ctime = c.attr(&file).await.ctime;
        let changes = SetAttr { mode: Some(0o600), ..SetAttr::NONE };
        let other = Some(Time { seconds: ctime.seconds - 1, ..ctime });
        let guarded = setattr::Args { guard: other, ..set(&file, changes.clone()) };
        assert_eq!(status(c.call(&guarded).await), Error::NotSync);
        assert_eq!(c.attr(&file).await.mode, 0o644);
        let guarded = setattr::Args { guard: Some(ctime), ..set(&file, changes) };
        assert_eq!(c.call(&guarded).await.unwrap().after.unwrap().mode, 0o600);
    })
    .await;
}

#[tokio::test]
async fn access_reports_the_callers_rights() {
    on_every_store(async |f| {
        let mut c = f.client().await;
        let file = c.file("file").await;
        let dir = c.dir("dir").await;
        let ask =
            |object: &FileHandle| access::Args { object: object.clone(), rights: Rights::all() };
        let granted = c.call(&ask(&file)).await.unwrap();
        assert_eq!(granted.rights, Rights::READ | Rights::MODIFY | Rights::EXTEND);
        assert_eq!(granted.attr, Some(c.attr(&file).await));
        let granted = c.call(&ask(&dir)).await.unwrap();
        assert_eq!(granted.rights, Rights::all() - Rights::EXECUTE);
        let few = access::Args { object: dir.clone(), rights: Rights::LOOKUP };
        assert_eq!(c.call(&few).await.unwrap().rights, Rights::LOOKUP);
    })
    .await;
}

#[tokio::test]
async fn fsinfo_fsstat_and_pathconf_describe_the_store() {
    on_every_store(async |f| {
        let mut c = f.client().await;
        let root = c.root.clone();
        let info = c.call(&fsinfo::Args { root: root.clone() }).await.unwrap();
        assert_eq!((info.read_max, info.write_max), (1 << 20, 1 << 20));
        assert_eq!((info.read_preferred, info.write_preferred), (1 << 20, 1 << 20));
        assert_eq!(info.properties, Properties::all());
        let stat = c.call(&fsstat::Args { root: root.clone() }).await.unwrap();
        assert!(stat.total_bytes >= stat.free_bytes && stat.free_bytes >= stat.available_bytes);
        assert!(stat.total_bytes > 0 && stat.total_files > 0);
        let limits = c.call(&pathconf::Args { object: root.clone() }).await.unwrap();
        assert_eq!((limits.name_max, limits.no_trunc), (255, true));
        assert_eq!(limits.attr, Some(c.attr(&root).await));
    })
    .await;
}
