//! The command line: parses it and hands over to `commands/`.

#![deny(unsafe_code)]
#![allow(clippy::single_range_in_vec_init, reason = "a list of byte ranges may have one")]

use std::process::ExitCode;

mod cli;
mod commands;
mod config;
mod copy;
mod failure;
mod kernel_cache;
mod location;
mod map;
mod memory;
mod mounts;
mod output;
mod size;

fn main() -> ExitCode {
    cli::main()
}
