//! `weir mv` of local files.

mod common;

use common::{Server, fail, run, scratch};
use std::fs;
use std::os::unix::fs::symlink;

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

#[test]
fn at_a_server_a_link_to_a_directory_is_that_directory() {
    let dir = scratch();
    let export = dir.path().join("export");
    fs::create_dir_all(export.join("d")).unwrap();
    symlink("d", export.join("link")).unwrap();
    symlink("nowhere", export.join("dangling")).unwrap();
    // To a directory, for all clients that mount it there.
    symlink(export.join("d"), export.join("absolute")).unwrap();
    let server = Server::start(&export, &["--squash", "none"]);
    for (round, version) in ["vers=3", "vers=4.2"].into_iter().enumerate() {
        let url = |path: &str| server.url(path, version);
        let name = format!("file{round}");
        fs::write(export.join(&name), "x").unwrap();
        run(["mv", &url(&name), &url("link")]);
        assert!(export.join("link").is_symlink() && export.join("d").join(&name).exists());
        fs::write(export.join(&name), "z").unwrap();
        let says = fail(1, ["mv", &url(&name), &url("absolute")]);
        assert!(says.contains("absolute is a symbolic link to /"), "{says}");
        assert!(export.join("absolute").is_symlink() && export.join(&name).exists());
        // Any other link is itself replaced, and a missing entry is no directory.
        fs::write(export.join(&name), "y").unwrap();
        let says = fail(1, ["mv", &url(&name), &url("new/")]);
        assert!(says.contains("there is no such directory; make it first"), "{says}");
        let says = fail(1, ["cp", export.join(&name).to_str().unwrap(), &url("new/")]);
        assert!(says.contains("there is no such directory; make it first"), "{says}");
        run(["mv", &url(&name), &url("dangling")]);
        assert_eq!(fs::read(export.join("dangling")).unwrap(), b"y");
        fs::remove_file(export.join("dangling")).unwrap();
        symlink("nowhere/either", export.join("dangling")).unwrap();
    }
}
