//! Stores, and files in them.

#![allow(dead_code, reason = "each test program uses some of it")]

use weir_pagecache::CachedFs;
use weir_tools::mounts::Place;
use weir_tools::origin::Origin;
use weir_vfs::{Access, Caller, CreateMode, FileId, IoFlags, SetAttr};

/// A name in the root of a store.
pub(crate) async fn place(fs: &CachedFs, name: &str) -> Place {
    let attr = fs.lookup(&Caller::Own, fs.root().entry(name.as_bytes())).await.ok();
    let name = name.as_bytes().to_vec();
    let origin = Origin::default();
    Place { fs: fs.clone(), dir: fs.root(), shown: "tree".into(), name: Some(name), attr, origin }
}

/// Makes a file of these bytes.
pub(crate) async fn write(fs: &CachedFs, name: &str, bytes: &[u8]) -> FileId {
    let set = SetAttr { mode: Some(0o644), ..SetAttr::default() };
    let new = fs.root().entry(name.as_bytes()).with(&set);
    let id = fs.create(&Caller::Own, new, CreateMode::MayExist).await.unwrap().attr.id;
    let file = fs.open(&Caller::Own, id, Access::READ | Access::WRITE).await.unwrap();
    file.write_at_async(bytes, 0, IoFlags::empty()).await.unwrap();
    file.sync_async(false).await.unwrap();
    id
}

/// Creates an empty file.
pub(crate) async fn make_empty(fs: &CachedFs, name: &str) {
    let set = SetAttr::default();
    let new = fs.root().entry(name.as_bytes()).with(&set);
    fs.create(&Caller::Own, new, CreateMode::MustBeNew).await.unwrap();
}
