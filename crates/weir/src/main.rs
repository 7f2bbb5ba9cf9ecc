//! The command line: parses it and hands over to `commands/`.

#![deny(unsafe_code)]
#![allow(clippy::single_range_in_vec_init, reason = "a list of byte ranges may have one")]

use std::process::ExitCode;

mod arguments;
mod by_signal;
mod cli;
mod closing;
mod colours;
mod commands;
mod config;
mod dates;
mod ended;
mod output;
mod system_log;

fn main() -> ExitCode {
    cli::main()
}
