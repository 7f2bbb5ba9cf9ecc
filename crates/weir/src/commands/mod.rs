//! One file per command: it resolves the arguments, does the work, and prints the result.

use crate::arguments::{JsonArgs, MountArgs};
use crate::by_signal::end_by;
use crate::ended::Ended;
use crate::output::{Lines, complain, hex, print_json};
use serde::Serialize;
use std::time::Duration;
use weir_tools::failure::{Failure, Result};
use weir_tools::location::Location;
use weir_tools::mounts::Mounts;

pub(crate) mod bench;
pub(crate) mod cat;
pub(crate) mod check;
pub(crate) mod checksum;
mod child_end;
pub(crate) mod chmod;
pub(crate) mod chown;
pub(crate) mod completions;
pub(crate) mod cp;
pub(crate) mod descriptors;
pub(crate) mod df;
pub(crate) mod du;
pub(crate) mod evict;
pub(crate) mod exports;
pub(crate) mod file_size_limit;
pub(crate) mod find;
mod guard;
mod in_memory;
pub(crate) mod ln;
pub(crate) mod lock;
pub(crate) mod ls;
pub(crate) mod man;
pub(crate) mod map;
pub(crate) mod mkdir;
pub(crate) mod mount;
pub(crate) mod mount_helper;
pub(crate) mod mv;
pub(crate) mod rm;
pub(crate) mod run;
mod runtime;
pub(crate) mod serve;
mod service_manager;
mod set_attributes;
mod soft_limit;
pub(crate) mod stat;
pub(crate) mod status;
mod stop_signals;
pub(crate) mod sync;
pub(crate) mod top;
pub(crate) mod touch;
pub(crate) mod tree;
pub(crate) mod truncate;
pub(crate) mod warm;

pub(crate) use runtime::{in_place, runtime, runtime_with};
use stop_signals::has_stop_come;
pub(crate) use stop_signals::{StopSignals, last_stop};

/// Time that system calls in progress get when a command ends.
pub(crate) const LAST_CALLS: Duration = Duration::from_secs(2);

/// Runs a command's work, and then releases the state that servers hold for it.
pub(crate) fn with_mounts<T>(
    args: &MountArgs,
    work: impl AsyncFnOnce(&mut Mounts) -> Result<T>,
) -> Result<T> {
    let runtime = runtime()?;
    let done = runtime.block_on(async {
        let mut mounts = args.mounts()?;
        let done = work(&mut mounts).await;
        let end = async {
            match &done {
                Ok(_) => mounts.flush_and_unmount().await,
                // The first failure is the one to report.
                Err(_) => mounts.unmount().await,
            }
        };
        let ended = tokio::select! {
            ended = end => ended,
            signal = interrupted() => end_by(signal),
        };
        done.and_then(|done| ended.map(|()| done))
    });
    // Calls in progress were abandoned: on a file system that hangs they may never return.
    runtime.shutdown_timeout(LAST_CALLS);
    done
}

/// Waits for a signal that asks this program to end, and returns its number.
async fn interrupted() -> i32 {
    match StopSignals::listen() {
        Ok(mut signals) if has_stop_come() => signals.again().await.as_raw(),
        Ok(mut signals) => signals.any().await.as_raw(),
        // Without handlers the kernel ends the program.
        Err(_) => std::future::pending().await,
    }
}

/// Runs `work` for each location. A failure is reported, and does not stop the others.
pub(crate) async fn each<'a>(
    locations: &'a [Location],
    mut work: impl AsyncFnMut(&'a Location) -> Result<()>,
) -> Ended {
    let mut ended = Ended::Done;
    for location in locations {
        if let Err(failure) = work(location).await {
            complain(&failure);
            ended = Ended::Failed;
        }
    }
    ended
}

/// What a command that changes files did, for `--json`.
#[derive(Serialize)]
struct Changes {
    /// The files that it changed, made or removed.
    changed: Vec<String>,
    /// The bytes of each of `changed` in hexadecimal, if one of them is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    changed_hex: Option<Vec<String>>,
    /// What failed, as messages.
    failures: Vec<String>,
}

/// Reports the changes of a command: line by line (`-v`), or as JSON at the end.
pub(crate) struct Report {
    json: bool,
    verbose: bool,
    lines: Lines,
    /// The paths or URLs of the files that it changed.
    changed: Vec<Vec<u8>>,
    failures: Vec<String>,
}

impl Report {
    /// A report of nothing so far.
    pub(crate) fn new(json: &JsonArgs, verbose: bool) -> Self {
        let (lines, changed, failures) = (Lines::default(), Vec::new(), Vec::new());
        Self { json: json.wanted(), verbose, lines, changed, failures }
    }

    /// A file was changed: `file` is its exact path or URL, `said` the line that says so.
    pub(crate) fn done(&mut self, file: impl FnOnce() -> Vec<u8>, said: impl FnOnce() -> String) {
        if self.json {
            self.changed.push(file());
        } else if self.verbose {
            self.lines.print(said());
        }
    }

    /// Something failed; the command continues.
    pub(crate) fn failed(&mut self, failure: &Failure) {
        complain(failure);
        self.failures.push(failure.to_string());
    }

    /// Takes the outcome of one of several pieces of work.
    pub(crate) fn take(&mut self, outcome: Result<()>) {
        if let Err(failure) = outcome {
            self.failed(&failure);
        }
    }

    /// Prints the JSON, if that is wanted.
    pub(crate) fn end(self) -> Result<Ended> {
        let Self { json, lines, changed, failures, .. } = self;
        let ended = if failures.is_empty() { Ended::Done } else { Ended::Failed };
        if json {
            let has_bytes = changed.iter().any(|file| std::str::from_utf8(file).is_err());
            let changed_hex = has_bytes.then(|| changed.iter().map(|file| hex(file)).collect());
            let changed = changed.iter().map(|file| String::from_utf8_lossy(file).into()).collect();
            print_json(&Changes { changed, changed_hex, failures })?;
        }
        Ok(lines.end(ended))
    }
}
