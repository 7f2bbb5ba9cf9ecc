//! `weir bench`: compares the page cache and NFS with others on this machine, in the same run.

mod cached;
mod readplus;
mod serve;
mod tree;
mod uncached;

use crate::ended::Ended;
use crate::output::{print, say};
use clap::Subcommand;
use tokio::signal::unix::{SignalKind, signal};
use weir_bench::{Observer, interrupt};
use weir_tools::failure::{Asked, Result};

/// Compare the page cache with the kernel's, and NFS servers with each other
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  weir bench cached --quick
  weir bench cached --json > cached.json
  weir bench serve weir ganesha
  weir bench readplus --quick --html table.html
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
    #[command(name = "readplus")]
    ReadPlus(readplus::Args),
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
        What::ReadPlus(args) => readplus::run(&args),
        What::Tree(args) => tree::run(&args),
        What::Helper { name, settings } => {
            weir_bench::helper(&name, &settings).map(|()| Ended::Done)
        }
    }
}

/// Prints the progress of a run.
struct Teller {
    /// Whether to print no figures during the run.
    is_quiet: bool,
}

impl Observer for Teller {
    fn progress(&self, text: &str) {
        if !self.is_quiet {
            // If nothing reads the output, the run continues, and still writes the report.
            let _ = print(text.as_bytes());
        }
    }

    fn notice(&self, text: &str) {
        say(format_args!("weir: {text}"));
    }
}

/// Runs `work`; on a signal to stop, the benchmark removes what it created, and returns.
fn with_interrupts(work: impl FnOnce() -> Result<Ended>) -> Result<Ended> {
    let mut threads = tokio::runtime::Builder::new_multi_thread();
    let runtime = threads.worker_threads(1).enable_all().build();
    let runtime = runtime.asked(|| "start threads".into())?;
    let listen = |kind| {
        let _inside = runtime.enter();
        signal(kind).asked(|| "listen to signals".into())
    };
    for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
        let mut signals = listen(kind)?;
        runtime.spawn(async move {
            while signals.recv().await.is_some() {
                interrupt::stop();
            }
        });
    }
    match work() {
        Err(_) if interrupt::is_interrupted() => Ok(Ended::Interrupted),
        ended => ended,
    }
}
