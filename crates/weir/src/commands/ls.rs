//! `weir ls`: lists directories.

use super::with_mounts;
use crate::arguments::{JsonArgs, MountArgs, location, one_of};
use crate::colours::{self, Colours};
use crate::ended::Ended;
use crate::output::{FileJson, complain, local_time, mode_text, print, print_json};
use std::collections::HashMap;
use std::io::IsTerminal;
use weir_tools::beyond::Child;
use weir_tools::failure::{Asked, Result};
use weir_tools::location::Location;
use weir_tools::mounts::{Links, Mounts, Place};
use weir_tools::text::shown;
use weir_vfs::{Attr, FileKind};

/// List local and NFS directories
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
#[command(after_long_help = "\
Examples:
  weir ls nfs://filer/images
  weir ls -l nfs://filer:3049/images -o vers=3
  weir ls -lh .                       sizes, and the space that sparse files use
  weir ls -ltr nfs://filer/logs       the latest last
  weir ls -R nfs://filer/images       with all directories below
  weir ls --json nfs://filer/ | jq -r '.[] | select(.size_bytes > 1e9) | .path'

With -l, the columns are: permissions, links, owner, group, space in use, size, time of the \
last change, name. There is one name in a line, as with ls -1. LS_COLORS (dircolors(1)) sets \
the colours.")]
pub(crate) struct Args {
    /// The files and directories
    #[arg(value_name = "LOCATION", default_value = ".", value_parser = location())]
    locations: Vec<Location>,
    /// Print one line for each file, with its attributes
    #[arg(short, long)]
    long: bool,
    /// Include names that begin with a dot
    #[arg(short, long)]
    all: bool,
    /// List directories with all that is in them
    #[arg(short = 'R', long, conflicts_with = "directory")]
    recursive: bool,
    /// Sort by the time of the last change, the latest first
    #[arg(short = 't', conflicts_with = "by_size")]
    by_time: bool,
    /// Sort by size, the largest first
    #[arg(short = 'S')]
    by_size: bool,
    /// Reverse the order
    #[arg(short, long)]
    reverse: bool,
    /// One name in a line, which is the only form
    #[arg(short = '1')]
    one: bool,
    /// Whether names have the colours of LS_COLORS
    #[arg(long, value_parser = one_of(colours::WHEN), value_name = "WHEN", default_value = "auto",
          default_missing_value = "always", num_args = 0..=1, require_equals = true)]
    color: colours::When,
    /// List a directory itself, not its entries
    #[arg(short, long)]
    directory: bool,
    /// With -l, print sizes like 1.50 GiB
    #[arg(short = 'h', long)]
    human: bool,
    /// With -l, print numeric owners and groups
    #[arg(short, long)]
    numeric: bool,
    #[command(flatten)]
    json: JsonArgs,
    #[command(flatten)]
    mount: MountArgs,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

/// A listed file, and the target of a symbolic link.
struct Listed {
    name: Vec<u8>,
    attr: Attr,
    target: Option<Vec<u8>>,
}

/// A directory's entries.
struct Section {
    title: String,
    /// The directory's path below the argument, for the paths of JSON.
    path: Option<Vec<u8>>,
    listed: Vec<Listed>,
}

pub(crate) fn run(args: Args) -> Result<Ended> {
    with_mounts(&args.mount, async |mounts| {
        let mut failed = false;
        let mut files = Vec::new();
        let mut sections = Vec::new();
        for location in &args.locations {
            match list(mounts, location, &args, &mut failed).await {
                Ok(Found::File(listed)) => files.push(listed),
                Ok(Found::Directories(found)) => sections.extend(found),
                Err(failure) => {
                    complain(&failure);
                    failed = true;
                }
            }
        }
        args.sort(&mut files);
        if args.json.wanted() {
            let json = |name: &[u8], f: &Listed| FileJson::new(name, &f.attr, f.target.as_deref());
            let mut all: Vec<_> = files.iter().map(|f| json(&f.name, f)).collect();
            for Section { path, listed, .. } in &sections {
                all.extend(listed.iter().map(|f| match path {
                    Some(path) if !path.is_empty() => json(&[path, &b"/"[..], &f.name].concat(), f),
                    _ => json(&f.name, f),
                }));
            }
            print_json(&all)?;
        } else {
            let mut text = Vec::new();
            let mut table = Table::new(&args);
            table.write(&files, &mut text);
            for (at, section) in sections.iter().enumerate() {
                if args.locations.len() > 1 || args.recursive {
                    let gap = if at == 0 && files.is_empty() { "" } else { "\n" };
                    text.extend(format!("{gap}{}:\n", section.title).bytes());
                }
                table.write(&section.listed, &mut text);
            }
            print(&text)?;
        }
        Ok(if failed { Ended::Failed } else { Ended::Done })
    })
}

impl Args {
    /// Sorts files, which are sorted by name.
    fn sort(&self, files: &mut [Listed]) {
        if self.by_time {
            files.sort_by_key(|file| std::cmp::Reverse(file.attr.mtime));
        }
        if self.by_size {
            files.sort_by_key(|file| std::cmp::Reverse(file.attr.size));
        }
        if self.reverse {
            files.reverse();
        }
    }
}

/// What an argument stands for.
enum Found {
    File(Listed),
    /// The entries of a directory, and with -R of those below it.
    Directories(Vec<Section>),
}

/// The files to list for a location. An entry that cannot be read is reported and sets `failed`; the
/// others are still listed.
async fn list(
    mounts: &mut Mounts,
    location: &Location,
    args: &Args,
    failed: &mut bool,
) -> Result<Found> {
    // A link to a directory is listed as the directory, unless -d or -l is given.
    let links = if args.directory || args.long { Links::Stay } else { Links::Follow };
    let place = mounts.place(location, links).await?;
    let attr = place.existing("list")?.clone();
    if attr.kind != FileKind::Directory || args.directory {
        let target = target(&place, &attr).await?;
        return Ok(Found::File(Listed { name: location.bytes(), attr, target }));
    }
    let mut sections = Vec::new();
    // The directories that follow, in reverse.
    let mut ahead = vec![(place, attr, Vec::new())];
    while let Some((place, attr, names)) = ahead.pop() {
        let children = match mounts.children(&place, attr.id).await {
            Ok((children, failures)) => {
                *failed |= !failures.is_empty();
                failures.iter().for_each(complain);
                children
            }
            Err(failure) if names.is_empty() => return Err(failure),
            Err(failure) => {
                complain(&failure);
                *failed = true;
                continue;
            }
        };
        let mut listed = Vec::new();
        let mut below = Vec::new();
        for Child { name, place: child, attr } in children {
            if !args.all && name.starts_with(b".") {
                continue;
            }
            let target = target(&child, &attr).await.unwrap_or_else(|failure| {
                complain(&failure);
                *failed = true;
                None
            });
            if args.recursive && attr.kind == FileKind::Directory {
                let names: Vec<Vec<u8>> = [&names[..], std::slice::from_ref(&name)].concat();
                below.push((child, attr.clone(), names));
            }
            listed.push(Listed { name, attr, target });
        }
        args.sort(&mut listed);
        ahead.extend(below.into_iter().rev());
        let title = location.below(&names).to_string();
        let path = args.recursive.then(|| names.join(&b'/'));
        sections.push(Section { title, path, listed });
    }
    Ok(Found::Directories(sections))
}

/// The target of a symbolic link.
pub(super) async fn target(place: &Place, attr: &Attr) -> Result<Option<Vec<u8>>> {
    if attr.kind != FileKind::Symlink {
        return Ok(None);
    }
    let target = place.link_target(attr.id).await;
    target.asked(|| format!("read the symbolic link {}", place.shown)).map(Some)
}

/// Prints files in columns.
struct Table<'a> {
    args: &'a Args,
    names: Names,
    terminal: bool,
    colours: Option<Colours>,
}

impl<'a> Table<'a> {
    fn new(args: &'a Args) -> Self {
        let terminal = std::io::stdout().is_terminal();
        Self { args, names: Names::default(), terminal, colours: Colours::of_output(args.color) }
    }

    fn write(&mut self, files: &[Listed], out: &mut Vec<u8>) {
        let rows: Vec<_> = match self.args.long {
            true => files.iter().map(|f| self.columns(&f.attr)).collect(),
            false => files.iter().map(|_| Vec::new()).collect(),
        };
        let width = |column: usize| {
            rows.iter().filter_map(|r| r.get(column)).map(|c| c.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<_> = (0..8).map(width).collect();
        for (file, row) in files.iter().zip(&rows) {
            for ((at, cell), &width) in row.iter().enumerate().zip(&widths) {
                // Names to the left, numbers to the right.
                let cell = match at {
                    0 | 2 | 3 => format!("{cell:<width$} "),
                    _ => format!("{cell:>width$} "),
                };
                out.extend(cell.bytes());
            }
            let name = self.name(&file.name);
            out.extend(match &self.colours {
                Some(colours) => colours.paint(name, &file.name, &file.attr),
                None => name,
            });
            if let Some(target) = file.target.as_ref().filter(|_| self.args.long) {
                out.extend(b" -> ");
                out.extend(self.name(target));
            }
            out.push(b'\n');
        }
    }

    /// A name: its exact bytes in a pipe, escaped on a terminal.
    fn name(&self, name: &[u8]) -> Vec<u8> {
        if self.terminal { shown(name).into_bytes() } else { name.to_vec() }
    }

    fn columns(&mut self, attr: &Attr) -> Vec<String> {
        let size = |bytes: u64| match self.args.human {
            true => weir_tools::text::size_text(bytes),
            false => bytes.to_string(),
        };
        let length = match attr.kind {
            FileKind::Block | FileKind::Char => format!("{}, {}", attr.rdev.0, attr.rdev.1),
            _ => size(attr.size),
        };
        let allocated = size(attr.allocated);
        let (owner, group) = match self.args.numeric {
            true => (attr.uid.to_string(), attr.gid.to_string()),
            false => (self.names.user(attr.uid), self.names.group(attr.gid)),
        };
        vec![
            mode_text(attr.kind, attr.mode),
            attr.nlink.to_string(),
            owner,
            group,
            allocated,
            length,
            local_time(attr.mtime, false),
        ]
    }
}

/// Names of users and groups, each looked up once.
#[derive(Default)]
pub(crate) struct Names {
    users: HashMap<u32, String>,
    groups: HashMap<u32, String>,
}

impl Names {
    /// The name of a user, or the number where there is none.
    pub(crate) fn user(&mut self, uid: u32) -> String {
        let name = |uid| uzers::get_user_by_uid(uid).map(|u| u.name().to_string_lossy().into());
        self.users.entry(uid).or_insert_with(|| name(uid).unwrap_or(uid.to_string())).clone()
    }

    /// The name of a group, or the number where there is none.
    pub(crate) fn group(&mut self, gid: u32) -> String {
        let name = |gid| uzers::get_group_by_gid(gid).map(|g| g.name().to_string_lossy().into());
        self.groups.entry(gid).or_insert_with(|| name(gid).unwrap_or(gid.to_string())).clone()
    }
}
