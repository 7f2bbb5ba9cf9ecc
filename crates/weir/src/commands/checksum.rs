//! `weir checksum`: writes and checks manifests of checksums, as sha256sum(1) does.

use super::with_mounts;
use crate::arguments::{JsonArgs, MountArgs, location, one_of};
use crate::ended::Ended;
use crate::output::{complain, print, print_json, say, text_and_hex};
use serde::Serialize;
use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use weir_tools::checksum::{
    Algorithm, Checked, Checksum, Summed, Summer, Verdict, below, manifest, open_manifest,
};
use weir_tools::failure::{Asked, Failure, Result};
use weir_tools::location::Location;
use weir_tools::mounts::{Links, Mounts};
use weir_tools::text::shown;

/// Write and check manifests of checksums, of files and trees
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  weir checksum images/ > manifest                     every regular file of a tree
  weir checksum --check manifest                       sha256sum -c manifest does the same
  weir checksum --root nfs://filer/images > manifest   names relative to a directory
  weir checksum --check manifest --root ./copy         the same names in another one
  weir checksum --algorithm blake3 disk.img            as b3sum

A checksum is that of the content: holes count as zeros, and are not read. A file that changes \
while it is read has none. In a tree, only regular files have checksums: links, special files \
and empty directories are left out. A manifest is valid only if the exit code was 0.

A check reports each file as OK or FAILED, and does not search for files that the manifest does \
not name. Exit code 1 means that a file differs, is missing or cannot be read.")]
pub(crate) struct Args {
    /// Files and trees; with --root, paths below it [default: all of the directory of --root]
    #[arg(value_name = "LOCATION", value_parser = location(), required_unless_present_any = ["root", "check"])]
    locations: Vec<Location>,
    /// Check the files that a manifest names; `-` is standard input
    #[arg(short, long, value_name = "MANIFEST", conflicts_with = "locations")]
    check: Option<PathBuf>,
    /// The directory that the names in the manifest are relative to
    #[arg(long, value_name = "LOCATION", value_parser = location())]
    root: Option<Location>,
    /// The algorithm; tagged lines of a manifest name their own
    #[arg(short, long, value_name = "NAME", default_value = "sha256", value_parser = one_of(ALGORITHMS))]
    algorithm: Algorithm,
    /// With --check: print only the files that fail
    #[arg(short, long, requires = "check")]
    quiet: bool,
    /// With --check: print nothing but errors
    #[arg(long, requires = "check", conflicts_with = "json")]
    status: bool,
    /// With --check: fail also if a line is no entry
    #[arg(long, requires = "check")]
    strict: bool,
    /// With --check: accept that files are missing, unless all are
    #[arg(long, requires = "check")]
    ignore_missing: bool,
    /// Do not enter other file systems
    #[arg(short = 'x', long)]
    one_file_system: bool,
    /// Number of files to read at the same time
    #[arg(short, long, value_name = "N", default_value = "8", value_parser = clap::value_parser!(u16).range(1..=256))]
    jobs: u16,
    #[command(flatten)]
    json: JsonArgs,
    #[command(flatten)]
    mount: MountArgs,
}

/// Names of the algorithms.
const ALGORITHMS: &[(&str, &str, Algorithm)] =
    &[("sha256", "", Algorithm::Sha256), ("blake3", "", Algorithm::Blake3)];

#[derive(Serialize)]
struct SumJson {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
    algorithm: &'static str,
    checksum: String,
    size_bytes: u64,
}

#[derive(Serialize)]
struct CheckedJson {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
    result: &'static str,
}

/// The result of a check.
#[derive(Default, Serialize)]
struct Outcome {
    files: Vec<CheckedJson>,
    same: u64,
    changed: u64,
    missing: u64,
    unreadable: u64,
    malformed_lines: u64,
    failures: Vec<String>,
}

pub(crate) fn run(args: Args) -> Result<Ended> {
    with_mounts(&args.mount, async |mounts| {
        let summer = Summer::new(args.algorithm, args.jobs.into(), mounts.budget_bytes());
        match &args.check {
            Some(path) => check(&args, mounts, &summer, path).await,
            None => make(&args, mounts, &summer).await,
        }
    })
}

/// Writes a manifest.
async fn make(args: &Args, mounts: &mut Mounts, summer: &Summer) -> Result<Ended> {
    let mut made =
        Made { args, out: BufWriter::new(io::stdout()), json: Vec::new(), failed: false };
    let whole_root: Vec<Location> = args.root.iter().map(|_| Location::Local(".".into())).collect();
    let locations = if args.locations.is_empty() { &whole_root } else { &args.locations };
    for location in locations {
        let found = async {
            let top = match (&args.root, location) {
                (Some(root), Location::Local(path)) => below(root, path.as_os_str().as_bytes())?,
                (Some(_), Location::Nfs(_)) => {
                    let failure =
                        Failure::new(format!("find {location}"), "it is not below --root");
                    return Err(failure.advice("name a path below that directory"));
                }
                (None, location) => location.clone(),
            };
            let place = mounts.place(&top, Links::Follow).await?;
            let attr = place.existing("read")?.clone();
            Ok((top, place, attr))
        };
        let (top, place, attr) = match found.await {
            Ok(found) => found,
            Err(failure) => {
                made.fail(&failure);
                continue;
            }
        };
        let take = |summed| made.take(&top, location, summed);
        if !summer.tree(place, attr, args.one_file_system, Some(&mut *mounts), take).await? {
            // Nothing reads the output any more.
            return Ok(Ended::Failed);
        }
    }
    if args.json.wanted() {
        print_json(&made.json)?;
    }
    let is_written = taken(made.out.flush())?;
    Ok(if made.failed || !is_written { Ended::Failed } else { Ended::Done })
}

struct Made<'a> {
    args: &'a Args,
    out: BufWriter<io::Stdout>,
    json: Vec<SumJson>,
    failed: bool,
}

impl Made<'_> {
    fn fail(&mut self, failure: &Failure) {
        complain(failure);
        self.failed = true;
    }

    /// Writes the line of a file of the tree at `top`, written as `location`. Returns whether the output
    /// still takes more.
    fn take(&mut self, top: &Location, location: &Location, summed: Summed) -> Result<bool> {
        let (size_bytes, sum) = match summed.sum {
            Ok(found) => found,
            Err(failure) => {
                self.fail(&failure);
                return Ok(true);
            }
        };
        let path = match (&self.args.root, location) {
            (Some(_), Location::Local(path)) => {
                relative(path.as_os_str().as_bytes(), &summed.names)
            }
            _ => top.below(&summed.names).bytes(),
        };
        if self.args.json.wanted() {
            self.json.push(self.sum_json(&path, sum, size_bytes));
            return Ok(true);
        }
        taken(self.out.write_all(&manifest::line(&path, sum)))
    }

    fn sum_json(&self, path: &[u8], sum: Checksum, size_bytes: u64) -> SumJson {
        let (path, path_hex) = text_and_hex(path);
        let algorithm = self.args.algorithm.name();
        SumJson { path, path_hex, algorithm, checksum: sum.to_string(), size_bytes }
    }
}

/// The path below a directory, without what stands for the directory itself.
fn relative(path: &[u8], names: &[Vec<u8>]) -> Vec<u8> {
    let parts = path.split(|&byte| byte == b'/').filter(|part| !part.is_empty() && *part != b".");
    parts.chain(names.iter().map(Vec::as_slice)).collect::<Vec<_>>().join(&b'/')
}

/// Whether the output was written; false if nothing reads it any more (`| head`).
fn taken(written: io::Result<()>) -> Result<bool> {
    match written {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error).asked(|| "write to standard output".into()),
    }
}

/// Checks files against a manifest.
async fn check(
    args: &Args,
    mounts: &mut Mounts,
    summer: &Summer,
    path: &std::path::Path,
) -> Result<Ended> {
    let mut lines = open_manifest(path)?;
    let (mut malformed, mut entries) = (0, 0_u64);
    let next = || loop {
        match manifest::next(&mut lines)
            .asked(|| format!("read the manifest {}", path.display()))?
        {
            None => return Ok(None),
            Some(Ok(entry)) => {
                entries += 1;
                return Ok(Some(entry));
            }
            Some(Err(manifest::Malformed)) => malformed += 1,
        }
    };
    let mut outcome = Outcome::default();
    let report = |checked| outcome.take(args, checked);
    summer.verify(mounts, args.root.as_ref(), next, report).await?;
    outcome.malformed_lines = malformed;
    if args.json.wanted() {
        print_json(&outcome)?;
    }
    if entries == 0 {
        let failure = Failure::new(format!("check {}", path.display()), "it has no entries");
        return Err(failure.advice("name a manifest that `weir checksum` or sha256sum(1) wrote"));
    }
    outcome.end(args)
}

impl Outcome {
    fn take(&mut self, args: &Args, checked: Checked) -> Result<()> {
        let Checked { name, verdict } = checked;
        let is_ignored = args.ignore_missing && matches!(verdict, Verdict::Missing);
        let (result, said, count) = match &verdict {
            Verdict::Same => ("same", "OK", &mut self.same),
            Verdict::Changed => ("changed", "FAILED", &mut self.changed),
            Verdict::Missing => ("missing", "FAILED open or read", &mut self.missing),
            Verdict::Unreadable(_) => ("unreadable", "FAILED open or read", &mut self.unreadable),
        };
        *count += 1;
        let (path, path_hex) = text_and_hex(&name);
        if let Verdict::Unreadable(failure) = &verdict {
            complain(failure);
            self.failures.push(failure.to_string());
        }
        if matches!(verdict, Verdict::Missing) && !is_ignored {
            let failure =
                Failure::new(format!("read {}", shown(&name)), "no such file or directory");
            complain(&failure);
            self.failures.push(failure.to_string());
        }
        let is_shown = !(args.status || is_ignored || args.quiet && result == "same");
        if args.json.wanted() {
            self.files.push(CheckedJson { path, path_hex, result });
        } else if is_shown {
            print(&manifest::verdict(&name, said))?;
        }
        Ok(())
    }

    /// Says the numbers of what failed.
    fn end(&self, args: &Args) -> Result<Ended> {
        let missing = if args.ignore_missing { 0 } else { self.missing };
        let counts = [
            (self.changed, "differ"),
            (missing, "are missing"),
            (self.unreadable, "cannot be read"),
        ];
        let all = self.same + self.changed + self.missing + self.unreadable;
        if !args.status {
            for (count, what) in counts {
                if count > 0 {
                    say(format_args!("weir: {count} of {all} files {what}"));
                }
            }
            if self.malformed_lines > 0 {
                say(format_args!("weir: {} lines are no entries", self.malformed_lines));
            }
            if self.changed == all {
                let other = match args.algorithm {
                    Algorithm::Sha256 => Algorithm::Blake3,
                    Algorithm::Blake3 => Algorithm::Sha256,
                };
                let name = other.name();
                say(format_args!("weir: for a manifest of {name}, use --algorithm {name}"));
            }
        }
        let is_none_verified = self.same + self.changed + self.unreadable == 0;
        if args.ignore_missing && is_none_verified && !args.status {
            say("weir: none of the files exists");
        }
        let failed = counts.iter().any(|(count, _)| *count > 0)
            || is_none_verified
            || args.strict && self.malformed_lines > 0;
        Ok(if failed { Ended::Failed } else { Ended::Done })
    }
}
