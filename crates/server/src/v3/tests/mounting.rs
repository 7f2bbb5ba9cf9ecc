//! MOUNT.

use super::*;
use crate::export::{ClientAccess, ClientRule};
use weir_rpc::AuthFlavor;
use weir_xdr::Opaque;

#[tokio::test]
async fn directories_are_mounted_by_path() {
    on_every_store(async |f| {
        let mut c = f.client().await;
        let sub = c.dir("sub").await;
        c.file("plain").await;
        let ok = c.mount("/sub").await.unwrap();
        assert_eq!(ok.handle, sub);
        assert_eq!(ok.flavors[0], AuthFlavor::SYS);
        assert_eq!(c.mount("//./sub/").await.unwrap().handle, sub);
        assert_eq!(c.mount("/plain").await, Err(mount::Error::NotDir));
        assert_eq!(c.mount("/plain/x").await, Err(mount::Error::NotDir));
        assert_eq!(c.mount("/none").await, Err(mount::Error::NoEnt));
        assert_eq!(c.mount("/sub/..").await, Err(mount::Error::Inval));
        assert_eq!(c.mount("sub").await, Err(mount::Error::Inval));
        assert_eq!(c.mount(&format!("/{}", "n".repeat(300))).await, Err(mount::Error::NameTooLong));
    })
    .await;
}

#[tokio::test]
async fn dump_lists_mounts_until_they_are_unmounted() {
    let f = Fixture::new("memory", ExportOptions::default()).await;
    let mut c = f.client().await;
    c.call_mount(&mount::Null {}).await;
    c.mount("/").await.unwrap();
    let mounted = |path: &str| mount::Mounted { host: "127.0.0.1".into(), path: path.into() };
    assert_eq!(c.call_mount(&mount::Dump {}).await.0, [mounted("/")]);
    c.mount("//").await.unwrap();
    assert_eq!(c.call_mount(&mount::Dump {}).await.0, [mounted("/"), mounted("//")]);
    c.call_mount(&mount::Umnt { path: "/".into() }).await;
    assert_eq!(c.call_mount(&mount::Dump {}).await.0, [mounted("//")]);
    c.call_mount(&mount::Umntall {}).await;
    assert_eq!(c.call_mount(&mount::Dump {}).await.0, []);
    let exported = c.call_mount(&mount::Export {}).await.0;
    assert_eq!(exported.len(), 1);
    assert_eq!((&*exported[0].path, exported[0].groups.0.len()), (&b"/"[..], 0));
}

/// Windows' client is reported to fail to rename anything in an export mounted as `/`.
#[tokio::test]
async fn a_single_export_is_also_mounted_by_its_directorys_path() {
    let config =
        Config { budget_bytes: 16 << 20, fast_read: true, readahead_bytes: 0, ..Config::default() };
    let fs = Cache::new(config).unwrap().mount(MemoryFs::new());
    let options = ExportOptions { squash: Squash::Nobody, ..Default::default() };
    let export = Export { path: "/".into(), source: "/srv/images".into(), fs, options };
    let f = Fixture::serve(vec![export], 0, tempfile::tempdir().unwrap()).await;
    let mut c = f.connect(0).await;
    let root = c.mount("/").await.unwrap().handle;
    assert_eq!(c.mount("/srv/images").await.unwrap().handle, root);
    assert_eq!(c.mount("/srv/images/none").await, Err(mount::Error::NoEnt));
    assert_eq!(c.mount("/srv").await, Err(mount::Error::NoEnt));
    // A directory within the export takes precedence.
    let name = DirOp::new(root.clone(), b"srv".to_vec());
    let set = SetAttr { mode: Some(0o755), ..SetAttr::NONE };
    let srv = c.call(&mkdir::Args { target: name, set }).await.unwrap().handle.unwrap();
    assert_eq!(c.mount("/srv").await.unwrap().handle, srv);
    assert_eq!(c.mount("/srv/images").await.unwrap().handle, root);
    let set = SetAttr { mode: Some(0o755), ..SetAttr::NONE };
    let images = mkdir::Args { target: DirOp::new(srv, b"images".to_vec()), set };
    let images = c.call(&images).await.unwrap().handle.unwrap();
    assert_eq!(c.mount("/srv/images").await.unwrap().handle, images);
}

#[tokio::test]
async fn several_exports_are_mounted_by_path_within_their_networks() {
    let config =
        Config { budget_bytes: 16 << 20, fast_read: true, readahead_bytes: 0, ..Config::default() };
    let cache = Cache::new(config).unwrap();
    let rule = |network: &str, access| ClientRule {
        network: network.parse().unwrap(),
        access,
        squash: Some(Squash::Nobody),
    };
    let export = |path: &str, source: &str, clients| Export {
        path: path.into(),
        source: source.into(),
        fs: cache.mount(MemoryFs::new()),
        options: ExportOptions { clients, ..Default::default() },
    };
    let here = rule("127.0.0.1", ClientAccess::ReadWrite);
    let elsewhere = rule("192.0.2.0/24", ClientAccess::ReadWrite);
    let refused = rule("198.51.100.0/24", ClientAccess::None);
    let (a, b) =
        (export("/a", "/srv/real", vec![here, elsewhere, refused]), export("/a-b", "/a", vec![]));
    let shut = export("/shut", "/a/shut", vec![elsewhere]);
    let exports = vec![a.clone(), b.clone(), shut.clone()];
    let f = Fixture::serve(exports, 0, tempfile::tempdir().unwrap()).await;
    let mut c = f.connect(0).await;

    let root = c.mount("/a").await.unwrap().handle;
    let name = DirOp::new(root.clone(), b"sub".to_vec());
    let set = SetAttr { mode: Some(0o755), ..SetAttr::NONE };
    let sub = c.call(&mkdir::Args { target: name, set }).await.unwrap().handle.unwrap();
    assert_eq!(c.mount("/a/sub").await.unwrap().handle, sub);
    assert_eq!(c.mount("/srv/real/sub").await.unwrap().handle, sub, "by the directory's own path");
    assert_ne!(c.mount("/a-b").await.unwrap().handle, root);
    assert_eq!(c.mount("/shut").await, Err(mount::Error::Access));
    assert_eq!(c.mount("/").await, Err(mount::Error::NoEnt), "the tree above is NFSv4's");
    assert_eq!(c.mount("/ab").await, Err(mount::Error::NoEnt));

    let exported = c.call_mount(&mount::Export {}).await.0;
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let groups = |e: &mount::Exported| e.groups.0.iter().map(|g| text(g)).collect::<Vec<_>>();
    let exported: Vec<_> = exported.iter().map(|e| (text(&e.path), groups(e))).collect();
    let networks = ["127.0.0.1", "192.0.2.0/24"].map(String::from).to_vec();
    assert_eq!(
        exported,
        [
            ("/a".into(), networks.clone()),
            ("/a-b".into(), vec![]),
            ("/shut".into(), networks[1..].to_vec())
        ]
    );

    // Checked at every call, not only at MOUNT.
    let shut_a = Export {
        options: ExportOptions { clients: vec![elsewhere], ..Default::default() },
        ..a.clone()
    };
    f.exports.replace(vec![shut_a, b.clone()]).unwrap();
    let get = getattr::Args { object: sub.clone() };
    assert_eq!(c.call(&get).await.unwrap_err().status, Error::Access);
    f.exports.replace(vec![b.clone()]).unwrap();
    assert_eq!(c.call(&get).await.unwrap_err().status, Error::Stale);
    f.exports.replace(vec![b, a]).unwrap();
    assert!(c.call(&get).await.is_ok());
    // NFSv3 does not serve the pseudo file system.
    let above = f.exports.seal(f.exports.table().root());
    let get = getattr::Args { object: Opaque::copy_from(&above) };
    assert_eq!(c.call(&get).await.unwrap_err().status, Error::Stale);
}
