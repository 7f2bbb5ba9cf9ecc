//! Scenarios with files, directories and clients on the Linux client's mounts, in every version, compared
//! with a local file system of the same type: see `conformance/guest/scenarios.sh`.
//!
//! `WEIR_SCENARIOS="name name"` runs only these. `WEIR_LONG=1` runs the long forms: a hundred
//! thousand files made and removed, a source tree of 5,100 files, a minute of stress-ng.
//! `WEIR_SOURCE` is the tar file of the program to build, bzip2's source; without it, the test fetches it
//! once with apt-get.

use conformance::{Guest, program, scratch, serve_command, skip, weir, workspace};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Entries of a directory that exists before the server starts.
const MANY: u32 = 100_000;

#[test]
fn scenarios_over_v3() {
    scenarios("3");
}

#[test]
fn scenarios_over_v4_0() {
    scenarios("4.0");
}

#[test]
fn scenarios_over_v4_1() {
    scenarios("4.1");
}

#[test]
fn scenarios_over_v4_2() {
    scenarios("4.2");
}

fn scenarios(vers: &str) {
    let Some(guest) = Guest::find() else { return };
    for needed in ["xfs_io", "mkfs.ext4", "setpriv"] {
        if program(needed).is_none() {
            return skip(format!("the scenarios need {needed}"));
        }
    }
    let dir = scratch();
    let export = dir.path().join("export");
    let many = export.join("many");
    std::fs::create_dir_all(&many).unwrap();
    for i in 0..MANY {
        File::create(many.join(format!("entry-{i:06}"))).unwrap();
    }
    let disk = formatted_disk(dir.path());
    let long = std::env::var_os("WEIR_LONG").is_some_and(|v| !v.is_empty());
    let names = std::env::var("WEIR_SCENARIOS").unwrap_or_default();
    let (entries, stress_seconds) = if long { ("100000", "60") } else { ("3000", "6") };
    let source = source().map(|s| s.display().to_string()).unwrap_or_default();
    let mut args = vec![
        export.to_str().unwrap(),
        vers,
        "/dev/ubda",
        weir().to_str().unwrap(),
        &source,
        entries,
        stress_seconds,
    ];
    args.extend(names.split_whitespace());
    let limit = if long { "3000" } else { "900" };
    let options = ["--disk", disk.to_str().unwrap(), "--timeout", limit];
    let text = guest.run(&serve_command(&export, ""), &options, "scenarios.sh", &args);
    for skipped in text.lines().filter_map(|line| line.strip_prefix("SKIP ")) {
        skip(skipped);
    }
    assert!(!text.contains("FAIL ") && text.contains("scenarios: done"), "vers={vers}:\n{text}");
    let passed = text.lines().filter(|l| l.starts_with("PASS ")).count();
    assert!(passed >= if names.is_empty() { 20 } else { 1 }, "{passed} passed:\n{text}");
}

#[test]
fn clones_share_blocks_where_the_file_system_supports_it() {
    let Some(guest) = Guest::find() else { return };
    let Some(mkfs) = program("mkfs.btrfs").filter(|_| program("xfs_io").is_some()) else {
        return skip("clones need mkfs.btrfs and xfs_io");
    };
    let dir = scratch();
    let (image, mounted) = (dir.path().join("btrfs.img"), dir.path().join("mounted"));
    File::create(&image).unwrap().set_len(300 << 20).unwrap();
    std::fs::create_dir(&mounted).unwrap();
    assert!(Command::new(mkfs).arg("-q").arg(&image).output().unwrap().status.success());
    let mount = Command::new("mount").args(["-o", "loop"]).args([&image, &mounted]).output();
    let mount = mount.unwrap();
    if !mount.status.success() {
        return skip(format!("no loop mounts: {}", conformance::text_of(&mount).trim()));
    }
    let _mounted = Mounted(mounted.clone());
    let export = mounted.join("export");
    std::fs::create_dir(&export).unwrap();
    let text =
        guest.run(&serve_command(&export, ""), &[], "reflink.sh", &[export.to_str().unwrap()]);
    assert!(text.contains("reflink: ok"), "{text}");
}

/// A mounted file system, unmounted when dropped.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        // The server may take a moment to end.
        for _ in 0..50 {
            if Command::new("umount").arg(&self.0).output().is_ok_and(|o| o.status.success()) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
    }
}

/// An empty file system of the type that exports usually are on.
fn formatted_disk(dir: &Path) -> PathBuf {
    let image = dir.join("disk.img");
    File::create(&image).unwrap().set_len(1 << 30).unwrap();
    let mut mkfs = Command::new(program("mkfs.ext4").unwrap());
    // Inodes for all of `many_entries_made_and_removed`; by its size it would get 65,536.
    mkfs.args(["-q", "-F", "-N", "150000"]).arg(&image);
    assert!(mkfs.status().unwrap().success());
    image
}

/// A program's source, with a makefile that knows `check`, as a tar file. One test downloads it, and the
/// others wait for that.
fn source() -> Option<&'static Path> {
    static SOURCE: OnceLock<Option<PathBuf>> = OnceLock::new();
    SOURCE.get_or_init(find_source).as_deref()
}

fn find_source() -> Option<PathBuf> {
    if let Some(tar) = std::env::var_os("WEIR_SOURCE") {
        return Some(tar.into());
    }
    let kept = workspace().join("target/tools/source");
    let tar = kept.join("bzip2_1.0.8.orig.tar.gz");
    if !tar.is_file() {
        std::fs::create_dir_all(&kept).ok()?;
        let fetch = workspace().join("conformance/fetch-source");
        let done = Command::new("timeout").arg("60").arg(fetch).arg("bzip2").arg(&kept).output();
        if !tar.is_file() {
            let why = done.map_or_else(|e| e.to_string(), |o| conformance::text_of(&o));
            skip(format!("no source to build: {}", why.trim()));
            return None;
        }
    }
    Some(tar)
}
