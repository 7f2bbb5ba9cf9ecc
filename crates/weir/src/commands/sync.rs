//! `weir sync`: makes one tree the mirror of another; `weir_tools::sync` does the work.

use super::cp::bar::{Bar, in_a_line, progress_bar};
use super::cp::plan::{is_inside, is_inside_locally};
use super::cp::signals::{end_by_signals, say_what_is_left};
use super::with_mounts;
use crate::arguments::{JsonArgs, MountArgs, bytes, location};
use crate::ended::Ended;
use crate::output::{Lines, print_json, say, umask};
use indicatif::ProgressBar;
use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Instant;
use weir_tools::copy::source::is_same;
use weir_tools::copy::{Copier, Filter, Mirror, Options};
use weir_tools::failure::{Asked, Failure, Result};
use weir_tools::location::Location;
use weir_tools::mounts::{Links, Mounts, Place};
use weir_tools::sync::sync;
use weir_vfs::FileKind;

/// Make a file or tree the mirror of another, writing only what changed
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  weir sync images/ nfs://filer/images          copy what is new or changed
  weir sync --delete nfs://filer/home ./home    and remove what the source does not have
  weir sync --delete --dry-run a/ b/            only say what that would do
  weir sync --exclude '*.o' --exclude /build src/ nfs://filer/src
  weir sync --checksum disk.img nfs://filer/disk.img

The destination gets the content of the source: `weir sync a b` makes b like a, and not b/a. \
Mode, owner, times, hard links of regular files, access control lists and extended attributes are kept, as with \
`weir cp -a`. A file that is equal by size and time is up to date.

A file of 1 MiB or more that changed is read on both sides, and only the pages that differ are \
written; holes are neither read nor sent. Where the destination can share data (reflinks, \
CLONE), a copy of the file takes these pages and replaces the file when it is complete. Elsewhere \
the file is written in place: meanwhile it is longer than its source, and after an interruption it \
stays so until the next run. --whole-file writes a new file instead. Smaller files are always \
replaced.

Patterns are those of .gitignore files. What they exclude is neither copied nor removed. Nothing \
is removed unless everything could be read and written, and no directory of the source changes \
meanwhile; if one does, the source is copied again, up to three times. Repeat an interrupted command to continue \
it. Exit code 1 means that the mirror is not complete.")]
pub(crate) struct Args {
    /// The source
    #[arg(value_name = "SOURCE", value_parser = location())]
    from: Location,
    /// The destination, which becomes the mirror; its parent directory must exist
    #[arg(value_name = "DESTINATION", value_parser = location())]
    to: Location,
    /// Remove files that the source does not have, at the end
    #[arg(long)]
    delete: bool,
    /// The same, and also remove what is excluded
    #[arg(long)]
    delete_excluded: bool,
    /// Leave out files that match a pattern of gitignore(5)
    #[arg(long, value_name = "PATTERN", allow_hyphen_values = true)]
    exclude: Vec<String>,
    /// Take files that match a pattern, although they are excluded
    #[arg(long, value_name = "PATTERN", allow_hyphen_values = true)]
    include: Vec<String>,
    /// Compare the content of all files, not only size and time
    #[arg(short, long)]
    checksum: bool,
    /// Write files that changed anew, not only the ranges that differ
    #[arg(short = 'W', long)]
    whole_file: bool,
    /// Change nothing: print a line for each file that would be written or removed
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Print a line for each file
    #[arg(short, long)]
    verbose: bool,
    /// Most bytes per second that move through weir; 0 for any number
    #[arg(long, value_name = "SIZE", value_parser = bytes())]
    bwlimit: Option<u64>,
    /// Number of files to copy at the same time
    #[arg(short, long, value_name = "N", default_value = "16", value_parser = clap::value_parser!(u16).range(1..=256))]
    jobs: u16,
    #[command(flatten)]
    json: JsonArgs,
    /// Show no progress bar
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    mount: MountArgs,
}

/// The most data of a new file that is copied again after an interruption.
const CHECKPOINT_BYTES: u64 = 256 << 20;

impl Args {
    fn options(&self) -> Result<Options> {
        let strings = |list: &'_ [String]| list.to_vec();
        let (exclude, include) = (strings(&self.exclude), strings(&self.include));
        let filter =
            Filter::new(exclude.iter().map(String::as_str), include.iter().map(String::as_str))?;
        let mut mirror = Mirror::new(filter, self.delete || self.delete_excluded);
        mirror.compares_content = self.checksum;
        mirror.whole_files = self.whole_file;
        Ok(Options {
            recursive: true,
            preserve: true,
            dry_run: self.dry_run,
            bytes_per_second: self.bwlimit.filter(|&rate| rate > 0),
            jobs: self.jobs.into(),
            umask: umask(),
            resume_bytes: Some(CHECKPOINT_BYTES),
            mirror: Some(Arc::new(mirror)),
            ..Options::default()
        })
    }
}

pub(crate) fn run(args: Args) -> Result<Ended> {
    let begun = Instant::now();
    with_mounts(&args.mount, async |mounts| {
        let options = args.options()?;
        let (from, to) = ends(mounts, &args).await?;
        let talks = std::io::stderr().is_terminal() && !args.quiet && !args.json.wanted();
        let progress = if talks { progress_bar() } else { ProgressBar::hidden() };
        let tells = (args.verbose || args.dry_run) && !args.json.wanted();
        let lines = Lines::default();
        let bar = Bar { bar: progress.clone(), lines: tells.then(|| lines.clone()) };
        let copier = Arc::new(Copier::new(options, mounts.budget_bytes(), bar));
        // Before the copy makes files that an interrupt has to remove.
        end_by_signals(&copier);
        sync(&copier, &from, &to, args.delete_excluded).await;
        progress.finish_and_clear();
        let summary = copier.summary(begun.elapsed(), mounts.wire_bytes());
        if args.json.wanted() {
            print_json(&summary)?;
        } else if talks {
            let (same, removed) = (summary.up_to_date, summary.removed);
            say(format_args!("{}; {same} up to date, {removed} removed", in_a_line(&summary)));
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

/// Finds the source and the destination, of which neither may be inside the other.
async fn ends(mounts: &mut Mounts, args: &Args) -> Result<(Place, Place)> {
    mounts.share(&[&args.from, &args.to]).await;
    let from = mounts.place(&args.from, Links::Follow).await?;
    let to = mounts.place(&args.to, Links::Follow).await?;
    let attr = from.existing("read")?;
    let refuse = |failed: &str, advice: &str| {
        let asked = format!("synchronize {} with {}", args.to, args.from);
        Err(Failure::new(asked, failed).advice(advice))
    };
    let is_tree = attr.kind == FileKind::Directory;
    if let Some(there) = &to.attr {
        if is_same(there, attr) {
            return refuse("they are the same file", "choose another destination");
        }
        match (is_tree, there.kind == FileKind::Directory) {
            (true, false) => return refuse("the source is a directory", "name a directory"),
            (false, true) => {
                return refuse("the destination is a directory", "name the file in it");
            }
            _ => {}
        }
        let outside = || format!("find {}", args.from);
        if is_inside(&from, there).await.asked(outside)? || is_inside_locally(&args.from, there) {
            let advice = "choose a destination that does not contain the source";
            return refuse("the source is inside of the destination", advice);
        }
    }
    let find = || format!("find {}", args.to);
    if is_tree && (is_inside(&to, attr).await.asked(find)? || is_inside_locally(&args.to, attr)) {
        let advice = "choose a destination outside of the source";
        return refuse("the destination is inside of the source", advice);
    }
    Ok((from, to))
}
