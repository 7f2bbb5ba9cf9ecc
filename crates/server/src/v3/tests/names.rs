//! LOOKUP, CREATE, MKDIR, SYMLINK, READLINK, MKNOD, LINK, RENAME, REMOVE, RMDIR.

use super::*;
use weir_nfs::v3::op::mknod::What;
use weir_nfs::v3::op::{link, mknod, readlink, remove, rename, rmdir, symlink};
use weir_nfs::v3::types::{FileType, WccAttr, WccData};

/// Asserts that `wcc` encloses one change of a directory, from the attributes `before` to the
/// current ones.
async fn assert_around(c: &mut Client, wcc: WccData, before: &Attr) {
    let Attr { size, mtime, ctime, .. } = *before;
    assert_eq!(wcc.before, Some(WccAttr { size, mtime, ctime }));
    let root = c.root.clone();
    assert_eq!(wcc.after, Some(c.attr(&root).await));
}

#[tokio::test]
async fn lookup_finds_files_dot_and_dot_dot() {
    on_every_store(async |f| {
        let mut c = f.client().await;
        let root = c.root.clone();
        let dir = c.dir("dir").await;
        let file = c.file("file").await;
        assert_eq!(c.lookup(&root, "file").await, Ok(file.clone()));
        assert_eq!(c.lookup(&dir, ".").await, Ok(dir.clone()));
        assert_eq!(c.lookup(&dir, "..").await, Ok(root.clone()));
        assert_eq!(c.lookup(&root, "..").await, Ok(root.clone()));
        assert_eq!(c.lookup(&root, "none").await, Err(Error::NoEnt));
        assert_eq!(c.lookup(&root, "a/b").await, Err(Error::Inval));
        assert_eq!(c.lookup(&root, "").await, Err(Error::Inval));
        assert_eq!(c.lookup(&root, &"n".repeat(256)).await, Err(Error::NameTooLong));
        assert_eq!(c.lookup(&file, "x").await, Err(Error::NotDir));
        assert_eq!(c.lookup(&file, ".").await, Err(Error::NotDir));
    })
    .await;
}

#[tokio::test]
async fn unchecked_create_opens_and_guarded_create_refuses_an_existing_file() {
    on_every_store(async |f| {
        let mut c = f.client().await;
        let root = c.root.clone();
        let before = c.attr(&root).await;
        let sized = |size| SetAttr { size, mode: Some(0o640), ..SetAttr::NONE };
        let how = |how| create::Args { target: DirOp::new(root.clone(), "file"), how };
        let made = c.call(&how(How::Unchecked(sized(Some(100))))).await.unwrap();
        assert_around(&mut c, made.dir, &before).await;
        assert_eq!(made.attr.as_ref().map(|a| (a.size, a.mode)), Some((100, 0o640)));
        let again = SetAttr { mode: Some(0o777), ..sized(None) };
        let found = c.call(&how(How::Unchecked(again))).await.unwrap();
        assert_eq!(found.handle, made.handle);
        assert_eq!(found.attr.map(|a| (a.size, a.mode)), Some((100, 0o640)));
        let truncated = c.call(&how(How::Unchecked(sized(Some(0))))).await.unwrap();
        assert_eq!(truncated.attr.map(|a| a.size), Some(0));
        assert_eq!(status(c.call(&how(How::Guarded(sized(None)))).await), Error::Exist);
        let dots = create::Args { target: c.in_root(".."), how: How::Guarded(sized(None)) };
        assert_eq!(status(c.call(&dots).await), Error::Exist);
    })
    .await;
}

#[tokio::test]
async fn a_repeated_exclusive_create_is_recognised_by_its_verifier() {
    on_every_store(async |f| {
        let mut c = f.client().await;
        let target = c.in_root("lock");
        let how = |verifier| create::Args { target: target.clone(), how: How::Exclusive(verifier) };
        let verifier = [0xfe, 1, 2, 3, 0x90, 5, 6, 7];
        let made = c.call(&how(verifier)).await.unwrap();
        let again = c.call(&how(verifier)).await.unwrap();
        assert_eq!(again.handle, made.handle);
        let mode = made.attr.map(|attr| attr.mode);
        assert_eq!(mode, Some(0o600), "synced by a server that is its owner, not with all others");
        assert_eq!(status(c.call(&how([9; 8])).await), Error::Exist);
    })
    .await;
}

#[tokio::test]
async fn directories_are_created_and_removed() {
    on_every_store(async |f| {
        let mut c = f.client().await;
        let root = c.root.clone();
        let dir = c.dir("dir").await;
        assert_eq!(c.attr(&dir).await.kind, FileType::Dir);
        let again = mkdir::Args { target: c.in_root("dir"), set: SetAttr::NONE };
        assert_eq!(status(c.call(&again).await), Error::Exist);
        let inner = create::Args {
            target: DirOp::new(dir.clone(), "inner"),
            how: How::Guarded(SetAttr::NONE),
        };
        c.call(&inner).await.unwrap();
        let rmdir = rmdir::Args { target: c.in_root("dir") };
        assert_eq!(status(c.call(&rmdir).await), Error::NotEmpty);
        let remove = remove::Args { target: c.in_root("dir") };
        assert_eq!(status(c.call(&remove).await), Error::IsDir);
        c.call(&remove::Args { target: DirOp::new(dir.clone(), "inner") }).await.unwrap();
        let before = c.attr(&root).await;
        let wcc = c.call(&rmdir).await.unwrap();
        assert_around(&mut c, wcc, &before).await;
        assert_eq!(status(c.call(&rmdir).await), Error::NoEnt);
        assert_eq!(status(c.call(&getattr::Args { object: dir }).await), Error::Stale);
    })
    .await;
}

#[tokio::test]
async fn hard_and_symbolic_links() {
    on_every_store(async |f| {
        let mut c = f.client().await;
        let file = c.file("file").await;
        let target = c.in_root("soft");
        let args = symlink::Args { target, set: SetAttr::NONE, path: "../over/there".into() };
        let soft = c.call(&args).await.unwrap();
        assert_eq!(soft.attr.map(|a| a.kind), Some(FileType::Lnk));
        let args = readlink::Args { link: soft.handle.unwrap() };
        assert_eq!(&*c.call(&args).await.unwrap().target, b"../over/there");
        assert_eq!(status(c.call(&readlink::Args { link: file.clone() }).await), Error::Inval);

        let args = link::Args { file: file.clone(), link: c.in_root("hard") };
        assert_eq!(c.call(&args).await.unwrap().file.map(|a| a.nlink), Some(2));
        let root = c.root.clone();
        assert_eq!(c.lookup(&root, "hard").await, Ok(file.clone()));
        let failure = c.call(&args).await.unwrap_err();
        assert_eq!(failure.status, Error::Exist);
        assert_eq!(failure.rest.file, Some(c.attr(&file).await));
    })
    .await;
}

#[tokio::test]
async fn special_files() {
    on_every_store(async |f| {
        let mut c = f.client().await;
        for (name, what, kind) in [
            ("fifo", What::Fifo(SetAttr::NONE), FileType::Fifo),
            ("socket", What::Sock(SetAttr::NONE), FileType::Sock),
        ] {
            let made = c.call(&mknod::Args { target: c.in_root(name), what }).await.unwrap();
            assert_eq!(made.attr.map(|a| a.kind), Some(kind));
        }
        for what in [What::Reg, What::Dir, What::Lnk] {
            let args = mknod::Args { target: c.in_root("x"), what };
            assert_eq!(status(c.call(&args).await), Error::BadType);
        }
    })
    .await;
}

#[tokio::test]
async fn rename_moves_and_replaces() {
    on_every_store(async |f| {
        let mut c = f.client().await;
        let root = c.root.clone();
        let dir = c.dir("dir").await;
        let a = c.file("a").await;
        let b = c.file("b").await;
        let rename = |from: &str, dir: &FileHandle, to: &str| rename::Args {
            from: DirOp::new(root.clone(), from.as_bytes().to_vec()),
            to: DirOp::new(dir.clone(), to.as_bytes().to_vec()),
        };
        let before = c.attr(&root).await;
        let dirs = c.call(&rename("a", &dir, "moved")).await.unwrap();
        assert_around(&mut c, dirs.from, &before).await;
        assert!(dirs.to.before.is_some());
        assert_eq!(c.lookup(&dir, "moved").await, Ok(a.clone()));
        assert_eq!(c.lookup(&root, "a").await, Err(Error::NoEnt));
        c.call(&rename("b", &dir, "moved")).await.unwrap();
        assert_eq!(c.lookup(&dir, "moved").await, Ok(b));
        assert_eq!(status(c.call(&getattr::Args { object: a }).await), Error::Stale);
        assert_eq!(status(c.call(&rename("none", &root, "x")).await), Error::NoEnt);
        assert_eq!(status(c.call(&rename("dir", &dir, "below")).await), Error::Inval);
        c.file("plain").await;
        assert_eq!(status(c.call(&rename("dir", &root, "plain")).await), Error::NotDir);
        assert_eq!(status(c.call(&rename("plain", &root, "dir")).await), Error::IsDir);
    })
    .await;
}
