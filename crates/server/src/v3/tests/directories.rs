//! READDIR, READDIRPLUS.

use super::*;
use std::collections::BTreeMap;
use weir_nfs::v3::op::{readdir, readdirplus, remove};
use weir_xdr::wire_len;

fn plain(dir: &FileHandle, cookie: u64, count: u32) -> readdir::Args {
    readdir::Args { dir: dir.clone(), cookie, verifier: [0; 8], count }
}

fn plus(dir: &FileHandle, cookie: u64, dir_count: u32, max_count: u32) -> readdirplus::Args {
    readdirplus::Args { dir: dir.clone(), cookie, verifier: [0; 8], dir_count, max_count }
}

/// Fills the root with files. Returns their names, of many lengths, and file numbers.
async fn fill(c: &mut Client, files: usize) -> BTreeMap<String, u64> {
    let root = c.root.clone();
    let mut names = BTreeMap::new();
    for i in 0..files {
        let name = format!("{i}{}", "n".repeat(i * 7 % 150));
        let file = c.file(&name).await;
        names.insert(name, c.attr(&file).await.fileid);
    }
    let fileid = c.attr(&root).await.fileid;
    names.extend([(".".into(), fileid), ("..".into(), fileid)]);
    names
}

#[tokio::test]
async fn every_name_is_listed_once_with_any_limit() {
    on_every_store(async |f| {
        let mut c = f.client().await;
        let root = c.root.clone();
        let expected = fill(&mut c, 100).await;
        for count in [300, 333, 512, 4096, 1 << 20] {
            let (mut seen, mut cookie) = (BTreeMap::new(), 0);
            loop {
                let listing = c.call(&plain(&root, cookie, count)).await.unwrap();
                let len = wire_len(&listing);
                assert!(len <= count as usize, "{len} bytes of {count}");
                for entry in &listing.entries.0 {
                    let name = String::from_utf8(entry.name.to_vec()).unwrap();
                    assert_eq!(seen.insert(name, entry.fileid), None);
                    cookie = entry.cookie;
                }
                if listing.eof {
                    break;
                }
                assert_ne!(listing.entries.0, []);
            }
            assert_eq!(seen, expected, "{count}");
        }
    })
    .await;
}

#[tokio::test]
async fn readdirplus_returns_attributes_and_handles() {
    on_every_store(async |f| {
        let mut c = f.client().await;
        let root = c.root.clone();
        let expected = fill(&mut c, 60).await;
        for (dir_count, max_count) in [(1, 700), (200, 4000), (1 << 20, 1 << 20)] {
            let (mut seen, mut cookie) = (BTreeMap::new(), 0);
            loop {
                let args = plus(&root, cookie, dir_count, max_count);
                let listing = c.call(&args).await.unwrap();
                let len = wire_len(&listing);
                assert!(len <= max_count as usize, "{len} bytes of {max_count}");
                let names: usize = listing.entries.0.iter().map(|e| 16 + wire_len(&e.name)).sum();
                assert!(names <= dir_count as usize || listing.entries.0.len() == 1);
                for entry in listing.entries.0 {
                    let attr = c.attr(&entry.handle.unwrap()).await;
                    assert_eq!(attr.fileid, entry.fileid);
                    // Reading the directory may have changed its access time.
                    assert_eq!(attr.ctime, entry.attr.unwrap().ctime);
                    let name = String::from_utf8(entry.name.to_vec()).unwrap();
                    assert_eq!(seen.insert(name, entry.fileid), None);
                    cookie = entry.cookie;
                }
                if listing.eof {
                    break;
                }
            }
            assert_eq!(seen, expected, "{dir_count} {max_count}");
        }
    })
    .await;
}

#[tokio::test]
async fn replies_respect_count_limits_to_the_byte() {
    on_every_store(async |f| {
        let mut c = f.client().await;
        let dir = c.dir("empty").await;
        // Attributes 88, verifier 8, two names of 28 each, end 4, eof 4.
        let listing = c.call(&plain(&dir, 0, 160)).await.unwrap();
        assert_eq!((listing.entries.0.len(), listing.eof), (2, true));
        let listing = c.call(&plain(&dir, 0, 159)).await.unwrap();
        assert_eq!((listing.entries.0.len(), listing.eof), (1, false));
        assert_eq!(status(c.call(&plain(&dir, 0, 131)).await), Error::TooSmall);
        assert_eq!(status(c.call(&plus(&dir, 0, 4096, 131)).await), Error::TooSmall);
        let listing = c.call(&plain(&dir, 2, 131)).await.unwrap();
        assert_eq!((listing.entries.0.len(), listing.eof), (0, true));
    })
    .await;
}

#[tokio::test]
async fn a_listing_continues_while_names_are_removed() {
    on_every_store(async |f| {
        let mut c = f.client().await;
        let root = c.root.clone();
        let expected = fill(&mut c, 50).await;
        let (mut removed, mut cookie) = (0, 0);
        loop {
            let listing = c.call(&plain(&root, cookie, 600)).await.unwrap();
            for entry in &listing.entries.0 {
                cookie = entry.cookie;
                if &*entry.name != b"." && &*entry.name != b".." {
                    let target = DirOp { dir: root.clone(), name: entry.name.clone() };
                    c.call(&remove::Args { target }).await.unwrap();
                    removed += 1;
                }
            }
            if listing.eof {
                break;
            }
        }
        assert_eq!(removed, expected.len() - 2);
    })
    .await;
}

#[tokio::test]
async fn invalid_listings_are_refused() {
    on_every_store(async |f| {
        let mut c = f.client().await;
        let root = c.root.clone();
        let file = c.file("file").await;
        assert_eq!(status(c.call(&plain(&file, 0, 4096)).await), Error::NotDir);
        let other = readdir::Args { verifier: [1; 8], ..plain(&root, 2, 4096) };
        assert_eq!(status(c.call(&other).await), Error::BadCookie);
        let from_the_front = readdir::Args { verifier: [1; 8], ..plain(&root, 0, 4096) };
        assert!(c.call(&from_the_front).await.is_ok());
    })
    .await;
}
