//! `weir ls`: lists directories.

use super::with_mounts;
use crate::arguments::{MountArgs, location};
use crate::ended::Ended;
use crate::output::{FileJson, complain, local_time, mode_text, print, print_json};
use std::collections::HashMap;
use std::io::IsTerminal;
use weir_tools::failure::{Asked, Result};
use weir_tools::location::Location;
use weir_tools::mounts::{Links, Mounts, Place};
use weir_tools::text::shown;
use weir_vfs::{Attr, Caller, FileKind};

/// List local and NFS directories
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
#[command(after_long_help = "\
Examples:
  weir ls nfs://filer/images
  weir ls -l nfs://filer:3049/images -o vers=3
  weir ls -lh .                       sizes, and the space that sparse files use
  weir ls --json nfs://filer/ | jq -r '.[] | select(.size_bytes > 1e9) | .path'

With -l, the columns are: permissions, links, owner, group, space in use, size, time of the last
change, name.")]
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
    /// List a directory itself, not its entries
    #[arg(short, long)]
    directory: bool,
    /// With -l, print sizes like 1.50 GiB
    #[arg(short = 'h', long)]
    human: bool,
    /// With -l, print numeric owners and groups
    #[arg(short, long)]
    numeric: bool,
    /// Print an array of files with all attributes as JSON
    #[arg(long)]
    json: bool,
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

pub(crate) fn run(args: Args) -> Result<Ended> {
    with_mounts(&args.mount, async |mounts| {
        let mut failed = false;
        let mut files = Vec::new();
        let mut directories = Vec::new();
        for location in &args.locations {
            match list(mounts, location, &args, &mut failed).await {
                Ok((true, listed)) => directories.push((location, listed)),
                Ok((false, listed)) => files.extend(listed),
                Err(failure) => {
                    complain(&failure);
                    failed = true;
                }
            }
        }
        if args.json {
            let within = directories.iter().flat_map(|(_, listed)| listed);
            let json = |f: &Listed| FileJson::new(&f.name, &f.attr, f.target.as_deref());
            print_json(&files.iter().chain(within).map(json).collect::<Vec<_>>())?;
        } else {
            let mut text = Vec::new();
            let mut table = Table::new(&args);
            table.write(&files, &mut text);
            for (at, (location, listed)) in directories.iter().enumerate() {
                if args.locations.len() > 1 {
                    let gap = if at == 0 && files.is_empty() { "" } else { "\n" };
                    text.extend(format!("{gap}{location}:\n").bytes());
                }
                table.write(listed, &mut text);
            }
            print(&text)?;
        }
        Ok(if failed { Ended::Failed } else { Ended::Done })
    })
}

/// The files to list for a location, and whether they are a directory's entries. An entry that
/// cannot be read is reported and sets `failed`; the others are still listed.
async fn list(
    mounts: &mut Mounts,
    location: &Location,
    args: &Args,
    failed: &mut bool,
) -> Result<(bool, Vec<Listed>)> {
    // A link to a directory is listed as the directory, unless -d or -l is given.
    let links = if args.directory || args.long { Links::Stay } else { Links::Follow };
    let place = mounts.place(location, links).await?;
    let attr = place.existing("list")?.clone();
    if attr.kind != FileKind::Directory || args.directory {
        let target = target(&place, &attr).await?;
        let name = location.bytes();
        return Ok((false, vec![Listed { name, attr, target }]));
    }
    let mut listed = Vec::new();
    for (child, attr) in place.children(attr.id).await? {
        let name = child.name.clone().unwrap_or_default();
        if args.all || !name.starts_with(b".") {
            let target = target(&child, &attr).await.unwrap_or_else(|failure| {
                complain(&failure);
                *failed = true;
                None
            });
            listed.push(Listed { name, attr, target });
        }
    }
    Ok((true, listed))
}

async fn target(place: &Place, attr: &Attr) -> Result<Option<Vec<u8>>> {
    if attr.kind != FileKind::Symlink {
        return Ok(None);
    }
    let read = || place.fs.readlink(&Caller::Own, attr.id);
    let target = place.found_again(attr.id, read).await;
    target.asked(|| format!("read the symbolic link {}", place.shown)).map(Some)
}

/// Prints files in columns.
struct Table<'a> {
    args: &'a Args,
    names: Names,
    terminal: bool,
}

impl<'a> Table<'a> {
    fn new(args: &'a Args) -> Self {
        Self { args, names: Names::default(), terminal: std::io::stdout().is_terminal() }
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
            out.extend(self.name(&file.name));
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
