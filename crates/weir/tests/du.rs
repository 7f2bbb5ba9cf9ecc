//! `weir du` of local trees.

mod common;

use common::{as_ordinary_user, give_to_ordinary_user, json, run, scratch, sparse, text, weir};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;

#[test]
fn holes_take_no_space_and_hard_links_count_once() {
    let dir = scratch();
    let tree = dir.path().join("tree");
    fs::create_dir_all(tree.join("a/b")).unwrap();
    sparse(&tree.join("a/b/disk"), 1 << 30, [(0, 1 << 20)]);
    fs::hard_link(tree.join("a/b/disk"), tree.join("again")).unwrap();
    let sum = &json(["du".as_ref(), "--json".as_ref(), tree.as_os_str()])[0];
    assert_eq!((&sum["files"], &sum["directories"]), (&1.into(), &3.into()));
    assert_eq!(sum["size_bytes"], 1 << 30);
    let space = sum["allocated_bytes"].as_u64().unwrap();
    assert!((1 << 20..1 << 21).contains(&space), "{space}");
}

#[test]
fn unreadable_directories_do_not_hide_the_rest() {
    let dir = scratch();
    let tree = dir.path().join("tree");
    fs::create_dir_all(tree.join("closed")).unwrap();
    fs::write(tree.join("file"), "12345").unwrap();
    give_to_ordinary_user(dir.path(), &tree);
    fs::set_permissions(tree.join("closed"), fs::Permissions::from_mode(0o0)).unwrap();
    for command in ["du", "tree"] {
        let output = as_ordinary_user(weir([command.as_ref(), tree.as_os_str()])).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", text(&output));
        let says = text(&output);
        assert!(says.contains("closed: permission denied"), "{says}");
        assert!(says.contains("5 B"), "the sum of the rest, or its files: {says}");
    }
    fs::set_permissions(tree.join("closed"), fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn sums_beyond_64_bits_are_right() {
    // Few file systems support files of that size; tmpfs does.
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else {
        return weir_skip::skip("no /dev/shm");
    };
    let file = fs::File::create(dir.path().join("0")).unwrap();
    let most = largest_size(&file);
    let files = u128::from(u64::MAX) / u128::from(most) + 1;
    if files > 100 {
        return weir_skip::skip("files of /dev/shm are too small for a sum beyond 64 bits");
    }
    for name in 0..files {
        fs::File::create(dir.path().join(name.to_string())).unwrap().set_len(most).unwrap();
    }
    let sum = &json(["du".as_ref(), "--json".as_ref(), dir.path().as_os_str()])[0];
    assert_eq!(sum["size_bytes"], (files * u128::from(most)).to_string());
}

/// The largest size that the file system supports, found by setting it.
fn largest_size(file: &fs::File) -> u64 {
    let (mut most, mut more) = (0_u64, 1_u64 << 62);
    while more >= 4096 {
        if file.set_len(most + more).is_ok() {
            most += more;
        }
        more /= 2;
    }
    most
}

#[test]
fn directories_and_files_as_deep_as_asked_for() {
    let dir = scratch();
    fs::create_dir_all(dir.path().join("a/b/c")).unwrap();
    fs::write(dir.path().join("a/b/c/file"), "12345").unwrap();
    fs::write(dir.path().join("a/other"), "123").unwrap();
    let paths = |args: &[&str]| {
        let sums = json(
            ["du", "--json"]
                .into_iter()
                .chain(args.iter().copied())
                .map(std::ffi::OsStr::new)
                .chain([dir.path().join("a").as_os_str()]),
        );
        let shown = |sum: &serde_json::Value| {
            let path = sum["path"].as_str().unwrap().strip_prefix(dir.path().to_str().unwrap());
            format!("{} {}", path.unwrap(), sum["size_bytes"])
        };
        sums.as_array().unwrap().iter().map(shown).collect::<Vec<_>>()
    };
    assert_eq!(paths(&[]), ["/a 8"]);
    assert_eq!(paths(&["-s"]), ["/a 8"]);
    assert_eq!(paths(&["-d", "0"]), ["/a 8"]);
    assert_eq!(paths(&["-d", "1"]), ["/a/b 5", "/a 8"]);
    assert_eq!(paths(&["-d", "9"]), ["/a/b/c 5", "/a/b 5", "/a 8"]);
    assert_eq!(paths(&["-a"]), ["/a/b/c/file 5", "/a/b/c 5", "/a/b 5", "/a/other 3", "/a 8"]);
    assert_eq!(paths(&["-a", "-d", "1"]), ["/a/b 5", "/a/other 3", "/a 8"]);
    let exact = run(["du".as_ref(), "-b".as_ref(), dir.path().as_os_str()]);
    assert!(exact.contains(" 8 ") && !exact.contains(" B"), "{exact}");
    let human = run(["du".as_ref(), "-h".as_ref(), dir.path().as_os_str()]);
    assert!(human.contains(" 8 B "), "{human}");
}

#[test]
fn json_has_every_byte_of_a_name_and_no_more() {
    let dir = scratch();
    let name = std::ffi::OsStr::from_bytes(b"a\\b\n\xff");
    fs::write(dir.path().join(name), "1").unwrap();
    let sums = json(["du".as_ref(), "-a".as_ref(), "--json".as_ref(), dir.path().as_os_str()]);
    let bytes = [dir.path().as_os_str().as_bytes(), b"/", name.as_bytes()].concat();
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(sums[0]["path"], String::from_utf8_lossy(&bytes).as_ref());
    assert_eq!(sums[0]["path_hex"], hex);
    assert!(sums[1]["path_hex"].is_null(), "{sums}");
    let shown = run(["du".as_ref(), "-a".as_ref(), dir.path().as_os_str()]);
    assert!(shown.contains("/a\\\\b\\n\\xff\n"), "{shown}");
}
