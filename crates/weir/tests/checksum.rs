//! `weir checksum`, locally and at a server.

mod common;

use common::{PAGE, Server, fail, json, run, scratch, sparse, text, weir};
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// A tree with awkward names, a sparse file, links and an empty directory.
fn tree(top: &Path) {
    fs::create_dir_all(top.join("a/empty")).unwrap();
    fs::write(top.join("a/file"), "content").unwrap();
    fs::write(top.join("a/none"), "").unwrap();
    fs::write(top.join(OsStr::from_bytes(b"new\nline\\ \xff")), "odd").unwrap();
    sparse(
        &top.join("disk.img"),
        300 * PAGE * 10 + 7,
        [(0, 10), (5 * PAGE, 3 * PAGE), (1 << 21, 1)],
    );
    symlink("a/file", top.join("link")).unwrap();
}

fn within(dir: &Path, args: &[&str]) -> Output {
    weir(args).current_dir(dir).output().unwrap()
}

fn sha256sum(dir: &Path, args: &[&str], input: &[u8]) -> Output {
    let mut command = Command::new("sha256sum");
    command.args(args).current_dir(dir).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn sha256sum_and_weir_check_each_others_manifests() {
    let dir = scratch();
    tree(dir.path());
    let made = within(dir.path(), &["checksum", "."]);
    assert!(made.status.success(), "{}", text(&made));
    assert_eq!(made.stdout.iter().filter(|byte| **byte == b'\n').count(), 4, "{}", text(&made));
    let checked = sha256sum(dir.path(), &["-c", "--strict"], &made.stdout);
    assert!(checked.status.success(), "{}", text(&checked));
    let names = ["disk.img", "a/file", "a/none"];
    for form in [&["--"][..], &["--tag", "--"], &["-b", "--"]] {
        let theirs = sha256sum(dir.path(), &[form, &names].concat(), b"");
        fs::write(dir.path().with_extension("sums"), &theirs.stdout).unwrap();
        let manifest = dir.path().with_extension("sums");
        let checked =
            within(dir.path(), &["checksum", "--strict", "-c", manifest.to_str().unwrap()]);
        assert!(checked.status.success(), "{}", text(&checked));
        assert_eq!(checked.stdout, b"disk.img: OK\na/file: OK\na/none: OK\n");
        fs::remove_file(manifest).unwrap();
    }
}

#[test]
fn a_manifest_of_a_servers_tree_holds_for_its_copies() {
    let dir = scratch();
    let export = dir.path().join("export");
    tree(&export);
    let local = within(&export, &["checksum", "--root", "."]).stdout;
    let manifest = dir.path().join("manifest");
    let server = Server::start(&export, &["--squash", "none"]);
    for version in ["vers=3", "vers=4.0", "vers=4.2"] {
        let url = server.url("", version);
        let made = weir(["checksum", "--root", &url]).output().unwrap();
        assert!(made.status.success(), "{}", text(&made));
        assert_eq!(made.stdout, local, "{version}");
        fs::write(&manifest, &made.stdout).unwrap();
        for root in [export.to_str().unwrap(), &url] {
            let checked = run(["checksum", "-c", manifest.to_str().unwrap(), "--root", root, "-q"]);
            assert_eq!(checked, "");
        }
        // Without a directory for them, names are URLs.
        let made = run(["checksum", &server.url("a", version)]);
        assert!(made.contains("a/file?"), "{made}");
        fs::write(&manifest, &made).unwrap();
        run(["checksum", "-c", manifest.to_str().unwrap(), "--strict"]);
    }
    let blake = weir(["checksum", "-a", "blake3", "--root", export.to_str().unwrap(), "a/file"]);
    let sum = blake3::hash(b"content").to_hex();
    assert_eq!({ blake }.output().unwrap().stdout, format!("{sum}  a/file\n").as_bytes());
}

#[test]
fn a_check_reports_what_it_cannot_vouch_for() {
    let dir = scratch();
    tree(dir.path());
    let at = |name: &str| dir.path().join(name);
    let manifest = dir.path().with_extension("manifest");
    let sums = manifest.to_str().unwrap();
    fs::write(&manifest, within(dir.path(), &["checksum", "a/none", "a/file", "disk.img"]).stdout)
        .unwrap();
    fs::write(at("a/file"), "CONTENT").unwrap();
    fs::remove_file(at("a/none")).unwrap();
    let check = |args: &[&str]| within(dir.path(), &[&["checksum", "-c", sums], args].concat());
    let checked = check(&[]);
    assert_eq!(checked.status.code(), Some(1));
    let out = b"a/none: FAILED open or read\na/file: FAILED\ndisk.img: OK\n";
    assert_eq!(checked.stdout, out);
    let said = String::from_utf8(checked.stderr).unwrap();
    assert!(
        said.contains("1 of 3 files differ") && said.contains("1 of 3 files are missing"),
        "{said}"
    );
    let quiet = check(&["--quiet", "--ignore-missing"]);
    assert_eq!((quiet.status.code(), &quiet.stdout[..]), (Some(1), &b"a/file: FAILED\n"[..]));
    let silent = check(&["--status", "--ignore-missing"]);
    assert_eq!((silent.status.code(), text(&silent)), (Some(1), String::new()));
    let found: serde_json::Value = serde_json::from_slice(&check(&["--json=1"]).stdout).unwrap();
    let results: Vec<&str> =
        found["files"].as_array().unwrap().iter().map(|f| f["result"].as_str().unwrap()).collect();
    assert_eq!(results, ["missing", "changed", "same"]);
    assert_eq!(found["changed"], 1);

    fs::write(at("a/file"), "content").unwrap();
    assert_eq!(check(&[]).status.code(), Some(1));
    assert_eq!(check(&["--ignore-missing"]).status.code(), Some(0));
    // A directory, and a file in the place of a directory, are no files to read.
    fs::create_dir(at("a/none")).unwrap();
    let checked = check(&["--ignore-missing"]);
    assert!(text(&checked).contains("it is a directory"), "{}", text(&checked));
    assert_eq!(checked.status.code(), Some(1));
    fs::remove_dir_all(at("a")).unwrap();
    fs::write(at("a"), "").unwrap();
    assert_eq!(check(&["--ignore-missing"]).status.code(), Some(1));
    fs::remove_file(at("a")).unwrap();
    fs::remove_file(at("disk.img")).unwrap();
    let checked = check(&["--ignore-missing"]);
    assert!(text(&checked).contains("none of the files exists"), "{}", text(&checked));
    assert_eq!(checked.status.code(), Some(1));
}

#[test]
fn lines_that_are_no_entries_are_reported() {
    let dir = scratch();
    fs::write(dir.path().join("file"), "content").unwrap();
    let mut lines = within(dir.path(), &["checksum", "file"]).stdout;
    lines.extend(b"not an entry\n");
    fs::write(dir.path().join("sums"), lines).unwrap();
    let checked = within(dir.path(), &["checksum", "-c", "sums"]);
    assert_eq!(checked.status.code(), Some(0));
    assert!(text(&checked).contains("1 lines are no entries"), "{}", text(&checked));
    assert_eq!(within(dir.path(), &["checksum", "-c", "sums", "--strict"]).status.code(), Some(1));
    fs::write(dir.path().join("sums"), "not an entry\n").unwrap();
    let checked = within(dir.path(), &["checksum", "-c", "sums"]);
    assert_eq!(checked.status.code(), Some(1));
    assert!(text(&checked).contains("it has no entries"), "{}", text(&checked));
}

#[test]
fn names_do_not_lead_out_of_the_directory_of_root() {
    let dir = scratch();
    let root = dir.path().join("root");
    fs::create_dir(&root).unwrap();
    fs::write(dir.path().join("file"), "content").unwrap();
    let (sums, root) = (dir.path().join("sums"), root.to_str().unwrap());
    for name in ["../file", "x/../../file", dir.path().join("file").to_str().unwrap()] {
        let sum = run(["checksum", dir.path().join("file").to_str().unwrap()]);
        fs::write(&sums, format!("{}  {name}\n", &sum[..64])).unwrap();
        let said = fail(1, ["checksum", "-c", sums.to_str().unwrap(), "--root", root]);
        assert!(said.contains("the directory of --root"), "{said}");
        fail(1, ["checksum", "--root", root, name]);
    }
    let said = fail(1, ["checksum", "-c", sums.to_str().unwrap(), "--root", "/nowhere"]);
    assert!(said.contains("cannot find /nowhere"), "{said}");
}

#[test]
fn files_that_cannot_be_read_are_failures() {
    let dir = scratch();
    tree(dir.path());
    rustix::fs::mknodat(
        rustix::fs::CWD,
        dir.path().join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let said = fail(1, ["checksum", &at("pipe")]);
    assert!(said.contains("only regular files have checksums"), "{said}");
    let both = weir(["checksum", &at("nothing"), &at("a/file")]).output().unwrap();
    assert_eq!(both.status.code(), Some(1));
    assert!(both.stdout.ends_with(b"a/file\n"), "{}", text(&both));
    let sums = json(["checksum", "--json", &at("a")]);
    assert_eq!(sums[0]["size_bytes"], 7);
    assert_eq!(sums[0]["algorithm"], "sha256");
    fail(2, ["checksum"]);
    // Named, a link is followed, as by sha256sum.
    assert!(run(["checksum", &at("link")]).starts_with(sums[0]["checksum"].as_str().unwrap()));
}
