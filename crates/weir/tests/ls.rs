//! `weir ls` of local directories.

mod common;

use common::{Server, fail, json, run, scratch, sparse, text, weir};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::{Duration, SystemTime};

#[test]
fn names_are_sorted_and_hidden_ones_listed_on_request() {
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
fn long_lines_have_every_attribute() {
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
fn json_lists_every_attribute() {
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
fn several_locations_and_a_missing_one() {
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

#[test]
fn in_the_order_asked_for_and_with_what_is_below() {
    let dir = scratch();
    let export = dir.path().join("export");
    fs::create_dir_all(export.join("sub/deep")).unwrap();
    for (name, size, age) in [("a", 10, 300), ("b", 30, 100), ("c", 20, 200)] {
        fs::write(export.join(name), vec![0; size]).unwrap();
        let file = fs::File::options().write(true).open(export.join(name)).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
    }
    fs::write(export.join("sub/deep/inner"), "").unwrap();
    let server = Server::start(&export, &["--squash", "none"]);
    let local = export.to_str().unwrap().to_owned();
    for top in [local, server.url("", "vers=3"), server.url("", "vers=4.2")] {
        let names = |args: &[&str]| {
            let found = run(["ls", &top].into_iter().chain(args.iter().copied()));
            found.lines().filter(|name| *name != "sub").collect::<Vec<_>>().join(" ")
        };
        assert_eq!(names(&["-1"]), "a b c");
        assert_eq!(names(&["-t"]), "b c a");
        assert_eq!(names(&["-tr"]), "a c b");
        assert_eq!(names(&["-r"]), "c b a");
        let by_size = run(["ls", "-S", &top]);
        let by_size: Vec<_> = by_size.lines().filter(|name| *name != "sub").collect();
        assert_eq!(by_size, ["b", "c", "a"]);
        let all = run(["ls", "-R", &top]);
        assert!(all.contains("deep\n\n") && all.ends_with("inner\n"), "{all}");
        assert_eq!(all.matches(":\n").count(), 3, "{all}");
        let listed = json(["ls", "-R", "--json", &top]);
        let paths: Vec<_> =
            listed.as_array().unwrap().iter().map(|f| f["path"].as_str().unwrap()).collect();
        assert_eq!(paths, ["a", "b", "c", "sub", "sub/deep", "sub/deep/inner"]);
    }
}

#[test]
fn colours_only_where_they_are_wanted() {
    let dir = scratch();
    fs::create_dir(dir.path().join("sub")).unwrap();
    fs::write(dir.path().join("disk.img"), "").unwrap();
    let ls = |args: &[&str]| {
        let mut command = weir(["ls"].into_iter().chain(args.iter().copied()));
        command.current_dir(dir.path()).env("LS_COLORS", "di=34:*.img=31");
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    assert_eq!(ls(&[]), "disk.img\nsub\n", "no terminal");
    assert_eq!(ls(&["--color"]), "\x1b[31mdisk.img\x1b[0m\n\x1b[34msub\x1b[0m\n");
    assert_eq!(ls(&["--color=never"]), "disk.img\nsub\n");
}
