//! `weir rm` of local files and trees.

mod common;

use common::{
    Server, as_ordinary_user, fail, give_to_ordinary_user, json, run, scratch, text, weir,
};
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Stdio;

#[test]
fn removal_does_not_follow_links() {
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
fn removal_continues_after_failures() {
    let dir = scratch();
    let tree = dir.path().join("tree");
    // Another user's directory: this user may not remove its entries.
    for path in ["a/locked/kept", "z/gone", "m/gone"] {
        let path = tree.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }
    give_to_ordinary_user(dir.path(), &tree);
    fs::set_permissions(tree.join("a/locked"), fs::Permissions::from_mode(0o555)).unwrap();
    let output =
        as_ordinary_user(weir(["rm".as_ref(), "-r".as_ref(), tree.as_os_str()])).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    let says = text(&output);
    assert!(says.contains("a/locked/kept: permission denied"), "{says}");
    assert_eq!(says.lines().count(), 1, "what follows from that is not said: {says}");
    let left: Vec<_> = fs::read_dir(&tree).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["a"]);
    fs::set_permissions(tree.join("a/locked"), fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn removals_are_listed_and_confirmed() {
    let dir = scratch();
    let export = dir.path().join("export");
    fs::create_dir(&export).unwrap();
    let server = Server::start(&export, &["--squash", "none"]);
    let local = export.join("tree").to_str().unwrap().to_owned();
    for tree in [local, server.url("tree", "vers=3"), server.url("tree", "vers=4.2")] {
        let make = || {
            fs::create_dir_all(export.join("tree/d")).unwrap();
            fs::write(export.join("tree/a"), "").unwrap();
            fs::write(export.join("tree/d/b"), "").unwrap();
        };
        let answer = |answers: &str, options: &str| {
            let mut command = weir(["rm", options, &tree]);
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = command.spawn().unwrap();
            child.stdin.take().unwrap().write_all(answers.as_bytes()).unwrap();
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "{}", text(&output));
            text(&output)
        };
        make();
        let said = run(["rm", "-rv", &tree]);
        assert_eq!(said.lines().filter(|line| line.starts_with("removed ")).count(), 4, "{said}");
        assert!(!export.join("tree").exists());
        make();
        let report = json(["rm", "-r", "--json", &tree]);
        assert_eq!(report["changed"].as_array().unwrap().len(), 4);
        assert_eq!(report["failures"].as_array().unwrap().len(), 0);
        make();
        // Descend, a, not into d: then the tree stays without a question.
        let said = answer("y\ny\nn\n", "-ri");
        assert!(said.contains("remove the regular file"), "{said}");
        assert!(!export.join("tree/a").exists() && export.join("tree/d/b").exists());
        answer("", "-ri");
        assert!(export.join("tree/d/b").exists(), "no answer is no");
        answer("y\ny\ny\ny\ny\n", "-rfi");
        assert!(!export.join("tree").exists());
        make();
        answer("", "-rif");
        assert!(!export.join("tree").exists(), "the last of -i and -f counts");
    }
}

#[test]
fn json_has_the_exact_names_of_what_was_removed() {
    let dir = scratch();
    let export = dir.path().join("export");
    fs::create_dir(&export).unwrap();
    let server = Server::start(&export, &["--squash", "none"]);
    let make = |names: &[&[u8]]| {
        fs::create_dir(export.join("d")).unwrap();
        for name in names {
            fs::write(export.join("d").join(OsStr::from_bytes(name)), "").unwrap();
        }
    };
    make(&[b"a\\b\n"]);
    let tree = export.join("d");
    let report = json(["rm".as_ref(), "-r".as_ref(), "--json".as_ref(), tree.as_os_str()]);
    let file = format!("{}/a\\b\n", tree.display());
    assert_eq!(report["changed"], serde_json::json!([file, tree.to_str().unwrap()]));
    assert!(report["changed_hex"].is_null(), "{report}");

    make(&[b"a\xff"]);
    let report = json(["rm".as_ref(), "-r".as_ref(), "--json".as_ref(), tree.as_os_str()]);
    let hex = |bytes: &[u8]| -> String { bytes.iter().map(|b| format!("{b:02x}")).collect() };
    let bytes = [tree.as_os_str().as_bytes(), b"/a\xff"].concat();
    assert_eq!(report["changed"][0], String::from_utf8_lossy(&bytes).as_ref());
    let expected = [hex(&bytes), hex(tree.as_os_str().as_bytes())];
    assert_eq!(report["changed_hex"], serde_json::json!(expected));

    make(&[b"a\\b\n\xff"]);
    let url = server.url("d", "vers=4.2");
    let report = json(["rm", "-r", "--json", &url]);
    let file = server.url("d/a\\b%0A%FF", "vers=4.2");
    assert_eq!(report["changed"], serde_json::json!([file, url]));
}
