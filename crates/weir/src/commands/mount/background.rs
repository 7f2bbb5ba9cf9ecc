//! The process that serves a mount in the background, and the guard that detaches the mount of a
//! process that was killed.
//!
//! ```text
//!   weir mount SOURCE DIR ---- starts ----> weir mount --announce SOURCE DIR ---- starts ----> weir mount --guard
//!        ends when it reads "mounted"            serves the mount              ends when the other has ended
//! ```

use crate::ended::Ended;
use crate::system_log::use_system_log;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use tracing::warn;
use weir_fuse::Mountpoint;
use weir_tools::failure::{Asked, Failure, Result};

/// Says that the mount is usable.
const MOUNTED: &str = "mounted";
/// Says that the guard is not needed any more.
const DISMISSED: u8 = b'.';

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
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(Ended::With(code.filter(|&code| code != 0).unwrap_or(1)))
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

/// A process that detaches the mount if this one ends without having done so.
pub(super) struct Guard(Option<Child>);

impl Guard {
    /// Starts it. Without it the mount works all the same.
    pub(super) fn start(mountpoint: &Mountpoint) -> Self {
        let path = mountpoint.path().as_os_str().as_bytes();
        let guarded = [format!("{}:", mountpoint.id()).as_bytes(), path].concat();
        let started = std::env::current_exe().and_then(|program| {
            Command::new(program)
                .arg("mount")
                .arg("--guard")
                .arg(OsStr::from_bytes(&guarded))
                .current_dir("/")
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
        });
        match started {
            Ok(child) => Self(Some(child)),
            Err(error) => {
                warn!("if this process is killed, the mount has to be removed by hand: {error}");
                Self(None)
            }
        }
    }

    /// Ends it.
    pub(super) fn dismiss(&mut self) {
        if let Some(mut child) = self.0.take() {
            if let Some(mut stdin) = child.stdin.take() {
                let _ = stdin.write_all(&[DISMISSED]);
            }
            let _ = child.wait();
        }
    }
}

/// Waits for the end of the process that serves a mount, and detaches the mount.
pub(super) fn guard(guarded: &OsStr) -> Result<Ended> {
    leave_terminal();
    let malformed = || Failure::new("guard a mount", "it is not NUMBER:PATH");
    let bytes = guarded.as_bytes();
    let colon = bytes.iter().position(|&byte| byte == b':').ok_or_else(malformed)?;
    let (id, path) = (&bytes[..colon], &bytes[colon + 1..]);
    let id = std::str::from_utf8(id).ok().and_then(|id| id.parse().ok()).ok_or_else(malformed)?;
    let path = PathBuf::from(std::ffi::OsString::from_vec(path.to_vec()));
    let mut said = Vec::new();
    // An error means the same as the end.
    let _ = std::io::stdin().read_to_end(&mut said);
    if said.first() != Some(&DISMISSED) {
        let mountpoint = Mountpoint::of(path, id);
        // A thread of the process may wait for a request that will have no answer.
        mountpoint.abort();
        let detached = mountpoint.detach();
        detached.asked(|| "detach the mount of a process that was killed".to_owned())?;
    }
    Ok(Ended::Done)
}
