//! `weir truncate`: sets the sizes of files.

use super::{Report, with_mounts};
use crate::arguments::{JsonArgs, MountArgs, location};
use crate::ended::Ended;
use crate::output::umask;
use std::str::FromStr;
use weir_tools::failure::{Asked, Failure, Result};
use weir_tools::location::Location;
use weir_tools::mounts::{Links, Mounts};
use weir_tools::size::Size;
use weir_vfs::{Caller, CreateMode, Error, FileKind, SetAttr};

/// Set the size of files: cut them off, or extend them with a hole
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  weir truncate -s 20G nfs://filer/images/disk.img      a new file is a hole of that size
  weir truncate -s +1G nfs://filer/images/disk.img      a gibibyte more
  weir truncate -s %1M disk.img                         up to a multiple of a mebibyte

Before SIZE may stand: + larger by, - smaller by, < at most, > at least, / down to a multiple \
of, % up to a multiple of.")]
pub(crate) struct Args {
    /// The files
    #[arg(value_name = "LOCATION", required = true, value_parser = location())]
    locations: Vec<Location>,
    /// The size
    #[arg(short, long, value_name = "SIZE", allow_hyphen_values = true)]
    size: NewSize,
    /// Do not create files
    #[arg(short = 'c', long)]
    no_create: bool,
    /// Print a line for each file
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    json: JsonArgs,
    #[command(flatten)]
    mount: MountArgs,
}

/// How the new size results from the old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NewSize {
    how: Option<char>,
    bytes: u64,
}

impl FromStr for NewSize {
    type Err = &'static str;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        let wrong = "not a size; write it like 4096, 20G, +1G, -1M, <1G, >1G, /4K or %4K";
        let how = text.chars().next().filter(|c| "+-<>/%".contains(*c));
        let rest = &text[how.map_or(0, char::len_utf8)..];
        match rest.parse() {
            Ok(Size::Bytes(0)) if matches!(how, Some('/' | '%')) => Err(wrong),
            Ok(Size::Bytes(bytes)) => Ok(Self { how, bytes }),
            _ => Err(wrong),
        }
    }
}

impl NewSize {
    /// The new size of a file of `old` bytes; `None` if no file can have it.
    fn of(self, old: u64) -> Option<u64> {
        let bytes = self.bytes;
        let size = match self.how {
            None => Some(bytes),
            Some('+') => old.checked_add(bytes),
            Some('-') => Some(old.saturating_sub(bytes)),
            Some('<') => Some(old.min(bytes)),
            Some('>') => Some(old.max(bytes)),
            Some('/') => Some(old - old % bytes),
            Some(_) => old.checked_next_multiple_of(bytes),
        };
        size.filter(|size| *size <= i64::MAX as u64)
    }
}

pub(crate) fn run(args: Args) -> Result<Ended> {
    with_mounts(&args.mount, async |mounts| {
        let mut report = Report::new(&args.json, args.verbose);
        for location in &args.locations {
            match truncate(mounts, location, &args).await {
                Ok(Some(size)) => {
                    report.done(|| location.bytes(), || format!("{location} has {size} bytes"));
                }
                Ok(None) => {}
                Err(failure) => report.failed(&failure),
            }
        }
        report.end()
    })
}

async fn truncate(mounts: &mut Mounts, location: &Location, args: &Args) -> Result<Option<u64>> {
    let asked = || format!("set the size of {location}");
    let place = mounts.place(location, Links::Follow).await?;
    let attr = match (&place.attr, &place.name) {
        (Some(attr), _) => attr.clone(),
        (None, _) if args.no_create => return Ok(None),
        (None, None) => return Err(Error::NotFound).asked(asked),
        (None, Some(name)) => {
            let set = SetAttr { mode: Some(0o666 & !umask()), ..SetAttr::default() };
            let made = place
                .fs
                .create(&Caller::Own, place.dir.entry(name).with(&set), CreateMode::MayExist)
                .await;
            made.asked(asked)?.attr
        }
    };
    match attr.kind {
        FileKind::Regular => {}
        FileKind::Directory => return Err(Error::IsDirectory).asked(asked),
        _ => return Err(Failure::new(asked(), "it is no regular file")),
    }
    let size = args.size.of(attr.size).ok_or(Error::TooBig).asked(asked)?;
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    place.fs.setattr(&Caller::Own, attr.id, &set).await.asked(asked)?;
    Ok(Some(size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_truncate_takes_them() {
        for (text, old, new) in [
            ("4096", 1, Some(4096)),
            ("0", 5, Some(0)),
            ("+1K", 10, Some(1034)),
            ("-1K", 10, Some(0)),
            ("<4", 10, Some(4)),
            ("<40", 10, Some(10)),
            (">40", 10, Some(40)),
            ("/4", 10, Some(8)),
            ("%4", 10, Some(12)),
            ("+8E", 10, None),
            ("9223372036854775808", 0, None),
        ] {
            assert_eq!(text.parse::<NewSize>().unwrap().of(old), new, "{text} of {old}");
        }
        for text in ["", "+", "/0", "%0", "50%", "x", "++1"] {
            assert!(text.parse::<NewSize>().is_err(), "{text}");
        }
    }
}
