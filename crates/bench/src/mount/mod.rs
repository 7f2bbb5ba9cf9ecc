//! Mounts: the same files used directly, through `weir mount`, through other FUSE file systems, and
//! through the kernel's NFS client.
//!
//! 1. In every round each place does the same work once, in alternating order; figures are medians of
//!    the rounds.
//! 2. Work with cold caches begins with a new mount, after the kernel's and the server's caches have
//!    dropped the file.
//! 3. Small files are removed after all places have created theirs: some file systems look for a free
//!    number among the recently removed files, so that creation beside them takes longer.
//! 4. Processor time is that of this process, which uses the files, and of the process that serves the
//!    mount; not that of the NFS server.

mod mapped;
mod place;
mod work;

use crate::measure::{in_turn, median, processor_times};
use crate::observer::Observer;
use crate::peers::{Host, Peer};
use crate::report::{self, Target, table};
use crate::scratch::{Scratch, forget};
use crate::targets::target;
use place::{Place, Source, Way};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use weir_tools::failure::{Asked, Failure, Result};
use work::{Amount, Done, FILE, Work};

/// Options of the benchmark.
#[derive(Clone, Debug)]
pub struct Options {
    /// Size of the large file, in bytes.
    pub size: u64,
    /// Number of small files.
    pub files: u32,
    /// Time of each work with random reads.
    pub time: Duration,
    /// Rounds of each figure.
    pub rounds: u32,
    /// Directory for the files.
    pub dir: PathBuf,
}

/// What a run finds.
#[derive(Serialize)]
pub struct Report {
    bytes: u64,
    files: u32,
    rounds: u32,
    targets: Vec<Target>,
    figures: Vec<Figure>,
}

/// One piece of work in one place: medians of the rounds.
#[derive(Clone, Debug, Serialize)]
struct Figure {
    source: &'static str,
    place: &'static str,
    work: &'static str,
    /// For work on bytes.
    mb_per_s: Option<f64>,
    /// For other work.
    operations_per_s: Option<f64>,
    /// Its rate to that of the first place with this source.
    to_first: f64,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    p99_9_us: Option<f64>,
    /// For work on bytes.
    cpu_s_per_gb: Option<f64>,
    /// For other work.
    cpu_us_per_operation: Option<f64>,
    #[serde(skip)]
    of: (Way, Work),
}

/// What one round measures.
struct Taken {
    rate: f64,
    cpu_per: f64,
    /// p50, p99, p99.9 in microseconds.
    latency: Option<[f64; 3]>,
}

const LOCAL: &str = "a directory";
const NFS: &str = "NFS 4.2";

/// Measures every work in every place.
///
/// # Errors
/// Something that the run needs cannot be created, mounted or started, or a piece of work fails.
pub fn run(options: &Options, observer: &Arc<dyn Observer>) -> Result<Report> {
    if options.size < 1 << 20 || options.files == 0 {
        let failure = Failure::new("measure", "there is too little to do");
        return Err(failure.advice("take 1 MiB and one file at least"));
    }
    let scratch = Scratch::within(&options.dir)?;
    let ways = Way::of_directory();
    if !ways.iter().any(|way| way.is_peer()) {
        observer.notice(
            "neither bindfs nor rclone is installed: no other FUSE file system is compared",
        );
    }
    let dir = scratch.dir("directory")?;
    scratch.file(&format!("directory/{FILE}"), options.size)?;
    let run = Run { options, scratch: &scratch };
    let mut local = Side { source: LOCAL, ways, taken: Vec::new() };
    run.side_by_side(&mut local, Work::FIRST, &mut Source::Directory(&dir), &dir)?;
    observer.progress(&rows(&local.figures()));

    let export = scratch.dir("export")?;
    scratch.file(&format!("export/{FILE}"), options.size)?;
    let state = scratch.dir("state")?;
    let mut peer = Peer::weir(&Host::LOCAL, &export, &state, None)?;
    let ways = Way::of_server();
    if !ways.contains(&Way::Linux) {
        observer.notice("Linux's NFS client is left out: it cannot mount here");
    }
    let mut remote = Side { source: NFS, ways, taken: Vec::new() };
    run.side_by_side(&mut remote, Work::FIRST, &mut Source::Server(&mut peer), &export)?;

    run.side_by_side(&mut local, &[Work::Remove], &mut Source::Directory(&dir), &dir)?;
    run.side_by_side(&mut remote, &[Work::Remove], &mut Source::Server(&mut peer), &export)?;
    let figures = [local.figures(), remote.figures()].concat();
    observer.progress(&rows(&figures));
    Ok(Report {
        bytes: options.size,
        files: options.files,
        rounds: options.rounds,
        targets: judge(&figures),
        figures,
    })
}

struct Run<'a> {
    options: &'a Options,
    scratch: &'a Scratch,
}

impl Run<'_> {
    /// Rounds of these pieces of work in every way with one source, whose files are in `dir`.
    fn side_by_side(
        &self,
        side: &mut Side,
        works: &[Work],
        source: &mut Source<'_>,
        dir: &Path,
    ) -> Result<()> {
        for round in 0..self.options.rounds as usize {
            let count = side.ways.len();
            for index in in_turn(count, round) {
                let way = side.ways[index];
                let name = format!("mount-{}-{round}-{index}-{}", side.source.len(), works.len());
                let point = self.scratch.dir(&name)?;
                let tree = round * count + index;
                let found = self.round(way, works, tree, (source, dir), &point)?;
                let found = works.iter().zip(found).map(|(&work, taken)| (way, work, taken));
                side.taken.extend(found);
                std::fs::remove_dir(&point).asked(|| format!("remove {}", point.display()))?;
            }
        }
        Ok(())
    }

    /// These pieces of work once in one way.
    fn round(
        &self,
        way: Way,
        works: &[Work],
        tree: usize,
        (source, dir): (&mut Source<'_>, &Path),
        point: &Path,
    ) -> Result<Vec<Taken>> {
        let Options { size: bytes, files, time, .. } = *self.options;
        let amount = Amount { bytes, files, time, tree };
        let mut all = Vec::new();
        let mut place = None;
        for &work in works {
            if work.is_cold() {
                drop(place.take());
                if let Source::Server(peer) = source {
                    peer.control(&format!("drop {FILE}"))?;
                }
                forget(&dir.join(FILE))?;
            }
            let place = match &mut place {
                Some(place) => place,
                // Room for the file, and for what is written.
                none => none.insert(Place::make(way, source, point, 3 * bytes + (64 << 20))?),
            };
            let cpu = || {
                let (user, system) = processor_times();
                user + system + place.processor_seconds().unwrap_or(0.0)
            };
            let before = cpu();
            let Done { seconds, count, latency } = work::run(work, &place.path, &amount)?;
            let per =
                |quantile| latency.as_ref().map(|l| l.value_at_quantile(quantile) as f64 / 1e3);
            all.push(Taken {
                rate: count / seconds.max(1e-9),
                cpu_per: (cpu() - before) / count,
                latency: per(0.5).zip(per(0.99)).zip(per(0.999)).map(|((a, b), c)| [a, b, c]),
            });
        }
        Ok(all)
    }
}

/// What the rounds with one source measured.
struct Side {
    source: &'static str,
    ways: Vec<Way>,
    taken: Vec<(Way, Work, Taken)>,
}

impl Side {
    /// The medians of the rounds so far.
    fn figures(&self) -> Vec<Figure> {
        let mut figures: Vec<Figure> = Vec::new();
        for work in Work::ALL {
            let mut first = None;
            for &way in &self.ways {
                let is_asked = |one: &&(Way, Work, Taken)| (one.0, one.1) == (way, work);
                let taken: Vec<_> =
                    self.taken.iter().filter(is_asked).map(|(.., taken)| taken).collect();
                if !taken.is_empty() {
                    let figure = figure(self.source, (way, work), &taken, &mut first);
                    figures.push(figure);
                }
            }
        }
        figures
    }
}

fn figure(
    source: &'static str,
    of: (Way, Work),
    taken: &[&Taken],
    first: &mut Option<f64>,
) -> Figure {
    let (way, work) = of;
    let all = |value: &dyn Fn(&Taken) -> f64| {
        median(&taken.iter().map(|taken| value(taken)).collect::<Vec<_>>())
    };
    let latency = |index: usize| {
        let all: Vec<f64> = taken.iter().filter_map(|t| Some(t.latency?[index])).collect();
        (!all.is_empty()).then(|| median(&all))
    };
    let (rate, cpu) = (all(&|taken| taken.rate), all(&|taken| taken.cpu_per));
    let is_of_bytes = work.is_of_bytes();
    Figure {
        source,
        place: way.name(),
        work: work.name(),
        mb_per_s: is_of_bytes.then_some(rate / 1e6),
        operations_per_s: (!is_of_bytes).then_some(rate),
        to_first: rate / *first.get_or_insert(rate),
        p50_us: latency(0),
        p99_us: latency(1),
        p99_9_us: latency(2),
        cpu_s_per_gb: is_of_bytes.then_some(cpu * 1e9),
        cpu_us_per_operation: (!is_of_bytes).then_some(cpu * 1e6),
        of,
    }
}

/// Every work against the best other FUSE file system, and cold mapped reads against cold reads.
fn judge(figures: &[Figure]) -> Vec<Target> {
    let rate = |source, is_asked: &dyn Fn(Way) -> bool, work| {
        let of = figures.iter().filter(|figure| {
            figure.source == source && is_asked(figure.of.0) && figure.of.1 == work
        });
        of.filter_map(|f| f.mb_per_s.or(f.operations_per_s)).max_by(f64::total_cmp)
    };
    let is_weir = |way| matches!(way, Way::Weir { .. });
    let mut targets = Vec::new();
    for work in Work::ALL {
        let ours = rate(LOCAL, &is_weir, work);
        if let Some((ours, theirs)) = ours.zip(rate(LOCAL, &|way| way.is_peer(), work)) {
            targets.push(target("mount", "to-best-peer", work.name(), ours / theirs));
        }
    }
    for source in [LOCAL, NFS] {
        let cold = |work| rate(source, &is_weir, work);
        if let Some((mapped, read)) = cold(Work::ColdMapped).zip(cold(Work::ColdRead)) {
            targets.push(target("mount", "cold-mapped", source, mapped / read));
        }
    }
    targets
}

fn rows(figures: &[Figure]) -> String {
    let digits = |value: f64| match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    };
    let some = |value: Option<f64>| value.map_or("-".into(), digits);
    let row = |figure: &Figure| {
        let rate = match (figure.mb_per_s, figure.operations_per_s) {
            (Some(rate), _) => format!("{} MB/s", digits(rate)),
            (None, rate) => format!("{} /s", some(rate)),
        };
        let cpu = match (figure.cpu_s_per_gb, figure.cpu_us_per_operation) {
            (Some(cpu), _) => format!("{cpu:.2} s/GB"),
            (None, cpu) => format!("{} us", some(cpu)),
        };
        let times = [figure.p50_us, figure.p99_us, figure.p99_9_us].map(some);
        let [p50, p99, p99_9] = times;
        let (work, place, source) = (figure.work, figure.place, figure.source);
        let first = format!("{:.2}", figure.to_first);
        vec![work.into(), source.into(), place.into(), rate, first, p50, p99, p99_9, cpu]
    };
    let rows: Vec<Vec<String>> = figures.iter().map(row).collect();
    table(
        &["work", "source", "place", "rate", "to first", "p50 us", "p99 us", "p99.9 us", "CPU"],
        &rows,
    )
}

impl Report {
    /// The figures as a table, and the targets.
    pub fn text(&self) -> String {
        format!(
            "\na file of {:.1} MB, {} small files; medians of {} rounds\n\n{}\n{}",
            self.bytes as f64 / 1e6,
            self.files,
            self.rounds,
            rows(&self.figures),
            report::targets(&self.targets),
        )
    }
}
