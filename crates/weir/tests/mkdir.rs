//! `weir mkdir` of local directories.

mod common;

use common::{fail, run, scratch};

#[test]
fn one_and_those_above() {
    let dir = scratch();
    let at = |path: &str| dir.path().join(path).into_os_string();
    run(["mkdir".into(), at("a"), at("b")]);
    assert!(dir.path().join("b").is_dir());
    assert!(fail(1, ["mkdir".into(), at("a")]).contains("the name is taken"));
    assert!(fail(1, ["mkdir".into(), at("x/y")]).contains("no such file or directory"));
    for _ in 0..2 {
        run(["mkdir".into(), "-p".into(), at("a/b/c/d")]);
    }
    assert!(dir.path().join("a/b/c/d").is_dir());
    std::fs::write(dir.path().join("file"), "").unwrap();
    fail(1, ["mkdir".into(), "-p".into(), at("file/x")]);
    assert!(fail(1, ["mkdir".into(), "-p".into(), at("file")]).contains("the name is taken"));
}
