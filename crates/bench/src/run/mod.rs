//! Commands that read and write several times the memory they have, beside a neighbour with a hot file in
//! the kernel's cache: as they are, under `weir run`, and with other means to spare the cache.
//!
//! 1. Neighbour and command share a control group that bounds their memory, as processes of one machine
//!    share its memory. The hot file takes a quarter of it, a command's data three times as much as it.
//! 2. In every round each way runs the command once, in alternating order; figures are medians of the
//!    rounds. The neighbour's figures are beside those of a period in which it is alone.
//! 3. The time of a command includes syncfs(2) at the end, since the ways differ in what they leave to be
//!    written later. Processor time is that of all processes that the command started, `weir run` included.

mod neighbour;
mod work;

pub(crate) use neighbour::{NAME, run as help};

use crate::interrupt;
use crate::limit::Limit;
use crate::measure::{children_seconds, in_turn, median};
use crate::observer::Observer;
use crate::report::{self, Target, table};
use crate::scratch::{Scratch, forget};
use crate::targets::target;
use neighbour::{Neighbour, Seen};
use serde::Serialize;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use weir_stores::random::Random;
use weir_tools::failure::{Asked, Failure, Result};
use weir_tools::kernel_cache::resident_in_layers;
use work::{LARGE, Places, Way, Work};

/// Size of each small file of the data.
const SMALL: u64 = 1 << 20;
/// The least memory: a command and `weir run` need some of their own.
const LEAST_MEMORY: u64 = 128 << 20;

/// Options of the benchmark.
#[derive(Clone, Debug)]
pub struct Options {
    /// Memory that command and neighbour share, in bytes; at least 128 MiB.
    pub memory: u64,
    /// The neighbour's reads per second.
    pub reads_per_s: u32,
    /// The time for which the neighbour is alone.
    pub alone: Duration,
    /// Rounds of each figure.
    pub rounds: u32,
    /// Names of the commands; all that are installed if empty.
    pub commands: Vec<String>,
    /// Directory for the files.
    pub dir: PathBuf,
}

/// What a run finds.
#[derive(Serialize)]
pub struct Report {
    memory_bytes: u64,
    data_bytes: u64,
    hot_bytes: u64,
    rounds: u32,
    alone: Seen,
    targets: Vec<Target>,
    figures: Vec<Figure>,
}

/// A command run in one way: medians of the rounds.
#[derive(Clone, Debug, Serialize)]
struct Figure {
    command: &'static str,
    way: &'static str,
    seconds: f64,
    cpu_s: f64,
    /// Its time to that of the command as it is, pair by pair.
    to_plain: f64,
    /// What the kernel's cache has of the command's files afterwards, in per cent of the moved bytes.
    grown_percent: f64,
    hit_percent: f64,
    p50_us: f64,
    p99_us: f64,
    p99_9_us: f64,
    /// The neighbour's p99 to its p99 alone, in the same round.
    p99_to_alone: f64,
    #[serde(skip)]
    of: Way,
}

/// What one run of a command measures.
struct Taken {
    seconds: f64,
    cpu_s: f64,
    grown_percent: f64,
    seen: Seen,
    alone: Seen,
}

/// Runs every command in every way.
///
/// # Errors
/// Control groups are refused, something that the run needs cannot be created, or a command fails.
pub fn run(options: &Options, observer: &dyn Observer) -> Result<Report> {
    if options.memory < LEAST_MEMORY {
        let failure = Failure::new("measure", "that is too little memory");
        return Err(failure.advice("take 128 MiB at least"));
    }
    let works = chosen(&options.commands)?;
    let scratch = Scratch::within(&options.dir)?;
    let hot_bytes = options.memory / 4;
    let data_bytes = 3 * options.memory / (2 * SMALL) * (2 * SMALL);
    observer.progress("Creating the files\n");
    let bench = Bench {
        options,
        hot: scratch.file("hot", hot_bytes)?,
        places: places(&scratch, data_bytes, works.iter().any(|work| work.is_of_database))?,
        data_bytes,
    };
    let alones = (0..options.rounds).map(|_| bench.alone()).collect::<Result<Vec<_>>>()?;
    let mut figures = Vec::new();
    for work in &works {
        let ways = Way::of(work);
        let mut taken: Vec<Vec<Taken>> = ways.iter().map(|_| Vec::new()).collect();
        for (round, alone) in alones.iter().enumerate() {
            let count = ways.len();
            for index in in_turn(count, round) {
                interrupt::check()?;
                observer.progress(&format!("{}, {}\n", work.name, ways[index].name()));
                taken[index].push(bench.round(work, ways[index], *alone)?);
            }
        }
        for (way, found) in ways.iter().zip(&taken) {
            figures.push(figure(work, *way, found, &taken[0]));
        }
        observer.progress(&rows(&figures[figures.len() - ways.len()..]));
    }
    let of_alones =
        |value: &dyn Fn(&Seen) -> f64| median(&alones.iter().map(value).collect::<Vec<_>>());
    let alone = Seen {
        reads: of_alones(&|seen| seen.reads as f64) as u64,
        hits: of_alones(&|seen| seen.hits as f64) as u64,
        p50_us: of_alones(&|seen| seen.p50_us),
        p99_us: of_alones(&|seen| seen.p99_us),
        p99_9_us: of_alones(&|seen| seen.p99_9_us),
    };
    let rounds = options.rounds;
    let targets = judge(&figures, alone);
    Ok(Report {
        memory_bytes: options.memory,
        data_bytes,
        hot_bytes,
        rounds,
        alone,
        targets,
        figures,
    })
}

/// The commands of these names; all that are installed if there are none.
fn chosen(names: &[String]) -> Result<Vec<Work>> {
    let present = Work::present();
    let named = |name: &String| {
        let found = present.iter().find(|work| work.name == name).copied();
        found.ok_or_else(|| {
            let all = Work::ALL.map(|work| work.name).join(", ");
            let failure =
                Failure::new(format!("measure {name}"), "it is not installed, or not known");
            failure.advice(format!("take some of {all}"))
        })
    };
    match names {
        [] => Ok(present),
        names => names.iter().map(named).collect(),
    }
}

/// Creates the data: a large file, small ones of as many bytes, and a database of all of them.
fn places(scratch: &Scratch, bytes: u64, with_database: bool) -> Result<Places> {
    let all = scratch.dir("files")?;
    let data = scratch.dir("files/data")?;
    let mut random = Random::new(1);
    let mut large = new_file(&data.join(LARGE))?;
    for index in 0..bytes / 2 / SMALL {
        interrupt::check()?;
        // Each block is another, since restic stores equal ones once.
        write(&mut large, &lines(&mut random))?;
        let dir = data.join(format!("{}", index / 100));
        fs::create_dir_all(&dir).asked(|| format!("make {}", dir.display()))?;
        write(&mut new_file(&dir.join(index.to_string()))?, &lines(&mut random))?;
    }
    let database = all.join("database");
    if with_database {
        let rows = bytes / 100_000;
        let text = format!(
            "PRAGMA journal_mode = off; PRAGMA synchronous = off; CREATE TABLE t(b); WITH RECURSIVE \
             n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows}) INSERT INTO t SELECT \
             randomblob(100000) FROM n;"
        );
        shell(&["sqlite3".into(), (&*database).into(), text.into()])?;
    }
    sync(&all)?;
    Ok(Places { out: all.join("out"), all, data, database })
}

/// Bytes in lines of 256: grep keeps a line in memory.
fn lines(random: &mut Random) -> Vec<u8> {
    let mut bytes = random.bytes(SMALL as usize);
    bytes.iter_mut().skip(255).step_by(256).for_each(|byte| *byte = b'\n');
    bytes
}

fn new_file(path: &Path) -> Result<File> {
    File::create_new(path).asked(|| format!("create {}", path.display()))
}

fn write(file: &mut File, bytes: &[u8]) -> Result<()> {
    file.write_all(bytes).asked(|| "write data".into())
}

/// Writes out the file system of a directory.
fn sync(dir: &Path) -> Result<()> {
    let synced = File::open(dir).and_then(|dir| Ok(rustix::fs::syncfs(&dir)?));
    synced.asked(|| format!("write out {}", dir.display()))
}

/// Runs a command; its output is shown if it fails.
fn shell(args: &[OsString]) -> Result<()> {
    let shown = || format!("run {}", args.join(OsString::from(" ").as_os_str()).display());
    let output = Command::new(&args[0]).args(&args[1..]).output().asked(shown)?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    match output.status.success() {
        true => Ok(()),
        false => Err(Failure::new(shown(), format!("{}: {said}", output.status))),
    }
}

struct Bench<'a> {
    options: &'a Options,
    hot: PathBuf,
    places: Places,
    data_bytes: u64,
}

impl Bench<'_> {
    /// The neighbour alone, in as much memory.
    fn alone(&self) -> Result<Seen> {
        let (_group, mut neighbour) = self.neighbour()?;
        let waits = || {
            std::thread::sleep(self.options.alone);
            Ok(())
        };
        Ok(neighbour.beside(waits)?.1)
    }

    /// A control group, and a neighbour in it whose file is in memory.
    fn neighbour(&self) -> Result<(Groups, Neighbour)> {
        forget(&self.hot)?;
        let asked = || "limit memory by control groups".to_owned();
        let name = format!("run-{}", std::process::id());
        let all = Limit::new(&name, self.options.memory).asked(asked)?;
        let inner = all.within("neighbour", None).asked(asked)?;
        let neighbour = Neighbour::start(&self.hot, self.options.reads_per_s, |id| inner.add(id))?;
        Ok((Groups { _neighbour: inner, all }, neighbour))
    }

    /// One command in one way.
    fn round(&self, work: &Work, way: Way, alone: Seen) -> Result<Taken> {
        let Places { all, out, .. } = &self.places;
        each_file(all, &mut forget)?;
        fs::create_dir(out).asked(|| format!("make {}", out.display()))?;
        let memory = self.options.memory;
        let (groups, mut neighbour) = self.neighbour()?;
        let asked = || "limit the command's memory".to_owned();
        let limit = (way == Way::Limited).then_some(memory / 8);
        let group = groups.all.within("command", limit).asked(asked)?;
        // The shell enters the group before it becomes the command.
        let enter = ["/bin/sh", "-c", "echo $$ > \"$0\" && exec \"$@\""].map(OsString::from);
        let mut args = enter.to_vec();
        args.push(group.processes().into());
        args.extend(work::arguments(work, way, &self.places, memory / 8)?);
        let (cpu, begun) = (children_seconds(), Instant::now());
        let ((), seen) = neighbour.beside(|| shell(&args).and_then(|()| sync(out)))?;
        let seconds = begun.elapsed().as_secs_f64();
        let cpu_s = children_seconds() - cpu;
        let mut resident = 0;
        each_file(all, &mut |path| {
            resident += resident_bytes(path)?;
            Ok(())
        })?;
        drop(neighbour);
        fs::remove_dir_all(out).asked(|| format!("remove {}", out.display()))?;
        let read = if work.is_of_large_file { self.data_bytes / 2 } else { self.data_bytes };
        let moved = if work.writes { 2 * read } else { read };
        let grown_percent = 100.0 * resident as f64 / moved as f64;
        Ok(Taken { seconds, cpu_s, grown_percent, seen, alone })
    }
}

/// Removed from the inner to the outer one, after their processes.
struct Groups {
    _neighbour: Limit,
    all: Limit,
}

fn resident_bytes(path: &Path) -> Result<u64> {
    let file = File::open(path).asked(|| format!("open {}", path.display()))?;
    let size = file.metadata().asked(|| format!("look at {}", path.display()))?.len();
    resident_in_layers(&file, size).ok_or_else(|| {
        Failure::new(
            format!("look at {}", path.display()),
            "the kernel does not say what it caches",
        )
    })
}

/// Calls `each` for the files below `dir`.
fn each_file(dir: &Path, each: &mut dyn FnMut(&Path) -> Result<()>) -> Result<()> {
    let asked = || format!("list {}", dir.display());
    for entry in fs::read_dir(dir).asked(asked)? {
        let entry = entry.asked(asked)?;
        match entry.file_type().asked(asked)?.is_dir() {
            true => each_file(&entry.path(), each)?,
            false => each(&entry.path())?,
        }
    }
    Ok(())
}

fn figure(work: &Work, way: Way, taken: &[Taken], plain: &[Taken]) -> Figure {
    let all = |value: &dyn Fn(&Taken) -> f64| median(&taken.iter().map(value).collect::<Vec<_>>());
    let pairs: Vec<f64> = taken.iter().zip(plain).map(|(a, b)| a.seconds / b.seconds).collect();
    Figure {
        command: work.name,
        way: way.name(),
        seconds: all(&|taken| taken.seconds),
        cpu_s: all(&|taken| taken.cpu_s),
        to_plain: median(&pairs),
        grown_percent: all(&|taken| taken.grown_percent),
        hit_percent: all(&|taken| hit_percent(&taken.seen)),
        p50_us: all(&|taken| taken.seen.p50_us),
        p99_us: all(&|taken| taken.seen.p99_us),
        p99_9_us: all(&|taken| taken.seen.p99_9_us),
        p99_to_alone: all(&|taken| taken.seen.p99_us / taken.alone.p99_us.max(1e-3)),
        of: way,
    }
}

fn hit_percent(seen: &Seen) -> f64 {
    100.0 * seen.hits as f64 / seen.reads.max(1) as f64
}

/// `weir run` of every command.
fn judge(figures: &[Figure], alone: Seen) -> Vec<Target> {
    let mut targets = Vec::new();
    for figure in figures.iter().filter(|figure| figure.of == Way::Weir) {
        let lost = hit_percent(&alone) - figure.hit_percent;
        for (name, got) in [
            ("to-plain", figure.to_plain),
            ("grown", figure.grown_percent),
            ("hits-lost", lost),
            ("p99", figure.p99_to_alone),
        ] {
            targets.push(target("run", name, figure.command, got));
        }
    }
    targets
}

fn rows(figures: &[Figure]) -> String {
    let row = |f: &Figure| {
        let mut row = vec![f.command.to_owned(), f.way.to_owned()];
        let (two, one) = (|v: f64| format!("{v:.2}"), |v: f64| format!("{v:.1}"));
        row.extend([f.seconds, f.to_plain, f.cpu_s].map(two));
        row.extend([f.grown_percent, f.hit_percent, f.p50_us, f.p99_us, f.p99_9_us].map(one));
        row.push(two(f.p99_to_alone));
        row
    };
    let head = [
        "command",
        "way",
        "s",
        "to plain",
        "CPU s",
        "grown %",
        "hits %",
        "p50 us",
        "p99 us",
        "p99.9 us",
        "p99 to alone",
    ];
    table(&head, &figures.iter().map(row).collect::<Vec<_>>())
}

impl Report {
    /// The figures as a table, and the targets.
    pub fn text(&self) -> String {
        let Self { alone, .. } = self;
        let mb = |bytes: u64| bytes as f64 / 1e6;
        format!(
            "\n{:.0} MB of memory, {:.0} MB of data, a hot file of {:.0} MB; medians of {} rounds\n\
             the neighbour alone: {:.1} % hits, p50 {:.1} us, p99 {:.1} us, p99.9 {:.1} us\n\n{}\n{}",
            mb(self.memory_bytes),
            mb(self.data_bytes),
            mb(self.hot_bytes),
            self.rounds,
            hit_percent(alone),
            alone.p50_us,
            alone.p99_us,
            alone.p99_9_us,
            rows(&self.figures),
            report::targets(&self.targets),
        )
    }
}
