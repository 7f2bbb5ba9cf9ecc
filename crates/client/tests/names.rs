//! Renames that must not replace, over Weir's own server: no version has a request for them.

mod common;

use common::Served;
use std::sync::Arc;
use std::time::Duration;
use weir_client::NfsFs;
use weir_stores::fault::{Call, Fault, Rule, What, When};
use weir_stores::memory::MemoryFs;
use weir_vfs::{Caller, CreateMode, Cred, Error, FileId, FileSystem, RenameFlags, SetAttr};

const VERSIONS: [&str; 4] = ["3", "4.0", "4.1", "4.2"];

async fn made_file(nfs: &NfsFs, dir: FileId, name: &[u8], set: &SetAttr) {
    let new = dir.entry(name).with(set);
    nfs.create(&Caller::Own, new, CreateMode::MustBeNew).await.unwrap();
}

async fn names_of(nfs: &NfsFs, dir: FileId, name: &[u8]) -> Result<u32, Error> {
    nfs.lookup(&Caller::Own, dir.entry(name)).await.map(|attr| attr.nlink)
}

#[tokio::test]
async fn a_rename_that_must_not_replace_and_fails_leaves_no_second_name() {
    let served = Served::start();
    for version in VERSIONS {
        let nfs = served.mount(&format!("vers={version}")).await;
        let directory = async |name: String, mode| {
            let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
            let new = nfs.root();
            nfs.mkdir(&Caller::Own, new.entry(name.as_bytes()).with(&set)).await.unwrap().id
        };
        let from = directory(format!("from-{version}"), 0o755).await;
        let to = directory(format!("to-{version}"), 0o777).await;
        let owned = SetAttr { mode: Some(0o644), uid: Some(1000), ..SetAttr::default() };
        made_file(&nfs, from, b"file", &owned).await;
        let user = Caller::As(Cred { uid: 1000, gid: 1000, groups: Vec::new() });
        let rename = async |to: FileId| {
            let (old, new) = (from.entry(b"file"), to.entry(b"new"));
            nfs.rename(&user, old, new, RenameFlags::NoReplace).await
        };
        assert_eq!(rename(to).await, Err(Error::AccessDenied), "{version}");
        assert_eq!(names_of(&nfs, to, b"new").await, Err(Error::NotFound), "{version}");
        assert_eq!(names_of(&nfs, from, b"file").await, Ok(1), "{version}");
        let writable = SetAttr { mode: Some(0o777), ..SetAttr::default() };
        nfs.setattr(&Caller::Own, from, &writable).await.unwrap();
        assert_eq!(rename(to).await, Ok(()), "{version}");
        assert_eq!(names_of(&nfs, to, b"new").await, Ok(1), "{version}");
        nfs.unmount().await;
    }
}

/// The other one comes between the two requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_another_program_moves_meanwhile_is_moved_once() {
    let mut served = Served::start();
    let inner = MemoryFs::new();
    let fault = Fault::over(inner.clone(), 1);
    served.store = fault.clone();
    served.restart();
    let stored = inner.root();
    for version in VERSIONS {
        for is_removed in [false, true] {
            let nfs = served.mount(&format!("vers={version}")).await;
            let root = nfs.root();
            made_file(&nfs, root, b"file", &SetAttr::default()).await;
            fault.add(Rule { call: Call::Unlink, when: When::Nth(0), what: What::Hold });
            let mover = Arc::clone(&nfs);
            let rename = tokio::spawn(async move {
                let (old, new) = (root.entry(b"file"), root.entry(b"mine"));
                mover.rename(&Caller::Own, old, new, RenameFlags::NoReplace).await
            });
            while fault.held() == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let (old, theirs) = (stored.entry(b"file"), stored.entry(b"theirs"));
            if is_removed {
                inner.unlink(&Caller::Own, old).await.unwrap();
            } else {
                inner.rename(&Caller::Own, old, theirs, RenameFlags::Replace).await.unwrap();
            }
            fault.clear();
            fault.release();
            assert_eq!(rename.await.unwrap(), Err(Error::NotFound), "{version}");
            // Its last name stays in any case.
            let (left, gone) = match is_removed {
                true => (&b"mine"[..], &b"theirs"[..]),
                false => (&b"theirs"[..], &b"mine"[..]),
            };
            assert_eq!(names_of(&nfs, root, left).await, Ok(1), "{version}");
            assert_eq!(names_of(&nfs, root, gone).await, Err(Error::NotFound), "{version}");
            nfs.unlink(&Caller::Own, root.entry(left)).await.unwrap();
            nfs.unmount().await;
        }
    }
}
