//! `weir tree` of local directories.

mod common;

use common::{run, scratch};
use std::fs;
use std::os::unix::fs::symlink;

#[test]
fn the_drawing() {
    let dir = scratch();
    fs::create_dir_all(dir.path().join("a/b")).unwrap();
    fs::write(dir.path().join("a/b/file"), "12345").unwrap();
    fs::write(dir.path().join(".hidden"), "").unwrap();
    symlink("b", dir.path().join("a/link")).unwrap();
    fs::write(dir.path().join("z"), "").unwrap();
    let tree = |options: &[&str]| {
        let args = ["tree"].iter().chain(options).map(AsRef::as_ref);
        let drawn = run(args.chain([dir.path().as_os_str()]));
        drawn.split_once('\n').unwrap().1.to_owned()
    };
    assert_eq!(
        tree(&[]),
        "├── a/\n│   ├── b/\n│   │   └── file  (5 B)\n│   └── link -> b\n└── z  (0 B)\n"
    );
    assert_eq!(tree(&["-a", "-L", "1"]), "├── .hidden  (0 B)\n├── a/\n└── z  (0 B)\n");
}
