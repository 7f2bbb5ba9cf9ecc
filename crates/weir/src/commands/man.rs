//! `weir man`: writes the manual pages.

use crate::cli::Cli;
use crate::ended::Ended;
use crate::output::say;
use clap::CommandFactory;
use std::path::{Path, PathBuf};
use weir_tools::failure::{Asked, Failure, Result};

/// Write the manual pages weir.1, weir-cp.1 and so on
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  weir man --install           # man weir-cp
  weir man ./pages             # for packagers")]
pub(crate) struct Args {
    /// The directory to write them to
    #[arg(required_unless_present = "install", conflicts_with = "install")]
    dir: Option<PathBuf>,
    /// Write them where man(1) looks for the pages of this program: PREFIX/share/man/man1 for
    /// PREFIX/bin/weir
    #[arg(long)]
    install: bool,
}

pub(crate) fn run(args: Args) -> Result<Ended> {
    let dir = match args.dir {
        Some(dir) => dir,
        None => {
            let dir = beside_program()?;
            let made = std::fs::create_dir_all(&dir);
            made.asked(|| format!("create directory {}", dir.display()))?;
            dir
        }
    };
    clap_mangen::generate_to(Cli::command(), &dir)
        .asked(|| format!("write manual pages to {}", dir.display()))?;
    if args.install {
        say(format_args!("wrote the manual pages to {}", dir.display()));
    }
    Ok(Ended::Done)
}

/// The directory of manual pages that belongs to the directory of this program.
fn beside_program() -> Result<PathBuf> {
    let asked = || "install the manual pages".to_owned();
    let program = std::env::current_exe().asked(asked)?;
    match program.parent() {
        Some(bin) if bin.file_name().is_some_and(|name| name == "bin") => {
            Ok(bin.parent().unwrap_or(Path::new("/")).join("share/man/man1"))
        }
        _ => {
            let failed = format!("{} is in no directory called bin", program.display());
            Err(Failure::new(asked(), failed).advice("name a directory: weir man DIR"))
        }
    }
}
