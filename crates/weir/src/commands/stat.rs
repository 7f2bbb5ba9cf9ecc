//! `weir stat`: shows all attributes of a file.

use super::ls::Names;
use super::with_mounts;
use crate::arguments::{JsonArgs, MountArgs, location};
use crate::ended::Ended;
use crate::output::{FileJson, complain, local_time, mode_text, print, print_json};
use std::fmt::Write;
use std::str::FromStr;
use std::time::SystemTime;
use weir_tools::failure::{Asked, Result};
use weir_tools::location::Location;
use weir_tools::mounts::{Links, Mounts};
use weir_tools::text::{kind_name, shown, size_text};
use weir_vfs::{Attr, Caller, FileKind};

/// Show all attributes of files
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  weir stat disk.img nfs://filer/images/disk.img
  weir stat -c '%n %s %b' nfs://filer/images/disk.img
  weir stat --json nfs://filer/images/disk.img | jq '.[].allocated_bytes'

FORMAT has these sequences of stat(1): %n name, %N name and target, %s size, %b blocks of %B \
bytes, %f mode in hexadecimal, %a mode in octal, %A mode as of ls, %F type, %u %U owner, %g %G \
group, %h links, %i inode, %d file system, %t %T device, %x %X access, %y %Y modification, %z \
%Z change, %w %W creation (in words, and in seconds), %% a percent sign.")]
pub(crate) struct Args {
    /// The files
    #[arg(value_name = "LOCATION", required = true, value_parser = location())]
    locations: Vec<Location>,
    /// Show the target of a symbolic link, not the link
    #[arg(short = 'L', long)]
    dereference: bool,
    /// Print a line by a format instead, as of stat(1): %n name, %s size, %a mode, and so on
    #[arg(short = 'c', long, value_name = "FORMAT", conflicts_with = "json")]
    format: Option<Format>,
    #[command(flatten)]
    json: JsonArgs,
    #[command(flatten)]
    mount: MountArgs,
}

pub(crate) fn run(args: Args) -> Result<Ended> {
    let links = if args.dereference { Links::Follow } else { Links::Stay };
    with_mounts(&args.mount, async |mounts| {
        let mut names = Names::default();
        let mut failed = false;
        let mut found = Vec::new();
        let mut text = String::new();
        let mut lines = Vec::new();
        for location in &args.locations {
            match stat(mounts, location, links).await {
                Ok((attr, target)) if args.json.wanted() => {
                    found.push(FileJson::new(&location.bytes(), &attr, target.as_deref()));
                }
                Ok((attr, target)) => match &args.format {
                    Some(format) => {
                        let file = Described { location, attr: &attr, target: target.as_deref() };
                        lines.extend(format.line(&file, &mut names));
                        lines.push(b'\n');
                    }
                    None => describe(&mut text, location, &attr, target.as_deref(), &mut names),
                },
                Err(failure) => {
                    complain(&failure);
                    failed = true;
                }
            }
        }
        match args.json.wanted() {
            true => print_json(&found)?,
            false if args.format.is_some() => print(&lines)?,
            false => print(text.as_bytes())?,
        };
        Ok(if failed { Ended::Failed } else { Ended::Done })
    })
}

async fn stat(
    mounts: &mut Mounts,
    location: &Location,
    links: Links,
) -> Result<(Attr, Option<Vec<u8>>)> {
    let place = mounts.place(location, links).await?;
    let attr = place.existing("stat")?.clone();
    let target = match attr.kind {
        FileKind::Symlink => {
            let target = place.fs.readlink(&Caller::Own, attr.id).await;
            Some(target.asked(|| format!("read the symbolic link {}", place.shown))?)
        }
        _ => None,
    };
    Ok((attr, target))
}

fn describe(
    out: &mut String,
    location: &Location,
    attr: &Attr,
    target: Option<&[u8]>,
    names: &mut Names,
) {
    let arrow = target.map(|t| format!(" -> {}", shown(t))).unwrap_or_default();
    let mut line = |name: &str, value: String| {
        // Writing to a string does not fail.
        let _ = writeln!(out, "{name:>10}  {value}");
    };
    line("file", format!("{location}{arrow}"));
    line("type", kind_name(attr.kind).into());
    line("size", format!("{} bytes ({})", attr.size, size_text(attr.size)));
    line(
        "space",
        format!("{} bytes ({}){}", attr.allocated, size_text(attr.allocated), share(attr)),
    );
    line("mode", format!("{:04o} ({})", attr.mode, mode_text(attr.kind, attr.mode)));
    line("owner", format!("{} ({})", attr.uid, names.user(attr.uid)));
    line("group", format!("{} ({})", attr.gid, names.group(attr.gid)));
    line("links", attr.nlink.to_string());
    if matches!(attr.kind, FileKind::Block | FileKind::Char) {
        line("device", format!("{}, {}", attr.rdev.0, attr.rdev.1));
    }
    line("inode", format!("{} generation {} on {:x}", attr.id.ino, attr.id.generation, attr.fsid));
    line("change", attr.change.to_string());
    line("accessed", local_time(attr.atime, true));
    line("modified", local_time(attr.mtime, true));
    line("changed", local_time(attr.ctime, true));
    if let Some(created) = attr.btime {
        line("created", local_time(created, true));
    }
}

/// The share of a regular file's size that is allocated.
fn share(attr: &Attr) -> String {
    if attr.kind != FileKind::Regular || attr.allocated >= attr.size {
        return String::new();
    }
    format!(", {:.1}% of the size", attr.allocated as f64 * 100.0 / attr.size as f64)
}

/// A file to print by a format.
struct Described<'a> {
    location: &'a Location,
    attr: &'a Attr,
    target: Option<&'a [u8]>,
}

/// A format of stat(1): text, and letters after a percent sign.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Format(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Letter(char),
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('%') {
            parts.push(Part::Text(before.into()));
            let mut letters = after.chars();
            match letters.next() {
                Some('%') => parts.push(Part::Text("%".into())),
                Some(letter) if "nNsbBfaAFuUgGhidtTxXyYzZwW".contains(letter) => {
                    parts.push(Part::Letter(letter));
                }
                Some(letter) => return Err(format!("there is no %{letter}; see weir help stat")),
                None => return Err("it ends with a percent sign; write %% for one".into()),
            }
            rest = letters.as_str();
        }
        parts.push(Part::Text(rest.into()));
        Ok(Self(parts))
    }
}

impl Format {
    fn line(&self, file: &Described<'_>, names: &mut Names) -> Vec<u8> {
        let mut line = Vec::new();
        for part in &self.0 {
            match part {
                Part::Text(text) => line.extend(text.bytes()),
                // The exact bytes.
                Part::Letter('n') => line.extend(file.location.bytes()),
                Part::Letter(letter) => line.extend(value(*letter, file, names).bytes()),
            }
        }
        line
    }
}

/// Bytes of a block of `%b`.
const BLOCK_BYTES: u64 = 512;

fn value(letter: char, file: &Described<'_>, names: &mut Names) -> String {
    let attr = file.attr;
    let type_bits: u32 = match attr.kind {
        FileKind::Fifo => 0o010_000,
        FileKind::Char => 0o020_000,
        FileKind::Directory => 0o040_000,
        FileKind::Block => 0o060_000,
        FileKind::Regular => 0o100_000,
        FileKind::Symlink => 0o120_000,
        FileKind::Socket => 0o140_000,
    };
    let words = |time: SystemTime| local_time(time, true);
    match letter {
        'N' => match file.target {
            Some(target) => format!("'{}' -> '{}'", file.location, shown(target)),
            None => format!("'{}'", file.location),
        },
        's' => attr.size.to_string(),
        'b' => attr.allocated.div_ceil(BLOCK_BYTES).to_string(),
        'B' => BLOCK_BYTES.to_string(),
        'f' => format!("{:x}", type_bits | attr.mode),
        'a' => format!("{:o}", attr.mode),
        'A' => mode_text(attr.kind, attr.mode),
        'F' => kind_name(attr.kind).into(),
        'u' => attr.uid.to_string(),
        'U' => names.user(attr.uid),
        'g' => attr.gid.to_string(),
        'G' => names.group(attr.gid),
        'h' => attr.nlink.to_string(),
        'i' => attr.id.ino.to_string(),
        'd' => attr.fsid.to_string(),
        't' => format!("{:x}", attr.rdev.0),
        'T' => format!("{:x}", attr.rdev.1),
        'x' => words(attr.atime),
        'X' => seconds(attr.atime),
        'y' => words(attr.mtime),
        'Y' => seconds(attr.mtime),
        'z' => words(attr.ctime),
        'Z' => seconds(attr.ctime),
        'w' => attr.btime.map_or_else(|| "-".into(), words),
        'W' => attr.btime.map_or_else(|| "0".into(), seconds),
        // The parser accepts no other letter.
        _ => String::new(),
    }
}

/// Whole seconds since 1970, rounded down.
fn seconds(time: SystemTime) -> String {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => since.as_secs().to_string(),
        Err(before) => {
            let before = before.duration();
            let whole = before.as_secs() + u64::from(before.subsec_nanos() > 0);
            format!("-{whole}")
        }
    }
}
