//! `weir chmod`: changes permission bits.

use super::set_attributes::{Files, set_attributes};
use crate::arguments::{JsonArgs, MountArgs, location};
use crate::ended::Ended;
use crate::output::umask;
use weir_tools::failure::Result;
use weir_tools::location::Location;
use weir_tools::mode::ModeChange;
use weir_tools::mounts::Links;
use weir_vfs::{FileKind, SetAttr};

/// Change the permission bits of files
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  weir chmod 640 nfs://filer/images/disk.img
  weir chmod u+x,go-w script.sh
  weir chmod -R a=rX nfs://filer/public     execution for directories and programs only

A MODE is octal, or [ugoa...][+-=][rwxXst...] or [ugoa...][+-=]u (g, o), several separated by \
commas. As with chmod(1), the umask limits changes without a letter of ugoa (+w), and an octal \
mode of at most four digits leaves a directory's set-user-ID and set-group-ID bits as they \
are. -R changes no symbolic links, and nothing that they point to.")]
pub(crate) struct Args {
    /// The change
    #[arg(value_name = "MODE", allow_hyphen_values = true)]
    mode: ModeChange,
    /// The files
    #[arg(value_name = "LOCATION", required = true, value_parser = location())]
    locations: Vec<Location>,
    /// Change directories with their content
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Print a line for each file
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    json: JsonArgs,
    #[command(flatten)]
    mount: MountArgs,
}

pub(crate) fn run(args: Args) -> Result<Ended> {
    let umask = umask();
    let files = Files {
        command: "chmod",
        attribute: "mode",
        locations: &args.locations,
        links: Links::Follow,
        recursive: args.recursive,
        verbose: args.verbose,
        json: &args.json,
        mount: &args.mount,
    };
    set_attributes(&files, |attr| {
        let mode = args.mode.apply(attr.mode, attr.kind == FileKind::Directory, umask);
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        (attr.kind != FileKind::Symlink).then_some(set)
    })
}
