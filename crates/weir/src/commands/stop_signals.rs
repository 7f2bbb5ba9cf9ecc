//! The signals that ask a command to end.

use super::child_end::SAME_SIGNAL;
use rustix::process::Signal;
use std::future::poll_fn;
use std::io;
use std::sync::atomic::{AtomicI32, Ordering};
use std::task::Poll;
use tokio::signal::unix::{self, SignalKind, signal};
use weir_tools::failure::{Asked, Result};

/// What a terminal, a service manager, or the end of a session sends.
const TO_STOP: [Signal; 3] = [Signal::INT, Signal::TERM, Signal::HUP];

/// Signals that ask to stop, from the time that this exists: none of them ends the program then. Those that this
/// process ignores are not among them.
pub(crate) struct StopSignals(Vec<(Signal, unix::Signal)>);

impl StopSignals {
    /// Listens to SIGINT, SIGTERM and SIGHUP.
    pub(super) fn listen() -> Result<Self> {
        Self::listen_to(&TO_STOP)
    }

    /// The same, and SIGQUIT.
    pub(super) fn with_quit() -> Result<Self> {
        Self::listen_to(&[&TO_STOP[..], &[Signal::QUIT]].concat())
    }

    fn listen_to(wanted: &[Signal]) -> Result<Self> {
        let is_ignored = ignored();
        let heard = wanted.iter().filter(|wanted| !is_ignored(wanted.as_raw()));
        let listen =
            |&wanted: &Signal| Ok((wanted, signal(SignalKind::from_raw(wanted.as_raw()))?));
        let all = heard.map(listen).collect::<io::Result<_>>();
        Ok(Self(all.asked(|| "listen to signals".to_owned())?))
    }

    /// Waits for one of them, for ever if all are ignored.
    pub(super) async fn any(&mut self) -> Signal {
        poll_fn(|context| {
            let mut all = self.0.iter_mut();
            let came = all
                .find_map(|(signal, heard)| heard.poll_recv(context).is_ready().then_some(*signal));
            came.map_or(Poll::Pending, |signal| {
                LAST.store(signal.as_raw(), Ordering::Release);
                Poll::Ready(signal)
            })
        })
        .await
    }

    /// Waits for a further request to stop. SIGHUP is none: at the end of a session, several send it (the shell, the
    /// kernel, a command that passes it on).
    pub(super) async fn again(&mut self) -> Signal {
        loop {
            match self.any().await {
                Signal::HUP => {}
                signal => return signal,
            }
        }
    }

    /// Waits for a request to stop after the end of a command, which a signal of the same kind may have ended.
    pub(super) async fn after_end(&mut self) -> Signal {
        let same = async {
            loop {
                self.any().await;
            }
        };
        let _ = tokio::time::timeout(SAME_SIGNAL, same).await;
        self.again().await
    }
}

/// The number of the last signal that was heard; 0 before.
static LAST: AtomicI32 = AtomicI32::new(0);

/// Whether this process has heard a signal to stop.
pub(super) fn has_stop_come() -> bool {
    LAST.load(Ordering::Acquire) != 0
}

/// The number of the last signal to stop that this process has heard; that of SIGINT before.
pub(crate) fn last_stop() -> i32 {
    match LAST.load(Ordering::Acquire) {
        0 => Signal::INT.as_raw(),
        last => last,
    }
}

/// Tells which signals this process ignores, by their numbers. They stay ignored: nohup(1) and shells have it so, also
/// for the programs that a command starts.
pub(super) fn ignored() -> impl Fn(i32) -> bool {
    let status = std::fs::read("/proc/self/status").unwrap_or_default();
    let status = String::from_utf8_lossy(&status);
    let hex = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = hex.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    move |signal| (ignored >> (signal - 1)) & 1 == 1
}
