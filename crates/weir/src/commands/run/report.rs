//! What a command moved, and what it left in the kernel's page cache.

use super::options::Engine;
use super::plain::Plain;
use crate::ended::{Ended, exit_code};
use crate::output::say;
use parking_lot::Mutex;
use serde::Serialize;
use std::collections::HashMap;
use std::fmt::{Display, Formatter};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_fuse::Observer;
use weir_tools::failure::{Asked, Failure, Result};
use weir_tools::kernel_cache::resident_in_layers;
use weir_tools::text::size_text;
use weir_vfs::{FileId, FileSystem};

/// Most files whose pages are counted.
const MOST_FILES: usize = 100_000;

/// The files that the command opened, and how much of each the kernel had before.
#[derive(Default)]
pub(super) struct Watch {
    before: Mutex<HashMap<PathBuf, u64>>,
}

impl Watch {
    /// Remembers how much of a file the kernel had before; the first time counts.
    pub(super) fn saw(&self, path: PathBuf, bytes: u64) {
        let mut before = self.before.lock();
        if before.len() < MOST_FILES {
            before.entry(path).or_insert(bytes);
        }
    }

    /// The observer of a store's files.
    pub(super) fn of(self: &Arc<Self>, store: Arc<dyn FileSystem>) -> Arc<dyn Observer> {
        Arc::new(Watching { watch: Arc::clone(self), store, known: Mutex::default() })
    }
}

struct Watching {
    watch: Arc<Watch>,
    store: Arc<dyn FileSystem>,
    known: Mutex<std::collections::HashSet<FileId>>,
}

impl Observer for Watching {
    fn opening(&self, id: FileId) {
        {
            let mut known = self.known.lock();
            if known.len() >= MOST_FILES || !known.insert(id) {
                return;
            }
        }
        // A local store finds the path without waiting.
        let mut finding = std::pin::pin!(self.store.path_of(id));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        if let std::task::Poll::Ready(Ok(path)) = finding.as_mut().poll(&mut context)
            && let Some(bytes) = in_kernel(&path)
        {
            self.watch.saw(path, bytes);
        }
    }
}

/// The bytes of files that the kernel's page cache holds.
fn resident<'a>(paths: impl Iterator<Item = &'a PathBuf>) -> u64 {
    paths.filter_map(|path| in_kernel(path)).sum()
}

/// The bytes of a file that the kernel's page cache holds.
fn in_kernel(path: &Path) -> Option<u64> {
    let file = File::open(path).ok()?;
    resident_in_layers(&file, file.metadata().ok()?.len())
}

/// A run; or why the engine could not run the command.
pub(super) type Ran = std::result::Result<Run, Failure>;

/// A command that has run.
pub(super) struct Run {
    pub(super) status: ExitStatus,
    pub(super) work: Work,
    /// What was not done for it; empty if its files were served or watched to the end, and written out.
    pub(super) failures: Vec<Failure>,
}

impl Run {
    /// How it ended; never well if there are failures.
    pub(super) fn ended(&self) -> Ended {
        match self.status.success() && !self.failures.is_empty() {
            true => Ended::Failed,
            false => Ended::of(self.status),
        }
    }
}

/// What an engine did.
pub(super) enum Work {
    Served { read_bytes: u64, written_bytes: u64 },
    Watched { evicted_bytes: u64, unseen_opens: u64 },
}

/// The begin of a use of time and processor time.
pub(super) struct Since {
    at: Instant,
    cpu: Duration,
}

/// Time, and processor time of this process and of its children that have ended.
#[derive(Clone, Copy, Serialize)]
pub(super) struct Cost {
    elapsed_ms: u64,
    cpu_ms: u64,
}

impl Since {
    pub(super) fn now() -> Self {
        Self { at: Instant::now(), cpu: cpu_time() }
    }

    pub(super) fn cost(&self) -> Cost {
        let cpu = cpu_time().saturating_sub(self.cpu);
        Cost { elapsed_ms: self.at.elapsed().as_millis() as u64, cpu_ms: cpu.as_millis() as u64 }
    }
}

impl Display for Cost {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let seconds = |ms: u64| ms as f64 / 1000.0;
        let (elapsed, cpu) = (seconds(self.elapsed_ms), seconds(self.cpu_ms));
        write!(f, "{elapsed:.1} s, {cpu:.1} s of processors")
    }
}

/// The command without Weir.
#[derive(Serialize)]
struct Compared {
    exit_code: u8,
    kernel_cache_bytes_after: u64,
    #[serde(flatten)]
    cost: Cost,
}

/// Processor time of this process and of its children that have ended, in user and kernel mode.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name, in parentheses, may contain anything. Fields 14 to 17 are the times.
    let (_, fields) = stat.rsplit_once(')').unwrap_or_default();
    let ticks: u64 =
        fields.split_whitespace().skip(11).take(4).filter_map(|n| n.parse::<u64>().ok()).sum();
    Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// The figures.
#[derive(Serialize)]
pub(super) struct Report {
    engine: &'static str,
    complete: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    read_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    written_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    evicted_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unseen_opens: Option<u64>,
    files: usize,
    kernel_cache_bytes_before: u64,
    kernel_cache_bytes_after: u64,
    #[serde(flatten)]
    cost: Cost,
    #[serde(skip_serializing_if = "Option::is_none")]
    plain: Option<Compared>,
}

impl Report {
    pub(super) fn new(engine: Engine, watch: &Watch, run: &Run, cost: Cost) -> Self {
        let before = watch.before.lock();
        let mut report = Self {
            engine: engine.name(),
            complete: run.failures.is_empty(),
            read_bytes: None,
            written_bytes: None,
            evicted_bytes: None,
            unseen_opens: None,
            files: before.len(),
            kernel_cache_bytes_before: before.values().sum(),
            kernel_cache_bytes_after: resident(before.keys()),
            cost,
            plain: None,
        };
        match run.work {
            Work::Served { read_bytes, written_bytes } => {
                (report.read_bytes, report.written_bytes) = (Some(read_bytes), Some(written_bytes));
            }
            Work::Watched { evicted_bytes, unseen_opens } => {
                (report.evicted_bytes, report.unseen_opens) =
                    (Some(evicted_bytes), Some(unseen_opens));
            }
        }
        report
    }

    /// Adds the cost of the command without Weir, which has ended just now.
    pub(super) fn compare(&mut self, plain: &Plain, watch: &Watch) {
        self.plain = Some(Compared {
            exit_code: exit_code(plain.status),
            kernel_cache_bytes_after: resident(watch.before.lock().keys()),
            cost: plain.cost,
        });
    }

    pub(super) fn print(&self, json: bool) -> Result<()> {
        // Standard output is the command's.
        if json {
            let text = serde_json::to_string(self).map_err(std::io::Error::from);
            say(text.asked(|| "write JSON".into())?);
            return Ok(());
        }
        let size = |bytes: Option<u64>| size_text(bytes.unwrap_or(0));
        let (did, unseen) = match self.evicted_bytes {
            None => (
                format!("read {}, wrote {}", size(self.read_bytes), size(self.written_bytes)),
                None,
            ),
            Some(_) => (format!("dropped {}", size(self.evicted_bytes)), self.unseen_opens),
        };
        say(format_args!(
            "engine {}: {did} in {} files in {}; of these files, the kernel's cache held {} before and {} after",
            self.engine,
            self.files,
            self.cost,
            size_text(self.kernel_cache_bytes_before),
            size_text(self.kernel_cache_bytes_after),
        ));
        if !self.complete {
            say("these figures are not complete: see the failures above");
        }
        if let Some(unseen @ 1..) = unseen {
            say(format_args!("{unseen} opens could not be watched"));
        }
        if let Some(plain) = &self.plain {
            let after = size_text(plain.kernel_cache_bytes_after);
            say(format_args!(
                "without Weir: {}; the kernel's cache held {after} after",
                plain.cost
            ));
            if plain.exit_code != 0 {
                say(format_args!("without Weir, the command ended with {}", plain.exit_code));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn a_run_with_failures_never_ends_well_and_its_report_says_so() {
        let work = || Work::Watched { evicted_bytes: 0, unseen_opens: 0 };
        let run = |code: i32, failures: &[Failure]| Run {
            status: ExitStatus::from_raw(code << 8),
            work: work(),
            failures: failures.to_vec(),
        };
        let failures = [Failure::new("watch the command's files", "no")];
        assert!(matches!(run(0, &[]).ended(), Ended::With(0)));
        assert!(matches!(run(7, &[]).ended(), Ended::With(7)));
        assert!(matches!(run(0, &failures).ended(), Ended::Failed));
        assert!(matches!(run(7, &failures).ended(), Ended::With(7)));
        let by = |signal| Ended::of(ExitStatus::from_raw(signal));
        assert!(matches!(by(libc::SIGINT), Ended::By(libc::SIGINT)));
        assert!(matches!(by(libc::SIGKILL), Ended::With(137)));
        for (failures, complete) in [(&failures[..], false), (&failures[..0], true)] {
            let run = run(0, failures);
            let report = Report::new(Engine::Watch, &Watch::default(), &run, Since::now().cost());
            assert_eq!(serde_json::to_value(&report).unwrap()["complete"], complete);
        }
    }
}
