//! `weir sync`, locally and with a server.

mod common;

use common::{
    PAGE, Server, as_ordinary_user, fail, give_to_ordinary_user, json, run, same, scratch,
};
use common::{blocks, sparse, text, weir};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

/// The files of a tree: path, type, size, mode, time, link count and target.
fn shape(top: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut ahead = vec![top.to_path_buf()];
    while let Some(path) = ahead.pop() {
        let meta = path.symlink_metadata().unwrap();
        let below = path.strip_prefix(top).unwrap().display().to_string();
        let target = fs::read_link(&path).unwrap_or_default();
        let size = if meta.is_dir() { 0 } else { meta.len() };
        let links = if meta.is_dir() { 0 } else { meta.nlink() };
        let content = match meta.is_file() && meta.len() < 1 << 20 {
            true => fs::read(&path).unwrap(),
            false => Vec::new(),
        };
        let time = (meta.mtime(), meta.mtime_nsec());
        found.push(format!(
            "{below} {:o} {size} {links} {time:?} {target:?} {content:?}",
            meta.mode()
        ));
        if meta.is_dir() {
            ahead.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    found.sort();
    found
}

fn at(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A tree with every kind of file.
fn tree(top: &Path) {
    fs::create_dir_all(top.join("dir/deep")).unwrap();
    fs::write(top.join("dir/file"), "content").unwrap();
    fs::write(top.join("dir/deep/other"), "more").unwrap();
    fs::hard_link(top.join("dir/file"), top.join("linked")).unwrap();
    symlink("dir/file", top.join("link")).unwrap();
    sparse(&top.join("disk.img"), 4 << 20, [(0, 5 * PAGE), (2 << 20, PAGE)]);
    fs::set_permissions(top.join("dir/deep/other"), fs::Permissions::from_mode(0o600)).unwrap();
}

struct World {
    dir: tempfile::TempDir,
    server: Server,
}

impl World {
    fn new() -> Self {
        let dir = scratch();
        for name in ["export", "a"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        tree(&dir.path().join("a"));
        let server = Server::start(&dir.path().join("export"), &["--squash", "none"]);
        Self { dir, server }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

#[test]
fn a_mirror_equals_its_source_and_a_second_run_changes_nothing() {
    let world = World::new();
    let (a, export) = (world.path("a"), world.path("export"));
    for version in ["vers=3", "vers=4.2"] {
        let up = world.server.url("m", version);
        let summary = json(["sync", "--delete", "--json=1", at(&a), &up]);
        assert_eq!(summary["failures"].as_array().unwrap().len(), 0);
        assert_eq!(shape(&a), shape(&export.join("m")), "{version}");
        let again = json(["sync", "--delete", "--json", at(&a), &up]);
        let counts = ["files", "symlinks", "directories", "hard_links", "removed", "written_bytes"];
        counts.iter().for_each(|count| assert_eq!(again[count], 0, "{count}: {again}"));
        let back = world.path("back");
        run(["sync", "--delete", &up, at(&back)]);
        assert_eq!(shape(&a), shape(&back), "{version}");
        fs::remove_dir_all(&back).unwrap();
        fs::remove_dir_all(export.join("m")).unwrap();
    }
}

#[test]
fn only_what_differs_is_written() {
    let world = World::new();
    let size = 64 << 20;
    let old = world.path("a/big");
    let local = world.path("local");
    for version in ["", "vers=3", "vers=4.2"] {
        let to = match version {
            "" => at(&local).to_owned(),
            version => world.server.url("big", version),
        };
        let mirror = if version.is_empty() { local.clone() } else { world.path("export/big") };
        sparse(&old, size, [(0, 8 << 20), (32 << 20, PAGE), (60 << 20, 1 << 20)]);
        run(["sync", at(&old), &to]);
        assert!(same(&old, &mirror));
        let file = File::options().write(true).open(&old).unwrap();
        // A page in data, another in a hole, and a page of data that becomes a hole.
        file.write_all_at(&[9; 100], 3 * PAGE + 50).unwrap();
        file.write_all_at(&[9; 10], 40 << 20).unwrap();
        file.write_all_at(&vec![0; PAGE as usize], 60 << 20).unwrap();
        let summary = json(["sync", "--json", at(&old), &to]);
        assert!(same(&old, &mirror), "{version}");
        // Version 3 has no holes to make.
        let pages = if version == "vers=3" { 3 } else { 2 };
        assert_eq!(summary["written_bytes"], pages * PAGE, "{version}: {summary}");
        assert_eq!(summary["files"], 1);
        let rewritten = File::options().write(true).open(&old).unwrap();
        rewritten.write_all_at(&[1; 100], 3 * PAGE + 50).unwrap();
        // Longer, then shorter.
        for len in [size + 100, size - PAGE * 3 + 7] {
            rewritten.set_len(len).unwrap();
            let summary = json(["sync", "--json", at(&old), &to]);
            assert!(same(&old, &mirror), "{version} {len}");
            assert!(summary["written_bytes"].as_u64().unwrap() <= PAGE, "{summary}");
        }
        rewritten.set_len(size).unwrap();
        assert!(blocks(&mirror) * 512 < 10 << 20);
        let whole = json(["sync", "-W", "--json", at(&old), &to]);
        assert!(whole["written_bytes"].as_u64().unwrap() > 8 << 20, "{whole}");
        // Downwards.
        if !version.is_empty() {
            let file = File::options().write(true).open(&mirror).unwrap();
            file.write_all_at(&[7; 10], 5 << 20).unwrap();
            let summary = json(["sync", "--json", &to, at(&local)]);
            assert!(same(&mirror, &local));
            assert_eq!(summary["written_bytes"], PAGE, "{version}: {summary}");
            // Holes are not sent, but by version 3.
            let most = if version == "vers=3" { size } else { 10 << 20 };
            assert!(summary["wire_bytes"].as_u64().unwrap() < most + (1 << 20), "{summary}");
            run(["sync", at(&old), at(&local)]);
        }
    }
}

#[test]
fn a_file_of_the_same_size_and_time_is_found_by_its_checksum() {
    let world = World::new();
    let (a, b) = (world.path("a"), world.path("b"));
    run(["sync", at(&a), at(&b)]);
    for name in ["dir/deep/other", "disk.img"] {
        let time = a.join(name).metadata().unwrap().modified().unwrap();
        let file = File::options().write(true).open(a.join(name)).unwrap();
        file.write_all_at(b"x", 1).unwrap();
        file.set_modified(time).unwrap();
    }
    assert_eq!(json(["sync", "--json", at(&a), at(&b)])["files"], 0);
    assert!(!same(&a.join("disk.img"), &b.join("disk.img")));
    let summary = json(["sync", "-c", "--json", at(&a), at(&b)]);
    assert_eq!(summary["files"], 2, "{summary}");
    assert_eq!(shape(&a), shape(&b));
    assert!(same(&a.join("disk.img"), &b.join("disk.img")));
    assert_eq!(json(["sync", "-c", "--json", at(&a), at(&b)])["files"], 0);
}

#[test]
fn attributes_of_files_that_are_up_to_date_are_kept() {
    let world = World::new();
    let (a, b) = (world.path("a"), world.path("b"));
    run(["sync", at(&a), at(&b)]);
    fs::set_permissions(a.join("dir/file"), fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(json(["sync", "--json", at(&a), at(&b)])["written_bytes"], 0);
    assert_eq!(shape(&a), shape(&b));
}

#[test]
fn files_that_the_source_lacks_are_removed_only_on_request() {
    let world = World::new();
    let a = world.path("a");
    for to in [at(&world.path("b")).to_owned(), world.server.url("m", "vers=4.2")] {
        let b = if to.starts_with("nfs") { world.path("export/m") } else { world.path("b") };
        run(["sync", at(&a), &to]);
        let outside = world.path("outside");
        fs::create_dir_all(outside.join("kept")).unwrap();
        fs::create_dir_all(b.join("old/deep")).unwrap();
        fs::write(b.join("old/deep/file"), "").unwrap();
        fs::write(b.join("dir/extra"), "").unwrap();
        symlink(&outside, b.join("dir/way-out")).unwrap();
        run(["sync", at(&a), &to]);
        assert!(b.join("old/deep/file").exists() && b.join("dir/extra").exists());
        let told = run(["sync", "--delete", "-n", at(&a), &to]);
        let removed = |line: &&str| line.starts_with("removed ");
        assert_eq!(told.lines().filter(removed).count(), 3, "{told}");
        assert!(b.join("old/deep/file").exists());
        let summary = json(["sync", "--delete", "--json", at(&a), &to]);
        assert_eq!(summary["removed"], 5);
        assert_eq!(shape(&a), shape(&b));
        assert!(outside.join("kept").exists());
    }
}

#[test]
fn excluded_names_are_neither_copied_nor_removed() {
    let world = World::new();
    let (a, b) = (world.path("a"), world.path("b"));
    for name in ["x.o", "keep.o", "dir/y.o"] {
        fs::write(a.join(name), "").unwrap();
    }
    fs::create_dir_all(b.join("gone/deep")).unwrap();
    fs::create_dir_all(b.join("gone/empty")).unwrap();
    for name in ["z.o", "gone/deep/z.o", "gone/deep/file", "stale"] {
        fs::write(b.join(name), "").unwrap();
    }
    let args = ["sync", "--exclude", "*.o", "--include", "keep.o", at(&a), at(&b)];
    run(args.into_iter().chain(["--delete"]));
    assert!(
        b.join("keep.o").exists() && b.join("z.o").exists() && b.join("gone/deep/z.o").exists()
    );
    for name in ["x.o", "dir/y.o", "stale", "gone/deep/file", "gone/empty"] {
        assert!(!b.join(name).exists(), "{name}");
    }
    run(args.into_iter().chain(["--delete-excluded"]));
    assert!(b.join("keep.o").exists() && !b.join("z.o").exists() && !b.join("gone").exists());
    assert!(fail(1, ["sync", "--exclude", "a[", at(&a), at(&b)]).contains("pattern a["));
}

#[test]
fn a_directory_with_excluded_files_in_the_place_of_a_file_is_a_failure() {
    let dir = scratch();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    fs::create_dir(&a).unwrap();
    fs::write(a.join("build"), "a file").unwrap();
    fs::create_dir_all(b.join("build")).unwrap();
    fs::write(b.join("build/x.o"), "").unwrap();
    let args = ["sync", "--exclude", "*.o", at(&a), at(&b)];
    let said = fail(1, args.into_iter().chain(["--delete"]));
    assert!(said.contains("build") && said.contains("holds excluded files"), "{said}");
    assert!(b.join("build/x.o").exists());
    run(args.into_iter().chain(["--delete-excluded"]));
    assert_eq!(fs::read(b.join("build")).unwrap(), b"a file");
}

#[test]
fn a_dry_run_removes_no_directory_that_would_stay() {
    let dir = scratch();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    fs::create_dir(&a).unwrap();
    fs::create_dir_all(b.join("old/sub")).unwrap();
    fs::write(b.join("old/sub/x.o"), "").unwrap();
    let args = ["sync", "--json", "--delete", "--exclude", "*.o", at(&a), at(&b)];
    for option in [&["--dry-run"][..], &[]] {
        assert_eq!(json(args.iter().chain(option))["removed"], 0, "{option:?}");
        assert!(b.join("old/sub/x.o").exists());
    }
}

#[test]
fn a_link_of_equal_length_and_time_is_compared() {
    let dir = scratch();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    let time = |path: &Path| {
        let time = ["-h", "-d", "2020-01-01T00:00:00Z", at(path)];
        assert!(Command::new("touch").args(time).status().unwrap().success());
    };
    fs::create_dir(&a).unwrap();
    symlink("v1", a.join("current")).unwrap();
    time(&a.join("current"));
    run(["sync", at(&a), at(&b)]);
    fs::remove_file(a.join("current")).unwrap();
    symlink("v2", a.join("current")).unwrap();
    time(&a.join("current"));
    run(["sync", at(&a), at(&b)]);
    assert_eq!(fs::read_link(b.join("current")).unwrap(), Path::new("v2"));
}

/// Attributes of one would become those of the other.
#[test]
fn files_that_are_no_longer_one_are_separated() {
    let dir = scratch();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    fs::create_dir(&a).unwrap();
    fs::write(a.join("x"), "content").unwrap();
    fs::hard_link(a.join("x"), a.join("y")).unwrap();
    run(["sync", at(&a), at(&b)]);
    assert_eq!(shape(&a), shape(&b));
    // The same content and time, of another mode.
    let copied = Command::new("cp").arg("-p").arg(a.join("y")).arg(a.join("t")).status();
    assert!(copied.unwrap().success());
    fs::rename(a.join("t"), a.join("y")).unwrap();
    fs::set_permissions(a.join("y"), fs::Permissions::from_mode(0o600)).unwrap();
    run(["sync", at(&a), at(&b)]);
    assert_eq!(shape(&a), shape(&b));
}

#[test]
fn files_and_directories_replace_each_other() {
    let world = World::new();
    let (a, b) = (world.path("a"), world.path("b"));
    run(["sync", at(&a), at(&b)]);
    fs::remove_dir_all(a.join("dir")).unwrap();
    fs::write(a.join("dir"), "a file now").unwrap();
    fs::remove_file(a.join("link")).unwrap();
    fs::create_dir_all(a.join("link/inner")).unwrap();
    fs::remove_file(a.join("disk.img")).unwrap();
    symlink("nowhere", a.join("disk.img")).unwrap();
    let said = fail(1, ["sync", at(&a), at(&b)]);
    assert!(said.contains("use --delete to replace it"), "{said}");
    assert!(b.join("dir/deep/other").exists() && b.join("link/inner").is_dir());
    run(["sync", "--delete", at(&a), at(&b)]);
    assert_eq!(shape(&a), shape(&b));
}

#[test]
fn nothing_is_removed_if_the_source_could_not_be_read() {
    let dir = scratch();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    tree(&a);
    fs::create_dir(&b).unwrap();
    fs::write(b.join("extra"), "").unwrap();
    fs::create_dir_all(b.join("dir")).unwrap();
    fs::write(b.join("dir/old"), "").unwrap();
    give_to_ordinary_user(dir.path(), &a);
    give_to_ordinary_user(dir.path(), &b);
    fs::set_permissions(a.join("dir"), fs::Permissions::from_mode(0o000)).unwrap();
    let args = ["sync", "--delete", at(&a), at(&b)];
    let output = as_ordinary_user(weir(args)).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("nothing was removed"), "{}", text(&output));
    assert!(b.join("extra").exists() && b.join("dir/old").exists());
    fs::set_permissions(a.join("dir"), fs::Permissions::from_mode(0o755)).unwrap();
    fail(1, ["sync", "--delete", at(&dir.path().join("nothing")), at(&b)]);
    assert!(b.join("extra").exists());
}

#[test]
fn a_directory_is_not_synchronized_with_itself_or_what_it_contains() {
    let world = World::new();
    let a = world.path("a");
    let export = world.path("export");
    tree(&export.join("t"));
    let url = |name: &str| world.server.url(name, "vers=4.2");
    for (from, to) in [
        (at(&a).to_owned(), at(&a).to_owned()),
        (at(&a).to_owned(), at(&a.join("dir/new")).to_owned()),
        (at(&a.join("dir")).to_owned(), at(&a).to_owned()),
        (url("t"), url("t/dir/deep")),
        (url("t/dir"), url("t")),
        (url("t"), at(&export.join("t")).to_owned()),
    ] {
        let before = (shape(&a), shape(&export));
        let said = fail(1, ["sync", "--delete", &from, &to]);
        assert!(said.contains("inside of") || said.contains("the same file"), "{said}");
        assert!((shape(&a), shape(&export)) == before, "{from} {to}");
    }
    let said = fail(1, ["sync", "--delete", at(&a.join("link")), at(&world.path("export"))]);
    assert!(said.contains("the destination is a directory"), "{said}");
}

/// A file with several names is not written in place, and neither is one that a link leads to.
#[test]
fn other_names_of_a_file_keep_their_data() {
    let world = World::new();
    let (a, b) = (world.path("a"), world.path("b"));
    run(["sync", at(&a), at(&b)]);
    let old = fs::read(b.join("disk.img")).unwrap();
    fs::hard_link(b.join("disk.img"), world.path("backup")).unwrap();
    let file = File::options().write(true).open(a.join("disk.img")).unwrap();
    file.write_all_at(&[3; 100], 2 << 20).unwrap();
    run(["sync", at(&a), at(&b)]);
    assert!(same(&a.join("disk.img"), &b.join("disk.img")));
    assert!(fs::read(world.path("backup")).unwrap() == old);

    let target = world.path("target");
    fs::rename(b.join("disk.img"), &target).unwrap();
    symlink(&target, b.join("disk.img")).unwrap();
    file.write_all_at(&[4; 100], 2 << 20).unwrap();
    let before = fs::read(&target).unwrap();
    run(["sync", at(&a), at(&b)]);
    assert_eq!(shape(&a), shape(&b));
    assert!(fs::read(&target).unwrap() == before);
}

/// A killed update leaves a file that is not equal to its source by size and time.
#[test]
fn a_killed_update_is_completed_by_the_next_run() {
    let world = World::new();
    let (old, mirror) = (world.path("a/big"), world.path("export/big"));
    let to = world.server.url("big", "vers=4.2");
    let size = 24 << 20;
    sparse(&old, size, [(0, size)]);
    run(["sync", at(&old), &to]);
    let mut interrupted = 0;
    for round in 0..6_u8 {
        let file = File::options().write(true).open(&old).unwrap();
        for at in 0..6 {
            file.write_all_at(&[round + 100; 4096], at * (4 << 20)).unwrap();
        }
        drop(file);
        // The pace makes the run take seconds.
        let mut child = weir(["sync", "--bwlimit", "4M", at(&old), &to]).spawn().unwrap();
        let begun = SystemTime::now();
        while mirror.metadata().unwrap().len() == size
            && begun.elapsed().unwrap() < Duration::from_secs(20)
            && child.try_wait().unwrap().is_none()
        {
            std::thread::sleep(Duration::from_millis(2));
        }
        std::thread::sleep(Duration::from_millis(100 * u64::from(round)));
        child.kill().unwrap();
        child.wait().unwrap();
        if !same(&old, &mirror) {
            interrupted += 1;
            assert_ne!(mirror.metadata().unwrap().len(), size);
        }
        run(["sync", at(&old), &to]);
        assert!(same(&old, &mirror));
        assert_eq!(shape(&old), shape(&mirror));
    }
    assert!(interrupted > 0);
}

/// None of these changes a size, a time or a mode.
#[test]
fn attributes_that_no_listing_shows_are_kept_and_removed() {
    let dir = scratch();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    tree(&a);
    let names = ["dir", "dir/file", "disk.img"];
    let set = |name: &str, attribute: &str, value: &str| {
        let none = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(a.join(name), attribute, value.as_bytes(), none)
    };
    let get = |top: &Path, name: &str, attribute: &str| {
        let mut value = vec![0; 100];
        let read = rustix::fs::getxattr(top.join(name), attribute, value.as_mut_slice());
        read.ok().map(|len| String::from_utf8(value[..len].to_vec()).unwrap())
    };
    if set("dir", "user.first", "1").is_err() {
        weir_skip::skip("the file system has no extended attributes");
        return;
    }
    let export = dir.path().join("export");
    fs::create_dir(&export).unwrap();
    let server = Server::start(&export, &["--squash", "none"]);
    for to in [at(&b).to_owned(), server.url("m", "vers=4.2")] {
        let b = if to.starts_with("nfs") { export.join("m") } else { b.clone() };
        names.iter().for_each(|name| set(name, "user.first", "1").unwrap());
        names.iter().for_each(|name| set(name, "user.other", "1").unwrap());
        for name in names {
            // The first round has set it.
            let _ = rustix::fs::removexattr(a.join(name), "user.new");
        }
        run(["sync", at(&a), &to]);
        for name in names {
            set(name, "user.first", "2").unwrap();
            set(name, "user.new", "3").unwrap();
            rustix::fs::removexattr(a.join(name), "user.other").unwrap();
        }
        let told = run(["sync", "-n", at(&a), &to]);
        // The first name of `dir/file`.
        assert!(told.contains("disk.img") && told.contains("linked"), "{told}");
        assert_eq!(get(&b, "disk.img", "user.new"), None);
        let summary = json(["sync", "--json", at(&a), &to]);
        assert_eq!((&summary["files"], &summary["written_bytes"]), (&0.into(), &0.into()));
        for name in names {
            let values = ["first", "new", "other"].map(|n| get(&b, name, &format!("user.{n}")));
            assert_eq!(values, [Some("2".into()), Some("3".into()), None], "{to} {name}");
        }
        assert_eq!(shape(&a), shape(&b));
        let told = run(["sync", "-n", at(&a), &to]);
        assert!(!told.contains("disk.img") && !told.contains("linked"), "{told}");
    }
}

/// The list gives no user more rights than the mode does.
#[test]
fn access_lists_of_files_that_are_up_to_date_are_kept() {
    let dir = scratch();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    tree(&a);
    run(["sync", at(&a), at(&b)]);
    let entry = |tag: u16, rights: u16, id: u32| {
        [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    // user::rw- user:12345:r-- group::r-- mask::r-- other::r--, as acl(5) has it in an attribute.
    let all = u32::MAX;
    let list = [
        2_u32.to_le_bytes().to_vec(),
        entry(1, 6, all),
        entry(2, 4, 12345),
        entry(4, 4, all),
        entry(16, 4, all),
        entry(32, 4, all),
    ]
    .concat();
    let name = "system.posix_acl_access";
    let none = rustix::fs::XattrFlags::empty();
    fs::set_permissions(a.join("disk.img"), fs::Permissions::from_mode(0o644)).unwrap();
    run(["sync", at(&a), at(&b)]);
    if rustix::fs::setxattr(a.join("disk.img"), name, &list, none).is_err() {
        weir_skip::skip("the file system has no access control lists");
        return;
    }
    let found = || {
        let mut value = vec![0; 100];
        let read = rustix::fs::getxattr(b.join("disk.img"), name, value.as_mut_slice());
        value[..read.unwrap_or(0)].to_vec()
    };
    assert_eq!(json(["sync", "--json", at(&a), at(&b)])["files"], 0);
    assert_eq!(found(), list);
    assert_eq!(shape(&a), shape(&b));
    rustix::fs::removexattr(a.join("disk.img"), name).unwrap();
    assert_eq!(json(["sync", "--json", at(&a), at(&b)])["files"], 0);
    assert_eq!(found(), b"");
    assert_eq!(shape(&a), shape(&b));
}

#[test]
fn the_owner_of_a_link_is_kept_without_making_it_again() {
    let dir = scratch();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    tree(&a);
    run(["sync", at(&a), at(&b)]);
    let meta = || b.join("link").symlink_metadata().unwrap();
    let first = meta().ino();
    if std::os::unix::fs::lchown(a.join("link"), Some(12345), Some(54321)).is_err() {
        weir_skip::skip("only root may give files away");
        return;
    }
    run(["sync", at(&a), at(&b)]);
    assert_eq!((meta().uid(), meta().gid(), meta().ino()), (12345, 54321, first));
    assert_eq!(shape(&a), shape(&b));
}
