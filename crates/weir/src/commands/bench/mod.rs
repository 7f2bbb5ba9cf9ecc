//! `weir bench`: how fast the page cache and NFS are here, beside others, in the same run.

mod cached;
mod host;
mod hot;
mod interrupt;
mod kernel;
mod limit;
mod load;
mod measure;
mod peers;
mod readplus;
mod report;
mod scratch;
mod serve;
mod streams;
mod svg;
mod text;
mod uncached;

use crate::ended::Ended;
use clap::Subcommand;
use weir_tools::failure::Result;

/// Measure the page cache beside the kernel's, and NFS servers side by side
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  weir bench cached --quick
  weir bench cached --json > cached.json
  weir bench serve weir ganesha
  weir bench readplus --quick --html table.html
  weir bench uncached --dir /mnt/disk --svg curves.svg
  weir bench uncached --loop /dev/shm --streams 4      as root: on a file system made for it")]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    Cached(cached::Args),
    Uncached(uncached::Args),
    Serve(serve::Args),
    #[command(name = "readplus")]
    ReadPlus(readplus::Args),
    /// A client in a process of its own, so that it can be in another network.
    #[command(hide = true)]
    Read(readplus::reader::Args),
    /// A server that does what it is told, for `serve` and `readplus`.
    #[command(hide = true)]
    Host(host::Args),
    /// The kernel's side of `uncached`, in a process of its own so that its memory can be limited.
    #[command(hide = true)]
    Kernel(kernel::Args),
}

pub(crate) fn run(args: Args) -> Result<Ended> {
    match args.what {
        What::Cached(args) => cached::run(&args),
        What::Uncached(args) => uncached::run(&args),
        What::Serve(args) => serve::run(&args),
        What::ReadPlus(args) => readplus::run(&args),
        What::Read(args) => readplus::reader::run(&args),
        What::Host(args) => host::run(&args),
        What::Kernel(args) => kernel::run(&args),
    }
}
