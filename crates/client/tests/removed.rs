//! Files that are removed while they are open, over Weir's own server.

mod common;

use async_trait::async_trait;
use common::between::Losing;
use common::{Served, opened};
use std::sync::Arc;
use std::time::Duration;
use weir_client::{MountOptions, NfsFs};
use weir_nfs::v3::Procedure;
use weir_nfs::v4::{OpCode, PROGRAM};
use weir_stores::memory::MemoryFs;
use weir_stores::testing::{new_file, read_all, write};
use weir_vfs::{
    Access, Attr, Caller, CreateMode, EntryName, Error, FileId, FileSystem, FileSystemDecorator,
    ReaddirRequest, RenameFlags, SetAttr, Unnamed, WholeFile,
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

async fn names(nfs: &NfsFs) -> Vec<Vec<u8>> {
    let list = ReaddirRequest { dir: nfs.root(), cookie: 0, max_entries: 9, with_attr: false };
    let names = nfs.readdir(&Caller::Own, list).await.unwrap().entries;
    names.into_iter().map(|entry| entry.name).collect()
}

/// A store that makes no links, and does not rename the file `refused`.
struct NoLinks(Arc<MemoryFs>);

#[async_trait]
impl FileSystemDecorator for NoLinks {
    fn below(&self) -> &dyn FileSystem {
        &*self.0
    }

    async fn link(&self, _: &Caller, _: FileId, _: EntryName<'_>) -> weir_vfs::Result<Attr> {
        Err(Error::NotPermitted)
    }

    async fn rename(
        &self,
        caller: &Caller,
        from: EntryName<'_>,
        to: EntryName<'_>,
        flags: RenameFlags,
    ) -> weir_vfs::Result<()> {
        FileSystemDecorator::rename_counted(self, caller, from, to, flags).await.map(drop)
    }

    async fn rename_counted(
        &self,
        caller: &Caller,
        from: EntryName<'_>,
        to: EntryName<'_>,
        flags: RenameFlags,
    ) -> weir_vfs::Result<Option<Unnamed>> {
        match from.name {
            b"refused" => Err(Error::NoSpace),
            _ => self.0.rename_counted(caller, from, to, flags).await,
        }
    }
}

#[tokio::test]
async fn a_replaced_open_file_stays_where_the_server_makes_no_links() {
    let mut served = Served::start();
    served.store = Arc::new(NoLinks(MemoryFs::new()));
    served.restart();
    for version in ["3", "4.0"] {
        let nfs = served.mount(&format!("vers={version}")).await;
        let (fs, root): (Arc<dyn FileSystem>, _) = (nfs.clone(), nfs.root());
        for name in ["file", "new", "refused"] {
            write(&*new_file(&fs, root, name).await, 0, name.as_bytes()).await.unwrap();
        }
        let open = opened(&nfs, b"file").await;
        let rename = async |from: &'static [u8]| {
            let (from, to) = (root.entry(from), root.entry(b"file"));
            nfs.rename(&Caller::Own, from, to, RenameFlags::Replace).await
        };
        assert_eq!(rename(b"refused").await, Err(Error::NoSpace), "{version}");
        assert_eq!(names(&nfs).await.len(), 3, "{version}: {:?}", names(&nfs).await);
        assert_eq!(read_all(&*opened(&nfs, b"file").await, 100).await, b"file", "{version}");

        assert_eq!(rename(b"new").await, Ok(()), "{version}");
        assert_eq!(names(&nfs).await.len(), 3, "{version}: with the hidden one");
        assert_eq!(read_all(&*open, 100).await, b"file", "{version}");
        assert_eq!(read_all(&*opened(&nfs, b"file").await, 100).await, b"new", "{version}");
        drop(open);
        nfs.unmount().await;
        let nfs = served.mount(&format!("vers={version}")).await;
        let mut left = names(&nfs).await;
        left.sort();
        assert_eq!(left, [&b"file"[..], b"refused"], "{version}");
        for name in left {
            nfs.unlink(&Caller::Own, root.entry(&name)).await.unwrap();
        }
        nfs.unmount().await;
    }
}

/// The rename is executed, and its reply is lost. When it is sent again, its source is gone, and so is what it made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replaced_open_file_stays_although_the_rename_seems_to_have_failed() {
    let served = Served::start();
    let losing = Losing::to(served.addr).await;
    let other = served.mount("vers=4.2").await;
    for (version, rename) in [("3", Procedure::Rename as u32), ("4.0", OpCode::Rename as u32)] {
        let port = losing.addr.port();
        let url = format!("nfs://{}/?vers={version}&mountport={port}", losing.addr);
        let nfs = NfsFs::mount(&url.parse().unwrap(), &MountOptions::default()).await.unwrap();
        let (fs, root): (Arc<dyn FileSystem>, _) = (nfs.clone(), nfs.root());
        write(&*new_file(&fs, root, "file").await, 0, b"old").await.unwrap();
        write(&*new_file(&fs, root, "new").await, 0, b"new").await.unwrap();
        let open = opened(&nfs, b"file").await;
        losing.lose(PROGRAM, rename);
        let closed = losing.closed().await;
        let client = Arc::clone(&nfs);
        let renaming = tokio::spawn(async move {
            let (from, to) = (root.entry(b"new"), root.entry(b"file"));
            client.rename(&Caller::Own, from, to, RenameFlags::Replace).await
        });
        while !losing.has_lost() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let (from, to) = (other.root().entry(b"file"), other.root().entry(b"moved"));
        other.rename(&Caller::Own, from, to, RenameFlags::Replace).await.unwrap();
        drop(closed);
        assert_eq!(renaming.await.unwrap(), Err(Error::NotFound), "{version}");
        let found = names(&nfs).await;
        assert!(found.iter().any(|name| name.starts_with(b".nfs")), "{version}: {found:?}");
        assert_eq!(read_all(&*open, 100).await, b"old", "{version}");
        drop(open);
        nfs.unmount().await;
        assert_eq!(names(&other).await, [b"moved"], "{version}");
        other.unlink(&Caller::Own, other.root().entry(b"moved")).await.unwrap();
    }
    other.unmount().await;
}
