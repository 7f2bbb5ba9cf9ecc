//! `weir warm`: reads files into a cache.

use super::in_memory::{Caches, Look};
use crate::arguments::JsonArgs;
use crate::ended::Ended;
use std::path::PathBuf;
use weir_control::Action;
use weir_tools::failure::Result;

/// Read files into memory, so that the next reads find them there
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  weir warm /srv/images/base.img      into the cache of the `weir serve` that serves it
  weir warm --kernel /srv/models      into the kernel's cache

If a running weir process of this user serves the file, the file is read into the cache of that \
process; otherwise into the kernel's. Holes take no memory. The exit code is 1 if not everything \
that was read is in memory at the end, as it is larger than the budget or others use the memory.")]
pub(crate) struct Args {
    /// Files and directories
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// Use the kernel's cache, whether a weir process serves the files or not
    #[arg(short, long)]
    kernel: bool,
    /// Show each file, not only the sum of each argument
    #[arg(short, long)]
    all: bool,
    #[command(flatten)]
    json: JsonArgs,
}

pub(crate) fn run(args: Args) -> Result<Ended> {
    let look = Look { action: Action::Warm, kernel: args.kernel, all: args.all };
    Caches::of(&args.paths, look)?.end(args.json.wanted())
}
