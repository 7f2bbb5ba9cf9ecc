//! Files that are removed while they are open, over Weir's own server.

mod common;

use common::{Served, opened};
use std::sync::Arc;
use std::time::Duration;
use weir_client::Export;
use weir_stores::memory::MemoryFs;
use weir_stores::testing::{Moving, new_file, read_all, write};
use weir_vfs::{
    Access, Caller, CreateMode, Error, FileId, FileSystem, ReaddirRequest, RenameFlags, SetAttr,
    Unnamed, WholeFile,
};

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

/// As by editors that write a file anew while a program reads it.
#[tokio::test]
async fn a_file_that_is_replaced_while_it_is_open_stays_until_it_is_closed() {
    let served = Served::start();
    for version in VERSIONS {
        let nfs = served.mount(&format!("vers={version}")).await;
        let fs: Arc<dyn FileSystem> = nfs.clone();
        let root = nfs.root();
        write(&*new_file(&fs, root, "file").await, 0, b"old").await.unwrap();
        write(&*new_file(&fs, root, "new").await, 0, b"new").await.unwrap();
        let open = opened(&nfs, b"file").await;
        let id = open.getattr().await.unwrap().id;
        let rename = async |from: &'static [u8]| {
            let (from, to) = (root.entry(from), root.entry(b"file"));
            nfs.rename_counted(&Caller::Own, from, to, RenameFlags::Replace).await
        };
        assert_eq!(rename(b"file").await, Ok(Some(Unnamed { id, nlink: 1 })), "{version}: itself");
        assert_eq!(rename(b"new").await, Ok(Some(Unnamed { id, nlink: 0 })), "{version}");
        assert_eq!(read_all(&*open, 100).await, b"old", "version {version}");
        assert_eq!(write(&*open, 0, b"more").await, Ok(()), "version {version}");
        assert_eq!(read_all(&*opened(&nfs, b"file").await, 100).await, b"new");
        drop(open);
        nfs.unmount().await;
        let nfs = served.mount(&format!("vers={version}")).await;
        let list = ReaddirRequest { dir: root, cookie: 0, max_entries: 9, with_attr: false };
        let names = nfs.readdir(&Caller::Own, list).await.unwrap().entries;
        let names: Vec<_> = names.into_iter().map(|entry| entry.name).collect();
        assert_eq!(names, [b"file"], "version {version}");
        nfs.unlink(&Caller::Own, root.entry(b"file")).await.unwrap();
        nfs.unmount().await;
    }
}

/// As by `rm -r` of the directory, which lists the hidden name as well.
#[tokio::test]
async fn a_removed_file_stays_until_it_is_closed_although_its_hidden_name_is_removed() {
    let served = Served::start();
    for version in ["3", "4.0"] {
        let nfs = served.mount(&format!("vers={version}")).await;
        let fs: Arc<dyn FileSystem> = nfs.clone();
        let root = nfs.root();
        write(&*new_file(&fs, root, "file").await, 0, b"old").await.unwrap();
        let open = opened(&nfs, b"file").await;
        nfs.unlink(&Caller::Own, root.entry(b"file")).await.unwrap();
        let names = async || {
            let list = ReaddirRequest { dir: root, cookie: 0, max_entries: 9, with_attr: false };
            let names = nfs.readdir(&Caller::Own, list).await.unwrap().entries;
            names.into_iter().map(|entry| entry.name).collect::<Vec<_>>()
        };
        for _ in 0..2 {
            let [hidden] = &names().await[..] else { panic!("{version}: {:?}", names().await) };
            nfs.unlink(&Caller::Own, root.entry(hidden)).await.unwrap();
            assert_eq!(read_all(&*open, 100).await, b"old", "version {version}");
        }
        drop(open);
        nfs.unmount().await;
        let nfs = served.mount(&format!("vers={version}")).await;
        let list = ReaddirRequest { dir: root, cookie: 0, max_entries: 9, with_attr: false };
        assert!(nfs.readdir(&Caller::Own, list).await.unwrap().entries.is_empty(), "{version}");
        nfs.unmount().await;
    }
}

#[tokio::test]
async fn an_open_file_is_not_replaced_whole_where_its_users_would_lose_it() {
    let served = Served::start();
    for version in ["3", "4.0"] {
        let nfs = served.mount(&format!("vers={version}")).await;
        let fs: Arc<dyn FileSystem> = nfs.clone();
        let root = nfs.root();
        write(&*new_file(&fs, root, "file").await, 0, b"old").await.unwrap();
        let open = opened(&nfs, b"file").await;
        let new = WholeFile {
            temporary: b"temporary".to_vec(),
            name: b"file".to_vec(),
            replaced: Some(open.getattr().await.unwrap().id),
            data: Vec::new(),
            size: 0,
            mode: 0o644,
            owner: None,
            times: None,
        };
        assert_eq!(nfs.put_whole(&Caller::Own, root, &new).await, Ok(None), "{version}");
        assert_eq!(read_all(&*open, 100).await, b"old", "version {version}");
        drop(open);
        nfs.unlink(&Caller::Own, root.entry(b"file")).await.unwrap();
        nfs.unmount().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_that_is_moved_out_of_a_tree_keeps_its_files() {
    let mut served = Served::start();
    for (version, replaces) in [("3", false), ("3", true), ("4.2", false), ("4.2", true)] {
        let (store, own) = (MemoryFs::new(), &Caller::Own);
        let set = SetAttr { mode: Some(0o777), ..SetAttr::default() };
        let make = async |dir: FileId, name: &[u8]| {
            store.mkdir(own, dir.entry(name).with(&set)).await.unwrap().id
        };
        let (top, kept) = (make(store.root(), b"top").await, make(store.root(), b"kept").await);
        let (a, b) = (make(top, b"a").await, make(top, b"b").await);
        for dir in [a, b] {
            let new = dir.entry(b"f").with(&set);
            store.create(own, new, CreateMode::MustBeNew).await.unwrap();
        }
        let moving = Moving::new(store.clone(), top.entry(b"b"), kept.entry(b"b"), (vec![top], 0));
        served.store = Arc::new(moving.replacing(replaces));
        served.restart();
        let url = format!("nfs://{}/?vers={version}", served.addr);
        let export = Export::connect(&url).await.unwrap();
        let removed = export.remove_dir_all("top").await;
        assert_eq!(removed.is_err(), replaces, "NFSv{version}: {removed:?}");
        assert!(store.lookup(own, b.entry(b"f")).await.is_ok(), "the only copy is lost");
        assert_eq!(store.lookup(own, store.root().entry(b"top")).await.is_ok(), replaces);
    }
}
