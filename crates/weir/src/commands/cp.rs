//! `weir cp`: resolves sources and destinations; `weir_tools::copy` does the copying.

use super::{cat, with_mounts};
use crate::arguments::{JsonArgs, MountArgs, bytes, location, one_of};
use crate::cli::too_few;
use crate::ended::Ended;
use crate::output::{Lines, print, print_json, say, umask};
use bar::{Bar, in_a_line, progress_bar};
use indicatif::ProgressBar;
use plan::{Ends, Target, plan};
use signals::{end_by_signals, say_what_is_left};
use std::fmt::Write;
use std::io::IsTerminal;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use weir_tools::copy::{Copier, FileStats, Options, Overwrite, Reflink, Sparse};
use weir_tools::failure::{Asked, Failure, Result};
use weir_tools::location::Location;
use weir_tools::mounts::{Links, Mounts};
use weir_vfs::{FileKind, IoFlags};

pub(crate) mod bar;
pub(crate) mod plan;
pub(crate) mod signals;

/// Copy files and trees, locally or over NFS, keeping holes
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  weir cp disk.img nfs://filer/images/            a file into a directory
  weir cp nfs://filer/images/disk.img .           and back; keeps holes
  weir cp -r nfs://filer/images ./images          a tree
  weir cp -rp --uncached a/ nfs://filer/backup/   with owners and times, caches unchanged
  weir cp -a --dry-run a/ nfs://filer/backup/     only says what it would copy
  zstd -dc img.zst | weir cp - nfs://filer/img    blocks of zeros become holes
  weir cp nfs://filer/img - | zstd > img.zst      standard output
  weir cp nfs://filer/img /dev/sdb                a block device, written over
  weir cp -rp --continue big/ nfs://filer/big/    repeat it until it is complete
  weir cp --checksum disk.img nfs://filer/        read the copy back and compare
  weir cp disk.img copy.img --json | jq .hole_bytes

weir cp writes each copy under a temporary name (.weir-*.part) in the destination directory, \
and renames it when it is complete and durable and its source is unchanged. It thus replaces \
an existing file: the copy gets the file's mode, owner and access control list, and other hard \
links to the file keep the old data. With --in-place it overwrites the file instead, which is incomplete if the \
copy fails.

With -L, a link that leads nowhere, or to a directory that it is in, fails, and the rest is \
copied. With -x, a directory where another file system is mounted is made, but not filled.

-p keeps what the destination supports. weir cp reports what it does not support: extended \
attributes by name (also security.* and trusted.*), access control lists, owners, modes, times. As \
with `cp -a`, that is no failure. NFS supports only extended attributes of users. Access control lists of files at a \
server are kept in copies from it over version 3; otherwise they are reported, and the copy gives the group nothing \
that they may deny it (over version 4, a list that the directory gives the copy is taken for the same). Ctrl-C \
(SIGINT, SIGTERM or SIGHUP) removes unfinished files and reports what is left; a second Ctrl-C ends the program at \
once.

Where source and destination are on one server (version 4.2) or on one file system that shares \
data, that copies the data itself: holes stay holes, and the data does not pass through weir. \
Otherwise pages of zeros become holes, so that a copy takes no more space than one by `cp \
--sparse=always`; an explicit --sparse=always also has the data of one server read and \
written. Exit code 1 means that something was not copied.")]
pub(crate) struct Args {
    /// The sources, then the destination: a directory, or the name of the copy; `-` is standard input or
    /// output
    #[arg(value_name = "LOCATION", required = true, num_args = 1.., value_parser = location())]
    locations: Vec<Location>,
    /// The directory to copy into; all locations are sources then
    #[arg(short, long, value_name = "LOCATION", value_parser = location(),
          conflicts_with = "no_target_directory")]
    target_directory: Option<Location>,
    /// The destination is the name of the copy, also if it is a directory
    #[arg(short = 'T', long)]
    no_target_directory: bool,
    /// The same as -rp
    #[arg(short, long)]
    archive: bool,
    /// Keep files that exist
    #[arg(short, long, overrides_with_all = ["interactive", "update"])]
    no_clobber: bool,
    /// Replace files that exist only if the source was changed later
    #[arg(short, long, overrides_with_all = ["no_clobber"])]
    update: bool,
    /// Ask before a file is replaced; standard input, which answers, cannot be copied then
    #[arg(short, long, overrides_with_all = ["no_clobber", "force"])]
    interactive: bool,
    /// Ask nothing, which is the default
    #[arg(short, long, overrides_with = "interactive")]
    force: bool,
    /// Print a line for each file
    #[arg(short, long)]
    verbose: bool,
    /// Copy nothing: print a line for each file that would be copied
    #[arg(long)]
    dry_run: bool,
    /// Most bytes per second that move through weir; 0 for any number
    #[arg(long, value_name = "SIZE", value_parser = bytes())]
    bwlimit: Option<u64>,
    /// Copy directories with their content; copy symbolic links and special files as such
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// Copy what symbolic links lead to, instead of the links
    #[arg(short = 'L', long)]
    dereference: bool,
    /// Do not copy what is in other file systems than the source
    #[arg(short = 'x', long)]
    one_file_system: bool,
    /// Keep mode, owner, times, hard links of regular files, access control lists and extended attributes
    #[arg(short, long)]
    preserve: bool,
    /// Which zeros become holes [default: always, where weir reads the data itself]
    #[arg(long, value_parser = one_of(SPARSE), value_name = "WHEN")]
    sparse: Option<Sparse>,
    /// Whether file systems and servers copy data themselves: by sharing it (reflinks, CLONE), or on the
    /// server (COPY)
    #[arg(long, value_parser = one_of(REFLINK), value_name = "WHEN", default_value = "auto",
          default_missing_value = "always", num_args = 0..=1, require_equals = true)]
    reflink: Reflink,
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
    #[arg(long, value_name = "SIZE", default_value = "256M", requires = "resume",
          value_parser = bytes())]
    checkpoint: u64,
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
    #[command(flatten)]
    json: JsonArgs,
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

/// Names of the choices of who copies data.
const REFLINK: &[(&str, &str, Reflink)] = &[
    ("auto", "They share it or copy it where they can, unless --sparse is given", Reflink::Auto),
    ("always", "They share it, or the copy fails", Reflink::Always),
    ("never", "weir reads and writes all of it", Reflink::Never),
];

impl Args {
    /// Whether stores copy data themselves. A request about zeros needs the data here.
    fn reflink(&self) -> Result<Reflink> {
        let needs_data =
            self.checksum || self.resume || self.sparse.is_some_and(|s| s != Sparse::Auto);
        match self.reflink {
            Reflink::Always if needs_data => {
                let failed =
                    "--checksum, --continue and --sparse need the data to pass through weir";
                let failure = Failure::new("share data with --reflink=always", failed);
                Err(failure.advice("leave one of them out"))
            }
            Reflink::Auto if self.sparse == Some(Sparse::Always) => Ok(Reflink::Never),
            reflink => Ok(reflink),
        }
    }
}

pub(crate) fn run(args: Args) -> Result<Ended> {
    let begun = Instant::now();
    let directory = args.target_directory.as_ref();
    let Some(ends) = Ends::new(&args.locations, directory, args.no_target_directory) else {
        too_few("cp", "a source and a destination: 2 values required")
    };
    with_mounts(&args.mount, async |mounts| {
        if args.uncached {
            mounts.uncached();
        }
        let options = args.options()?;
        let stream = match ends.sources {
            [source] => stream(source, &options)?,
            _ => None,
        };
        if let Some(stream) = stream.as_ref().filter(|_| options.asks)
            && is_standard_input(stream)
        {
            let asked = format!("ask before {} is replaced", ends.to);
            let failure = Failure::new(asked, "standard input is what to copy, and cannot answer");
            return Err(failure.advice("use -f to replace it, or -n to keep it"));
        }
        if is_dash(ends.to) {
            if options.dry_run {
                return Ok(Ended::Done);
            }
            return match ends.sources {
                [source] if stream.is_none() => cat::to_output(mounts, source, options.flags).await,
                _ => Err(Failure::new("copy to standard output", "it takes one file")),
            };
        }
        let device = device(ends.to);
        if device.is_some() && (ends.sources.len() != 1 || ends.target == Target::Directory) {
            let asked = format!("copy to {}", ends.to);
            return Err(Failure::new(asked, "it is a block device, which takes one source"));
        }
        let is_plain = stream.is_none() && device.is_none();
        let (pairs, failures) = match is_plain {
            true => plan(mounts, &ends, &options).await.map(|(pairs, f)| (Some(pairs), f))?,
            false => (None, Vec::new()),
        };
        let talks = std::io::stderr().is_terminal() && !args.quiet && !args.json.wanted();
        let progress = if talks { progress_bar() } else { ProgressBar::hidden() };
        let tells = (args.verbose || args.dry_run) && !args.json.wanted();
        let lines = Lines::default();
        let bar = Bar { bar: progress.clone(), lines: tells.then(|| lines.clone()) };
        let copier = Arc::new(Copier::new(options, mounts.budget_bytes(), bar));
        failures.into_iter().for_each(|failure| copier.failed_before(failure));
        // Before the copy makes files that an interrupt has to remove.
        end_by_signals(&copier);
        match (pairs, stream, device) {
            (Some(pairs), ..) => {
                copier.copy_beyond(pairs, mounts).await;
            }
            (None, stream, Some(path)) => {
                let from = match &stream {
                    Some(_) => None,
                    None => Some(mounts.place(&ends.sources[0], Links::Follow).await?),
                };
                let shown = ends.sources[0].to_string();
                copier.copy_to_device((&shown, stream, from.as_ref()), path).await;
            }
            (None, Some(stream), None) => {
                let to = stream_target(mounts, &ends).await?;
                let shown = match is_dash(&ends.sources[0]) {
                    true => "standard input".into(),
                    false => ends.sources[0].to_string(),
                };
                copier.copy_stream(&shown, stream, &to).await;
            }
            (None, None, None) => {}
        }
        progress.finish_and_clear();
        let summary = copier.summary(begun.elapsed(), mounts.wire_bytes());
        if args.json.wanted() {
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
        Ok(lines.end(match (copier.is_interrupted(), copier.failed()) {
            (true, _) => {
                say_what_is_left(&copier);
                Ended::Interrupted
            }
            (false, true) => Ended::Failed,
            (false, false) => Ended::Done,
        }))
    })
}

impl Args {
    fn options(&self) -> Result<Options> {
        Ok(Options {
            recursive: self.recursive || self.archive,
            dereference: self.dereference,
            one_file_system: self.one_file_system,
            overwrite: match (self.no_clobber, self.update) {
                (true, _) => Overwrite::Keep,
                (false, true) => Overwrite::Update,
                (false, false) => Overwrite::Replace,
            },
            asks: self.interactive,
            dry_run: self.dry_run,
            bytes_per_second: self.bwlimit.filter(|&rate| rate > 0),
            preserve: self.preserve || self.archive,
            moves: false,
            sparse: self.sparse.unwrap_or(Sparse::Always),
            reflink: self.reflink()?,
            flags: if self.uncached { IoFlags::UNCACHED } else { IoFlags::empty() },
            jobs: self.jobs.into(),
            umask: umask(),
            resume_bytes: self.resume.then(|| self.checkpoint.max(1)),
            in_place: self.in_place,
            checksum: self.checksum,
            stats: self.stats,
            mirror: None,
        })
    }
}

/// Whether a location stands for standard input or output. A file of that name is `./-`.
fn is_dash(location: &Location) -> bool {
    matches!(location, Location::Local(path) if path == Path::new("-"))
}

/// The source as a stream: standard input, or a local device or pipe that is not to be copied as such.
fn stream(source: &Location, options: &Options) -> Result<Option<std::fs::File>> {
    let asked = || format!("read {source}");
    let Location::Local(path) = source else { return Ok(None) };
    if is_dash(source) {
        use std::os::fd::AsFd;
        let input = std::io::stdin();
        let input = input.as_fd().try_clone_to_owned().asked(|| "read standard input".into())?;
        return Ok(Some(input.into()));
    }
    // To follow a link that is copied as such would change its access time.
    if options.recursive {
        return Ok(None);
    }
    let is_stream = path.metadata().is_ok_and(|meta| {
        let kind = meta.file_type();
        kind.is_block_device() || kind.is_fifo()
    });
    match is_stream {
        true => std::fs::File::open(path).asked(asked).map(Some),
        false => Ok(None),
    }
}

/// Whether a stream is what answers to questions are read from, under any name.
fn is_standard_input(stream: &std::fs::File) -> bool {
    let identity = |found: rustix::io::Result<rustix::fs::Stat>| {
        found.map(|found| (found.st_dev, found.st_ino, found.st_rdev))
    };
    identity(rustix::fs::fstat(stream)) == identity(rustix::fs::fstat(std::io::stdin()))
}

/// A block device of this machine to write to.
fn device(to: &Location) -> Option<&Path> {
    let Location::Local(path) = to else { return None };
    let is_device = path.metadata().is_ok_and(|meta| meta.file_type().is_block_device());
    is_device.then_some(path)
}

/// The name that a stream is written to.
async fn stream_target(mounts: &mut Mounts, ends: &Ends<'_>) -> Result<weir_tools::mounts::Place> {
    let place = mounts.place(ends.to, Links::Follow).await?;
    let is_directory = place.attr.as_ref().is_some_and(|attr| attr.kind == FileKind::Directory);
    match is_directory || ends.to.ends_in_slash() || ends.target == plan::Target::Directory {
        true => {
            let failure = Failure::new(format!("write {}", ends.to), "it is a directory");
            Err(failure.advice("name the file to write"))
        }
        false => Ok(place),
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
