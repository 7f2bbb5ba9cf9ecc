//! The signals that ask a command to end.

use tokio::signal::unix::{Signal, SignalKind, signal};
use weir_tools::failure::{Asked, Result};

/// SIGINT and SIGTERM, from the time that this exists: neither ends the program then.
pub(super) struct StopSignals {
    pub(super) interrupt: Signal,
    pub(super) terminate: Signal,
}

impl StopSignals {
    pub(super) fn listen() -> Result<Self> {
        let listen = |kind| signal(kind).asked(|| "listen to signals".to_owned());
        let interrupt = listen(SignalKind::interrupt())?;
        Ok(Self { interrupt, terminate: listen(SignalKind::terminate())? })
    }

    /// Waits for one of them.
    pub(super) async fn any(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
