//! How a command ended, which becomes the end of this process.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// The result of a command that ran.
pub(crate) enum Ended {
    /// The command did everything requested.
    Done,
    /// Something failed, and was already reported.
    Failed,
    /// A signal to stop interrupted it, the last one that [`StopSignals`](crate::commands::StopSignals) has heard.
    Interrupted,
    /// This signal to stop ended the command that `weir lock` or `weir run` ran, or the process that was to mount.
    By(i32),
    /// The command that `weir lock` or `weir run` ran ended with this code; or `weir run` could not run it.
    With(u8),
}

impl Ended {
    /// The end of a command that this one ran.
    pub(crate) fn of(status: ExitStatus) -> Self {
        match status.signal() {
            Some(by @ (libc::SIGINT | libc::SIGTERM | libc::SIGHUP | libc::SIGQUIT)) => {
                Self::By(by)
            }
            _ => Self::With(exit_code(status)),
        }
    }
}

/// The exit code of a command, as shells give it: 128 plus the signal that ended it.
pub(crate) fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    u8::try_from(code).unwrap_or(1)
}
