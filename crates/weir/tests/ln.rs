//! `weir ln`, locally and at a server.

mod common;

use common::{Server, fail, json, run, scratch};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

#[test]
fn hard_and_symbolic_links() {
    let dir = scratch();
    let export = dir.path().join("export");
    let server_of = |export: &Path| Server::start(export, &["--squash", "none"]);
    fs::create_dir_all(export.join("d")).unwrap();
    fs::write(export.join("file"), "content").unwrap();
    let server = server_of(&export);
    let local = |path: &str| export.join(path).to_str().unwrap().to_owned();
    let targets: [&dyn Fn(&str) -> String; 3] =
        [&local, &|path: &str| server.url(path, "vers=3"), &|path: &str| {
            server.url(path, "vers=4.2")
        }];
    for at in targets {
        run(["ln", &at("file"), &at("same")]);
        run(["ln", &at("file"), &at("d")]);
        assert_eq!(fs::metadata(export.join("d/file")).unwrap().nlink(), 3);
        assert!(fail(1, ["ln", "-s", "../file", &at("d")]).contains("use -f"));
        fail(1, ["ln", "-s", "elsewhere", &at("same")]);
        assert!(fs::read(export.join("same")).unwrap() == b"content");
        let says = fail(1, ["ln", &at("file"), &at("same")]);
        assert!(says.contains("use -f to replace it"), "{says}");
        let says = fail(1, ["ln", "-f", &at("file"), &at("same")]);
        assert!(says.contains("both are the same file"), "{says}");
        for (text, link) in [("file", "file"), (".././d/own", "d/own")] {
            fs::write(export.join(link), "content").unwrap();
            let says = fail(1, ["ln", "-sf", text, &at(link)]);
            assert!(says.contains("it would replace the file that it refers to"), "{says}");
            assert_eq!(fs::read(export.join(link)).unwrap(), b"content");
        }
        run(["ln", "-sf", "elsewhere", &at("same")]);
        assert_eq!(fs::read_link(export.join("same")).unwrap(), Path::new("elsewhere"));
        run(["ln", "-sfT", "d", &at("same")]);
        // A link to a directory is that directory, unless -T says otherwise.
        run(["ln", "-s", "deep/name", &at("same")]);
        assert_eq!(fs::read_link(export.join("d/name")).unwrap(), Path::new("deep/name"));
        run(["ln", "-sfT", "x", &at("same")]);
        assert_eq!(fs::read_link(export.join("same")).unwrap(), Path::new("x"));
        for made in ["same", "d/file", "d/name"] {
            fs::remove_file(export.join(made)).unwrap();
        }
    }
    let says = fail(1, ["ln", &local("file"), &server.url("other", "vers=4.2")]);
    assert!(says.contains("on another file system"), "{says}");
}

#[test]
fn a_link_that_cannot_be_made_replaces_nothing() {
    let dir = scratch();
    let export = dir.path().join("export");
    fs::create_dir_all(export.join("d")).unwrap();
    fs::create_dir(dir.path().join("elsewhere")).unwrap();
    fs::write(dir.path().join("elsewhere/file"), "x").unwrap();
    fs::write(export.join("important"), "content").unwrap();
    fs::write(export.join("file"), "file").unwrap();
    let server = Server::start(&export, &["--squash", "none"]);
    let local = |path: &str| export.join(path).to_str().unwrap().to_owned();
    let remote = |path: &str| server.url(path, "vers=4.2");
    let elsewhere = dir.path().join("elsewhere/file").to_str().unwrap().to_owned();
    let long = "x".repeat(5000);
    let names = || {
        let mut names: Vec<_> =
            fs::read_dir(&export).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = names();
    for args in [
        ["-f", &local("typo"), &local("important")],
        ["-f", &local("d"), &local("important")],
        ["-f", &remote("typo"), &remote("important")],
        ["-f", &elsewhere, &remote("important")],
        ["-sf", &long, &local("important")],
        ["-sf", &long, &remote("important")],
    ] {
        fail(1, [&["ln"][..], &args].concat());
        assert_eq!(fs::read(export.join("important")).unwrap(), b"content", "{args:?}");
        assert_eq!(names(), before, "{args:?}");
    }
    // Between directories, which the kernel links.
    run(["ln", "-f", &elsewhere, &local("important")]);
    assert_eq!(fs::read(export.join("important")).unwrap(), b"x");
    assert_eq!(names(), before);
}

#[test]
fn json_has_the_exact_name_of_the_link() {
    let dir = scratch();
    let at = |path: &str| dir.path().join(path).to_str().unwrap().to_owned();
    let report = json(["ln", "-s", "--json", "target", &at("a\\b\n")]);
    assert_eq!(report["changed"], serde_json::json!([at("a\\b\n")]));
    fs::create_dir(at("d\\")).unwrap();
    let report = json(["ln", "--json", &at("a\\b\n"), &at("d\\")]);
    assert_eq!(report["changed"], serde_json::json!([at("d\\/a\\b\n")]));
}
