//! `weir bench cached` and `weir bench uncached`: that every row is there, and that figures fit
//! together. How fast it is, is for people to look at.

mod common;

use common::{fail, json, run, scratch};
use serde_json::Value;
use std::fs;

fn number(of: &Value, name: &str) -> f64 {
    of[name].as_f64().unwrap_or_else(|| panic!("no {name} in {of}"))
}

fn list<'a>(of: &'a Value, name: &str) -> &'a [Value] {
    of[name].as_array().unwrap_or_else(|| panic!("no {name} in {of}"))
}

#[test]
fn cached_measures_every_size_in_every_order() {
    let scratch = scratch();
    let dir = scratch.path().to_str().unwrap();
    let args = ["bench", "cached", "--quick", "--size", "16M", "--rounds", "2", "--dir", dir];
    let report = json(args.iter().chain(&["--json"]));
    assert_eq!((number(&report, "file_bytes"), number(&report, "rounds")), (16777216.0, 2.0));
    let rows: Vec<_> = list(&report, "reads")
        .iter()
        .map(|row| (row["span"].as_str().unwrap(), row["block_bytes"].as_u64().unwrap()))
        .collect();
    let spans = ["hot 1 MiB", "random, 256 MiB", "whole file"];
    let sizes = [512, 4096, 65536, 1048576];
    let all: Vec<_> = spans.iter().flat_map(|span| sizes.map(|size| (*span, size))).collect();
    assert_eq!(rows, all);
    for row in list(&report, "reads") {
        for way in ["memcpy_ns", "fast_ns", "slow_ns", "segments_ns", "pread_ns"] {
            assert!(number(row, way) > 0.0, "{way} in {row}");
        }
        // One round is left, so its pair is the ratio.
        for (ratio, of, to) in [
            ("pread_to_fast", "pread_ns", "fast_ns"),
            ("slow_to_fast", "slow_ns", "fast_ns"),
            ("pread_to_segments", "pread_ns", "segments_ns"),
        ] {
            let expected = number(row, of) / number(row, to);
            assert!((number(row, ratio) / expected - 1.0).abs() < 1e-6, "{ratio} in {row}");
        }
    }
    let threads = &report["two_threads"];
    assert!(number(threads, "one") > 0.0, "{report}");
    for pair in ["apart", "together"] {
        for figure in ["two", "ratio", "memcpy_ratio"] {
            assert!(number(&threads[pair], figure) > 0.0, "{figure} of {pair} in {report}");
        }
    }
    let text = |name: &str| -> Vec<String> {
        list(&report, "text").iter().map(|pass| pass[name].as_str().unwrap().into()).collect()
    };
    let who = ["kernel pread", "weir, fast read off", "weir, fast read on"];
    assert_eq!(text("who"), who.map(|who| [who; 3]).concat());
    assert_eq!(text("from"), ["device", "cache", "cache"].repeat(3));
    for pass in list(&report, "text") {
        let speed = 16777216.0 / 1e6 / number(pass, "real_s");
        assert!((number(pass, "mb_per_s") / speed - 1.0).abs() < 1e-6, "{pass}");
    }
    let targets = list(&report, "targets");
    assert_eq!(targets.len(), 11, "{report}");
    for target in targets {
        let (got, want) = (number(target, "got"), target["want"].as_str().unwrap());
        let (bound, value) = want.rsplit_once(' ').unwrap();
        let value: f64 = value.parse().unwrap();
        let reached = if bound == "at least" { got >= value } else { got <= value };
        assert_eq!(target["reached"], reached, "{target}");
    }
    assert_eq!(fs::read_dir(dir).unwrap().count(), 0, "something stays behind");
}

#[test]
fn cached_prints_only_the_requested_part() {
    let scratch = scratch();
    let dir = scratch.path().to_str().unwrap();
    let args = ["bench", "cached", "--quick", "--size", "16M", "--rounds", "2", "--dir", dir];
    let text = run(args.iter().chain(&["--only", "threads"]));
    assert!(text.contains("512 B by one thread"), "{text}");
    assert!(!text.contains("hot 1 MiB, 512 B") && !text.contains("front to back"), "{text}");
    let said = fail(1, ["bench", "cached", "--size", "1M", "--dir", dir]);
    assert!(said.contains("the file must have 16M at least"), "{said}");
    assert_eq!(fs::read_dir(dir).unwrap().count(), 0, "something stays behind");
}

#[test]
fn uncached_runs_every_method_with_a_hot_set_beside_it() {
    let scratch = scratch();
    let dir = scratch.path().to_str().unwrap();
    let mut args = vec!["bench", "uncached", "--quick", "--seconds", "1", "--json", "--dir", dir];
    args.extend(["--budget", "16M", "--data", "32M", "--streams", "2", "--hot-rate", "2000"]);
    let report = json(args);
    for part in ["reads", "writes"] {
        let ways = list(&report, part);
        let names: Vec<_> = ways.iter().map(|way| way["name"].as_str().unwrap()).collect();
        assert_eq!(
            names,
            ["Weir cached", "Weir uncached", "kernel buffered", "kernel DONTCACHE", "raw O_DIRECT"]
        );
        for way in ways {
            // Not every file system supports DONTCACHE or O_DIRECT; the report says so.
            if way["error"].is_string() {
                assert!(way["name"] != "Weir cached" && way["name"] != "Weir uncached", "{way}");
                continue;
            }
            let speed = number(way, "bytes") / number(way, "seconds") / 1e6;
            assert!((number(way, "mb_per_s") / speed - 1.0).abs() < 0.01, "{way}");
            assert!(number(way, "bytes") > 0.0 && number(way, "seconds") >= 0.9, "{way}");
            assert!(number(way, "p50_us") <= number(way, "p999_us"), "{way}");
            assert!(!list(way, "per_second_mb").is_empty(), "{way}");
        }
        assert_eq!(number(&ways[1], "lost_pages"), 0.0, "{part}");
    }
    let hot = list(&report, "hot");
    let beside: Vec<_> = hot.iter().map(|row| row["beside"].as_str().unwrap()).collect();
    assert_eq!(beside, ["nothing", "a cached stream", "an uncached stream"]);
    for row in hot {
        assert!((0.0..=100.0).contains(&number(row, "hit_percent")), "{row}");
        assert!(number(row, "p50_us") <= number(row, "p999_us"), "{row}");
    }
    assert!(number(&hot[1], "stream_mb_per_s") > 0.0, "{report}");
    assert_eq!(fs::read_dir(dir).unwrap().count(), 0, "something stays behind");
}
