//! `weir du` of local trees.

mod common;

use common::{as_nobody, hand_to_nobody, json, scratch, sparse, text, weir};
use std::fs;
use std::os::unix::fs::PermissionsExt;

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

#[test]
fn what_cannot_be_read_does_not_hide_the_rest() {
    let dir = scratch();
    let tree = dir.path().join("tree");
    fs::create_dir_all(tree.join("closed")).unwrap();
    fs::write(tree.join("file"), "12345").unwrap();
    hand_to_nobody(dir.path(), &tree);
    fs::set_permissions(tree.join("closed"), fs::Permissions::from_mode(0o0)).unwrap();
    for command in ["du", "tree"] {
        let output = as_nobody(weir([command.as_ref(), tree.as_os_str()])).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", text(&output));
        let says = text(&output);
        assert!(says.contains("closed: permission denied"), "{says}");
        assert!(says.contains("5 B"), "the sum of the rest, or its files: {says}");
    }
    fs::set_permissions(tree.join("closed"), fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn sums_beyond_64_bits_are_right() {
    // Few file systems support files of that size; tmpfs does.
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else {
        return weir_skip::skip("no /dev/shm");
    };
    let file = fs::File::create(dir.path().join("0")).unwrap();
    let most = largest_size(&file);
    let files = u128::from(u64::MAX) / u128::from(most) + 1;
    if files > 100 {
        return weir_skip::skip("files of /dev/shm are too small for a sum beyond 64 bits");
    }
    for name in 0..files {
        fs::File::create(dir.path().join(name.to_string())).unwrap().set_len(most).unwrap();
    }
    let sum = &json(["du".as_ref(), "--json".as_ref(), dir.path().as_os_str()])[0];
    assert_eq!(sum["size_bytes"], (files * u128::from(most)).to_string());
}

/// The largest size that the file system supports, found by setting it.
fn largest_size(file: &fs::File) -> u64 {
    let (mut most, mut more) = (0_u64, 1_u64 << 62);
    while more >= 4096 {
        if file.set_len(most + more).is_ok() {
            most += more;
        }
        more /= 2;
    }
    most
}
