//! `weir rm` of local files and trees.

mod common;

use common::{fail, run, scratch};
use std::fs;
use std::os::unix::fs::symlink;

#[test]
fn files_and_trees_and_never_what_a_link_points_to() {
    let dir = scratch();
    let at = |path: &str| dir.path().join(path).into_os_string();
    fs::create_dir_all(at("tree/a/b")).unwrap();
    fs::create_dir(at("kept")).unwrap();
    fs::write(at("kept/file"), "").unwrap();
    fs::write(at("tree/a/b/file"), "").unwrap();
    symlink(at("kept"), at("tree/a/link")).unwrap();
    symlink(at("kept"), at("link")).unwrap();
    let says = fail(1, ["rm".into(), at("tree")]);
    assert!(says.contains("it is a directory; use -r"), "{says}");
    run(["rm".into(), "-r".into(), at("tree"), at("link")]);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    assert!(dir.path().join("kept/file").exists());
    assert!(fail(1, ["rm".into(), at("gone")]).contains("no such file or directory"));
    run(["rm".into(), "-f".into(), at("gone")]);
    assert!(fail(1, ["rm", "-r", "/"]).contains("it has no name; name what is in it"));
}
