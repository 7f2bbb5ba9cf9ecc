//! `weir cp` of trees: the places of copies, the attributes kept, and no endless runs.

mod common;

use common::{
    Server, as_ordinary_user, fail, give_to_ordinary_user, json, run, scratch, text, weir,
};
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().mode() & 0o7777
}

#[test]
fn two_sources_never_write_to_one_name() {
    let dir = scratch();
    let at = |name: &str| dir.path().join(name);
    for (source, text) in [("s1", "1"), ("s2", "2")] {
        fs::create_dir_all(at(source).join("sub")).unwrap();
        fs::write(at(source).join("x"), text).unwrap();
        fs::write(at(source).join("sub/y"), text).unwrap();
        fs::write(at(source).join(format!("sub/{source}")), text).unwrap();
    }
    let cp = |args: &[&str]| {
        let _ = fs::remove_dir_all(at("d"));
        fs::create_dir(at("d")).unwrap();
        let output = weir(["cp"]).args(args).current_dir(dir.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}: {}", text(&output));
        let says = "another source was just copied to that name";
        assert!(text(&output).contains(says), "{args:?}: {}", text(&output));
    };
    let first = |path: &str| assert_eq!(fs::read(at(path)).unwrap(), b"1", "{path}");
    cp(&["s1/x", "s2/x", "d"]);
    first("d/x");
    cp(&["-r", "s1/.", "s2/.", "d"]);
    first("d/x");
    // Directories with the same name are merged, as in cp(1).
    cp(&["-r", "s1/sub", "s2/sub", "d"]);
    first("d/sub/y");
    first("d/sub/s1");
    assert_eq!(fs::read(at("d/sub/s2")).unwrap(), b"2");
}

#[test]
fn a_tree_is_not_copied_into_itself_through_another_view() {
    let dir = scratch();
    let export = dir.path().join("export");
    fs::create_dir_all(export.join("tree/inner")).unwrap();
    // Copying files into the directory changes its times while it is compared.
    for n in 0..50 {
        fs::write(export.join(format!("tree/file{n}")), "x").unwrap();
    }
    let server = Server::start(&export, &["--squash", "none"]);
    let local = |path: &str| export.join(path).to_str().unwrap().to_owned();
    for (from, to) in [
        (server.url("tree", "vers=4.2"), local("tree/inner/new")),
        (server.url("tree", "vers=3"), local("tree/new")),
        (local("tree"), server.url("tree/inner/new", "vers=4.2")),
        (server.url("tree", "vers=4.2"), server.url("tree/inner", "vers=4.2")),
        (server.url("tree", "vers=4.1"), server.url("tree/inner/new", "vers=3")),
    ] {
        let says = fail(1, ["cp", "-r", &from, &to]);
        assert!(says.contains("inside of it"), "{from} to {to}: {says}");
        assert!(!export.join("tree/inner/new/inner/new").exists());
        for made in ["tree/new", "tree/inner/new", "tree/inner/tree"] {
            let _ = fs::remove_dir_all(export.join(made));
        }
    }
}

#[test]
fn directories_inherit_the_set_group_id_bit() {
    let dir = scratch();
    let from = dir.path().join("from");
    fs::create_dir_all(from.join("sub")).unwrap();
    set_mode(&from.join("sub"), 0o555);
    let to = dir.path().join("to");
    fs::create_dir(&to).unwrap();
    set_mode(&to, 0o2775);
    // An empty umask, so that modes show which bits were kept.
    let script = format!("umask 0; exec {} cp -r \"$@\"", env!("CARGO_BIN_EXE_weir"));
    let sh =
        std::process::Command::new("sh").args(["-c", &script, "sh"]).args([&from, &to]).status();
    assert!(sh.unwrap().success());
    assert_eq!(mode(&to.join("from")) & 0o7000, 0o2000);
    assert_eq!(mode(&to.join("from/sub")), 0o2555);
    set_mode(&to.join("from/sub"), 0o755);
    set_mode(&from.join("sub"), 0o755);
}

#[test]
fn a_continued_tree_equals_an_uninterrupted_copy() {
    let dir = scratch();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::create_dir_all(from.join("sub")).unwrap();
    fs::write(from.join("sub/file"), "x").unwrap();
    fs::hard_link(from.join("sub/file"), from.join("a-link")).unwrap();
    fs::hard_link(from.join("sub/file"), from.join("z-link")).unwrap();
    symlink("sub/file", from.join("symlink")).unwrap();
    set_mode(&from.join("sub"), 0o755);
    let hour_ago = SystemTime::now() - Duration::from_secs(3600);
    fs::File::open(from.join("sub")).unwrap().set_modified(hour_ago).unwrap();
    // The leftovers of an interrupted run: directories of mode 0700, files without their other
    // names, one of them in the place of a link.
    fs::create_dir_all(to.join("from/sub")).unwrap();
    set_mode(&to.join("from/sub"), 0o700);
    fs::write(to.join("from/z-link"), "other").unwrap();
    let cp = || {
        let args = ["cp", "-rp", "--json", "--continue"].map(Path::new);
        json(args.into_iter().chain([&*from, &*to]))
    };
    cp();
    let check = || {
        let made = to.join("from");
        assert_eq!(mode(&made.join("sub")), 0o755);
        assert_eq!(made.join("sub").metadata().unwrap().modified().unwrap(), hour_ago);
        let inode = |name: &str| made.join(name).metadata().unwrap().ino();
        assert_eq!([inode("a-link"), inode("z-link")], [inode("sub/file"); 2]);
        let names = fs::read_dir(&made).unwrap().count();
        assert_eq!(names, 4, "nothing is left behind");
    };
    check();
    let again = cp();
    check();
    assert_eq!((&again["files"], &again["hard_links"]), (&0.into(), &0.into()), "{again}");
    assert_eq!(again["failures"].as_array().unwrap().len(), 0, "{again}");
}

#[test]
fn preserved_attributes_are_kept_or_reported() {
    let dir = scratch();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::create_dir_all(from.join("sub")).unwrap();
    fs::write(from.join("file"), "x").unwrap();
    symlink("file", from.join("link")).unwrap();
    let old = rustix::fs::Timespec { tv_sec: 1_000_000, tv_nsec: 5 };
    let times = rustix::fs::Timestamps { last_access: old, last_modification: old };
    let no_follow = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
    rustix::fs::utimensat(rustix::fs::CWD, from.join("link"), &times, no_follow).unwrap();
    let none = rustix::fs::XattrFlags::empty();
    let attributes = ["file", "sub"].iter().all(|name| {
        rustix::fs::setxattr(from.join(name), "user.weir.test", b"value", none).is_ok()
    });
    // user::rw- user:12345:r-- group::r-- mask::r-- other::---, as acl(5) has it in an attribute.
    let entry = |tag: u16, rights: u16, id: u32| {
        [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let all = u32::MAX;
    let list = [
        2_u32.to_le_bytes().to_vec(),
        entry(1, 6, all),
        entry(2, 4, 12345),
        entry(4, 4, all),
        entry(16, 4, all),
        entry(32, 0, all),
    ]
    .concat();
    let acl = "system.posix_acl_access";
    let lists = rustix::fs::setxattr(from.join("file"), acl, &list, none).is_ok();
    run(["cp".as_ref(), "-rp".as_ref(), from.as_os_str(), to.as_os_str()]);
    assert_eq!(fs::symlink_metadata(to.join("link")).unwrap().mtime(), 1_000_000);
    let value = |path: &Path, name: &str| {
        let mut value = vec![0; 1000];
        let len = rustix::fs::getxattr(path, name, value.as_mut_slice()).unwrap_or(0);
        value.truncate(len);
        value
    };
    if attributes {
        assert_eq!(value(&to.join("file"), "user.weir.test"), b"value");
        assert_eq!(value(&to.join("sub"), "user.weir.test"), b"value");
    }
    if lists {
        assert_eq!(value(&to.join("file"), acl), list);
        assert_eq!(mode(&to.join("file")), mode(&from.join("file")));
    }
    // Over NFS, version 3 has no extended attributes, and the client no access control lists.
    let export = dir.path().join("export");
    fs::create_dir(&export).unwrap();
    let server = Server::start(&export, &["--squash", "none"]);
    for (version, attributes_are_lost) in [("3", true), ("4.2", false)] {
        let url = server.url(&format!("v{version}"), &format!("vers={version}"));
        let args: [OsString; 5] =
            ["cp".into(), "-rp".into(), "--json".into(), from.clone().into(), url.into()];
        let summary = json(args);
        let said = summary["not_preserved"].to_string();
        if attributes {
            assert_eq!(
                said.contains("extended attribute user.weir.test"),
                attributes_are_lost,
                "{said}"
            );
        }
        assert_eq!(said.contains("access control lists of nfs://"), lists, "{said}");
        let link = export.join(format!("v{version}/link"));
        assert_eq!(fs::symlink_metadata(link).unwrap().mtime(), 1_000_000);
    }
}

#[test]
fn every_failure_is_listed() {
    let dir = scratch();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("good"), "x").unwrap();
    fs::create_dir_all(at("to/blocked")).unwrap();
    fs::write(at("blocked"), "x").unwrap();
    let output = weir(["cp", "--json", "good", "missing", "blocked", "to"])
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let failures = summary["failures"].to_string();
    for name in ["missing", "blocked"] {
        assert!(failures.contains(name), "{failures}");
    }
    assert_eq!(summary["files"], 1);
}

/// Attributes of the system require privileges, both here and at the destination.
#[test]
fn system_attributes_are_kept_or_reported_by_name() {
    let dir = scratch();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::create_dir_all(from.join("sub")).unwrap();
    fs::write(from.join("file"), "x").unwrap();
    symlink("file", from.join("link")).unwrap();
    // Version 2 of struct vfs_cap_data: CAP_NET_RAW, permitted and effective.
    let capability = [0x0200_0001_u32, 0x2000, 0, 0, 0].map(u32::to_le_bytes).concat();
    let none = rustix::fs::XattrFlags::empty();
    let given = [
        ("file", "security.capability", &capability[..]),
        ("file", "trusted.weir.test", b"1"),
        ("sub", "security.weir.test", b"2"),
        ("link", "trusted.weir.test", b"3"),
    ];
    std::os::unix::fs::lchown(from.join("file"), Some(12345), None).ok();
    for (name, attribute, value) in given {
        if rustix::fs::lsetxattr(from.join(name), attribute, value, none).is_err() {
            weir_skip::skip(format!("only root may set {attribute}"));
            return;
        }
    }
    let args = ["cp".as_ref(), "-rp".as_ref(), "--json".as_ref(), from.as_os_str(), to.as_os_str()];
    assert_eq!(json(args)["not_preserved"].as_array().unwrap().len(), 0);
    assert_eq!(to.join("file").metadata().unwrap().uid(), 12345);
    for (name, attribute, value) in given {
        let mut found = vec![0; 100];
        let len = rustix::fs::lgetxattr(to.join(name), attribute, found.as_mut_slice());
        assert_eq!(&found[..len.unwrap_or(0)], value, "{attribute} of {name}");
    }
    // NFS has user attributes only (RFC 8276 section 4.1), and version 3 none.
    let export = dir.path().join("export");
    fs::create_dir(&export).unwrap();
    let server = Server::start(&export, &["--squash", "none"]);
    for version in ["3", "4.2"] {
        let url = server.url(&format!("v{version}"), &format!("vers={version}"));
        let output = weir(["cp".as_ref(), "-rp".as_ref(), from.as_os_str(), url.as_ref()]).output();
        let output = output.unwrap();
        assert!(output.status.success(), "as with `cp -a`: {}", text(&output));
        for (name, attribute, _) in given {
            if attribute == "trusted.weir.test" {
                continue;
            }
            let path = url.replace('?', &format!("/{name}?"));
            let line = format!(
                "the destination does not keep the extended attribute {attribute} of {path}"
            );
            assert!(text(&output).contains(&line), "{line}: {}", text(&output));
        }
        let both = "the extended attribute trusted.weir.test of 2 files, the first of them nfs://";
        assert!(text(&output).contains(both), "{}", text(&output));
    }
}

/// NFSv3's times range from 1970 to 2106; version 4 has all.
#[test]
fn times_changed_by_the_destination_are_reported() {
    let dir = scratch();
    let export = dir.path().join("export");
    fs::create_dir(&export).unwrap();
    let server = Server::start(&export, &["--squash", "none"]);
    let at = |tv_sec| rustix::fs::Timespec { tv_sec, tv_nsec: 0 };
    let (today, early, late) = (1_700_000_000, -86_400, 5_000_000_000);
    let from = dir.path().join("from");
    for kind in ["file", "link"] {
        for (n, (atime, mtime)) in
            [(today, today), (early, today), (late, today), (today, early), (today, late)]
                .into_iter()
                .enumerate()
        {
            let _ = fs::remove_file(&from);
            match kind {
                "file" => fs::write(&from, "x").unwrap(),
                _ => symlink("nowhere", &from).unwrap(),
            }
            let times =
                rustix::fs::Timestamps { last_access: at(atime), last_modification: at(mtime) };
            let no_follow = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
            rustix::fs::utimensat(rustix::fs::CWD, &from, &times, no_follow).unwrap();
            if fs::symlink_metadata(&from).unwrap().mtime() != mtime
                || fs::symlink_metadata(&from).unwrap().atime() != atime
            {
                weir_skip::skip(format!("the file system has no such times: {atime}, {mtime}"));
                continue;
            }
            for version in ["3", "4.2"] {
                let url = server.url(&format!("{kind}{n}v{version}"), &format!("vers={version}"));
                let summary = json([
                    "cp".as_ref(),
                    "-rp".as_ref(),
                    "--json".as_ref(),
                    from.as_os_str(),
                    url.as_ref(),
                ]);
                let is_said = summary["not_preserved"].to_string().contains("times of nfs://");
                let is_lost = version == "3" && n > 0;
                assert_eq!(is_said, is_lost, "{kind} {atime} {mtime} {version}: {summary}");
            }
        }
    }
}

/// Only root may give files away, here and at a server that squashes users.
#[test]
fn owners_that_the_destination_refuses_are_reported() {
    let dir = scratch();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::create_dir_all(from.join("sub")).unwrap();
    fs::create_dir(&to).unwrap();
    fs::write(from.join("file"), "x").unwrap();
    fs::write(from.join("sub/big"), vec![1; 100_000]).unwrap();
    symlink("file", from.join("link")).unwrap();
    set_mode(&from.join("file"), 0o4755);
    for name in ["", "file", "sub", "sub/big", "link"] {
        if std::os::unix::fs::lchown(from.join(name), Some(12345), Some(12345)).is_err() {
            weir_skip::skip("only root may give files away");
            return;
        }
    }
    give_to_ordinary_user(dir.path(), &to);
    let export = dir.path().join("export");
    fs::create_dir(&export).unwrap();
    set_mode(&export, 0o777);
    let server = Server::start(&export, &["--squash", "all"]);
    let local = to.join("copy").to_str().unwrap().to_owned();
    for to in [local, server.url("v3", "vers=3"), server.url("v4", "vers=4.2")] {
        let args = ["cp", "-rp", from.to_str().unwrap(), &to];
        let output = match to.starts_with("nfs") {
            true => weir(args).output(),
            false => as_ordinary_user(weir(args)).output(),
        };
        let said = text(&output.unwrap());
        let says = "the destination does not keep owner and group of 5 files";
        assert!(said.contains(says), "{to}: {said}");
        assert_eq!(said.lines().count(), 1, "as with `cp -a`, nothing else: {said}");
        // Those that are written whole are counted, too.
        let summary = match to.starts_with("nfs") {
            true => json(["cp", "-p", "--json", from.join("sub/big").to_str().unwrap(), &to]),
            false => continue,
        };
        assert!(summary["not_preserved"][0].as_str().unwrap().contains("owner"), "{summary}");
    }
    assert_eq!(mode(&to.join("copy/file")), 0o755, "it does not run as another user");
}

/// As with cp(1) and rsync(1).
#[test]
fn a_group_that_the_user_is_in_is_kept_where_the_owner_is_refused() {
    const GROUP: u32 = 12346;
    let dir = scratch();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::create_dir_all(from.join("sub")).unwrap();
    fs::create_dir(&to).unwrap();
    fs::write(from.join("file"), "x").unwrap();
    fs::write(from.join("sub/big"), vec![1; 100_000]).unwrap();
    let names = ["", "file", "sub", "sub/big"];
    for name in names {
        if std::os::unix::fs::lchown(from.join(name), Some(12345), Some(GROUP)).is_err() {
            weir_skip::skip("only root may give files away");
            return;
        }
    }
    give_to_ordinary_user(dir.path(), &to);
    for command in ["cp", "sync"] {
        let copy = to.join(command);
        let mut setpriv = std::process::Command::new("setpriv");
        setpriv.args(["--reuid", "65534", "--regid", "65534", "--groups", "65534,12346"]);
        setpriv.arg(weir([""; 0]).get_program()).arg(command);
        setpriv.args(if command == "cp" { &["-rp"][..] } else { &[] });
        let output = setpriv.arg(&from).arg(&copy).output().unwrap();
        for name in names {
            let found = copy.join(name).metadata().unwrap();
            assert_eq!((found.uid(), found.gid()), (65534, GROUP), "{name}: {}", text(&output));
        }
        assert!(text(&output).contains("does not keep owner"), "{}", text(&output));
    }
}

/// A program that opens more files than it may reports files as missing, or cannot go on.
#[test]
fn a_tree_of_many_files_is_copied_with_few_descriptors() {
    const DIRS: usize = 60;
    const FILES: usize = 25;
    let dir = scratch();
    let export = dir.path().join("export");
    for d in 0..DIRS {
        let sub = export.join(format!("tree/{d}"));
        fs::create_dir_all(&sub).unwrap();
        for f in 0..FILES {
            fs::write(sub.join(f.to_string()), format!("{d} {f}")).unwrap();
        }
    }
    let server = Server::start(&export, &["--squash", "none"]);
    let at = |name: &str| dir.path().join(name).display().to_string();
    for (vers, name) in [("vers=4.2", "down-4"), ("vers=3", "down-3")] {
        let steps = [
            (server.url("tree", vers), at(name)),
            (at(name), server.url(name, vers)),
            (at(name), at(&format!("{name}-here"))),
        ];
        for (from, to) in &steps {
            let mut command = Command::new("sh");
            command.args(["-c", "ulimit -n 200 && exec \"$0\" cp -rp \"$1\" \"$2\""]);
            let output = command.args([env!("CARGO_BIN_EXE_weir"), from, to]).output().unwrap();
            assert!(output.status.success(), "{from} {to}: {}", text(&output));
        }
        let copies =
            [dir.path().join(name), export.join(name), dir.path().join(format!("{name}-here"))];
        for (d, f) in (0..DIRS).flat_map(|d| (0..FILES).map(move |f| (d, f))) {
            for copy in &copies {
                let path = copy.join(format!("{d}/{f}"));
                assert_eq!(fs::read_to_string(path).unwrap(), format!("{d} {f}"));
            }
        }
    }
}
