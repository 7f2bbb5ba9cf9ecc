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
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Duration;
use weir_tools::failure::{Asked, Result};

/// Says that the mount is usable.
const MOUNTED: &str = "mounted";

/// How often the process in the background looks whether the other one still waits.
const LOOK_EVERY: Duration = Duration::from_millis(100);

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
    if !wanted {
        return std::future::pending().await;
    }
    let out = std::io::stdout();
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    loop {
        let mut pipe = [PollFd::new(&out, PollFlags::empty())];
        if poll(&mut pipe, Some(&at_once)).is_ok() && pipe[0].revents().contains(PollFlags::ERR) {
            return;
        }
        tokio::time::sleep(LOOK_EVERY).await;
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
