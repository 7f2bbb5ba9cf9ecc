//! The process that serves a mount in the background.
//!
//! ```text
//!   weir mount SOURCE DIR ---- starts ----> weir mount --announce SOURCE DIR ---- starts ----> weir mount --guard
//!        ends when it reads "mounted"            serves the mount              ends when the other has ended
//! ```
//!
//! If the first ends before, by a signal, the second ends, too.

use crate::ended::Ended;
use crate::system_log::use_system_log;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use tokio::io::Interest;
use tokio::net::unix::pipe::Sender;
use weir_tools::failure::{Asked, Result};

/// Says that the mount is usable.
const MOUNTED: &str = "mounted";

/// Starts this command again, in the background, and waits until its mount is usable.
pub(super) fn start() -> Result<Ended> {
    let asked = || "start the process in the background".to_owned();
    let mut arguments = std::env::args_os();
    arguments.next();
    let program = std::env::current_exe().asked(asked)?;
    let mut child = Command::new(program)
        .args(super::super::mount_helper::translated(arguments.collect()))
        .arg("--announce")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .asked(asked)?;
    let mut said = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut said).asked(asked)?;
    }
    if said.trim_end() == MOUNTED {
        return Ok(Ended::Done);
    }
    // It has reported its failure.
    let status = child.wait().asked(asked)?;
    Ok(if status.success() { Ended::Failed } else { Ended::of(status) })
}

/// Waits until the command that waits for this process has ended: the pipe has no reader any more.
pub(super) async fn abandoned(wanted: bool) {
    let copy = || std::io::stdout().as_fd().try_clone_to_owned();
    // Unchecked, because it is written to, with blocking calls.
    let pipe = wanted.then(|| copy().and_then(Sender::from_owned_fd_unchecked));
    match pipe {
        Some(Ok(pipe)) => drop(pipe.ready(Interest::ERROR).await),
        // It is no pipe.
        _ => std::future::pending().await,
    }
}

/// Leaves the terminal and its signals. The directory stays: paths may be relative to it.
pub(super) fn leave_terminal() {
    // It fails only for the leader of a session, which has none to leave.
    let _ = rustix::process::setsid();
}

/// Tells the command that waits for it that the mount is usable, and lets go of its output.
pub(super) fn announce(wanted: bool) -> Result<()> {
    if !wanted {
        return Ok(());
    }
    let asked = || "go to the background".to_owned();
    let mut out = std::io::stdout();
    writeln!(out, "{MOUNTED}").and_then(|()| out.flush()).asked(asked)?;
    std::env::set_current_dir("/").asked(asked)?;
    let nothing = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null");
    let nothing = nothing.asked(asked)?;
    let silence = || {
        rustix::stdio::dup2_stdout(&nothing)?;
        rustix::stdio::dup2_stderr(&nothing)
    };
    silence().map_err(std::io::Error::from).asked(asked)?;
    use_system_log();
    Ok(())
}
