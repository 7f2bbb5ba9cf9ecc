//! `weir bench run`, and what it leaves behind.

mod common;

use common::{fail, scratch, weir};
use serde_json::Value;
use std::fs;

/// What this machine may not let a user do.
const LACKING: [&str; 3] = ["control groups", "no /dev/fuse", "the kernel refuses"];

#[test]
fn a_command_is_measured_in_every_way_beside_a_neighbour() {
    let scratch = scratch();
    let dir = scratch.path().to_str().unwrap();
    let output = weir(["bench", "run", "dd", "--quick", "--json", "--dir", dir]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() && LACKING.iter().any(|lack| said.contains(lack)) {
        weir_skip::skip(said);
        return;
    }
    assert!(output.status.success(), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let number =
        |of: &Value, name: &str| of[name].as_f64().unwrap_or_else(|| panic!("{name}: {of}"));
    assert!(number(&report["alone"], "reads") > 0.0, "{report}");
    assert!(number(&report["alone"], "hits") <= number(&report["alone"], "reads"), "{report}");
    let figures = report["figures"].as_array().unwrap();
    for way in ["plain", "weir run", "dd iflag=nocache", "MemoryMax"] {
        let of_way: Vec<_> = figures.iter().filter(|figure| figure["way"] == way).collect();
        assert!(matches!(of_way[..], [figure] if figure["command"] == "dd"), "{way}: {report}");
        assert!(number(of_way[0], "seconds") > 0.0, "{report}");
        assert!(number(of_way[0], "p50_us") <= number(of_way[0], "p99_9_us"), "{report}");
    }
    let grown =
        |way: &str| number(figures.iter().find(|f| f["way"] == way).unwrap(), "grown_percent");
    // 384 MiB read and written: the kernel keeps what fits, `weir run` nothing.
    assert!(grown("plain") > 10.0, "{report}");
    assert!(grown("weir run") <= 1.0, "{report}");
    assert_eq!(report["targets"].as_array().unwrap().len(), 4, "{report}");
    assert_eq!(fs::read_dir(dir).unwrap().count(), 0, "something stays behind");
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let scratch = scratch();
    let dir = scratch.path().to_str().unwrap();
    let said = fail(1, ["bench", "run", "--memory", "1M", "--dir", dir]);
    assert!(said.contains("128 MiB"), "{said}");
    let said = fail(1, ["bench", "run", "fsck", "--dir", dir]);
    assert!(said.contains("tar"), "{said}");
    assert_eq!(fs::read_dir(dir).unwrap().count(), 0, "something stays behind");
}
