//! Habits of the NFSv3 clients of macOS and FreeBSD, one test each.

use super::*;
use weir_nfs::v3::op::access::{self, Rights};
use weir_nfs::v3::op::{commit, readdir, readdirplus, remove, rename, setattr, write};
use weir_nfs::v3::types::{SetTime, Time};

/// macOS stores metadata that the file system cannot hold in additional files, `._name` and
/// `.DS_Store`. They are created and removed like others, before and after the files that they
/// belong to.
#[tokio::test]
async fn macos_apple_double_files_are_files() {
    on_every_store(async |f| {
        let mut c = f.client().await;
        let root = c.root.clone();
        for name in ["._report", "report", ".DS_Store", "._.DS_Store"] {
            assert_eq!(c.lookup(&root, name).await, Err(Error::NoEnt));
            c.file(name).await;
        }
        let args = rename::Args { from: c.in_root("._report"), to: c.in_root("._moved") };
        c.call(&args).await.unwrap();
        assert_eq!(c.lookup(&root, "._report").await, Err(Error::NoEnt));
        for name in ["._moved", "report", "._.DS_Store", ".DS_Store"] {
            let args = remove::Args { target: c.in_root(name) };
            c.call(&args).await.unwrap();
        }
    })
    .await;
}

/// macOS asks for every access right, including some that NFSv3 does not have.
#[tokio::test]
async fn macos_requests_undefined_access_bits() {
    on_every_store(async |f| {
        let mut c = f.client().await;
        let file = c.file("file").await;
        let args = access::Args { object: file, rights: Rights::from_bits_retain(u32::MAX) };
        let granted = c.call(&args).await.unwrap();
        assert!(Rights::all().contains(granted.rights), "{:?}", granted.rights);
        assert!(granted.rights.contains(Rights::READ | Rights::MODIFY));
        // DELETE applies to directories only.
        assert!(!granted.rights.contains(Rights::DELETE | Rights::LOOKUP));
    })
    .await;
}

/// macOS and FreeBSD look up `.` and `..` by name.
#[tokio::test]
async fn macos_and_freebsd_look_up_dot_and_dot_dot() {
    on_every_store(async |f| {
        let mut c = f.client().await;
        let (root, dir) = (c.root.clone(), c.dir("dir").await);
        assert_eq!(c.lookup(&dir, ".").await, Ok(dir.clone()));
        assert_eq!(c.lookup(&dir, "..").await, Ok(root.clone()));
        assert_eq!(c.lookup(&root, "..").await, Ok(root), "there is nothing above an export");
    })
    .await;
}

/// Both create files exclusively by default, and set mode and times in a separate call, since the
/// server may keep the verifier in them. A retransmitted CREATE finds its file.
#[tokio::test]
async fn freebsd_and_macos_create_exclusively_and_then_set_attributes() {
    on_every_store(async |f| {
        let mut c = f.client().await;
        let how = How::Exclusive(*b"\x81verify\xff");
        let args = create::Args { target: c.in_root("file"), how: how.clone() };
        let made = c.call(&args).await.unwrap().handle.unwrap();
        let again = c.call(&args).await.unwrap().handle.unwrap();
        assert_eq!(again, made);
        let set = SetAttr {
            mode: Some(0o640),
            size: Some(0),
            atime: SetTime::Now,
            mtime: SetTime::Now,
            ..SetAttr::NONE
        };
        let args = setattr::Args { object: made.clone(), set, guard: None };
        c.call(&args).await.unwrap();
        let attr = c.attr(&made).await;
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let age = now.as_secs().abs_diff(attr.mtime.seconds.into());
        assert!(attr.mode == 0o640 && age < 60, "{attr:?}");
        let other = create::Args { target: c.in_root("file"), how: How::Exclusive(*b"another!") };
        assert_eq!(status(c.call(&other).await), Error::Exist);
    })
    .await;
}

/// Finder continues to read a directory while it deletes from it, with the verifier of its first
/// call. If refused, it aborts the whole operation (its error -8062).
#[tokio::test]
async fn macos_finder_continues_a_listing_while_it_deletes() {
    on_every_store(async |f| {
        let mut c = f.client().await;
        let dir = c.dir("dir").await;
        let target = |i| DirOp::new(dir.clone(), format!("name {i}").into_bytes());
        for i in 0..60 {
            let how = How::Guarded(SetAttr::NONE);
            c.call(&create::Args { target: target(i), how }).await.unwrap();
        }
        let (mut cookie, mut verifier, mut seen) = (0, [0; 8], 0);
        loop {
            let args = readdir::Args { dir: dir.clone(), cookie, verifier, count: 512 };
            let page = c.call(&args).await.unwrap();
            verifier = page.verifier;
            for entry in &page.entries.0 {
                cookie = entry.cookie;
                if entry.name.starts_with(b"name") {
                    let target = DirOp::new(dir.clone(), entry.name.to_vec());
                    c.call(&remove::Args { target }).await.unwrap();
                    seen += 1;
                }
            }
            if page.eof {
                break;
            }
        }
        assert_eq!(seen, 60);
    })
    .await;
}

/// FreeBSD sends a cookie with verifier 0 when it has lost the verifier.
#[tokio::test]
async fn freebsd_continues_a_listing_with_verifier_zero() {
    on_every_store(async |f| {
        let mut c = f.client().await;
        for i in 0..20 {
            c.file(&format!("file {i}")).await;
        }
        let (mut cookie, mut seen) = (0, 0);
        loop {
            let args = readdirplus::Args {
                dir: c.root.clone(),
                cookie,
                verifier: [0; 8],
                dir_count: 512,
                max_count: 1024,
            };
            let page = c.call(&args).await.unwrap();
            seen += page.entries.0.len();
            cookie = page.entries.0.last().map_or(cookie, |entry| entry.cookie);
            if page.eof {
                break;
            }
        }
        assert_eq!(seen, 22, "twenty, `.` and `..`");
    })
    .await;
}

/// FreeBSD checks names against the server's maximum, and 255 bytes must be allowed.
#[tokio::test]
async fn freebsd_uses_names_of_255_bytes() {
    on_every_store(async |f| {
        let mut c = f.client().await;
        let root = c.root.clone();
        let longest = "n".repeat(255);
        let file = c.file(&longest).await;
        assert_eq!(c.lookup(&root, &longest).await, Ok(file));
        let longer = "n".repeat(256);
        assert_eq!(c.lookup(&root, &longer).await, Err(Error::NameTooLong));
    })
    .await;
}

/// macOS sends unstable WRITEs, commits the whole file with a count of zero, and then restores the
/// times of the file's source.
#[tokio::test]
async fn macos_copies_commit_the_whole_file_and_set_times_last() {
    on_every_store(async |f| {
        let mut c = f.client().await;
        let file = c.file("copy").await;
        let data: Bytes = vec![5; 100_000].into();
        let args = write::Args {
            file: file.clone(),
            offset: 0,
            count: 100_000,
            stable: write::Stability::Unstable,
            data: data.into(),
        };
        let written = c.call(&args).await.unwrap();
        let args = commit::Args { file: file.clone(), offset: 0, count: 0 };
        assert_eq!(c.call(&args).await.unwrap().verifier, written.verifier);
        assert_eq!(f.fs.cache().dirty_bytes(), 0);
        let old = Time { seconds: 981_173_106, nseconds: 7 };
        let set = SetAttr { mtime: SetTime::To(old), atime: SetTime::To(old), ..SetAttr::NONE };
        c.call(&setattr::Args { object: file.clone(), set, guard: None }).await.unwrap();
        let attr = c.attr(&file).await;
        assert_eq!((attr.mtime, attr.size), (old, 100_000));
    })
    .await;
}
