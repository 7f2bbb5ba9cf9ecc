//! `weir cp`: resolves sources and destinations; `weir_tools::copy` does the copying.

use super::with_mounts;
use crate::arguments::{MountArgs, one_of, written};
use crate::ended::Ended;
use crate::output::{complain, print, print_json, say, umask};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::fmt::Write;
use std::io::IsTerminal;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use weir_pagecache::CachedFs;
use weir_tools::copy::source::is_same;
use weir_tools::copy::{Copier, FileStats, Options, Progress, Sparse, Summary};
use weir_tools::failure::{Asked, Failure, Result};
use weir_tools::location::{Location, Written};
use weir_tools::mounts::{Links, Mounts, Place};
use weir_tools::size::Size;
use weir_tools::text::size_text;
use weir_vfs::{Attr, Caller, Capabilities, Error, FileKind, IoFlags};

/// Copy files and trees, locally or over NFS, keeping holes
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  weir cp disk.img nfs://filer/images/            a file into a directory
  weir cp nfs://filer/images/disk.img .           and back; keeps holes
  weir cp -r nfs://filer/images ./images          a tree
  weir cp -rp --uncached a/ nfs://filer/backup/   with owners and times, caches unchanged
  weir cp -rp --continue big/ nfs://filer/big/    repeat it until it is complete
  weir cp --checksum disk.img nfs://filer/        read the copy back and compare
  weir cp disk.img copy.img --json | jq .hole_bytes

weir cp writes each copy under a temporary name (.weir-*.part) in the destination directory, and
renames it when it is complete and durable and its source is unchanged. It thus replaces an existing
file: the copy gets the file's mode and owner, and other hard links to the file keep the old data.
With --in-place it overwrites the file instead, which is incomplete if the copy fails.

-p keeps what the destination supports. weir cp reports what it does not support: extended
attributes by name (also security.* and trusted.*), access control lists, times. As with `cp -a`, that
is no failure. NFS supports only extended attributes of users. Ctrl-C removes unfinished files and
reports what is left; a second Ctrl-C ends the program at once.

Pages of zeros become holes (--sparse=always), so that a copy takes no more space than one by
`cp --sparse=always`. Exit code 1 means that something was not copied.")]
pub(crate) struct Args {
    /// The sources, then the destination: a directory, or the name of the copy
    #[arg(value_name = "LOCATION", required = true, num_args = 2.., value_parser = written())]
    locations: Vec<Written>,
    /// Copy directories with their content; copy symbolic links and special files as such
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// Keep mode, owner, times, hard links, access control lists and extended attributes
    #[arg(short, long)]
    preserve: bool,
    /// Which zeros become holes
    #[arg(long, value_parser = one_of(SPARSE), value_name = "WHEN", default_value = "always")]
    sparse: Sparse,
    /// Leave the page cache unchanged, here and at the server
    #[arg(long)]
    uncached: bool,
    /// Number of files to copy at the same time
    #[arg(short, long, value_name = "N", default_value = "16", value_parser = clap::value_parser!(u16).range(1..=256))]
    jobs: u16,
    /// Continue an interrupted `cp --continue`: skip files that exist with the same size and time (so
    /// use -p), and continue partial ones
    #[arg(long = "continue")]
    resume: bool,
    /// With --continue: the most data to copy again after an interruption
    #[arg(long, value_name = "SIZE", default_value = "256M", requires = "resume")]
    checkpoint: Size,
    /// Overwrite existing files rather than replace them: they keep their hard links, and are
    /// incomplete if the copy fails
    #[arg(long, conflicts_with = "resume")]
    in_place: bool,
    /// Read each copy back from the destination, and compare
    #[arg(long)]
    checksum: bool,
    /// Show for each file the pages brought into the page cache, pruned, claimed by others, and
    /// evicted from others
    #[arg(long)]
    stats: bool,
    /// Print a summary as JSON
    #[arg(long)]
    json: bool,
    /// Show no progress bar
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    mount: MountArgs,
}

/// Names of the choices of zeros that become holes.
const SPARSE: &[(&str, &str, Sparse)] = &[
    ("auto", "Holes of the source", Sparse::Auto),
    ("always", "Holes of the source, and pages of zeros", Sparse::Always),
    ("never", "None: zeros are written out", Sparse::Never),
];

/// The progress bar on a terminal; failures are printed above it.
struct Bar(ProgressBar);

impl Progress for Bar {
    fn found(&self, bytes: u64) {
        self.0.inc_length(bytes);
    }

    fn copied(&self, bytes: u64) {
        self.0.inc(bytes);
    }

    fn failed(&self, failure: &Failure) {
        self.0.suspend(|| complain(failure));
    }

    fn interrupted(&self) {
        self.0.suspend(|| say("weir: interrupted"));
    }
}

pub(crate) fn run(args: Args) -> Result<Ended> {
    let begun = Instant::now();
    with_mounts(&args.mount, async |mounts| {
        if args.uncached {
            mounts.uncached();
        }
        let options = Options {
            recursive: args.recursive,
            preserve: args.preserve,
            sparse: args.sparse,
            flags: if args.uncached { IoFlags::UNCACHED } else { IoFlags::empty() },
            jobs: args.jobs.into(),
            umask: umask(),
            resume_bytes: args.resume.then(|| args.checkpoint.of(0).max(1)),
            in_place: args.in_place,
            checksum: args.checksum,
            stats: args.stats,
        };
        let (plan, failures) = plan(mounts, &args.locations, &options).await?;
        let talks = std::io::stderr().is_terminal() && !args.quiet && !args.json;
        let progress = if talks { progress_bar() } else { ProgressBar::hidden() };
        let copier = Arc::new(Copier::new(options, mounts.budget_bytes(), Bar(progress.clone())));
        failures.into_iter().for_each(|failure| copier.failed_before(failure));
        // Installed before the copy creates files that an interrupt has to remove. It stays until the
        // program ends, because unmounting may hang, too.
        if let Ok(signals) = Signals::listen() {
            tokio::spawn(interrupt(signals, Arc::clone(&copier)));
        }
        copier.copy(plan.pairs, &plan.into).await;
        progress.finish_and_clear();
        let summary = copier.summary(begun.elapsed(), mounts.wire_bytes());
        if args.json {
            print_json(&summary)?;
        } else {
            if args.stats {
                print(stats_table(&summary.stats).as_bytes())?;
            }
            if talks {
                say(in_a_line(&summary));
            }
        }
        for lost in copier.not_preserved() {
            say(format_args!("weir: the destination does not keep {lost}"));
        }
        Ok(match (copier.is_interrupted(), copier.failed()) {
            (true, _) => {
                say_what_is_left(&copier);
                Ended::Interrupted
            }
            (false, true) => Ended::Failed,
            (false, false) => Ended::Done,
        })
    })
}

/// Pairs of source and destination.
struct Plan {
    pairs: Vec<(Place, Place)>,
    /// The store that all copies go to.
    into: CachedFs,
}

/// Resolves the locations. The second value has a failure for each source that cannot be copied.
async fn plan(
    mounts: &mut Mounts,
    locations: &[Written],
    options: &Options,
) -> Result<(Plan, Vec<Failure>)> {
    let Some((last, sources)) = locations.split_last() else {
        return Err(Failure::new("copy", "no source is given"));
    };
    let Written { location: last, ends_in_slash } = last;
    let to = mounts.place(last, Links::Follow).await?;
    let into = to.attr.clone().filter(|a| a.kind == FileKind::Directory);
    if into.is_none() && sources.len() > 1 {
        let failed = "it is not a directory, and there are several sources";
        return Err(Failure::new(format!("copy to {last}"), failed).advice("make it first"));
    }
    check_uncached(&to, options)?;
    let mut pairs = Vec::new();
    let mut failures = Vec::new();
    if into.is_none() && *ends_in_slash {
        // A directory that the copy creates may be written with a slash.
        let source = mounts.place(&sources[0].location, Links::Stay).await?;
        let kind = source.existing("copy")?.kind;
        if kind != FileKind::Directory {
            let failure = Failure::new(format!("copy to {last}"), "there is no such directory");
            return Err(failure.advice("make it first"));
        }
    }
    for source in sources {
        match pair(mounts, &source.location, last, &to, into.as_ref(), options).await {
            Ok(pair) => pairs.push(pair),
            Err(failure) => {
                complain(&failure);
                failures.push(failure);
            }
        }
    }
    Ok((Plan { pairs, into: to.fs }, failures))
}

async fn pair(
    mounts: &mut Mounts,
    source: &Location,
    last: &Location,
    to: &Place,
    into: Option<&Attr>,
    options: &Options,
) -> Result<(Place, Place)> {
    let links = if options.recursive { Links::Stay } else { Links::Follow };
    let from = mounts.place(source, links).await?;
    let attr = from.existing("copy")?;
    check_uncached(&from, options)?;
    let to = match (into, source.name()) {
        (Some(dir), Some(name)) => {
            let mut to = to.child(dir.id, &name, None);
            to.attr = match to.fs.lookup(&Caller::Own, dir.id, &name).await {
                Ok(attr) => Some(attr),
                Err(Error::NotFound) => None,
                Err(error) => return Err(error).asked(|| format!("find {}", to.shown)),
            };
            to
        }
        // A root or `.` has no name: its content goes into the directory itself.
        (Some(_), None) => to.clone(),
        (None, _) => to.clone(),
    };
    let same = |there: &Attr| (there.fsid, there.id.ino) == (attr.fsid, attr.id.ino);
    if to.attr.as_ref().is_some_and(same) {
        let asked = format!("copy {source} to {}", to.shown);
        return Err(Failure::new(asked, "they are the same file"));
    }
    if attr.kind == FileKind::Directory && options.recursive {
        let inside = is_inside(&to, attr).await.asked(|| format!("find {last}"))?;
        if inside || is_inside_locally(last, attr) {
            let asked = format!("copy the directory {source} to {}", to.shown);
            let failure = Failure::new(asked, "that is inside of it");
            return Err(failure.advice("copy it to a place outside of it"));
        }
    }
    Ok((from, to))
}

/// Whether a place is inside a directory, as far as its store knows the parents.
async fn is_inside(place: &Place, dir: &Attr) -> weir_vfs::Result<bool> {
    let mut at = place.fs.getattr(place.dir).await?;
    loop {
        if is_same(&at, dir) {
            return Ok(true);
        }
        let above = place.fs.parent(at.id).await?;
        if above.id == at.id {
            return Ok(false);
        }
        at = above;
    }
}

/// The same above the directory that was opened as a store, for a local location.
fn is_inside_locally(location: &Location, dir: &Attr) -> bool {
    let Location::Local(path) = location else { return false };
    let there = |path: &Path| -> Option<PathBuf> { path.canonicalize().ok() };
    let above = path
        .parent()
        .map(|above| if above.as_os_str().is_empty() { Path::new(".") } else { above });
    let Some(real) = there(path).or_else(|| there(above?)) else { return false };
    real.ancestors().any(|above| {
        let Ok(found) = above.metadata() else { return false };
        let time = |time: std::io::Result<SystemTime>| time.ok();
        let changed = SystemTime::UNIX_EPOCH.checked_add(Duration::new(
            u64::try_from(found.ctime()).unwrap_or_default(),
            u32::try_from(found.ctime_nsec()).unwrap_or_default(),
        ));
        let times = (time(found.modified()), changed);
        found.ino() == dir.id.ino && times == (Some(dir.mtime), Some(dir.ctime))
    })
}

fn check_uncached(place: &Place, options: &Options) -> Result<()> {
    let able = place.fs.store().capabilities().contains(Capabilities::UNCACHED);
    if options.flags.contains(IoFlags::UNCACHED) && !able {
        let asked = format!("copy {} uncached", place.shown);
        return Err(
            Failure::new(asked, "its store does not support it").advice("leave out --uncached")
        );
    }
    Ok(())
}

/// Time that an interrupted copy has to remove unfinished files and to release its servers' state,
/// and that it waits for a server that does not answer.
const ORDERLY_END: Duration = Duration::from_secs(5);

/// The signals that end a copy.
struct Signals {
    int: Signal,
    term: Signal,
}

impl Signals {
    fn listen() -> std::io::Result<Self> {
        Ok(Self { int: signal(SignalKind::interrupt())?, term: signal(SignalKind::terminate())? })
    }

    async fn told(&mut self) {
        tokio::select! {
            _ = self.int.recv() => {}
            _ = self.term.recv() => {}
        }
    }
}

/// The first signal makes the copy remove its unfinished files and end; the second ends the program.
async fn interrupt(mut signals: Signals, copier: Arc<Copier>) {
    signals.told().await;
    copier.interrupt();
    // The copy normally ends the program before this returns.
    let again = tokio::time::timeout(ORDERLY_END, signals.told()).await;
    say(match again {
        Ok(()) => "weir: interrupted again, ending at once",
        Err(_) if copier.left().0.is_empty() => "weir: ending; a server does not answer",
        Err(_) => "weir: ending; unfinished files could not be removed in time",
    });
    say_what_is_left(&copier);
    std::process::exit(130);
}

/// Reports, once, the files that an interrupted copy left, and what to do with them.
fn say_what_is_left(copier: &Copier) {
    if copier.was_told() {
        return;
    }
    for file in copier.incomplete() {
        say(format_args!("weir: {file} was overwritten in place and is incomplete"));
    }
    let (unfinished, begun) = copier.left();
    for file in &unfinished {
        say(format_args!("weir: {file} is left over; remove it"));
    }
    for file in &begun {
        say(format_args!(
            "weir: {file} is unfinished; repeat the command to continue it, or remove it"
        ));
    }
}

fn progress_bar() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
    let template =
        "{bytes:>11} of {total_bytes:11} [{wide_bar}] {binary_bytes_per_sec:>13} {eta:>4}";
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style.progress_chars("=> ")),
        Err(_) => bar,
    }
}

fn stats_table(stats: &[FileStats]) -> String {
    let mut out = format!(
        "{:>10} {:>10} {:>10} {:>10}  {}\n",
        "brought in", "pruned", "claimed", "lost", "file (in pages)"
    );
    for file in stats {
        // Writing to a string does not fail.
        let _ = writeln!(
            out,
            "{:>10} {:>10} {:>10} {:>10}  {}",
            file.brought_in_pages, file.pruned_pages, file.claimed_pages, file.lost_pages, file.to
        );
    }
    out
}

fn in_a_line(summary: &Summary) -> String {
    format!(
        "{} copied in {:.2} s, {:.0} MB/s; read {}, wrote {}, skipped {} holes{}",
        size_text(summary.size_bytes),
        summary.seconds,
        summary.mb_per_s,
        size_text(summary.read_bytes),
        size_text(summary.written_bytes),
        summary.holes_skipped,
        match summary.wire_bytes {
            0 => String::new(),
            bytes => format!("; {} over the network", size_text(bytes)),
        }
    )
}
