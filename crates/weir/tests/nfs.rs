//! The commands over NFS: `weir serve` at one end, `weir` at the other.

mod common;

use common::{PAGE, Server, blocks, fail, json, run, same, scratch, sparse};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// Mount options of every version and manner there is.
const MANNERS: &[&str] = &["vers=4.2", "vers=4.2&noreadplus", "vers=4.1", "vers=3"];

struct Setup {
    dir: tempfile::TempDir,
    server: Server,
}

impl Setup {
    fn new() -> Self {
        let dir = scratch();
        fs::create_dir(dir.path().join("export")).unwrap();
        let server = Server::start(&dir.path().join("export"), &["--squash", "none"]);
        Self { dir, server }
    }

    fn export(&self, name: &str) -> PathBuf {
        self.dir.path().join("export").join(name)
    }

    fn local(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

fn cp(options: &[&str], from: impl AsRef<Path>, to: impl AsRef<Path>) -> Value {
    let options = ["cp", "--json"].iter().chain(options).map(Path::new);
    json(options.chain([from.as_ref(), to.as_ref()]))
}

fn number(summary: &Value, field: &str) -> u64 {
    summary[field].as_u64().unwrap()
}

#[test]
fn a_tree_there_and_back() {
    let setup = Setup::new();
    let tree = setup.local("tree");
    fs::create_dir_all(tree.join("a/b")).unwrap();
    std::os::unix::fs::symlink("b/1", tree.join("a/link")).unwrap();
    for n in 0..50 {
        fs::write(tree.join(format!("a/b/{n}")), format!("{n}").repeat(n * 100)).unwrap();
    }
    sparse(&tree.join("disk"), 40 << 20, [(PAGE, 3 * PAGE), (20 << 20, 2 << 20)]);
    for (round, manner) in MANNERS.iter().enumerate() {
        let there = setup.server.url(&format!("r{round}"), manner);
        let back = setup.local(&format!("back{round}"));
        let summary = cp(&["-rp"], &tree, &there);
        assert_eq!((number(&summary, "files"), number(&summary, "symlinks")), (51, 1), "{manner}");
        cp(&["-rp", "--uncached"], &there, &back);
        for copy in [setup.export(&format!("r{round}")), back] {
            let diff = std::process::Command::new("diff").arg("-r").args([&tree, &copy]).output();
            let diff = diff.unwrap();
            assert!(diff.status.success(), "{manner}: {}", common::text(&diff));
            let (disk, original) = (copy.join("disk"), tree.join("disk"));
            assert!(blocks(&disk) <= blocks(&original), "{manner}");
            let mtime = |path: &Path| path.metadata().unwrap().modified().unwrap();
            assert_eq!(mtime(&disk), mtime(&original), "{manner}");
            assert_eq!(fs::read_link(copy.join("a/link")).unwrap(), Path::new("b/1"));
        }
    }
}

#[test]
fn a_hole_costs_next_to_nothing_on_the_wire() {
    let setup = Setup::new();
    sparse(&setup.export("hole"), 256 << 20, []);
    let copy = setup.local("copy");
    let summary = cp(&[], setup.server.url("hole", "vers=4.2"), &copy);
    assert!(number(&summary, "wire_bytes") < 64 << 10, "{summary}");
    assert_eq!(number(&summary, "hole_bytes"), 256 << 20);
    assert_eq!((copy.metadata().unwrap().len(), blocks(&copy)), (256 << 20, 0));
}

#[test]
fn half_holes_cost_half_the_bytes() {
    let setup = Setup::new();
    for kib in [4, 8, 16, 32] {
        let (name, run) = (format!("mixed{kib}"), kib << 10);
        sparse(
            &setup.export(&name),
            16 << 20,
            (0..(16 << 20) / run / 2).map(|i| (i * 2 * run, run)),
        );
        let copy = setup.local(&name);
        let summary = cp(&[], setup.server.url(&name, "vers=4.2"), &copy);
        let share = number(&summary, "wire_bytes") as f64 / f64::from(16 << 20);
        assert!(share < 0.52, "{name}: {share}");
        assert!(same(&setup.export(&name), &copy));
        assert!(blocks(&copy) <= blocks(&setup.export(&name)));
    }
}

#[test]
fn every_byte_of_an_odd_file() {
    let setup = Setup::new();
    let extents = [(0, 1), (4095, 2), (5 * PAGE + 7, 9 * PAGE), ((3 << 20) - 1, (2 << 20) + 3)];
    sparse(&setup.export("odd"), (6 << 20) + 77, extents);
    for manner in MANNERS {
        let copy = setup.local("copy");
        cp(&[], setup.server.url("odd", manner), &copy);
        assert!(same(&setup.export("odd"), &copy), "{manner}");
        let between = setup.server.url("between", manner);
        cp(&[], setup.server.url("odd", manner), &between);
        assert!(same(&setup.export("odd"), &setup.export("between")), "{manner}");
    }
}

#[test]
fn looking_at_files() {
    let setup = Setup::new();
    fs::create_dir(setup.export("d")).unwrap();
    fs::write(setup.export("d/notes"), "some notes\n").unwrap();
    sparse(&setup.export("disk"), 1 << 20, [(16 * PAGE, 2 * PAGE)]);
    for manner in MANNERS {
        let url = |path: &str| setup.server.url(path, manner);
        assert_eq!(run(["ls", &url("")]), "d\ndisk\n", "{manner}");
        assert_eq!(run(["ls", &url("d")]), "notes\n", "{manner}");
        assert_eq!(run(["cat", &url("d/notes")]), "some notes\n", "{manner}");
        let stat = json(["stat", "--json", &url("disk")]);
        assert_eq!(stat[0]["size_bytes"], 1 << 20, "{manner}");
        assert_eq!(stat[0]["allocated_bytes"], 2 * PAGE, "{manner}");
        let says = fail(1, ["cat", &url("d/missing")]);
        assert!(says.contains("no such file or directory; check the path"), "{manner}: {says}");
        let says = fail(1, ["ls", &url("no/such/thing")]);
        assert!(says.contains("cannot mount") || says.contains("cannot find"), "{manner}: {says}");
    }
    let map = json(["map", "--json", &setup.server.url("disk", "vers=4.2")]);
    assert_eq!((&map["data_bytes"], &map["data_extents"]), (&(2 * PAGE).into(), &1.into()));
}

#[test]
fn links_within_an_export_are_followed() {
    let setup = Setup::new();
    fs::create_dir_all(setup.export("a/b")).unwrap();
    fs::write(setup.export("a/b/file"), "x").unwrap();
    for (link, target) in
        [("up", "a/b/../b"), ("a/file", "b/file"), ("loop", "loop"), ("out", "/etc/passwd")]
    {
        std::os::unix::fs::symlink(target, setup.export(link)).unwrap();
    }
    let url = |path: &str| setup.server.url(path, "");
    assert_eq!(run(["cat", &url("up/file")]), "x");
    assert_eq!(run(["cat", &url("a/file")]), "x");
    assert!(fail(1, ["cat", &url("loop")]).contains("a symbolic link leads back to itself"));
    assert!(fail(1, ["cat", &url("out")]).contains("name the file that it points to"));
}

#[test]
fn a_read_only_export_stays_as_it_is() {
    let dir = scratch();
    let export = dir.path().join("export");
    fs::create_dir(&export).unwrap();
    fs::write(export.join("file"), "old").unwrap();
    let server = Server::start(&export, &["--read-only", "--squash", "none"]);
    for manner in MANNERS {
        let says = fail(1, ["cp", "/etc/hostname", &server.url("file", manner)]);
        assert!(says.contains("read-only file system; mount or export it writable"), "{says}");
    }
    assert_eq!(fs::read(export.join("file")).unwrap(), b"old");
    assert_eq!(fs::read_dir(&export).unwrap().count(), 1);
}
