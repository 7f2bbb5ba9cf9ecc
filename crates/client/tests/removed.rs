//! Files that are removed while they are open, over Weir's own server.

mod common;

use common::Served;
use std::time::Duration;
use weir_vfs::{Access, Caller, CreateMode, Error, FileSystem, SetAttr};

const VERSIONS: [&str; 4] = ["3", "4.0", "4.1", "4.2"];

#[tokio::test]
async fn a_directory_is_removed_while_its_removed_files_are_being_closed() {
    let served = Served::start();
    for version in VERSIONS {
        let nfs = served.mount(&format!("vers={version}")).await;
        let (root, set) = (nfs.root(), SetAttr::default());
        let dir = nfs.mkdir(&Caller::Own, root.entry(b"dir").with(&set)).await.unwrap().id;
        let new = dir.entry(b"f").with(&set);
        let made = nfs.create(&Caller::Own, new, CreateMode::MustBeNew).await.unwrap();
        let open = nfs.open(&Caller::Own, made.attr.id, Access::READ).await.unwrap();
        nfs.unlink(&Caller::Own, dir.entry(b"f")).await.unwrap();
        if version == "3" {
            // The file's hidden name keeps it.
            let refused = nfs.rmdir(&Caller::Own, root.entry(b"dir")).await;
            assert_eq!(refused, Err(Error::NotEmpty));
        }
        let close = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            drop(open);
        };
        let removed = nfs.rmdir(&Caller::Own, root.entry(b"dir"));
        let (removed, ()) = tokio::join!(removed, close);
        assert_eq!(removed, Ok(()), "version {version}");
        nfs.unmount().await;
    }
}
