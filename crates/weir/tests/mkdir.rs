//! `weir mkdir` of local directories.

mod common;

use common::{Server, fail, run, scratch};
use std::fs;
use std::os::unix::fs::PermissionsExt;

#[test]
fn a_directory_and_its_parents() {
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
    fs::write(dir.path().join("file"), "").unwrap();
    fail(1, ["mkdir".into(), "-p".into(), at("file/x")]);
    assert!(fail(1, ["mkdir".into(), "-p".into(), at("file")]).contains("the name is taken"));
}

#[test]
fn directories_have_the_mode_asked_for() {
    let dir = scratch();
    let export = dir.path().join("export");
    fs::create_dir(&export).unwrap();
    let server = Server::start(&export, &["--squash", "none"]);
    let mode = |path: &str| {
        let found = fs::metadata(export.join(path)).unwrap();
        found.permissions().mode() & 0o7777
    };
    let local = |path: &str| export.join(path).to_str().unwrap().to_owned();
    let targets: [&dyn Fn(&str) -> String; 3] =
        [&local, &|path: &str| server.url(path, "vers=3"), &|path: &str| {
            server.url(path, "vers=4.2")
        }];
    for at in targets {
        run(["mkdir", "-m", "700", &at("private")]);
        run(["mkdir", "-m", "1777", &at("shared")]);
        run(["mkdir", "-m", "a=rwx,o-w", &at("symbolic")]);
        run(["mkdir", "-p", "-m", "500", &at("x/y")]);
        let found = ["private", "shared", "symbolic", "x/y"].map(mode);
        assert_eq!(found, [0o700, 0o1777, 0o775, 0o500]);
        assert!(mode("x") & 0o700 == 0o700, "parents can be used");
        let said = run(["mkdir", "-pv", &at("v/w")]);
        assert_eq!(said.lines().count(), 2, "{said}");
        for made in ["private", "shared", "symbolic", "x", "v"] {
            fs::remove_dir_all(export.join(made)).unwrap();
        }
    }
}
