//! Access rights.

use super::*;
use weir_nfs::Data;
use weir_nfs::v3::op::{read, readdirplus, setattr, write};
use weir_nfs::v3::types::{SetTime, Time};

/// A user other than the owner of the export's root and the superuser.
const OTHER: u32 = 54_321;

fn read_of(file: &FileHandle) -> read::Args {
    read::Args { file: file.clone(), offset: 0, count: 100 }
}

fn write_of(file: &FileHandle) -> write::Args {
    let data = Data::from(Bytes::from_static(b"bytes"));
    let stable = write::Stability::FileSync;
    write::Args { file: file.clone(), offset: 0, count: 5, stable, data }
}

async fn set_mode(c: &mut Client, object: &FileHandle, mode: u32) {
    let set = SetAttr { mode: Some(mode), ..SetAttr::NONE };
    c.call(&setattr::Args { object: object.clone(), set, guard: None }).await.unwrap();
}

/// Whether users are distinguished: the local store acts as its callers only if the tests run as
/// root.
pub(super) fn is_told_apart(f: &Fixture) -> bool {
    let told_apart = f.uid == 0 || f.is_memory;
    if !told_apart {
        weir_skip::skip("the local store acts as its callers only for the superuser");
    }
    told_apart
}

#[tokio::test]
async fn execute_permission_allows_reading_a_program() {
    on_every_store(async |f| {
        if !is_told_apart(&f) {
            return;
        }
        let mut c = f.client().await;
        let root = c.root.clone();
        set_mode(&mut c, &root, 0o755).await;
        let file = c.file("program").await;
        c.call(&write_of(&file)).await.unwrap();
        let mut other = f.client_as(OTHER).await;
        for (mode, readable) in [(0o711, true), (0o700, false), (0o744, true)] {
            set_mode(&mut c, &file, mode).await;
            let read = other.call(&read_of(&file)).await;
            assert_eq!(read.is_ok(), readable, "{mode:o}");
            assert_eq!(status(other.call(&write_of(&file)).await), Error::Access, "{mode:o}");
        }
    })
    .await;
}

#[tokio::test]
async fn readdir_and_lookupp_require_search_permission() {
    on_every_store(async |f| {
        if !is_told_apart(&f) {
            return;
        }
        let mut c = f.client().await;
        let root = c.root.clone();
        set_mode(&mut c, &root, 0o755).await;
        let dir = c.dir("dir").await;
        let target = DirOp::new(dir.clone(), "file");
        c.call(&create::Args { target, how: How::Guarded(SetAttr::NONE) }).await.unwrap();
        set_mode(&mut c, &dir, 0o744).await;
        let list = readdirplus::Args {
            dir: dir.clone(),
            cookie: 0,
            verifier: [0; 8],
            dir_count: 4096,
            max_count: 4096,
        };
        let listed = c.call(&list).await.unwrap();
        assert!(listed.entries.0.iter().all(|e| e.handle.is_some() && e.attr.is_some()));
        let mut other = f.client_as(OTHER).await;
        let listed = other.call(&list).await.unwrap();
        assert_eq!(listed.entries.0.len(), 3);
        assert!(listed.entries.0.iter().all(|e| e.handle.is_none() && e.attr.is_none()));
        for name in [".", "..", "file"] {
            assert_eq!(other.lookup(&dir, name).await, Err(Error::Access), "{name}");
        }
    })
    .await;
}

#[tokio::test]
async fn times_set_by_a_user_do_not_pass_as_a_create_verifier() {
    on_every_store(async |f| {
        if !is_told_apart(&f) {
            return;
        }
        let mut c = f.client().await;
        let root = c.root.clone();
        set_mode(&mut c, &root, 0o777).await;
        let args = create::Args {
            target: c.in_root("file"),
            how: How::Exclusive([0, 0, 0, 1, 0, 0, 0, 2]),
        };
        // An empty file with the times that once encoded this verifier.
        let file = c.file("file").await;
        let at = |seconds| SetTime::To(Time { seconds, nseconds: 0 });
        let set = SetAttr { atime: at(1), mtime: at(2), ..SetAttr::NONE };
        c.call(&setattr::Args { object: file, set, guard: None }).await.unwrap();
        assert_eq!(status(c.call(&args).await), Error::Exist);
        // Another user's file, with any verifier.
        let mut other = f.client_as(OTHER).await;
        let args = create::Args { target: c.in_root("lock"), ..args };
        c.call(&args).await.unwrap();
        assert_eq!(status(other.call(&args).await), Error::Exist);
        c.call(&args).await.unwrap();
    })
    .await;
}
