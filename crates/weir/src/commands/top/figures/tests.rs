//! Figures from made-up samples.

use super::latency::Duration;
use super::sort::Sort;
use super::*;
use std::ffi::OsString;
use weir_control::CacheStatus;

const BOUNDS: [u64; 2] = [100, 1000];

fn export(name: &str, read_bytes: u64) -> Export {
    Export {
        name: name.into(),
        path: OsString::from(format!("/srv{name}")),
        reads: read_bytes / 100,
        read_bytes,
        hole_bytes: read_bytes / 4,
        writes: 1,
        written_bytes: read_bytes / 2,
    }
}

fn operation(name: &str, by_duration: [u64; 3]) -> Operation {
    let count = by_duration.iter().sum();
    Operation {
        protocol: "nfs4".into(),
        name: name.into(),
        count,
        failed: count / 10,
        nanos: count * 1000,
        received_bytes: count * 10,
        sent_bytes: count * 100,
        by_duration: by_duration.into(),
    }
}

fn connection(id: u64, sent_bytes: u64) -> Connection {
    let address = format!("10.0.0.{id}:700");
    Connection { id, address, calls: sent_bytes / 10, received_bytes: 1, sent_bytes }
}

fn file(path: &str, resident_bytes: u64, dirty_bytes: u64) -> FileStatus {
    let size_bytes = 1 << 20;
    FileStatus { path: path.into(), size_bytes, resident_bytes, dirty_bytes, read_bytes: 0 }
}

fn sample(uptime_ms: u64, exports: &[Export], operations: &[Operation]) -> Sample {
    let status = Status {
        pid: 7,
        command: "serve".into(),
        uptime_ms,
        exports: exports.to_vec(),
        operations: operations.to_vec(),
        bounds_us: BOUNDS.into(),
        ..Status::default()
    };
    Sample { status, files: Vec::new() }
}

#[test]
fn rates_are_those_of_the_interval() {
    let before = sample(10_000, &[export("/a", 1000), export("/b", 400)], &[]);
    let now = sample(12_000, &[export("/a", 5000), export("/b", 400)], &[]);
    let figures = Figures::between(Some(&before), &now);
    assert!(!figures.since_start);
    assert_eq!((figures.seconds, figures.data.read_bytes, figures.data.reads), (2.0, 4000, 40));
    assert_eq!((figures.data.hole_bytes, figures.data.written_bytes), (1000, 2000));
    assert_eq!(figures.per_second(figures.data.read_bytes), 2000.0);
    assert_eq!(figures.total.read_bytes, 5400);
    assert_eq!(figures.data.saved_share(), Some(0.2));
}

#[test]
fn two_samples_of_one_moment_have_no_rate() {
    let now = sample(10_000, &[export("/a", 1000)], &[]);
    let figures = Figures::between(Some(&now), &now);
    assert_eq!((figures.seconds, figures.per_second(5)), (0.0, 0.0));
    assert_eq!(figures.data, Data::default());
    assert_eq!(figures.data.saved_share(), None);
}

#[test]
fn the_first_figures_are_those_since_the_start() {
    let figures = Figures::between(None, &sample(4000, &[export("/a", 1000)], &[]));
    assert!(figures.since_start);
    assert_eq!((figures.seconds, figures.data.read_bytes), (4.0, 1000));
}

#[test]
fn a_restarted_process_has_the_figures_since_its_start() {
    let before = sample(60_000, &[export("/a", 1000)], &[operation("read", [5, 0, 0])]);
    // It has read more than in its earlier run.
    let now = sample(500, &[export("/a", 2000)], &[operation("read", [9, 0, 0])]);
    let mut other = sample(90_000, &[export("/a", 3000)], &[]);
    other.status.pid = 8;
    let figures = Figures::between(Some(&before), &now);
    assert!(figures.since_start);
    assert_eq!((figures.seconds, figures.data.read_bytes), (0.5, 2000));
    assert_eq!(figures.operations[0].count, 9);
    let figures = Figures::between(Some(&before), &other);
    assert_eq!((figures.seconds, figures.data.read_bytes), (90.0, 3000));
}

#[test]
fn a_counter_that_began_again_counts_from_zero() {
    // An export that was removed, and served again.
    let before = sample(1000, &[export("/a", 1000)], &[operation("read", [50, 0, 0])]);
    let now = sample(2000, &[export("/a", 300)], &[operation("read", [0, 10, 0])]);
    let figures = Figures::between(Some(&before), &now);
    assert_eq!(figures.data.read_bytes, 300);
    let read = &figures.operations[0];
    assert_eq!((read.count, read.latency.p50), (10, Duration::UpTo(1000)));
}

#[test]
fn latencies_are_those_of_the_interval() {
    let before = [operation("read", [1000, 0, 0]), operation("open", [3, 0, 0])];
    let now = [operation("read", [1000, 50, 50]), operation("open", [3, 0, 0])];
    let figures = Figures::between(Some(&sample(0, &[], &before)), &sample(1000, &[], &now));
    let [read] = &figures.operations[..] else { panic!("{:?}", figures.operations) };
    assert_eq!((read.count, read.failed, read.sent_bytes), (100, 10, 10_000));
    assert_eq!((read.latency.p50, read.latency.p99), (Duration::UpTo(1000), Duration::Over(1000)));
    assert_eq!(read.latency.p99.up_to_us(), None);
}

#[test]
fn the_caches_figures_are_those_of_the_interval() {
    let cache = |numbers: [u64; 3]| {
        let names = ["fast_reads", "fallback_missing", "uncached_pages"];
        let counters = names.iter().map(|&name| name.to_owned()).zip(numbers).collect();
        CacheStatus { budget_bytes: 100, used_bytes: 50, dirty_bytes: 5, counters }
    };
    let (mut before, mut now) = (sample(0, &[], &[]), sample(1000, &[], &[]));
    before.status.cache = cache([100, 100, 2]);
    now.status.cache = cache([190, 110, 5]);
    let figures = Figures::between(Some(&before), &now).cache;
    assert_eq!((figures.hit_rate, figures.uncached_bytes), (Some(0.9), 3 * PAGE_BYTES));
    assert_eq!((figures.used_bytes, figures.budget_bytes, figures.dirty_bytes), (50, 100, 5));
    assert_eq!(Figures::between(Some(&now), &now).cache.hit_rate, None);
}

#[test]
fn a_new_connection_counts_from_zero() {
    let (mut before, mut now) = (sample(0, &[], &[]), sample(1000, &[], &[]));
    before.status.connections = vec![connection(1, 1000), connection(2, 50)];
    now.status.connections = vec![connection(1, 1500), connection(3, 70)];
    let figures = Figures::between(Some(&before), &now).connections;
    let found: Vec<_> = figures.iter().map(|one| (one.id, one.sent_bytes, one.calls)).collect();
    assert_eq!(found, [(1, 500, 50), (3, 70, 7)]);
}

#[test]
fn parts_are_sorted_by_what_is_asked_for() {
    let operations =
        [operation("b", [9, 0, 0]), operation("a", [0, 0, 1]), operation("c", [9, 0, 0])];
    let mut now = sample(1000, &[], &operations);
    now.status.connections = vec![connection(1, 10), connection(2, 900)];
    now.files = vec![file("/y", 100, 0), file("/x", 50, 7)];
    let order = |sort: Sort| {
        let mut figures = Figures::between(None, &now);
        sort.apply(&mut figures);
        let operations: String = figures.operations.iter().map(|one| one.name.as_str()).collect();
        let connections: Vec<_> = figures.connections.iter().map(|one| one.id).collect();
        let first = figures.files[0].path.to_string_lossy().into_owned();
        (operations, connections, first)
    };
    assert_eq!(order(Sort::Amount), ("bca".into(), vec![2, 1], "/y".into()));
    assert_eq!(order(Sort::Delay), ("abc".into(), vec![2, 1], "/x".into()));
    assert_eq!(order(Sort::Name), ("abc".into(), vec![1, 2], "/x".into()));
    assert_eq!(Sort::Amount.next().next().next(), Sort::Amount);
}
