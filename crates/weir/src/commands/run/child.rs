//! The process of the command: its start, its signals, its end.

use super::options::{Args, Engine};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use tokio::signal::unix::{SignalKind, signal};
use weir_fuse::namespace::Peer;
use weir_tools::failure::{Asked, Result};

/// Starts the process that becomes the command.
pub(super) fn start(
    args: &Args,
    engine: Engine,
    paths: &[PathBuf],
    stage: Option<&Path>,
) -> Result<(Child, Peer)> {
    let asked = || "start the command".to_owned();
    let (outside, inside) = Peer::pair().asked(asked)?;
    let mut command = Command::new(std::env::current_exe().asked(asked)?);
    command.arg("run").arg("--inside").arg(inside.number().to_string());
    command.arg("--engine").arg(engine.name());
    if let Some(dir) = stage {
        command.arg("--stage").arg(dir);
    }
    for path in paths {
        command.arg("--path").arg(path);
    }
    let child = command.arg("--").args(&args.command).spawn().asked(asked)?;
    Ok((child, outside))
}

/// Signals to this process.
pub(super) struct Signals {
    all: Vec<(tokio::signal::unix::Signal, Option<rustix::process::Signal>)>,
}

impl Signals {
    pub(super) fn new() -> Result<Self> {
        use rustix::process::Signal;
        let kinds = [
            // The terminal sends these to the command, too.
            (SignalKind::interrupt(), None),
            (SignalKind::quit(), None),
            (SignalKind::hangup(), Some(Signal::HUP)),
            (SignalKind::terminate(), Some(Signal::TERM)),
            (SignalKind::user_defined1(), Some(Signal::USR1)),
            (SignalKind::user_defined2(), Some(Signal::USR2)),
        ];
        let listen = |(kind, to)| Ok((signal(kind)?, to));
        let all = kinds.map(listen).into_iter().collect::<io::Result<_>>();
        Ok(Self { all: all.asked(|| "listen to signals".into())? })
    }

    /// Waits for the command, and passes signals on to it.
    pub(super) async fn wait(&mut self, child: &mut Child) -> io::Result<ExitStatus> {
        let pid = rustix::process::Pid::from_child(child);
        let mut passing = tokio::task::JoinSet::new();
        for (mut signal, to) in self.all.drain(..) {
            passing.spawn(async move {
                while signal.recv().await.is_some() {
                    if let Some(to) = to {
                        // It may have ended already.
                        let _ = rustix::process::kill_process(pid, to);
                    }
                }
            });
        }
        // The child is not reaped before signals to its number have ended.
        let ended = tokio::task::spawn_blocking(move || {
            let id = rustix::process::WaitId::Pid(pid);
            let options =
                rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
            rustix::io::retry_on_intr(|| rustix::process::waitid(id.clone(), options))
        });
        let _ = ended.await;
        passing.shutdown().await;
        child.wait()
    }
}
