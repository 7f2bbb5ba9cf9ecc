//! `weir du` of local trees.

mod common;

use common::{json, scratch, sparse};
use std::fs;

#[test]
fn holes_take_no_space_and_hard_links_count_once() {
    let dir = scratch();
    let tree = dir.path().join("tree");
    fs::create_dir_all(tree.join("a/b")).unwrap();
    sparse(&tree.join("a/b/disk"), 1 << 30, [(0, 1 << 20)]);
    fs::hard_link(tree.join("a/b/disk"), tree.join("again")).unwrap();
    let sum = &json(["du".as_ref(), "--json".as_ref(), tree.as_os_str()])[0];
    assert_eq!((&sum["files"], &sum["directories"]), (&1.into(), &3.into()));
    assert_eq!(sum["size_bytes"], 1 << 30);
    let space = sum["allocated_bytes"].as_u64().unwrap();
    assert!((1 << 20..1 << 21).contains(&space), "{space}");
}
