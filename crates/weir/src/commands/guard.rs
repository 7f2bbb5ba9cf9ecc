//! The process that lets go of mounts when the one that serves them is killed: `weir mount --guard`.

use crate::by_signal::outlive_stops;
use crate::ended::Ended;
use rustix::process::Pid;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};
use tracing::{debug, warn};
use weir_fuse::Mountpoint;
use weir_fuse::guard::{Guarded, Guardian};
use weir_tools::failure::{Asked, Result};

/// A running guard of this process's mounts.
pub(super) struct Guard(Option<(Guarded, Child)>);

impl Guard {
    /// Starts it. Without it, mounts work all the same.
    pub(super) fn start() -> Self {
        let started = Guarded::pair().and_then(|(guarded, guardian)| {
            let child = Command::new(std::env::current_exe()?)
                .arg("mount")
                .arg("--guard")
                .arg(format!("{}:{}", guardian.number(), std::process::id()))
                .current_dir("/")
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                // Away from the signals of the terminal.
                .process_group(0)
                .spawn()?;
            Ok((guarded, child))
        });
        Self(started.inspect_err(|error| warn!("{WITHOUT}: {error}")).ok())
    }

    /// Has it guard a mount, too: its connection, and the place from which to detach it.
    pub(super) fn add(&self, connection: impl AsFd, mountpoint: Option<&Mountpoint>) {
        if let Some((guarded, _)) = &self.0
            && let Err(error) = guarded.add(connection, mountpoint)
        {
            debug!("{WITHOUT}: {error}");
        }
    }

    /// Ends it.
    pub(super) fn dismiss(self) {
        if let Some((guarded, mut child)) = self.0 {
            // If it has ended already, so much the better.
            let _ = guarded.dismiss();
            let begun = Instant::now();
            while matches!(child.try_wait(), Ok(None)) {
                if begun.elapsed() > LAST_WAIT {
                    let _ = child.kill();
                    let _ = child.wait();
                    return;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

/// How long a guard that is no longer needed may take to end.
const LAST_WAIT: Duration = Duration::from_secs(1);

const WITHOUT: &str =
    "if this process is killed, programs may have to wait until the mount is removed by hand";

/// What the guard has to know: the number of its descriptor, and of the process that it guards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GuardArgs {
    number: i32,
    process: i32,
}

impl FromStr for GuardArgs {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = |text: &str| text.parse().ok().filter(|number| *number > 0);
        let (number, process) = text.split_once(':').ok_or("write NUMBER:PROCESS")?;
        let both = parse(number).zip(parse(process));
        both.map(|(number, process)| Self { number, process }).ok_or("these are no numbers")
    }
}

/// Waits for the end of the process that serves mounts, and lets go of them.
pub(super) fn run(args: GuardArgs) -> Result<Ended> {
    // A service manager or a shutdown sends these to all processes: the other one still needs its guard then.
    outlive_stops();
    let guardian = Guardian::inherited(args.number).asked(|| "guard a mount".to_owned())?;
    if let Some(orphans) = guardian.wait() {
        // When its last thread has ended, this process gets another parent.
        let has_ended = || rustix::process::getppid() != Pid::from_raw(args.process);
        let released = orphans.release(has_ended);
        released.asked(|| "detach the mount of a process that was killed".to_owned())?;
    }
    Ok(Ended::Done)
}
