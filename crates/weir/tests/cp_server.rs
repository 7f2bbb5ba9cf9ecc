//! `weir cp` between two places of one server, which copies the data itself.

mod common;

use common::{EXTENTS, Server, blocks, fail, json, same, scratch, sparse};
use serde_json::Value;
use std::fs;

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
