//! The engine `watch`: the kernel does the I/O, and this process has it drop what was not cached before.
//!
//! It needs neither namespaces nor /dev/fuse: the process inside installs a filter that reports its opens, and
//! those of its children, to this one (`weir_tools::opens`).

use super::child::{Signals, start};
use super::files::Files;
use super::options::{Args, Engine};
use super::orphans::{Adopting, reap};
use super::report::{Ran, Run, Watch, Work};
use super::supervisor::Supervisor;
use crate::commands::{LAST_CALLS, runtime};
use rustix::process::Pid;
use std::io;
use std::path::PathBuf;
use std::process::Child;
use std::sync::Arc;
use weir_fuse::namespace::Peer;
use weir_tools::failure::{Asked, Failure, Result};
use weir_tools::opens::Listener;

/// Runs the command, or says why the engine cannot.
///
/// # Errors
/// The command has begun.
pub(super) fn run(args: &Args, paths: &[PathBuf], watch: Option<Arc<Watch>>) -> Result<Ran> {
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(failure) => return Ok(Err(failure)),
    };
    let files = Files::new(paths.to_vec(), args.budget_bytes(), watch);
    let ran = runtime.block_on(async {
        match Begun::new(args) {
            Ok(begun) => supervise(begun, Arc::new(files)).await,
            Err(failure) => Ok(Err(failure)),
        }
    });
    runtime.shutdown_timeout(LAST_CALLS);
    ran
}

/// The process that becomes the command has started.
struct Begun {
    signals: Signals,
    adopting: Option<Adopting>,
    child: Child,
    peer: Peer,
}

impl Begun {
    fn new(args: &Args) -> Result<Self> {
        let (signals, adopting) = (Signals::new()?, Adopting::begin());
        let (child, peer) = start(args, Engine::Watch, &[], None)?;
        Ok(Self { signals, adopting, child, peer })
    }
}

async fn supervise(begun: Begun, files: Arc<Files>) -> Result<Ran> {
    let Begun { mut signals, adopting: _adopting, mut child, peer } = begun;
    let command = Pid::from_child(&child);
    // It ends when the last process with the filter has ended, and what is left is written.
    let supervised = tokio::task::spawn_blocking(move || {
        let mut supervisor = None;
        loop {
            match peer.next() {
                Ok(Some((_, connection))) => {
                    let started = Listener::new(connection)
                        .and_then(|listener| Supervisor::start(listener, &files));
                    let outcome = started.map(|started| supervisor = Some(started));
                    if peer.served(outcome.map_err(|error| error.to_string())).is_err() {
                        break;
                    }
                }
                Ok(None) => break,
                Err(why) => return Err(why),
            }
        }
        let watched = supervisor.map_or(Ok(()), Supervisor::wait);
        Ok((watched, files.end()))
    });
    let status = tokio::select! {
        status = signals.wait(&mut child) => status.asked(|| "wait for the command".into())?,
        never = reap(Some(command)) => match never {},
    };
    let supervised = tokio::select! {
        supervised = supervised => supervised,
        never = reap(None) => match never {},
        () = signals.stop() => {
            let asked = "wait until the processes that the command left behind have ended, and their data is written";
            return Err(Failure::new(asked, "a signal asked to stop"));
        }
    };
    let Ok(supervised) = supervised else {
        return Err(Failure::new("watch the command's files", "a thread panicked"));
    };
    let (watched, totals) = match supervised {
        Ok(supervised) => supervised,
        Err(why) => return Ok(Err(refused(&why))),
    };
    let work = Work::Watched { evicted_bytes: totals.evicted, unseen_opens: totals.unseen };
    let lost = watched.err().map(|error| {
        Failure::new(
            "watch the command to its end",
            format!("its opens are received no more: {error}"),
        )
    });
    let failures = lost.into_iter().chain(totals.unwritten.failures()).collect();
    Ok(Ok(Run { status, work, failures }))
}

/// The failure of a process inside that cannot be watched.
fn refused(why: &io::Error) -> Failure {
    let failure = Failure::new("watch the files that a command opens", why.to_string());
    failure.advice(
        "the kernel (Linux 5.9 or later) or a container may refuse seccomp filters with a listener",
    )
}
