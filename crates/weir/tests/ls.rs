//! `weir ls` of local directories.

mod common;

use common::{fail, json, run, scratch, sparse, text, weir};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

#[test]
fn names_in_order_and_hidden_ones_only_if_asked_for() {
    let dir = scratch();
    for name in ["b", "a", ".hidden"] {
        fs::write(dir.path().join(name), "").unwrap();
    }
    fs::create_dir(dir.path().join("sub")).unwrap();
    assert_eq!(run(["ls".as_ref(), dir.path().as_os_str()]), "a\nb\nsub\n");
    assert_eq!(run(["ls".as_ref(), "-a".as_ref(), dir.path().as_os_str()]), ".hidden\na\nb\nsub\n");
    let here = weir(["ls"]).current_dir(dir.path()).output().unwrap();
    assert_eq!(here.stdout, b"a\nb\nsub\n");
}

#[test]
fn long_lines_say_all() {
    let dir = scratch();
    sparse(&dir.path().join("disk"), 1 << 30, [(0, 4096)]);
    fs::set_permissions(dir.path().join("disk"), fs::Permissions::from_mode(0o640)).unwrap();
    symlink("disk", dir.path().join("link")).unwrap();
    let lines = run(["ls".as_ref(), "-ln".as_ref(), dir.path().as_os_str()]);
    let lines: Vec<Vec<&str>> =
        lines.lines().map(|l| l.split_ascii_whitespace().collect()).collect();
    assert_eq!(lines[0][..2], ["-rw-r-----", "1"]);
    assert_eq!(lines[0][4..6], ["4096", "1073741824"]);
    assert_eq!(lines[1][0], "lrwxrwxrwx");
    assert_eq!(lines[1].join(" ").split_once(" link ").unwrap().1, "-> disk");
    let human = run(["ls".as_ref(), "-lh".as_ref(), dir.path().as_os_str()]);
    assert!(human.contains("4.00 KiB 1.00 GiB"), "{human}");
}

#[test]
fn machines_get_json() {
    let dir = scratch();
    sparse(&dir.path().join("disk"), 1 << 30, [(0, 4096)]);
    let listed = json(["ls".as_ref(), "--json".as_ref(), dir.path().as_os_str()]);
    let disk = &listed[0];
    assert_eq!(disk["path"], "disk");
    assert_eq!(disk["kind"], "regular file");
    assert_eq!((&disk["size_bytes"], &disk["allocated_bytes"]), (&(1 << 30).into(), &4096.into()));
    assert!(disk["mtime"].as_str().unwrap().ends_with('Z'));
}

#[test]
fn several_at_once_and_one_that_is_not_there() {
    let dir = scratch();
    fs::write(dir.path().join("file"), "").unwrap();
    fs::create_dir(dir.path().join("d")).unwrap();
    fs::write(dir.path().join("d/inside"), "").unwrap();
    let output = weir(["ls", "d", "missing", "file"]).current_dir(dir.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "file\n\nd:\ninside\n");
    assert!(text(&output).contains("cannot list missing: no such file or directory; check"));
    assert_eq!(
        fail(1, ["ls", "/nowhere/at/all"]),
        "weir: cannot find /nowhere/at/all: no such file or directory; check the path\n"
    );
}

#[test]
fn many_entries() {
    let dir = scratch();
    for n in 0..2500 {
        fs::write(dir.path().join(format!("{n:05}")), "").unwrap();
    }
    assert_eq!(run(["ls".as_ref(), dir.path().as_os_str()]).lines().count(), 2500);
}
