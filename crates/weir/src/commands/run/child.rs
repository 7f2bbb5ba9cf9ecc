//! The process of the command: its start, its signals, its end.

use super::options::{Args, Engine};
use super::sender::{except_from, tell_apart, was_sent_by_a_process};
use crate::commands::child_end::{SAME_SIGNAL, ended};
use crate::commands::stop_signals::ignored;
use rustix::process::{Pid, Signal, kill_process};
use std::future::poll_fn;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::task::Poll;
use tokio::signal::unix::{self, SignalKind, signal};
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

/// Signals to this process. Those that it ignores, as nohup(1) and shells have them ignored, stay so, for the command,
/// too.
pub(super) struct Signals {
    all: Vec<Heard>,
}

/// A signal that this process does not end by.
struct Heard {
    signal: unix::Signal,
    /// The same.
    kind: Signal,
    asks_to_stop: bool,
}

/// The terminal sends these to the command, too. Others may send them to this process alone.
fn comes_from_a_terminal(signal: Signal) -> bool {
    matches!(signal, Signal::INT | Signal::QUIT)
}

impl Signals {
    pub(super) fn new() -> Result<Self> {
        let kinds = [
            (Signal::INT, true),
            (Signal::QUIT, true),
            (Signal::HUP, true),
            (Signal::TERM, true),
            (Signal::USR1, false),
            (Signal::USR2, false),
        ];
        let is_ignored = ignored();
        let listen = |(kind, asks_to_stop): (Signal, bool)| {
            if comes_from_a_terminal(kind) {
                tell_apart(kind)?;
            }
            Ok(Heard { signal: signal(SignalKind::from_raw(kind.as_raw()))?, kind, asks_to_stop })
        };
        let heard = kinds.into_iter().filter(|(kind, _)| !is_ignored(kind.as_raw()));
        let all = heard.map(listen).collect::<io::Result<_>>();
        Ok(Self { all: all.asked(|| "listen to signals".into())? })
    }

    /// Waits for the command, and passes signals on to it.
    pub(super) async fn wait(&mut self, child: &mut Child) -> io::Result<ExitStatus> {
        let pid = Pid::from_child(child);
        except_from(pid);
        let end = ended(pid);
        tokio::pin!(end);
        loop {
            tokio::select! {
                () = &mut end => return child.wait(),
                (to, _) = self.next() => {
                    if let Some(to) = to {
                        // It may have ended already.
                        let _ = kill_process(pid, to);
                    }
                }
            }
        }
    }

    /// Waits for a signal to stop that has not ended the command, which has ended.
    pub(super) async fn stop(&mut self) {
        let earlier = async {
            loop {
                self.next().await;
            }
        };
        let _ = tokio::time::timeout(SAME_SIGNAL, earlier).await;
        while !self.next().await.1 {}
    }

    /// Whether a signal to stop has come.
    pub(super) async fn stop_came(&mut self) -> bool {
        let mut came = false;
        loop {
            tokio::select! {
                biased;
                (_, asks_to_stop) = self.next() => came |= asks_to_stop,
                () = tokio::task::yield_now() => return came,
            }
        }
    }

    /// The next signal: what the command gets, and whether it asks to stop.
    async fn next(&mut self) -> (Option<Signal>, bool) {
        let (kind, asks_to_stop) = poll_fn(|context| {
            let mut all = self.all.iter_mut();
            let came = all.find_map(|heard| {
                let is_ready = heard.signal.poll_recv(context).is_ready();
                is_ready.then_some((heard.kind, heard.asks_to_stop))
            });
            came.map_or(Poll::Pending, Poll::Ready)
        })
        .await;
        let has_it = comes_from_a_terminal(kind) && !was_sent_by_a_process(kind);
        ((!has_it).then_some(kind), asks_to_stop)
    }
}
