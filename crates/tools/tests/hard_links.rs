//! Hard links in copies: which names are names of one file.

mod common;

use common::{make_empty, place, write};
use std::sync::Arc;
use std::time::Duration;
use weir_pagecache::{Cache, Config};
use weir_stores::memory::MemoryFs;
use weir_tools::copy::{Copier, Options};
use weir_vfs::{Caller, SetAttr};

/// Two file systems, or servers, that were cloned number their files alike.
#[tokio::test]
async fn files_of_two_stores_are_not_taken_for_names_of_one() {
    for in_place in [false, true] {
        let cache = Cache::new(Config::default()).unwrap();
        let to = cache.mount(MemoryFs::new());
        // So that no copy has the number of its source.
        make_empty(&to, "other").await;
        if in_place {
            let id = write(&to, "x", b"old").await;
            to.link(&Caller::Own, id, to.root().entry(b"y")).await.unwrap();
        }
        let mut pairs = Vec::new();
        for (name, bytes) in [("x", &b"of one"[..]), ("y", b"of the other")] {
            let from = cache.mount(MemoryFs::new());
            let id = write(&from, name, bytes).await;
            from.link(&Caller::Own, id, from.root().entry(b"second")).await.unwrap();
            pairs.push((place(&from, name).await, place(&to, name).await));
        }
        let options = Options { preserve: true, in_place, ..Options::default() };
        let copier = Arc::new(Copier::new(options, 32 << 20, ()));
        copier.copy(pairs).await;
        let said = copier.summary(Duration::from_secs(1), 0);
        assert_eq!((said.failures.len(), said.hard_links), (in_place.into(), 0), "{said:?}");
        let size = async |name: &str| place(&to, name).await.attr.unwrap().size;
        assert!(in_place || (size("x").await, size("y").await) == (6, 12), "{said:?}");
    }
}

#[tokio::test]
async fn names_of_a_file_that_changes_meanwhile_are_names_of_one_copy() {
    let cache = Cache::new(Config::default()).unwrap();
    let (from, to) = (cache.mount(MemoryFs::new()), cache.mount(MemoryFs::new()));
    {
        let id = write(&from, "x", b"data").await;
        from.link(&Caller::Own, id, from.root().entry(b"y")).await.unwrap();
        let x = (place(&from, "x").await, place(&to, "x").await);
        let set = SetAttr { mode: Some(0o640), ..SetAttr::default() };
        from.setattr(&Caller::Own, id, &set).await.unwrap();
        let y = (place(&from, "y").await, place(&to, "y").await);
        assert_ne!(x.0.attr, y.0.attr);
        let options = Options { preserve: true, ..Options::default() };
        let copier = Arc::new(Copier::new(options, 32 << 20, ()));
        copier.copy(vec![x, y]).await;
        let said = copier.summary(Duration::from_secs(1), 0);
        assert_eq!((said.failures.len(), said.hard_links), (0, 1), "{said:?}");
    }
}
