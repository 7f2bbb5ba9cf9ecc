//! The command as without `weir run`, to compare the costs of both.

use super::child::Signals;
use super::report::{Cost, Since};
use crate::commands::{LAST_CALLS, runtime};
use std::ffi::OsString;
use std::process::{Command, ExitStatus, Stdio};
use weir_tools::failure::{Asked, Failure, Result};

/// How the command ended, and the time and processor time that it took.
pub(super) struct Plain {
    pub(super) status: ExitStatus,
    pub(super) cost: Cost,
}

/// Runs the command, without input and without its output.
///
/// # Errors
/// It cannot be executed.
pub(super) fn run(command: &[OsString]) -> Result<Plain> {
    let asked = || "run the command without Weir".to_owned();
    let Some((program, args)) = command.split_first() else {
        return Err(Failure::new(asked(), "there is no command"));
    };
    let runtime = runtime()?;
    let mut signals = runtime.block_on(async { Signals::new() })?;
    let since = Since::now();
    let mut plain = Command::new(program);
    plain.args(args).stdin(Stdio::null()).stdout(Stdio::null());
    let mut child = plain.spawn().asked(asked)?;
    let status = runtime.block_on(signals.wait(&mut child)).asked(asked)?;
    let cost = since.cost();
    runtime.shutdown_timeout(LAST_CALLS);
    Ok(Plain { status, cost })
}
