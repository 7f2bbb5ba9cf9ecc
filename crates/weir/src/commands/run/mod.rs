//! `weir run`: a command whose file I/O leaves the kernel's page cache as it was.
//!
//! - `outside`: serves the files. `inside`: becomes the command. `report`: what it cost.

mod inside;
mod outside;
mod report;

use crate::arguments::JsonArgs;
use crate::ended::Ended;
use std::ffi::OsString;
use std::path::PathBuf;
use weir_tools::failure::Result;
use weir_tools::size::Size;

/// The exit code if the command was not run.
const NOT_RUN: u8 = 125;

/// Run a command that leaves the page cache as it was
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  weir run tar -cf /backup/srv.tar /srv            without evicting what other programs use
  weir run --path /srv -- restic backup /srv       only files in /srv
  weir run --report sha256sum disk.img             and show what was moved and left in memory
  weir run --cached --budget 2G make -j8           in a cache of its own, of 2 GiB

The command's files lie behind a mount in a namespace of its own, so it can be any program, also one that \
is linked statically. Its user, directory, terminal, signals and exit code are as without `weir run`. \
Without --path, all files on disks and servers are behind the mount; /proc, /sys, /dev, /run, /tmp and \
/var/tmp are not.

Reads and writes are uncached: they pass through a small buffer (--budget), are written \
to disk soon, and leave neither this process's cache nor the kernel's fuller than before. \
The command ends like any other; `weir run` then writes out what is left, and waits for \
processes that the command has left behind.

It needs /dev/fuse, and a kernel that lets users make namespaces, or root. Without root, set-user-id \
programs run without their rights, and files of other users cannot be written in it even if their mode \
allows it. The exit code is 125 if the command could not be run this way, 126 if it cannot be \
executed, 127 if it is not found.")]
pub(crate) struct Args {
    /// A directory whose files the command reaches through Weir; may be repeated [default: all]
    #[arg(long, value_name = "DIR")]
    path: Vec<PathBuf>,
    /// Keep what the command reads and writes in a cache of its own, until it ends
    #[arg(long, conflicts_with = "uncached")]
    cached: bool,
    /// Keep nothing (the default)
    #[arg(long)]
    uncached: bool,
    /// Memory for the cache or buffer: 512M, 2GiB, or 50% of memory [default: 128M; with --cached, a
    /// quarter of memory, at most 16G]
    #[arg(long, value_name = "SIZE")]
    budget: Option<Size>,
    /// At the end, print to standard error what was moved, and what is left in the kernel's cache
    #[arg(long)]
    report: bool,
    #[command(flatten)]
    json: JsonArgs,
    /// Become the command; the number of the descriptor of the process that serves its files
    #[arg(long, hide = true, value_name = "NUMBER")]
    inside: Option<i32>,
    /// The directory for the new root
    #[arg(long, hide = true, value_name = "DIR", requires = "inside")]
    stage: Option<PathBuf>,
    /// The command and its arguments
    #[arg(
        value_name = "COMMAND",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    command: Vec<OsString>,
}

pub(crate) fn run(args: Args) -> Result<Ended> {
    match args.inside {
        Some(number) => inside::run(number, &args),
        None => outside::run(&args),
    }
}
