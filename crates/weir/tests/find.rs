//! `weir find`, locally and at a server.

mod common;

use common::{
    Server, as_ordinary_user, fail, give_to_ordinary_user, json, run, scratch, text, weir,
};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::{Duration, SystemTime};

#[test]
fn files_by_name_type_size_and_time() {
    let dir = scratch();
    let export = dir.path().join("export");
    fs::create_dir_all(export.join("a/empty")).unwrap();
    fs::write(export.join("a/disk.img"), vec![1; 3000]).unwrap();
    fs::write(export.join("a/OLD.IMG"), "x").unwrap();
    fs::write(export.join("b.img"), "").unwrap();
    symlink("b.img", export.join("link.img")).unwrap();
    let days = Duration::from_secs(40 * 24 * 60 * 60);
    let old = fs::File::options().write(true).open(export.join("a/OLD.IMG")).unwrap();
    old.set_modified(SystemTime::now() - days).unwrap();
    let server = Server::start(&export, &["--squash", "none"]);
    for version in ["", "vers=3", "vers=4.2"] {
        let top = match version {
            "" => export.to_str().unwrap().to_owned(),
            version => server.url("", version),
        };
        // What is below the top, without it and the options of a URL.
        let find = |args: &[&str]| {
            let found = run(["find", &top].into_iter().chain(args.iter().copied()));
            let below = |line: &str| {
                let path = line.split('?').next().unwrap();
                let top = top.split('?').next().unwrap().trim_end_matches('/');
                path.strip_prefix(top).unwrap().trim_start_matches('/').to_owned()
            };
            found.lines().map(below).collect::<Vec<_>>().join(" ")
        };
        let all = " a a/OLD.IMG a/disk.img a/empty b.img link.img";
        assert_eq!(find(&[]), all);
        assert_eq!(find(&["-name", "*.img"]), "a/disk.img b.img link.img");
        assert_eq!(find(&["-iname", "*.img", "-type", "f"]), "a/OLD.IMG a/disk.img b.img");
        assert_eq!(find(&["--type", "d"]), " a a/empty");
        assert_eq!(find(&["-type", "l"]), "link.img");
        assert_eq!(find(&["-type", "f", "-size", "+1k"]), "a/disk.img");
        assert_eq!(find(&["-type", "f", "-size", "-1"]), "b.img");
        assert_eq!(find(&["-type", "f", "-size", "3000c"]), "a/disk.img");
        assert_eq!(find(&["-mtime", "+30"]), "a/OLD.IMG");
        assert_eq!(find(&["-type", "f", "-mmin", "-60"]), "a/disk.img b.img");
        assert_eq!(find(&["-empty"]), "a/empty b.img");
        assert_eq!(find(&["-maxdepth", "1"]), " a b.img link.img");
        assert_eq!(find(&["-mindepth", "2"]), "a/OLD.IMG a/disk.img a/empty");
        assert_eq!(find(&["-maxdepth", "0"]), "");
        let reference = export.join("a/OLD.IMG");
        let newer = find(&["-type", "f", "-newer", reference.to_str().unwrap()]);
        assert_eq!(newer, "a/disk.img b.img");
        let listed = json(["find", &top, "-size", "3000c", "-type", "f", "--json"]);
        assert_eq!(listed[0]["size_bytes"], 3000);
    }
}

/// find(1) compares exact times.
#[test]
fn days_and_minutes_are_those_of_find() {
    let dir = scratch();
    for (name, age) in [("30", 30), ("4:30", 270), ("5:30", 330)] {
        let file = fs::File::create(dir.path().join(name)).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
    }
    let lines = |output: std::process::Output| {
        assert!(output.status.success(), "{}", text(&output));
        let mut lines: Vec<_> = text(&output).lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let compare = |test: &str, amount: &str, found: &[&str]| {
        let args = [".", "-type", "f", test, amount];
        let ours = weir(["find"].iter().chain(&args)).current_dir(dir.path()).output().unwrap();
        assert_eq!(lines(ours), found, "{test} {amount}");
        let theirs = std::process::Command::new("find").args(args).current_dir(dir.path()).output();
        // Where there is one.
        if let Ok(theirs) = theirs {
            assert_eq!(lines(theirs), found, "{test} {amount}");
        }
    };
    compare("-mmin", "5", &["./4:30"]);
    compare("-mmin", "+5", &["./5:30"]);
    compare("-mmin", "-5", &["./30", "./4:30"]);
    compare("-mmin", "+4", &["./4:30", "./5:30"]);
    compare("-mmin", "-6", &["./30", "./4:30", "./5:30"]);
    compare("-mmin", "1", &["./30"]);
    compare("-mmin", "0", &[]);
    for (name, ahead) in [("in 1 day", 24 * 60 * 60), ("in 3 days", 3 * 24 * 60 * 60)] {
        let file = fs::File::create(dir.path().join(name)).unwrap();
        file.set_modified(SystemTime::now() + Duration::from_secs(ahead)).unwrap();
    }
    let (past, future) = (["./30", "./4:30", "./5:30"], ["./in 1 day", "./in 3 days"]);
    for test in ["-mtime", "-mmin"] {
        compare(test, "-0", &future);
        compare(test, "-1000", &[&past[..], &future].concat());
    }
    compare("-mtime", "0", &past);
    compare("-mtime", "+0", &[]);
    compare("-mmin", "0", &[]);
    compare("-mmin", "+0", &past);
}

#[test]
fn names_come_as_they_are_and_failures_are_not_silent() {
    let dir = scratch();
    let odd = std::ffi::OsStr::from_bytes(b"new\nline \xff");
    fs::write(dir.path().join(odd), "").unwrap();
    let found = weir(["find", ".", "-type", "f", "-print0"]).current_dir(dir.path()).output();
    assert_eq!(found.unwrap().stdout, b"./new\nline \xff\0");
    let says = fail(1, ["find", "/nowhere/at/all"]);
    assert!(says.contains("no such file"), "{says}");
    assert!(fail(2, ["find", "-size", "big"]).contains("write it like 100c"));
}

/// A directory at the depth of `-maxdepth` is not entered, but it is listed to see if it is empty.
#[test]
fn empty_directories_are_found_at_the_greatest_depth() {
    let dir = scratch();
    let top = dir.path().join("top");
    for name in ["empty", "full/deeper", "locked"] {
        fs::create_dir_all(top.join(name)).unwrap();
    }
    fs::write(top.join("file"), "").unwrap();
    let find = |most: &str| {
        let mut find = weir(["find", ".", "-empty", "-maxdepth", most]);
        find.current_dir(&top);
        find
    };
    assert_eq!(find("0").output().unwrap().stdout, b"");
    assert_eq!(find("1").output().unwrap().stdout, b"./empty\n./file\n./locked\n");
    let all = b"./empty\n./file\n./full/deeper\n./locked\n";
    assert_eq!(find("2").output().unwrap().stdout, all);

    give_to_ordinary_user(dir.path(), &top);
    fs::set_permissions(top.join("locked"), fs::Permissions::from_mode(0o000)).unwrap();
    for most in ["1", "2"] {
        let output = as_ordinary_user(find(most)).output().unwrap();
        let said = text(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert_eq!(said.matches("locked").count(), 1, "{most}: {said}");
        assert!(output.stdout.starts_with(b"./empty\n./file\n"), "{said}");
    }
}
