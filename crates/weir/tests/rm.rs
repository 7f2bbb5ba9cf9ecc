//! `weir rm` of local files and trees.

mod common;

use common::{as_nobody, fail, hand_to_nobody, run, scratch, text, weir};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

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
    assert!(fail(1, ["rm", "-r", "/"]).contains("it has no name; name the files in it"));
}

#[test]
fn what_cannot_be_removed_does_not_keep_the_rest() {
    let dir = scratch();
    let tree = dir.path().join("tree");
    // Another user's directory: this user may not remove its entries.
    for path in ["a/locked/kept", "z/gone", "m/gone"] {
        let path = tree.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }
    hand_to_nobody(dir.path(), &tree);
    fs::set_permissions(tree.join("a/locked"), fs::Permissions::from_mode(0o555)).unwrap();
    let output =
        as_nobody(weir(["rm".as_ref(), "-r".as_ref(), tree.as_os_str()])).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    let says = text(&output);
    assert!(says.contains("a/locked/kept: permission denied"), "{says}");
    assert_eq!(says.lines().count(), 1, "what follows from that is not said: {says}");
    let left: Vec<_> = fs::read_dir(&tree).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["a"]);
    fs::set_permissions(tree.join("a/locked"), fs::Permissions::from_mode(0o755)).unwrap();
}
