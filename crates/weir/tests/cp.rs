//! `weir cp` between local directories.

mod common;

use common::{EXTENTS, PAGE, blocks, fail, json, run, same, scratch, sparse, text, weir, within};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

/// Sparse files of many kinds, by name.
fn sparse_files(dir: &Path) -> Vec<PathBuf> {
    let mib = 1 << 20;
    type Extents = Vec<(u64, u64)>;
    let files: Vec<(&str, u64, Extents)> = vec![
        ("empty", 0, vec![]),
        ("small", 5, vec![(0, 5)]),
        ("data", 3 * mib + 17, vec![(0, 3 * mib + 17)]),
        ("hole", 64 * mib, vec![]),
        ("ends-in-hole", 9 * mib + 1, vec![(0, PAGE), (4 * mib, 70_000)]),
        ("begins-in-hole", 8 * mib, vec![(8 * mib - 1, 1)]),
        ("mixed", 4 * mib, (0..512).map(|i| (i * 2 * PAGE, PAGE)).collect()),
        ("odd", 2 * mib, vec![(5000, 100), (70_001, 1), (1_000_000, 300_000)]),
    ];
    files
        .into_iter()
        .map(|(name, size, data)| {
            sparse(&dir.join(name), size, data);
            dir.join(name)
        })
        .collect()
}

/// Blocks that a file's copy by `cp --sparse=always` has.
fn blocks_of_cp(file: &Path) -> u64 {
    let copy = file.with_extension("reference");
    let cp = Command::new("cp").arg("--sparse=always").args([file, &copy]).status().unwrap();
    assert!(cp.success());
    let blocks = blocks(&copy);
    fs::remove_file(copy).unwrap();
    blocks
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name());
    let mut names: Vec<_> = entries.map(|n| n.into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn sparse_in_sparse_out() {
    let dir = scratch();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::create_dir(&from).unwrap();
    let files = sparse_files(&from);
    let summary =
        json(["cp".as_ref(), "-r".as_ref(), "--json".as_ref(), from.as_os_str(), to.as_os_str()]);
    for file in &files {
        let copy = to.join(file.file_name().unwrap());
        assert!(same(file, &copy), "{}", file.display());
        let (ours, theirs) = (blocks(&copy), blocks_of_cp(file));
        let theirs = if theirs > 0 { theirs + EXTENTS } else { 0 };
        assert!(ours <= theirs, "{}: {ours} blocks, cp {theirs}", file.display());
    }
    assert_eq!(summary["files"], files.len());
    assert_eq!(summary["directories"], 1);
    assert_eq!(summary["wire_bytes"], 0);
    assert_eq!(summary["failures"].as_array().unwrap().len(), 0);
    let sizes: u64 = files.iter().map(|f| f.metadata().unwrap().len()).sum();
    assert_eq!(summary["size_bytes"], sizes);
    let parts = ["read_bytes", "hole_bytes"].map(|part| summary[part].as_u64().unwrap());
    assert_eq!(parts.iter().sum::<u64>(), sizes);
    assert!(summary["holes_skipped"].as_u64().unwrap() > 512);
}

#[test]
fn zeros_become_holes_by_default() {
    let dir = scratch();
    let zeros = dir.path().join("zeros");
    let mut bytes = vec![0; 1 << 20];
    bytes[500_000] = 1;
    fs::write(&zeros, &bytes).unwrap();
    let holes = dir.path().join("holes");
    sparse(&holes, 1 << 20, [(0, PAGE)]);
    for (sparse, of_zeros, of_holes) in [("always", 8, 8), ("auto", 2048, 8), ("never", 2048, 2048)]
    {
        for (file, most) in [(&zeros, of_zeros), (&holes, of_holes)] {
            let copy = dir.path().join("copy");
            run([
                "cp".as_ref(),
                "--sparse".as_ref(),
                sparse.as_ref(),
                file.as_os_str(),
                copy.as_ref(),
            ]);
            assert!(same(file, &copy));
            assert_eq!(blocks(&copy), most, "--sparse={sparse} {}", file.display());
        }
    }
}

#[test]
fn uncached_copies_are_the_same() {
    let dir = scratch();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::create_dir(&from).unwrap();
    let files = sparse_files(&from);
    run(["cp".as_ref(), "-r".as_ref(), "--uncached".as_ref(), from.as_os_str(), to.as_os_str()]);
    for file in &files {
        assert!(same(file, &to.join(file.file_name().unwrap())), "{}", file.display());
    }
}

#[test]
fn a_budget_smaller_than_the_files_is_enough() {
    let dir = scratch();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::create_dir(&from).unwrap();
    for n in 0..6 {
        sparse(&from.join(n.to_string()), 24 << 20, [(0, 24 << 20)]);
    }
    run(["cp", "-r", "--budget", "16M"].iter().map(Path::new).chain([&*from, &*to]));
    for n in 0..6 {
        assert!(same(&from.join(n.to_string()), &to.join(n.to_string())));
    }
}

#[test]
fn trees_with_links_and_special_files() {
    let dir = scratch();
    let from = dir.path().join("from");
    fs::create_dir_all(from.join("a/b")).unwrap();
    fs::write(from.join("a/b/file"), "x").unwrap();
    fs::write(from.join(std::ffi::OsStr::from_bytes(b"a/\xff\n")), "y").unwrap();
    symlink("a/b/file", from.join("link")).unwrap();
    symlink("/nowhere", from.join("dangling")).unwrap();
    fs::hard_link(from.join("a/b/file"), from.join("hard")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        from.join("pipe"),
        rustix::fs::FileType::Fifo,
        0o640.into(),
        0,
    )
    .unwrap();
    fs::set_permissions(from.join("a/b/file"), fs::Permissions::from_mode(0o4751)).unwrap();
    fs::set_permissions(from.join("a"), fs::Permissions::from_mode(0o555)).unwrap();
    let to = dir.path().join("to");
    run(["cp".as_ref(), "-rp".as_ref(), from.as_os_str(), to.as_os_str()]);
    assert_eq!(fs::read_link(to.join("link")).unwrap(), Path::new("a/b/file"));
    assert_eq!(fs::read_link(to.join("dangling")).unwrap(), Path::new("/nowhere"));
    assert_eq!(fs::read(to.join(std::ffi::OsStr::from_bytes(b"a/\xff\n"))).unwrap(), b"y");
    assert!(fs::symlink_metadata(to.join("pipe")).unwrap().file_type().is_fifo());
    for name in ["a", "a/b", "a/b/file", "pipe"] {
        let (old, new) = (from.join(name).metadata().unwrap(), to.join(name).metadata().unwrap());
        assert_eq!(old.mode(), new.mode(), "{name}");
        assert_eq!((old.uid(), old.gid()), (new.uid(), new.gid()), "{name}");
        assert_eq!((old.mtime(), old.mtime_nsec()), (new.mtime(), new.mtime_nsec()), "{name}");
    }
    let [file, hard] = ["a/b/file", "hard"].map(|n| to.join(n).metadata().unwrap().ino());
    assert_eq!(file, hard, "hard links stay together");
    for tree in [from, to] {
        fs::set_permissions(tree.join("a"), fs::Permissions::from_mode(0o755)).unwrap();
    }
}

#[test]
fn copies_go_into_directories_or_to_new_names() {
    let dir = scratch();
    let at = |name: &str| dir.path().join(name);
    let cp = |args: &[&str]| weir(["cp"]).args(args).current_dir(dir.path()).output().unwrap();
    fs::write(at("a"), "1").unwrap();
    fs::write(at("b"), "2").unwrap();
    fs::create_dir(at("d")).unwrap();
    fs::create_dir(at("tree")).unwrap();
    fs::write(at("tree/t"), "3").unwrap();

    assert!(cp(&["a", "new"]).status.success());
    assert_eq!(fs::read(at("new")).unwrap(), b"1");
    assert!(cp(&["a", "b", "d"]).status.success());
    assert_eq!(names(&at("d")), ["a", "b"]);
    // An existing directory gets the tree inside it; a missing one becomes the tree.
    assert!(cp(&["-r", "tree", "d"]).status.success());
    assert_eq!(fs::read(at("d/tree/t")).unwrap(), b"3");
    assert!(cp(&["-r", "tree", "fresh"]).status.success());
    assert_eq!(names(&at("fresh")), ["t"]);
    assert!(cp(&["-r", "tree/.", "d/"]).status.success());
    assert_eq!(names(&at("d")), ["a", "b", "t", "tree"]);
    // A link to a directory counts as that directory; a link to a file, as that file.
    symlink("d", at("ld")).unwrap();
    symlink("b", at("lb")).unwrap();
    assert!(cp(&["new", "ld"]).status.success());
    assert!(at("d/new").exists());
    assert!(cp(&["a", "lb"]).status.success());
    assert_eq!(fs::read(at("b")).unwrap(), b"1");
    assert!(at("lb").is_symlink());
    // The same in a directory, with one source or several.
    fs::write(at("b"), "2").unwrap();
    symlink("../b", at("d/linked")).unwrap();
    symlink("nowhere", at("d/dangling")).unwrap();
    fs::write(at("linked"), "through").unwrap();
    fs::write(at("dangling"), "replaced").unwrap();
    fs::hard_link(at("b"), at("other")).unwrap();
    assert!(cp(&["--in-place", "linked", "d"]).status.success());
    assert_eq!(fs::read(at("other")).unwrap(), b"through");
    fs::write(at("linked"), "anew").unwrap();
    assert!(cp(&["linked", "dangling", "d"]).status.success());
    assert_eq!(fs::read(at("b")).unwrap(), b"anew");
    assert!(at("d/linked").is_symlink() && at("d/dangling").is_file());
    assert!(!at("d/dangling").is_symlink());
    // Where links are copied as such, they are replaced as such.
    assert!(cp(&["-r", "linked", "d"]).status.success());
    assert!(!at("d/linked").is_symlink());
    for name in ["linked", "dangling", "d/linked", "d/dangling", "other"] {
        fs::remove_file(at(name)).unwrap();
    }

    for (args, says) in [
        (&["a", "b", "nowhere"][..], "it is not a directory, and there are several sources"),
        (&["a", "nowhere/"], "there is no such directory; make it first"),
        (&["a", "nowhere/x"], "no such file or directory"),
        (&["missing", "x"], "cannot copy missing: no such file or directory; check the path"),
        (&["tree", "x"], "it is a directory; use -r"),
        (&["a", "a"], "they are the same file"),
        (&["a", "./d/../a"], "they are the same file"),
        (&["-r", "tree", "tree/inner"], "that is inside of it; copy it to a place outside of it"),
        (&["-r", "tree", "tree"], "that is inside of it"),
        (&["-r", ".", "d"], "that is inside of it"),
        (&["-r", "tree", "d/../tree/inner/more"], "no such file or directory"),
        (&["-r", "tree", "a"], "cannot make the directory a"),
        (&["a", "/dev/null"], "it is a character device; use `weir cat`"),
    ] {
        let output = cp(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {}", text(&output));
        assert!(text(&output).contains(says), "{args:?}: {}", text(&output));
    }
    assert!(!at("x").exists());
    assert!(!at("tree/inner").exists() && !at("tree/tree").exists());
    assert_eq!(fs::read(at("a")).unwrap(), b"1");
}

#[test]
fn one_failure_does_not_stop_the_others() {
    let dir = scratch();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::create_dir_all(to.join("from/blocked")).unwrap();
    fs::create_dir(&from).unwrap();
    for name in ["a", "blocked", "z"] {
        fs::write(from.join(name), name).unwrap();
    }
    let says = fail(1, ["cp".as_ref(), "-r".as_ref(), from.as_os_str(), to.as_os_str()]);
    assert!(says.contains("blocked: it is a directory; remove it"), "{says}");
    assert_eq!(names(&to.join("from")), ["a", "blocked", "z"]);
    assert_eq!(fs::read(to.join("from/z")).unwrap(), b"z");
}

#[test]
fn a_replaced_file_keeps_its_mode_and_is_never_partial() {
    let dir = scratch();
    let (new, old) = (dir.path().join("new"), dir.path().join("old"));
    sparse(&new, 3 << 20, [(0, 3 << 20)]);
    fs::write(&old, "old").unwrap();
    fs::set_permissions(&old, fs::Permissions::from_mode(0o640)).unwrap();
    let reader = fs::File::open(&old).unwrap();
    run(["cp".as_ref(), new.as_os_str(), old.as_os_str()]);
    assert!(same(&new, &old));
    assert_eq!(old.metadata().unwrap().mode() & 0o7777, 0o640);
    assert_eq!(std::io::read_to_string(reader).unwrap(), "old", "readers go on with what it was");
    assert_eq!(names(dir.path()), ["new", "old"]);
}

#[test]
fn new_files_get_their_mode_less_the_umask() {
    let dir = scratch();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::write(&from, "x").unwrap();
    fs::set_permissions(&from, fs::Permissions::from_mode(0o4777)).unwrap();
    let cp = format!("umask 027; exec {} cp \"$@\"", env!("CARGO_BIN_EXE_weir"));
    let status = Command::new("sh").args(["-c", &cp, "sh"]).args([&from, &to]).status().unwrap();
    assert!(status.success());
    assert_eq!(to.metadata().unwrap().mode() & 0o7777, 0o750);
}

#[test]
fn an_interrupted_copy_leaves_nothing_behind() {
    let dir = scratch();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    // A minute of data, so that a signal arrives during the copy.
    sparse(&from, 40 << 30, [(0, 256 << 20)]);
    fs::create_dir(&to).unwrap();
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let mut command = weir(["cp", "--sparse=never", "--bwlimit", "4M"]);
        let mut child = command.args([&from, &to]).stderr(Stdio::piped()).spawn().unwrap();
        within(LIMIT, || (!names(&to).is_empty()).then_some(()));
        assert!(names(&to)[0].starts_with(".weir-"), "{:?}", names(&to));
        let id = Pid::from_child(&child);
        kill_process(id, signal).unwrap();
        let status = within(LIMIT, || {
            // At the end of a session, the shell and the kernel both send it.
            if signal == Signal::HUP {
                kill_process(id, signal).unwrap();
            }
            child.try_wait().unwrap()
        });
        assert_eq!(status.signal(), Some(signal.as_raw()));
        assert_eq!(names(&to), [""; 0], "{signal:?}");
    }
}

/// As under nohup(1), and in the background of a script.
#[test]
fn a_copy_goes_on_at_signals_that_it_ignores() {
    let dir = scratch();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    sparse(&from, 12 << 20, [(0, 12 << 20)]);
    let script = "trap '' HUP INT; exec \"$0\" cp --bwlimit 4M \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_weir")]).args([&from, &to]);
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    within(LIMIT, || (names(dir.path()).len() > 1).then_some(()));
    for signal in [Signal::HUP, Signal::INT] {
        kill_process(Pid::from_child(&child), signal).unwrap();
    }
    let status = within(LIMIT, || child.try_wait().unwrap());
    assert!(status.success(), "{status}");
    assert!(same(&from, &to));
}

#[test]
fn a_killed_copy_is_continued() {
    let dir = scratch();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    sparse(&from, 300 << 20, [(0, 40 << 20), (280 << 20, 20 << 20)]);
    fs::create_dir(&to).unwrap();
    let args = ["cp", "-p", "--json", "--continue", "--checkpoint", "1M"].map(Path::new);
    let args = || args.into_iter().chain([&*from, &*to]);
    let mut command = weir(args());
    // A minute of data, so that it is killed during the copy.
    command.args(["--bwlimit", "1M"]).stdout(Stdio::null());
    let mut child = command.spawn().unwrap();
    let durable = |name: &String| !name.ends_with("-0.part");
    within(LIMIT, || {
        let begun = names(&to);
        assert!(!begun.contains(&"from".into()), "it was done before it could be killed");
        begun.iter().any(durable).then_some(())
    });
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(names(&to)[0].starts_with(".weir-"), "{:?}", names(&to));
    let summary = json(args());
    assert!(summary["resumed_bytes"].as_u64().unwrap() >= 1 << 20, "{summary}");
    assert_eq!(names(&to), ["from"]);
    assert!(same(&from, &to.join("from")));
    assert!(blocks(&to.join("from")) <= blocks(&from) + EXTENTS);
    // Existing copies are up to date.
    let summary = json(args());
    assert_eq!((&summary["up_to_date"], &summary["files"]), (&1.into(), &0.into()));
    // But not if the source has changed since; a partial copy of the old one is useless, too.
    fs::write(to.join(".weir-unrelated.part"), "").unwrap();
    fs::write(&from, "changed").unwrap();
    assert_eq!(json(args())["files"], 1);
    assert_eq!(fs::read(to.join("from")).unwrap(), b"changed");
}

#[test]
fn checksum_reads_copies_back() {
    let dir = scratch();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::create_dir(&from).unwrap();
    let files = sparse_files(&from);
    for sparse in ["always", "never"] {
        let summary = json(
            ["cp", "-r", "--json", "--checksum", "--sparse", sparse]
                .iter()
                .map(Path::new)
                .chain([&*from, &*to]),
        );
        let sizes: u64 = files.iter().map(|f| f.metadata().unwrap().len()).sum();
        assert_eq!(
            (&summary["verified_bytes"], &summary["size_bytes"]),
            (&sizes.into(), &sizes.into())
        );
        fs::remove_dir_all(&to).unwrap();
    }
}

#[test]
fn stats_show_that_uncached_copies_evict_no_pages() {
    let dir = scratch();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    sparse(&from, 64 << 20, [(0, 8 << 20), (60 << 20, 1 << 20)]);
    let args = ["cp", "--uncached", "--stats", "--json"].map(Path::new);
    let summary = json(args.into_iter().chain([&*from, &*to]));
    let file = &summary["stats"][0];
    let pages = |field: &str| file[field].as_u64().unwrap();
    assert!(pages("brought_in_pages") >= 9 << 8, "{file}");
    assert!(pages("pruned_pages") >= 9 << 8, "{file}");
    assert_eq!((pages("claimed_pages"), pages("lost_pages")), (0, 0));
    // The same as text: a line of numbers below a line of names.
    let again = dir.path().join("again");
    let args = ["cp", "--uncached", "--stats", "--quiet"].map(Path::new);
    let shown = run(args.into_iter().chain([&*from, &*again]));
    let mut lines = shown.lines();
    let names = lines.next().unwrap();
    assert!(
        ["brought in", "pruned", "claimed", "lost"].iter().all(|n| names.contains(n)),
        "{names}"
    );
    let numbers: Vec<u64> =
        lines.next().unwrap().split_whitespace().take(4).map(|n| n.parse().unwrap()).collect();
    assert!(numbers[0] >= 9 << 8 && numbers[1] >= 9 << 8, "{numbers:?}");
    assert_eq!(numbers[2..], [0, 0]);
}
