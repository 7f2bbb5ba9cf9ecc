//! `weir man DIR`: writes the manual pages, for packagers.

use crate::cli::Cli;
use crate::ended::Ended;
use clap::CommandFactory;
use std::path::PathBuf;
use weir_tools::failure::{Asked, Result};

/// Write the manual pages weir.1, weir-cp.1 and so on
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The directory to write them to
    dir: PathBuf,
}

pub(crate) fn run(args: Args) -> Result<Ended> {
    clap_mangen::generate_to(Cli::command(), &args.dir)
        .asked(|| format!("write manual pages to {}", args.dir.display()))?;
    Ok(Ended::Done)
}
