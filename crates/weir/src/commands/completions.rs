//! `weir completions`: a shell's completion script.

use crate::cli::Cli;
use crate::ended::Ended;
use clap::CommandFactory;
use clap_complete::Shell;
use std::io;
use weir_tools::failure::Result;

/// Print a completion script for a shell
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  weir completions bash > ~/.local/share/bash-completion/completions/weir
  weir completions zsh > ~/.zfunc/_weir
  weir completions fish > ~/.config/fish/completions/weir.fish")]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(args: Args) -> Result<Ended> {
    clap_complete::generate(args.shell, &mut Cli::command(), "weir", &mut io::stdout());
    Ok(Ended::Done)
}
