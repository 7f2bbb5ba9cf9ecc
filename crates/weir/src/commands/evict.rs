//! `weir evict`: drops files from a cache.

use super::in_memory::{Caches, Look};
use crate::arguments::JsonArgs;
use crate::ended::Ended;
use std::path::PathBuf;
use weir_control::Action;
use weir_tools::failure::Result;

/// Drop files from memory
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  weir evict /srv/images/old.img      from the cache of the `weir serve` that serves it
  weir evict --kernel /srv/backups    from the kernel's cache

If a running weir process of this user serves the file, its pages are dropped from the cache of \
that process; otherwise from the kernel's. Changes that are not on disk yet are written first. \
Pages that programs map or use at this moment stay: the output shows what is still in memory.")]
pub(crate) struct Args {
    /// Files and directories
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// Use the kernel's cache, whether a weir process serves the files or not
    #[arg(short, long)]
    kernel: bool,
    /// Show each file of which something is still in memory, not only the sum of each argument
    #[arg(short, long)]
    all: bool,
    #[command(flatten)]
    json: JsonArgs,
}

pub(crate) fn run(args: Args) -> Result<Ended> {
    let look = Look { action: Action::Evict, kernel: args.kernel, all: args.all };
    Caches::of(&args.paths, look)?.end(args.json.wanted())
}
