//! `weir run`: a command whose file I/O leaves the kernel's page cache as it was.
//!
//! - `outside`: chooses the engine: `mounted` serves the files, `watched` has the kernel drop what was read.
//!   `supervisor`, `files` and `orphans` are parts of `watched`.
//! - `plain`: runs it once more without any of this, to compare.
//! - `options`: its arguments. `inside`: becomes the command. `child`: its start, signals (`sender`: who sent them)
//!   and end. `report`: what it cost.

mod child;
mod files;
mod inside;
mod mounted;
mod options;
mod orphans;
mod outside;
mod plain;
mod report;
mod sender;
mod supervisor;
mod watched;

use crate::ended::Ended;
use weir_tools::failure::Result;

pub(crate) use options::{Args, NOT_RUN};

pub(crate) fn run(args: Args) -> Result<Ended> {
    match args.inside {
        Some(number) => inside::run(number, &args),
        None => outside::run(&args),
    }
}
