//! The end of a copy by a signal: unfinished files are removed, and what is left is said.

use crate::by_signal::end_by;
use crate::commands::stop_signals::StopSignals;
use crate::output::say;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use weir_tools::copy::Copier;

/// Has a signal end the copy from now on. The handlers stay until the program ends, because unmounting
/// may hang, too.
pub(crate) fn end_by_signals(copier: &Arc<Copier>) {
    Ending::by_signals().begin(copier);
}

/// The end of a command, which copies one source after another, by a signal.
#[derive(Default)]
pub(crate) struct Ending {
    /// The copy that runs, or the last one.
    copier: Mutex<Option<Arc<Copier>>>,
    asked: watch::Sender<bool>,
}

impl Ending {
    /// Listens to signals from now on, until the program ends.
    pub(crate) fn by_signals() -> Arc<Self> {
        let ending = Arc::new(Self::default());
        if let Ok(signals) = StopSignals::listen() {
            tokio::spawn(interrupt(signals, Arc::clone(&ending)));
        }
        ending
    }

    /// A signal ends this copy from now on, or has ended it.
    pub(crate) fn begin(&self, copier: &Arc<Copier>) {
        let mut current = self.copier.lock();
        *current = Some(Arc::clone(copier));
        if self.is_asked() {
            copier.interrupt();
        }
    }

    /// Whether a signal has come.
    pub(crate) fn is_asked(&self) -> bool {
        *self.asked.borrow()
    }

    /// Waits for a signal.
    pub(crate) async fn asked(&self) {
        // The sender is in `self`, so it is not gone while a task waits here.
        let _ = self.asked.subscribe().wait_for(|&asked| asked).await;
    }

    fn ask(&self) -> Option<Arc<Copier>> {
        let current = self.copier.lock();
        self.asked.send_replace(true);
        if let Some(copier) = &*current {
            copier.interrupt();
        }
        current.clone()
    }
}

/// Time that an interrupted copy has to remove unfinished files and to release its servers' state,
/// and that it waits for a server that does not answer.
const ORDERLY_END: Duration = Duration::from_secs(5);

/// The first signal makes the copy remove its unfinished files and end; the second ends the program.
async fn interrupt(mut signals: StopSignals, ending: Arc<Ending>) {
    let first = signals.any().await;
    let copier = ending.ask();
    // The copy normally ends the program before this returns.
    let again = tokio::time::timeout(ORDERLY_END, signals.again()).await;
    say(match again {
        Ok(_) => "weir: interrupted again, ending at once",
        Err(_) if copier.as_ref().is_none_or(|copier| copier.left().0.is_empty()) => {
            "weir: ending; a server does not answer"
        }
        Err(_) => "weir: ending; unfinished files could not be removed in time",
    });
    if let Some(copier) = copier {
        say_what_is_left(&copier);
    }
    end_by(again.unwrap_or(first).as_raw());
}

/// Reports, once, the files that an interrupted copy left, and what to do with them.
pub(crate) fn say_what_is_left(copier: &Copier) {
    if copier.was_told() {
        return;
    }
    for file in copier.incomplete() {
        say(format_args!("weir: {file} was overwritten in place and is incomplete"));
    }
    let (unfinished, begun) = copier.left();
    for file in &unfinished {
        say(format_args!("weir: {file} is left over; remove it"));
    }
    for file in &begun {
        say(format_args!(
            "weir: {file} is unfinished; repeat the command to continue it, or remove it"
        ));
    }
}
