//! `weir find`: lists the files of trees that have certain properties, as find(1) does.

use super::ls::target;
use super::with_mounts;
use crate::arguments::{JsonArgs, MountArgs, location, one_of};
use crate::ended::Ended;
use crate::output::{FileJson, complain, print_json};
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::str::FromStr;
use std::time::{Duration, SystemTime};
use weir_tools::failure::{Asked, Failure, Result};
use weir_tools::glob;
use weir_tools::location::Location;
use weir_tools::mounts::{Links, Mounts};
use weir_tools::text::shown;
use weir_tools::walk::{Visited, Walk};
use weir_vfs::FileKind;

/// List the files of trees by name, type, size and time
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  weir find nfs://filer/images -name '*.img' -size +1G
  weir find nfs://filer/logs -type f -mtime +30 -print0 | xargs -0 weir rm
  weir find . -newer .stamp -maxdepth 2

All conditions have to hold. Each option may also be written with two dashes. N is a number: \
+N is more than it, -N less. -mtime counts whole days, -mmin minutes, both before now: a file \
of 4:30 minutes counts as one of 5, and one of 5:30 as more than 5. -size rounds up to its \
unit: c bytes, k, M, G, T powers of 1024, and b or none blocks of 512 bytes.")]
pub(crate) struct Args {
    /// The files and trees
    #[arg(value_name = "LOCATION", default_value = ".", value_parser = location())]
    locations: Vec<Location>,
    /// Files whose name matches a shell pattern
    #[arg(long, value_name = "PATTERN", allow_hyphen_values = true)]
    name: Option<OsString>,
    /// Files whose name matches a shell pattern, with letters of ASCII in either case
    #[arg(long, value_name = "PATTERN", allow_hyphen_values = true)]
    iname: Option<OsString>,
    /// Files of a type
    #[arg(long = "type", value_name = "TYPE", value_parser = one_of(TYPES))]
    kind: Option<FileKind>,
    /// Files of a size
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    size: Option<SizeTest>,
    /// Files whose data changed N days ago
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    mtime: Option<Amount>,
    /// Files whose data changed N minutes ago
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    mmin: Option<Amount>,
    /// Files whose data changed after that of another file
    #[arg(long, value_name = "LOCATION", value_parser = location())]
    newer: Option<Location>,
    /// Empty files and directories
    #[arg(long)]
    empty: bool,
    /// Go down at most so many levels
    #[arg(long, value_name = "N")]
    maxdepth: Option<usize>,
    /// List nothing above this level
    #[arg(long, value_name = "N", default_value = "0", hide_default_value = true)]
    mindepth: usize,
    /// Do not enter other file systems
    #[arg(long, visible_alias = "mount")]
    xdev: bool,
    /// End each name with a zero byte
    #[arg(long)]
    print0: bool,
    #[command(flatten)]
    json: JsonArgs,
    #[command(flatten)]
    mount: MountArgs,
}

/// Letters of types, as of find(1).
const TYPES: &[(&str, &str, FileKind)] = &[
    ("f", "Regular files", FileKind::Regular),
    ("d", "Directories", FileKind::Directory),
    ("l", "Symbolic links", FileKind::Symlink),
    ("b", "Block devices", FileKind::Block),
    ("c", "Character devices", FileKind::Char),
    ("p", "Named pipes", FileKind::Fifo),
    ("s", "Sockets", FileKind::Socket),
];

/// The options that find(1) writes with one dash.
const ONE_DASH: &[&str] = &[
    "-name",
    "-iname",
    "-type",
    "-size",
    "-mtime",
    "-mmin",
    "-newer",
    "-empty",
    "-maxdepth",
    "-mindepth",
    "-xdev",
    "-mount",
    "-print0",
];

/// The command line with find's options as the parser takes them: with two dashes.
pub(crate) fn spelled(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut args: Vec<_> = args.collect();
    let is_find = args.get(1).is_some_and(|command| command == "find");
    // A value of such an option is not one.
    let mut is_value = false;
    for arg in args.iter_mut().skip(2).take_while(|arg| is_find && *arg != "--") {
        let is_option = !is_value && ONE_DASH.iter().any(|option| arg == option);
        is_value = is_option && !["-empty", "-xdev", "-mount", "-print0"].iter().any(|o| arg == o);
        if is_option {
            *arg = OsString::from_vec([b"-", arg.as_bytes()].concat());
        }
    }
    args
}

/// A number, more than it (`+`), or less (`-`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Amount {
    sign: Option<char>,
    number: u64,
}

impl Amount {
    fn holds(self, found: u64) -> bool {
        match self.sign {
            Some('+') => found > self.number,
            Some(_) => found < self.number,
            None => found == self.number,
        }
    }
}

impl FromStr for Amount {
    type Err = &'static str;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        let sign = text.chars().next().filter(|c| "+-".contains(*c));
        let digits = &text[sign.map_or(0, char::len_utf8)..];
        match digits.parse() {
            Ok(number) if digits.starts_with(|c: char| c.is_ascii_digit()) => {
                Ok(Self { sign, number })
            }
            _ => Err("not a number; write it like 7, +7 (more) or -7 (less)"),
        }
    }
}

/// A size in units, rounded up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SizeTest {
    amount: Amount,
    unit: u64,
}

impl FromStr for SizeTest {
    type Err = &'static str;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        let wrong = "not a size; write it like 100c (bytes), +1G (more) or -10M (less)";
        let (number, unit) = match text.char_indices().last() {
            Some((at, letter)) if letter.is_ascii_alphabetic() => (&text[..at], Some(letter)),
            _ => (text, None),
        };
        let unit = match unit {
            None | Some('b') => 512,
            Some('c') => 1,
            Some('k') => 1 << 10,
            Some('M') => 1 << 20,
            Some('G') => 1 << 30,
            Some('T') => 1 << 40,
            Some(_) => return Err(wrong),
        };
        number.parse().map(|amount| Self { amount, unit }).map_err(|_| wrong)
    }
}

pub(crate) fn run(args: Args) -> Result<Ended> {
    with_mounts(&args.mount, async |mounts| {
        let newer = match &args.newer {
            Some(other) => Some(mounts.place(other, Links::Follow).await?.existing("stat")?.mtime),
            None => None,
        };
        let since = Since { now: SystemTime::now(), newer };
        let mut search = Search { args: &args, since, failed: false, json: Vec::new() };
        let mut out = Out::new(args.print0);
        for location in &args.locations {
            let found = mounts.place(location, Links::Stay).await;
            let found = found.and_then(|place| Ok((place.existing("find")?.clone(), place)));
            match found {
                Ok((attr, place)) => {
                    let walk = Walk::new(place, attr, args.xdev);
                    if !search.tree(mounts, location, walk, &mut out).await? {
                        break;
                    }
                }
                Err(failure) => search.fail(&failure),
            }
        }
        if args.json.wanted() {
            print_json(&search.json)?;
        }
        out.flush()?;
        Ok(if search.failed { Ended::Failed } else { Ended::Done })
    })
}

/// What times are compared with.
struct Since {
    now: SystemTime,
    newer: Option<SystemTime>,
}

struct Search<'a> {
    args: &'a Args,
    since: Since,
    failed: bool,
    json: Vec<FileJson>,
}

impl Search<'_> {
    fn fail(&mut self, failure: &Failure) {
        complain(failure);
        self.failed = true;
    }

    /// Lists the files of a tree. Returns whether the output still takes more.
    async fn tree(
        &mut self,
        mounts: &mut Mounts,
        top: &Location,
        mut walk: Walk,
        out: &mut Out,
    ) -> Result<bool> {
        let top_name = top.name().unwrap_or_else(|| b".".to_vec());
        while let Some(visited) = walk.next() {
            let name = visited.names.last().unwrap_or(&top_name);
            let depth = visited.names.len();
            let is_wanted = depth >= self.args.mindepth && self.is_match(&visited, name).await;
            let path = top.below(&visited.names).bytes();
            if is_wanted && self.args.json.wanted() {
                let target =
                    target(&visited.place, &visited.attr).await.unwrap_or_else(|failure| {
                        self.fail(&failure);
                        None
                    });
                self.json.push(FileJson::new(&path, &visited.attr, target.as_deref()));
            } else if is_wanted && !out.put(&path)? {
                return Ok(false);
            }
            if self.args.maxdepth.is_none_or(|most| depth < most) {
                let failures = walk.enter(&visited, Some(&mut *mounts)).await;
                failures.iter().for_each(|failure| self.fail(failure));
            }
        }
        Ok(true)
    }

    async fn is_match(&mut self, visited: &Visited, name: &[u8]) -> bool {
        let (args, attr) = (self.args, &visited.attr);
        let lower = |text: &[u8]| text.to_ascii_lowercase();
        let is_named = |pattern: &OsString| glob::matches(pattern.as_bytes(), name);
        let is_named_in_any_case =
            |pattern: &OsString| glob::matches(&lower(pattern.as_bytes()), &lower(name));
        let is_of_size = |test: &SizeTest| test.amount.holds(attr.size.div_ceil(test.unit));
        let age = self.since.now.duration_since(attr.mtime).map_err(|ahead| ahead.duration());
        let holds = args.name.as_ref().is_none_or(is_named)
            && args.iname.as_ref().is_none_or(is_named_in_any_case)
            && args.kind.is_none_or(|kind| attr.kind == kind)
            && args.size.as_ref().is_none_or(is_of_size)
            && args.mtime.is_none_or(|days| is_of_days(days, age))
            && args.mmin.is_none_or(|minutes| is_of_minutes(minutes, age))
            && self.since.newer.is_none_or(|time| attr.mtime > time);
        match attr.kind {
            _ if !holds || !args.empty => holds,
            FileKind::Regular => attr.size == 0,
            FileKind::Directory => match visited.place.children(attr.id).await {
                Ok(children) => children.is_empty(),
                // The walk lists it, too, and reports that, unless it ends here.
                Err(failure) => {
                    if visited.names.len() >= args.maxdepth.unwrap_or(usize::MAX) {
                        self.fail(&failure);
                    }
                    false
                }
            },
            _ => false,
        }
    }
}

/// An age, or how far in the future a time is.
type Age = std::result::Result<Duration, Duration>;

/// Whether an age is of so many whole days. That of a file from the future is less than any.
fn is_of_days(days: Amount, age: Age) -> bool {
    match age {
        Ok(age) => days.holds(age.as_secs() / (24 * 60 * 60)),
        Err(_) => days.sign == Some('-'),
    }
}

/// Whether an age is of so many minutes: more than that exactly, less exactly, or in the minute that ends there.
fn is_of_minutes(minutes: Amount, age: Age) -> bool {
    let minute = Duration::from_secs(60);
    let exact = Duration::from_secs(minutes.number.saturating_mul(60));
    match (minutes.sign, age) {
        (Some('+'), Ok(age)) => age > exact,
        (Some('+'), Err(_)) => false,
        (Some(_), Ok(age)) => age < exact,
        (Some(_), Err(_)) => true,
        (None, Ok(age)) => age <= exact && exact - age < minute,
        (None, Err(ahead)) => exact.is_zero() && ahead < minute,
    }
}

/// Standard output: names as they are, escaped on a terminal.
struct Out {
    file: io::BufWriter<io::Stdout>,
    print0: bool,
    terminal: bool,
}

impl Out {
    fn new(print0: bool) -> Self {
        let terminal = io::stdout().is_terminal() && !print0;
        Self { file: io::BufWriter::new(io::stdout()), print0, terminal }
    }

    /// Writes a name. Returns false if nothing reads it any more (`| head`).
    fn put(&mut self, path: &[u8]) -> Result<bool> {
        let end = if self.print0 { b"\0" } else { b"\n" };
        let escaped = self.terminal.then(|| shown(path));
        let text = escaped.as_ref().map_or(path, |text| text.as_bytes());
        taken(self.file.write_all(text).and_then(|()| self.file.write_all(end)))
    }

    fn flush(&mut self) -> Result<()> {
        taken(self.file.flush()).map(drop)
    }
}

fn taken(written: io::Result<()>) -> Result<bool> {
    match written {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error).asked(|| "write to standard output".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_may_have_one_dash() {
        let spelled = |line: &str| {
            let args = spelled(line.split(' ').map(Into::into));
            args.iter().map(|arg| arg.to_str().unwrap()).collect::<Vec<_>>().join(" ")
        };
        for (line, parsed) in [
            ("weir find . -name x -print0", "weir find . --name x --print0"),
            ("weir find -name -name", "weir find --name -name"),
            ("weir find . -size -1M", "weir find . --size -1M"),
            ("weir find -- -name", "weir find -- -name"),
            ("weir ls -name", "weir ls -name"),
        ] {
            assert_eq!(spelled(line), parsed);
        }
    }

    #[test]
    fn numbers_as_find_takes_them() {
        for (text, found, holds) in [
            ("7", 7, true),
            ("7", 8, false),
            ("+7", 8, true),
            ("+7", 7, false),
            ("-7", 6, true),
            ("-7", 7, false),
        ] {
            assert_eq!(text.parse::<Amount>().unwrap().holds(found), holds, "{text} {found}");
        }
        let size = |text: &str| text.parse::<SizeTest>();
        assert_eq!(size("+1G").unwrap().unit, 1 << 30);
        assert_eq!(size("3").unwrap().unit, 512);
        for text in ["", "+", "x", "1X", "--1", "1.5M"] {
            assert!(size(text).is_err(), "{text}");
        }
    }
}
