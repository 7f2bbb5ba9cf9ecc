//! `weir cp` between two places of one server, which copies the data itself.

mod common;

use common::{EXTENTS, Server, blocks, fail, json, run, same, scratch, sparse, text, weir};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const MIB: u64 = 1 << 20;

fn number(summary: &Value, field: &str) -> u64 {
    summary[field].as_u64().unwrap_or_else(|| panic!("{field} in {summary}"))
}

#[test]
fn a_server_copies_its_own_files_and_keeps_their_holes() {
    let dir = scratch();
    let export = dir.path().join("export");
    fs::create_dir_all(export.join("a")).unwrap();
    fs::create_dir_all(export.join("b")).unwrap();
    let source = export.join("a/disk");
    // More than one call copies, with a hole at either end.
    sparse(&source, 256 * MIB, [(4 * MIB, 70 * MIB), (200 * MIB, 3 * MIB)]);
    let server = Server::start(&export, &["--squash", "none"]);
    for (version, is_able) in [("vers=4.2", true), ("vers=4.1", false), ("vers=3", false)] {
        let url = |path: &str| server.url(path, version);
        let summary = json(["cp", "--json", &url("a/disk"), &url("b/copy")]);
        let copy = export.join("b/copy");
        assert!(same(&source, &copy), "{version}");
        // A file of many extents takes a block for their map.
        assert!(blocks(&source).abs_diff(blocks(&copy)) <= 8, "{version}");
        let copied = if is_able { 73 * MIB } else { 0 };
        assert_eq!(number(&summary, "server_copied_bytes"), copied, "{version}");
        assert_eq!(number(&summary, "read_bytes") == 0, is_able, "{version}");
        assert_eq!(number(&summary, "size_bytes"), 256 * MIB);
        assert_eq!(number(&summary, "wire_bytes") < MIB, is_able, "{version}: {summary}");
        if is_able {
            assert_eq!(number(&summary, "hole_bytes"), 256 * MIB - 73 * MIB);
        }
        fs::remove_file(copy).unwrap();
    }
}

#[test]
fn options_that_need_the_data_read_it() {
    let dir = scratch();
    let export = dir.path().join("export");
    fs::create_dir(&export).unwrap();
    let source = export.join("disk");
    sparse(&source, 8 * MIB, [(0, MIB)]);
    // Zeros that are data.
    let zeros = vec![0; MIB as usize];
    std::os::unix::fs::FileExt::write_all_at(
        &fs::File::options().write(true).open(&source).unwrap(),
        &zeros,
        2 * MIB,
    )
    .unwrap();
    let server = Server::start(&export, &["--squash", "none"]);
    let url = |path: &str| server.url(path, "vers=4.2");
    let copy = export.join("copy");
    for (options, copied, kept) in [
        (&[][..], 2 * MIB, 2 * MIB),
        (&["--sparse=auto"], 2 * MIB, 2 * MIB),
        (&["--sparse=always"], 0, MIB),
        (&["--sparse=never"], 0, 8 * MIB),
        (&["--reflink=never"], 0, MIB),
        (&["--checksum"], 0, MIB),
        (&["--uncached"], 0, MIB),
    ] {
        let (from, to) = (url("disk"), url("copy"));
        let args = ["cp", "--json", &from, &to].into_iter().chain(options.iter().copied());
        let summary = json(args);
        assert!(same(&source, &copy), "{options:?}");
        assert_eq!(number(&summary, "server_copied_bytes"), copied, "{options:?}");
        let found = blocks(&copy) * 512;
        assert!((kept..=kept + EXTENTS * 512).contains(&found), "{options:?}: {found}, not {kept}");
        fs::remove_file(&copy).unwrap();
    }
    let says = fail(1, ["cp", "--reflink=always", "--checksum", &url("disk"), &url("copy")]);
    assert!(says.contains("--checksum, --continue and --sparse need the data"), "{says}");
}

#[test]
fn data_is_shared_or_the_copy_fails() {
    let dir = scratch();
    let export = dir.path().join("export");
    fs::create_dir(&export).unwrap();
    for (name, bytes) in [("small", 10), ("large", MIB)] {
        sparse(&export.join(name), bytes, [(0, bytes)]);
    }
    let server = Server::start(&export, &["--squash", "none"]);
    let local = |path: &str| export.join(path).to_str().unwrap().to_owned();
    for name in ["small", "large"] {
        for (from, to) in [
            (server.url(name, "vers=4.2"), server.url("copy", "vers=4.2")),
            (server.url(name, "vers=3"), server.url("copy", "vers=3")),
            (server.url(name, "vers=4.2"), local("copy")),
            (local(name), local("copy")),
        ] {
            let output = common::weir(["cp", "--json", "--reflink", &from, &to]).output().unwrap();
            let says = common::text(&output);
            if output.status.success() {
                // Only file systems with reflinks, and then with one owner of both ends.
                let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
                assert_eq!(number(&summary, "cloned_bytes"), number(&summary, "size_bytes"));
                assert!(same(&export.join(name), &export.join("copy")));
                fs::remove_file(export.join("copy")).unwrap();
                continue;
            }
            assert!(says.contains("cannot share the data of"), "{from} {to}: {says}");
            assert!(says.contains("use --reflink=auto"), "{says}");
            let mut left: Vec<_> =
                fs::read_dir(&export).unwrap().map(|e| e.unwrap().file_name()).collect();
            left.sort();
            assert_eq!(left, ["large", "small"]);
        }
    }
}

const LIST: &str = "system.posix_acl_access";

/// user::rw- user:12345:rw- group::--- mask::rw- other::---, as acl(5) has it in an attribute.
fn list() -> Vec<u8> {
    let entry = |tag: u16, rights: u16, id: u32| {
        [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let entries =
        [(1, 6, u32::MAX), (2, 6, 12345), (4, 0, u32::MAX), (16, 6, u32::MAX), (32, 0, u32::MAX)];
    let entries = entries.map(|(tag, rights, id)| entry(tag, rights, id));
    [2_u32.to_le_bytes().to_vec(), entries.concat()].concat()
}

/// A file that the users of its list can write to, and not its group. `None`: the file system has no lists.
fn listed(path: &Path) -> Option<()> {
    let _ = fs::remove_file(path);
    fs::write(path, "content").unwrap();
    rustix::fs::setxattr(path, LIST, &list(), rustix::fs::XattrFlags::empty()).ok()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn the_list_of_a_file_at_a_server_gives_its_group_no_rights() {
    let dir = scratch();
    let export = dir.path().join("export");
    fs::create_dir_all(export.join("tree")).unwrap();
    let (new, file) = (dir.path().join("new"), export.join("tree/file"));
    let plain = export.join("plain");
    let server = Server::start(&export, &["--squash", "none"]);
    for version in ["vers=3", "vers=4.0", "vers=4.2"] {
        for size in [3, 100_000] {
            if listed(&file).is_none() {
                weir_skip::skip("the file system has no access control lists");
                return;
            }
            assert_eq!(mode(&file), 0o660);
            fs::write(&new, vec![b'x'; size]).unwrap();
            let said = |args: &[&str]| {
                let output = weir(args).output().unwrap();
                assert!(output.status.success(), "{args:?}: {}", text(&output));
                text(&output)
            };
            let (url, new) = (server.url("tree/file", version), new.to_str().unwrap());
            let says = said(&["cp", new, &url]);
            assert!(says.contains("does not keep access control lists of"), "{version}: {says}");
            assert_eq!((mode(&file), fs::read(&file).unwrap().len()), (0o600, size), "{version}");
            // A file without a list has the bits of its mode.
            fs::write(&plain, "").unwrap();
            fs::set_permissions(&plain, fs::Permissions::from_mode(0o664)).unwrap();
            assert_eq!(said(&["cp", new, &server.url("plain", version)]), "", "{version}");
            assert_eq!((mode(&plain), fs::read(&plain).unwrap().len()), (0o664, size));
        }
        for (n, command) in [&["cp", "-p"][..], &["mv"], &["sync"]].into_iter().enumerate() {
            listed(&file).unwrap();
            let here = dir.path().join(format!("{version}.{n}"));
            let from = if command == ["sync"] { "tree" } else { "tree/file" };
            let ends = [&server.url(from, version)[..], here.to_str().unwrap()];
            let output = weir(command.iter().chain(&ends)).output().unwrap();
            let here = if command == ["sync"] { here.join("file") } else { here };
            assert!(output.status.success(), "{command:?}: {}", text(&output));
            let mut kept = [0; 100];
            let len = rustix::fs::getxattr(&here, LIST, &mut kept[..]).unwrap_or(0);
            if version == "vers=3" {
                assert_eq!((&kept[..len], mode(&here)), (&list()[..], 0o660), "{command:?}");
                assert_eq!(text(&output), "");
            } else {
                assert_eq!((len, mode(&here)), (0, 0o600), "{command:?}");
                assert!(text(&output).contains("access control lists of"), "{}", text(&output));
            }
        }
        // A list that the directory gives its files is theirs again.
        for size in [3, 100_000] {
            let team = export.join("team");
            let _ = fs::remove_dir_all(&team);
            fs::create_dir(&team).unwrap();
            let none = rustix::fs::XattrFlags::empty();
            rustix::fs::setxattr(&team, "system.posix_acl_default", &list(), none).unwrap();
            fs::write(team.join("file"), "content").unwrap();
            assert_eq!(mode(&team.join("file")), 0o660);
            fs::write(&new, vec![b'x'; size]).unwrap();
            let url = server.url("team/file", version);
            let output = weir(["cp", new.to_str().unwrap(), &url]).output().unwrap();
            assert!(output.status.success() && text(&output).is_empty(), "{}", text(&output));
            let mut kept = [0; 100];
            let len = rustix::fs::getxattr(team.join("file"), LIST, &mut kept[..]).unwrap();
            assert_eq!((&kept[..len], mode(&team.join("file"))), (&list()[..], 0o660), "{version}");
        }
        let here = dir.path().join("plain");
        run(["cp", "-p", &server.url("plain", version), here.to_str().unwrap()]);
        assert_eq!(mode(&here), 0o664);
    }
}
