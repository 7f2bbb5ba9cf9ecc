//! The figures as lines and tables of text, for a terminal and for a file.

use super::figures::latency::Duration;
use super::figures::{ConnectionFigures, Figures, OperationFigures};
use crate::commands::status::uptime_text;
use std::os::unix::ffi::OsStrExt;
use weir_control::FileStatus;
use weir_tools::text::{shown, size_text};

/// A table: the titles of its columns, and its rows. The last column is as wide as there is room, and
/// begins at the left; the others are numbers.
pub(super) struct Table<const COLUMNS: usize> {
    pub(super) titles: [&'static str; COLUMNS],
    pub(super) widths: [u16; COLUMNS],
    pub(super) rows: Vec<[String; COLUMNS]>,
}

/// Which process it is.
pub(super) fn title(figures: &Figures) -> String {
    let Figures { command, pid, what, uptime_ms, .. } = figures;
    format!("{command} {pid}, up {}: {}", uptime_text(*uptime_ms), shown(what.as_bytes()))
}

/// The length of the interval.
pub(super) fn interval(figures: &Figures) -> String {
    match figures.since_start {
        true => format!("averages since the start, {}", uptime_text(figures.uptime_ms)),
        false => format!("averages of {:.1} s", figures.seconds),
    }
}

/// What users moved, and the cache: a name and a text each.
pub(super) fn summary(figures: &Figures) -> [(&'static str, String); 5] {
    let data = &figures.data;
    let moved =
        |bytes, calls| format!("{:>14}  {:>10}", rate(figures, bytes), calls_text(figures, calls));
    let cache = &figures.cache;
    let (used, budget) = (size_text(cache.used_bytes), size_text(cache.budget_bytes));
    let percent = (cache.used_bytes as f64 / cache.budget_bytes.max(1) as f64) * 100.0;
    let dirty = size_text(cache.dirty_bytes);
    let hits = cache.hit_rate.map_or("-".into(), |hits| format!("{:.1}%", hits * 100.0));
    let uncached = format!(
        "{} in, {} dropped, {} claimed, {} lost",
        rate(figures, cache.uncached_bytes),
        rate(figures, cache.pruned_bytes),
        rate(figures, cache.claimed_bytes),
        rate(figures, cache.lost_bytes),
    );
    let saved = match data.saved_share() {
        Some(share) => format!(
            "{} of zeros not sent, {:.1}% of what was read",
            rate(figures, data.hole_bytes),
            share * 100.0
        ),
        None => "nothing".into(),
    };
    [
        ("Read", format!("{}  hits {hits}", moved(data.read_bytes, data.reads))),
        ("Written", format!("{}  dirty {dirty}", moved(data.written_bytes, data.writes))),
        ("Memory", format!("{used} of {budget} ({percent:.0}%)")),
        ("Uncached", uncached),
        ("READ_PLUS", saved),
    ]
}

/// The operations of the interval.
pub(super) fn operations(figures: &Figures) -> Table<8> {
    let row = |one: &OperationFigures| {
        let OperationFigures { protocol, name, latency, .. } = one;
        [
            rounded(figures.per_second(one.count)),
            mean(one),
            duration(latency.p50),
            duration(latency.p99),
            size_text(figures.per_second(one.received_bytes) as u64),
            size_text(figures.per_second(one.sent_bytes) as u64),
            rounded(figures.per_second(one.failed)),
            format!("{protocol} {name}"),
        ]
    };
    Table {
        titles: ["per s", "mean", "50% in", "99% in", "recv/s", "sent/s", "failed", "Operation"],
        widths: [7, 7, 7, 7, 11, 11, 6, 20],
        rows: figures.operations.iter().map(row).collect(),
    }
}

/// The open connections.
pub(super) fn connections(figures: &Figures) -> Table<4> {
    let row = |one: &ConnectionFigures| {
        let ConnectionFigures { address, calls, received_bytes, sent_bytes, .. } = one;
        let calls = rounded(figures.per_second(*calls));
        [
            calls,
            rate(figures, *received_bytes),
            rate(figures, *sent_bytes),
            shown(address.as_bytes()),
        ]
    };
    Table {
        titles: ["calls/s", "received", "sent", "Client"],
        widths: [8, 14, 14, 20],
        rows: figures.connections.iter().map(row).collect(),
    }
}

/// The files with the most bytes in memory.
pub(super) fn files(figures: &Figures) -> Table<4> {
    let row = |one: &FileStatus| {
        let FileStatus { path, size_bytes, resident_bytes, dirty_bytes, .. } = one;
        [
            size_text(*resident_bytes),
            size_text(*dirty_bytes),
            size_text(*size_bytes),
            shown(path.as_bytes()),
        ]
    };
    Table {
        titles: ["in memory", "dirty", "size", "File"],
        widths: [12, 12, 12, 20],
        rows: figures.files.iter().map(row).collect(),
    }
}

/// Bytes for each second.
fn rate(figures: &Figures, bytes: u64) -> String {
    format!("{}/s", size_text(figures.per_second(bytes) as u64))
}

fn calls_text(figures: &Figures, calls: u64) -> String {
    format!("{} calls/s", rounded(figures.per_second(calls)))
}

/// A number with at least two significant digits.
fn rounded(number: f64) -> String {
    match number {
        0.0 => "0".into(),
        _ if number < 10.0 => format!("{number:.1}"),
        _ => format!("{number:.0}"),
    }
}

fn mean(one: &OperationFigures) -> String {
    let us = one.nanos as f64 / 1000.0 / one.count.max(1) as f64;
    microseconds(us)
}

fn duration(duration: Duration) -> String {
    match duration {
        Duration::None => "-".into(),
        Duration::UpTo(us) => microseconds(us as f64),
        Duration::Over(us) => format!(">{}", microseconds(us as f64)),
    }
}

fn microseconds(us: f64) -> String {
    match us {
        _ if us < 1000.0 => format!("{} us", rounded(us)),
        _ if us < 1_000_000.0 => format!("{} ms", rounded(us / 1000.0)),
        _ => format!("{} s", rounded(us / 1_000_000.0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        assert_eq!(duration(Duration::UpTo(250)), "250 us");
        assert_eq!(duration(Duration::UpTo(2500)), "2.5 ms");
        assert_eq!(duration(Duration::Over(1_000_000)), ">1.0 s");
        assert_eq!(duration(Duration::None), "-");
    }

    #[test]
    fn small_numbers_keep_a_digit() {
        assert_eq!([0.0, 0.25, 9.96, 250.4].map(rounded), ["0", "0.2", "10.0", "250"]);
    }
}
