//! The end of a copy by a signal: unfinished files are removed, and what is left is said.

use crate::commands::stop_signals::StopSignals;
use crate::output::say;
use std::sync::Arc;
use std::time::Duration;
use weir_tools::copy::Copier;

/// Has a signal end the copy from now on. The handlers stay until the program ends, because unmounting
/// may hang, too.
pub(crate) fn end_by_signals(copier: &Arc<Copier>) {
    if let Ok(signals) = StopSignals::listen() {
        tokio::spawn(interrupt(signals, Arc::clone(copier)));
    }
}

/// Time that an interrupted copy has to remove unfinished files and to release its servers' state,
/// and that it waits for a server that does not answer.
const ORDERLY_END: Duration = Duration::from_secs(5);

/// The first signal makes the copy remove its unfinished files and end; the second ends the program.
async fn interrupt(mut signals: StopSignals, copier: Arc<Copier>) {
    signals.any().await;
    copier.interrupt();
    // The copy normally ends the program before this returns.
    let again = tokio::time::timeout(ORDERLY_END, signals.any()).await;
    say(match again {
        Ok(()) => "weir: interrupted again, ending at once",
        Err(_) if copier.left().0.is_empty() => "weir: ending; a server does not answer",
        Err(_) => "weir: ending; unfinished files could not be removed in time",
    });
    say_what_is_left(&copier);
    std::process::exit(130);
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
