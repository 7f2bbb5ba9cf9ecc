//! `weir bench`: compares the page cache and NFS with others on this machine, in the same run.

mod cached;
mod mount;
mod readplus;
mod run;
mod running;
mod serve;
mod tree;
mod uncached;

use crate::commands::descriptors;
use crate::ended::Ended;
use clap::Subcommand;
use weir_tools::failure::Result;

/// Compare the page cache with the kernel's, and NFS servers with each other
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  weir bench cached --quick
  weir bench cached --json > cached.json
  weir bench serve weir ganesha
  weir bench mount --quick
  weir bench readplus --quick --html table.html
  weir bench run --quick
  weir bench tree --quick
  weir bench uncached --dir /mnt/disk --svg curves.svg
  weir bench uncached --loop /dev/shm --streams 4      as root: on a new file system")]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    Cached(cached::Args),
    Uncached(uncached::Args),
    Serve(serve::Args),
    Mount(mount::Args),
    #[command(name = "readplus")]
    ReadPlus(readplus::Args),
    Run(run::Args),
    Tree(tree::Args),
    /// A process that a benchmark starts.
    #[command(hide = true)]
    Helper {
        name: String,
        settings: String,
    },
}

pub(crate) fn run(args: Args) -> Result<Ended> {
    match args.what {
        What::Cached(args) => cached::run(&args),
        What::Uncached(args) => uncached::run(&args),
        What::Serve(args) => serve::run(&args),
        What::Mount(args) => mount::run(&args),
        What::ReadPlus(args) => readplus::run(&args),
        What::Run(args) => run::run(&args),
        What::Tree(args) => tree::run(&args),
        What::Helper { name, settings } => {
            // As in the commands that a helper stands for.
            let _raised = descriptors::raise();
            weir_bench::helper(&name, &settings).map(|()| Ended::Done)
        }
    }
}
