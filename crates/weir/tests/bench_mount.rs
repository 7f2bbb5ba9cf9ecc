//! `weir bench mount`, and what it leaves behind.

mod common;

use common::{fail, scratch, weir};
use serde_json::Value;
use std::fs;

const WORK: [&str; 11] = [
    "read by a mapping, cold",
    "read by a mapping",
    "read by 1 MiB, cold",
    "read by 1 MiB",
    "random 4 KiB reads",
    "the same, 32 threads",
    "write by 1 MiB, fsync",
    "create and write",
    "stat",
    "open and read",
    "remove",
];
/// What `weir mount` says on a machine that does not let it mount.
const LACKING: [&str; 4] =
    ["no /dev/fuse", "the kernel refuses", "is not installed", "fusermount3 refuses"];
const SMALL: [&str; 7] = ["--quick", "--size", "4M", "--files", "20", "--seconds", "0.05"];

#[test]
fn every_work_is_measured_in_every_place() {
    let scratch = scratch();
    let dir = scratch.path().to_str().unwrap();
    let mut command = weir(["bench", "mount", "--json", "--dir", dir]);
    let output = command.args(SMALL).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() && LACKING.iter().any(|lack| said.contains(lack)) {
        weir_skip::skip(said);
        return;
    }
    assert!(output.status.success(), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let figures = report["figures"].as_array().unwrap();
    let mut found: Vec<_> = figures
        .iter()
        .map(|figure| {
            assert!(figure["to_first"].as_f64().unwrap() > 0.0, "{figure}");
            let rate = figure["mb_per_s"].as_f64().or(figure["operations_per_s"].as_f64());
            assert!(rate.unwrap() > 0.0, "{figure}");
            assert!(figure["p50_us"].as_f64() <= figure["p99_9_us"].as_f64(), "{figure}");
            let text = |name: &str| figure[name].as_str().unwrap().to_owned();
            (text("source"), text("place"), text("work"))
        })
        .collect();
    found.sort();
    for (source, place) in [
        ("a directory", "directory"),
        ("a directory", "weir mount"),
        ("a directory", "weir mount --cache kernel"),
        ("NFS 4.2", "weir mount"),
        ("NFS 4.2", "weir mount --cache kernel"),
    ] {
        let of = |work: &str| (source.to_owned(), place.to_owned(), work.to_owned());
        assert!(WORK.iter().all(|work| found.binary_search(&of(work)).is_ok()), "{source} {place}");
    }
    assert_eq!(fs::read_dir(dir).unwrap().count(), 0, "something stays behind");
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(dir), "something stays mounted: {mounts}");
}

#[test]
fn too_little_work_is_refused() {
    let scratch = scratch();
    let dir = scratch.path().to_str().unwrap();
    let said = fail(1, ["bench", "mount", "--size", "4K", "--dir", dir]);
    assert!(said.contains("1 MiB"), "{said}");
    let said = fail(1, ["bench", "mount", "--seconds", "0", "--dir", dir]);
    assert!(said.contains("--seconds"), "{said}");
    assert_eq!(fs::read_dir(dir).unwrap().count(), 0, "something stays behind");
}
