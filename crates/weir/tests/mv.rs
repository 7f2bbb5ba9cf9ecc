//! `weir mv` of local files.

mod common;

use common::{fail, run, scratch};
use std::fs;

#[test]
fn to_a_name_and_into_a_directory() {
    let dir = scratch();
    let at = |path: &str| dir.path().join(path).into_os_string();
    fs::write(at("a"), "a").unwrap();
    fs::create_dir(at("d")).unwrap();
    run(["mv".into(), at("a"), at("b")]);
    run(["mv".into(), at("b"), at("d")]);
    assert_eq!(fs::read(at("d/b")).unwrap(), b"a");
    assert!(fail(1, ["mv".into(), at("a"), at("b")]).contains("no such file or directory"));
    fs::write(at("c"), "c").unwrap();
    let says = fail(1, ["mv".into(), "-n".into(), at("c"), at("d/b")]);
    assert!(says.contains("file exists"), "{says}");
    run(["mv".into(), at("c"), at("d/b")]);
    assert_eq!(fs::read(at("d/b")).unwrap(), b"c");
    let says = fail(1, ["mv".into(), at("d"), "nfs://127.0.0.1/x".into()]);
    assert!(says.contains("on different file systems; copy it with `weir cp -rp`"), "{says}");
}
