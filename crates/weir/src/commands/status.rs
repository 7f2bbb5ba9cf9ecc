//! `weir status`: shows running processes and their caches, or what is in memory of files.

use super::in_memory::{self, Caches, Look, asking, replies, running};
use crate::arguments::JsonArgs;
use crate::ended::Ended;
use crate::output::{complain, print, print_json, say, text_and_hex};
use serde::Serialize;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;
use weir_control::{Action, Asked, Reply, Request, Status};
use weir_tools::failure::{Failure, Result};
use weir_tools::text::size_text;

/// Show running weir processes and their caches, or how much of files is in memory
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  weir status                         the running processes of this user
  weir status /srv/images             how much of a tree is in memory, and in whose cache
  weir status -a /srv/images          each file of which something is in memory
  weir status --files 10              the ten files with the most bytes in each server's cache
  weir status --json | jq '.[].cache.used_bytes'

`Hits` is the share of reads that the cache answered without waiting. Without PATH, the exit code \
is 1 if no process is running. Each process listens at a socket in \
$XDG_RUNTIME_DIR/weir, for root in /run/weir, that only its user and root may use.")]
pub(crate) struct Args {
    /// Files and directories
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Show the files with the most bytes in memory, so many of each process
    #[arg(short, long, value_name = "N", conflicts_with = "paths")]
    files: Option<u16>,
    /// Show each file of which something is in memory, not only the sum of each argument
    #[arg(short, long, requires = "paths")]
    all: bool,
    #[command(flatten)]
    json: JsonArgs,
}

pub(crate) fn run(args: Args) -> Result<Ended> {
    if !args.paths.is_empty() {
        let look = Look { action: Action::Show, kernel: true, all: args.all };
        return Caches::of(&args.paths, look)?.end(args.json.wanted());
    }
    if let Some(most) = args.files {
        let held = in_memory::largest(most.into())?;
        return match args.json.wanted() {
            true => print_json(&held),
            false => print(in_memory::table(&held).as_bytes()),
        };
    }
    let (mut found, mut ended) = (Vec::new(), Ended::Done);
    for process in running()? {
        match status_of(&process) {
            Ok(status) => found.extend(status),
            Err(failure) => {
                complain(&failure);
                ended = Ended::Failed;
            }
        }
    }
    if args.json.wanted() {
        print_json(&found.iter().map(ProcessJson::new).collect::<Vec<_>>())?;
    } else if !found.is_empty() {
        print(table(&found).as_bytes())?;
    }
    if found.is_empty() {
        say("weir: no weir process of this user is running");
        ended = Ended::Failed;
    }
    Ok(ended)
}

/// The counters of a process; `None` if it has ended since it was found.
///
/// # Errors
/// It does not answer.
pub(crate) fn status_of(process: &Asked) -> Result<Option<Status>> {
    for reply in replies(process, &Request::Status) {
        match reply? {
            Reply::Status(status) => return Ok(Some(*status)),
            Reply::Elsewhere => return Ok(None),
            _ => {}
        }
    }
    Err(Failure::new(asking(process.pid), "it gave no status"))
}

/// The share of reads that the cache answered without waiting, of 0 to 1; `None` before the first.
pub(crate) fn hit_rate(status: &Status) -> Option<f64> {
    let count = |name| status.cache.counters.get(name).copied().unwrap_or(0);
    let hits = count("fast_reads");
    let all = hits + count("fallback_missing");
    (all > 0).then(|| hits as f64 / all as f64)
}

/// A process as JSON.
#[derive(Serialize)]
struct ProcessJson<'a> {
    pid: u32,
    command: &'a str,
    what: &'a str,
    version: &'a str,
    uptime_ms: u64,
    cache: &'a weir_control::CacheStatus,
    #[serde(skip_serializing_if = "Option::is_none")]
    hit_rate: Option<f64>,
    exports: Vec<ExportJson<'a>>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    connections: &'a [weir_control::Connection],
    operations: &'a [weir_control::Operation],
    bounds_us: &'a [u64],
    limits: &'a [weir_control::Limit],
}

/// An export as JSON.
#[derive(Serialize)]
struct ExportJson<'a> {
    name: &'a str,
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
    reads: u64,
    read_bytes: u64,
    hole_bytes: u64,
    writes: u64,
    written_bytes: u64,
}

impl<'a> ProcessJson<'a> {
    fn new(status: &'a Status) -> Self {
        let export = |export: &'a weir_control::Export| {
            let (path, path_hex) = text_and_hex(export.path.as_bytes());
            ExportJson {
                name: &export.name,
                path,
                path_hex,
                reads: export.reads,
                read_bytes: export.read_bytes,
                hole_bytes: export.hole_bytes,
                writes: export.writes,
                written_bytes: export.written_bytes,
            }
        };
        Self {
            pid: status.pid,
            command: &status.command,
            what: &status.what,
            version: &status.version,
            uptime_ms: status.uptime_ms,
            cache: &status.cache,
            hit_rate: hit_rate(status),
            exports: status.exports.iter().map(export).collect(),
            connections: &status.connections,
            operations: &status.operations,
            bounds_us: &status.bounds_us,
            limits: &status.limits,
        }
    }
}

fn table(processes: &[Status]) -> String {
    let titles = ("Process", "Command", "Uptime", "In memory", "of", "Dirty", "Hits");
    let (process, command, uptime, used, budget, dirty, hits) = titles;
    let mut out = format!(
        "{process:>8} {command:<8} {uptime:>9} {used:>12} {budget:>12} {dirty:>12} {hits:>6}  What\n"
    );
    for status in processes {
        let hits = hit_rate(status).map(|rate| format!("{:.1}%", rate * 100.0));
        // Writing to a string does not fail.
        let _ = writeln!(
            out,
            "{:>8} {:<8} {:>9} {:>12} {:>12} {:>12} {:>6}  {}",
            status.pid,
            status.command,
            uptime_text(status.uptime_ms),
            size_text(status.cache.used_bytes),
            size_text(status.cache.budget_bytes),
            size_text(status.cache.dirty_bytes),
            hits.unwrap_or_else(|| "-".into()),
            status.what
        );
    }
    out
}

/// A duration with its two largest units: `3d 4h`.
pub(crate) fn uptime_text(milliseconds: u64) -> String {
    let seconds = Duration::from_millis(milliseconds).as_secs();
    let (days, hours, minutes) = (seconds / 86400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m {}s", seconds % 60),
        (0, ..) => format!("{hours}h {minutes}m"),
        _ => format!("{days}d {hours}h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uptimes_have_two_units() {
        let texts = [(999, "0s"), (59_000, "59s"), (61_000, "1m 1s"), (3_600_000, "1h 0m")];
        for (milliseconds, text) in texts {
            assert_eq!(uptime_text(milliseconds), text);
        }
        assert_eq!(uptime_text(25 * 3_600_000), "1d 1h");
    }

    #[test]
    fn the_hit_rate_counts_reads_that_missed_a_page() {
        let mut status = Status::default();
        assert_eq!(hit_rate(&status), None);
        status.cache.counters.insert("fast_reads".into(), 3);
        status.cache.counters.insert("fallback_missing".into(), 1);
        assert_eq!(hit_rate(&status), Some(0.75));
    }
}
