//! A new file's umask, in directories with and without a default access control list.

mod common;

use common::Served;
use common::between::{Umaskless, Unmasked};
use weir_client::{MountOptions, NfsFs};
use weir_vfs::{Acl, AclKind, AclWho, Caller, CreateMode, FileId, FileSystem, SetAttr};

/// Before 4.2, no request carries a umask.
#[tokio::test]
async fn a_umask_has_no_say_where_a_default_list_is_inherited_over_v4_2() {
    let served = Served::start();
    let own = Caller::Own;
    for (vers, mode_of_file, mode_of_dir) in [("4.2", 0o660, 0o770), ("4.1", 0o600, 0o700)] {
        let nfs = served.mount(&format!("vers={vers}")).await;
        let none = SetAttr::default();
        let masked = |mode| SetAttr { mode: Some(mode), umask: Some(0o077), ..SetAttr::default() };
        let root = served.store.root();
        let name = format!("listed-{vers}");
        let listed = served.store.mkdir(&own, root.entry(name.as_bytes()).with(&none)).await;
        let default = [(AclWho::Owner, 7), (AclWho::Group, 7), (AclWho::Other, 0)];
        let default = Acl::new(default).unwrap();
        let list = listed.unwrap().id.acl(AclKind::Default);
        served.store.set_acl(&own, list, Some(&default)).await.unwrap();
        let listed = nfs.lookup(&own, nfs.root().entry(name.as_bytes())).await.unwrap().id;
        let plain = format!("plain-{vers}");
        let plain = nfs.mkdir(&own, nfs.root().entry(plain.as_bytes()).with(&none)).await.unwrap();

        let create = async |dir: FileId, name: &[u8], how| {
            let new = masked(0o666);
            nfs.create(&own, dir.entry(name).with(&new), how).await.unwrap().attr.mode
        };
        for (name, how) in [(b"a", CreateMode::MustBeNew), (b"b", CreateMode::MayExist)] {
            assert_eq!(create(listed, name, how).await, mode_of_file, "{vers} {how:?}");
            assert_eq!(create(plain.id, name, how).await, 0o600, "{vers} {how:?}");
        }
        // With an owner, which is set after an exclusive create, and the mode with it.
        let made = nfs.lookup(&own, listed.entry(b"a")).await.unwrap();
        let owned = SetAttr { uid: Some(made.uid), gid: Some(made.gid), ..masked(0o666) };
        let new = listed.entry(b"owned").with(&owned);
        let owned = nfs.create(&own, new, CreateMode::MustBeNew).await.unwrap().attr.mode;
        assert_eq!(owned, mode_of_file, "{vers}");
        let mkdir = async |dir: FileId| {
            let new = masked(0o777);
            nfs.mkdir(&own, dir.entry(b"d").with(&new)).await.unwrap().mode
        };
        assert_eq!(mkdir(listed).await, mode_of_dir, "{vers}");
        assert_eq!(mkdir(plain.id).await, 0o700, "{vers}");
        nfs.unmount().await;
    }
}

/// The client applies the umask itself, and sets the mode in a request of its own.
#[tokio::test]
async fn a_umask_that_the_server_does_not_apply_is_applied_all_the_same() {
    let served = Served::start();
    let own = Caller::Own;
    let none = SetAttr::default();
    for lacks in [Unmasked::Creates, Unmasked::ExclusiveCreates] {
        let between = Umaskless::to(served.addr, lacks).await;
        let url = format!("nfs://{}/?vers=4.2", between.addr).parse().unwrap();
        let nfs = NfsFs::mount(&url, &MountOptions::default()).await.unwrap();
        let dir = nfs.mkdir(&own, nfs.root().entry(b"dir").with(&none)).await.unwrap().id;
        let masked = |mode| SetAttr { mode: Some(mode), umask: Some(0o027), ..SetAttr::default() };
        for (name, how) in [(b"a", CreateMode::MustBeNew), (b"b", CreateMode::MayExist)] {
            let new = masked(0o666);
            let made = nfs.create(&own, dir.entry(name).with(&new), how).await.unwrap().attr;
            assert_eq!(made.mode, 0o640, "{lacks:?} {how:?}");
        }
        let new = masked(0o777);
        let made = nfs.mkdir(&own, dir.entry(b"d").with(&new)).await.unwrap();
        assert_eq!(made.mode, 0o750, "{lacks:?}");
        nfs.symlink(&own, dir.entry(b"link").with(&new), b"a").await.unwrap();
        assert_eq!(between.offended(), 0, "{lacks:?}: it sent what the server does not take");
        for name in [b"a", b"b"] {
            nfs.unlink(&own, dir.entry(name)).await.unwrap();
        }
        nfs.unlink(&own, dir.entry(b"link")).await.unwrap();
        nfs.rmdir(&own, dir.entry(b"d")).await.unwrap();
        nfs.rmdir(&own, nfs.root().entry(b"dir")).await.unwrap();
        nfs.unmount().await;
    }
}
