//! The command as without `weir run`, to compare the costs of both.

use super::child::Signals;
use super::report::{Cost, Since};
use crate::commands::{LAST_CALLS, runtime};
use std::ffi::OsString;
use std::io;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use tokio::runtime::Runtime;
use weir_tools::failure::{Asked, Failure, Result};

/// Most bytes of output that are thrown away at once.
const PIECE_BYTES: usize = 1 << 20;

/// How the command ended, and the time and processor time that it took.
pub(super) struct Plain {
    pub(super) status: ExitStatus,
    pub(super) cost: Cost,
}

/// A run to come. A signal to stop that arrives from now on prevents it.
pub(super) struct Comparison {
    runtime: Runtime,
    signals: Signals,
}

impl Comparison {
    pub(super) fn new() -> Result<Self> {
        let runtime = runtime()?;
        let signals = runtime.block_on(async { Signals::new() })?;
        Ok(Self { runtime, signals })
    }

    /// Runs the command, without input and with its output thrown away.
    ///
    /// # Errors
    /// A signal has asked to stop, or the command cannot be executed.
    pub(super) fn run(mut self, command: &[OsString]) -> Result<Plain> {
        let asked = || "run the command without Weir".to_owned();
        let Some((program, args)) = command.split_first() else {
            return Err(Failure::new(asked(), "there is no command"));
        };
        // Signals from here on go to the command.
        if self.runtime.block_on(self.signals.stop_came()) {
            return Err(Failure::new(asked(), "it was interrupted"));
        }
        let since = Since::now();
        let mut plain = Command::new(program);
        plain.args(args).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = plain.spawn().asked(asked)?;
        let drained = drain(&mut child);
        let status = self.runtime.block_on(self.signals.wait(&mut child)).asked(asked)?;
        drained.asked(asked)?;
        let cost = since.cost();
        self.runtime.shutdown_timeout(LAST_CALLS);
        Ok(Plain { status, cost })
    }
}

/// Throws the output away, in a thread. It is a pipe: some programs (tar, grep) do not even read their input if the
/// output is /dev/null.
fn drain(child: &mut Child) -> io::Result<()> {
    let Some(output) = child.stdout.take() else { return Ok(()) };
    let nothing = std::fs::OpenOptions::new().write(true).open("/dev/null")?;
    let drain = move |mut output: ChildStdout| {
        let flags = rustix::pipe::SpliceFlags::empty();
        let splice = || rustix::pipe::splice(&output, None, &nothing, None, PIECE_BYTES, flags);
        while rustix::io::retry_on_intr(splice).is_ok_and(|moved| moved > 0) {}
        // At its end, or where the kernel does not splice.
        io::copy(&mut output, &mut io::sink())
    };
    std::thread::Builder::new().name("weir-drain".into()).spawn(move || drain(output)).map(drop)
}
