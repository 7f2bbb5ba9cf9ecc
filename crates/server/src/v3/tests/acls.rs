//! Access control lists through NFSACL.

use super::*;
use weir_nfs::nfsacl::{DEFAULT_TAG, Entries, Entry, Getacl, Lists, Mask, Setacl};
use weir_nfs::v3::op::{read, symlink};
use weir_vfs::AclKind;

/// The entries of owner, user 4321, owning group, mask and others.
fn entries(flag: u32, rights: [u32; 5]) -> Entries {
    let tags = [(0x01, 0), (0x02, 4321), (0x04, 0), (0x10, 0), (0x20, 0)];
    let entries: Vec<_> = tags
        .iter()
        .zip(rights)
        .map(|(&(tag, id), rights)| Entry { tag: tag | flag, id, rights })
        .collect();
    Entries { count: 5, entries: entries.into() }
}

async fn get(c: &mut Client, file: &FileHandle) -> Lists {
    let args = Getacl { file: file.clone(), mask: Mask::ACCESS | Mask::DEFAULT };
    c.call_acl(&args).await.unwrap()
}

/// The tags and rights of entries.
fn rights(entries: &Entries) -> Vec<(u32, u32)> {
    assert_eq!(entries.count as usize, entries.entries.0.len());
    entries.entries.0.iter().map(|e| (e.tag, e.rights)).collect()
}

#[tokio::test]
async fn an_acl_without_named_entries_is_sent_with_a_mask() {
    on_every_store(async |f| {
        let mut c = f.client().await;
        let file = c.file("plain").await;
        let lists = get(&mut c, &file).await;
        assert_eq!(rights(&lists.access), [(1, 6), (4, 4), (0x10, 4), (0x20, 4)]);
        assert_eq!(lists.access.entries.0[0].id, f.uid, "the owner's entry has the owner's id");
        assert_eq!(lists.default, Entries::default());
        let count = Getacl { file, mask: Mask::ACCESS_COUNT };
        let counted = c.call_acl(&count).await.unwrap();
        assert_eq!((counted.access.count, counted.access.entries.0.len()), (4, 0));
    })
    .await;
}

#[tokio::test]
async fn setting_an_acl_changes_the_mode() {
    on_every_store(async |f| {
        let mut c = f.client().await;
        let file = c.file("listed").await;
        let access = entries(0, [6, 7, 4, 6, 0]);
        let default = Entries::default();
        let args =
            Setacl { file: file.clone(), mask: Mask::ACCESS, access, default: default.clone() };
        assert_eq!(c.call_acl(&args).await.unwrap().unwrap().mode, 0o660);
        let expected = [(1, 6), (2, 7), (4, 4), (0x10, 6), (0x20, 0)];
        let lists = get(&mut c, &file).await;
        assert_eq!(rights(&lists.access), expected);
        assert_eq!(lists.access.entries.0[1].id, 4321);
        // Another user may not set it.
        let mut other = f.client_as(f.uid + 77).await;
        if f.uid == 0 {
            assert_eq!(status(other.call_acl(&args).await), Error::Perm);
        }
        // A list without entries leaves the mode only.
        let args = Setacl { access: Entries::default(), ..args };
        c.call_acl(&args).await.unwrap();
        assert_eq!(rights(&get(&mut c, &file).await.access).len(), 4);

        let bad = Setacl {
            access: Entries { count: 1, entries: vec![Entry { tag: 1, id: 0, rights: 7 }].into() },
            ..args
        };
        assert_eq!(status(c.call_acl(&bad).await), Error::Inval);
    })
    .await;
}

#[tokio::test]
async fn only_directories_have_default_acls() {
    on_every_store(async |f| {
        let mut c = f.client().await;
        let (dir, file) = (c.dir("d").await, c.file("f").await);
        let default = entries(DEFAULT_TAG, [7, 7, 5, 7, 0]);
        let args = |file: &FileHandle| Setacl {
            file: file.clone(),
            mask: Mask::DEFAULT,
            access: Entries::default(),
            default: default.clone(),
        };
        assert_eq!(status(c.call_acl(&args(&file)).await), Error::Access);
        c.call_acl(&args(&dir)).await.unwrap();
        let lists = get(&mut c, &dir).await;
        assert_eq!(
            rights(&lists.default),
            [(0x1001, 7), (0x1002, 7), (0x1004, 5), (0x1010, 7), (0x1020, 0)]
        );
        assert_eq!(lists.access.count, 4, "its own list is as it was");
        // A new file inherits it, and the client's umask does not apply.
        let set = SetAttr { mode: Some(0o666), ..SetAttr::NONE };
        let target = DirOp::new(dir.clone(), b"heir".to_vec());
        let made = c.call(&create::Args { target, how: How::Guarded(set) }).await.unwrap();
        assert_eq!(made.attr.unwrap().mode, 0o660);
        let heir = get(&mut c, &made.handle.unwrap()).await;
        assert_eq!(rights(&heir.access)[1], (2, 7));
        let none = Setacl { default: Entries::default(), ..args(&dir) };
        c.call_acl(&none).await.unwrap();
        assert_eq!(get(&mut c, &dir).await.default, Entries::default());
    })
    .await;
}

#[tokio::test]
async fn acls_of_links_are_their_mode_and_read_only_exports_refuse_acls() {
    on_every_store(async |f| {
        let mut c = f.client().await;
        let target = c.in_root("link");
        let args = symlink::Args { target, set: SetAttr::NONE, path: "x".into() };
        let link = c.call(&args).await.unwrap().handle.unwrap();
        assert_eq!(rights(&get(&mut c, &link).await.access)[0], (1, 7));
    })
    .await;
    let options =
        ExportOptions { read_only: true, squash: Squash::Nobody, ..ExportOptions::default() };
    on_every_store_with(options, async |f| {
        let root = f.fs.root();
        let mut c = f.client().await;
        let args = Setacl {
            file: c.root.clone(),
            mask: Mask::ACCESS,
            access: entries(0, [7, 7, 7, 7, 7]),
            default: Entries::default(),
        };
        assert_eq!(status(c.call_acl(&args).await), Error::RoFs);
        assert_eq!(f.fs.get_acl(root.acl(AclKind::Access)).await, Ok(None));
    })
    .await;
}

#[tokio::test]
async fn a_user_whose_entry_is_removed_loses_the_right_at_once() {
    on_every_store(async |f| {
        if !super::access::is_told_apart(&f) {
            return;
        }
        let mut c = f.client().await;
        let file = c.file("listed").await;
        let set = |access| Setacl {
            file: file.clone(),
            mask: Mask::ACCESS,
            access,
            default: Entries::default(),
        };
        let with = c.call_acl(&set(entries(0, [6, 4, 0, 4, 0]))).await.unwrap().unwrap();
        let mut other = f.client_as(4321).await;
        let read = read::Args { file: file.clone(), offset: 0, count: 100 };
        other.call(&read).await.unwrap();
        let mut fewer = entries(0, [6, 4, 0, 4, 0]).entries.0.to_vec();
        fewer.remove(1);
        let fewer = Entries { count: 4, entries: fewer.into() };
        let without = c.call_acl(&set(fewer)).await.unwrap().unwrap();
        assert_eq!(with.mode, without.mode, "only the list tells");
        assert_eq!(status(other.call(&read).await), Error::Access);
    })
    .await;
}
