//! MOUNT.

use super::*;
use weir_rpc::AuthFlavor;

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
async fn who_mounted_what_is_told_until_unmounted() {
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
