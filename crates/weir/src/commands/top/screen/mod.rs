//! The live view on a terminal.
//!
//! 1. One thread asks the processes, so that a key never waits for an answer.
//! 2. Every way out restores the terminal: a key, a signal, a failure, and a panic of any thread.

mod draw;
mod state;
#[cfg(test)]
mod tests;

use super::MOST_FILES;
use super::figures::sort::Sort;
use super::reader::{Readings, Target};
use crate::commands::runtime_with;
use crate::commands::stop_signals::StopSignals;
use crate::ended::Ended;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use state::State;
use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::time::Duration;
use weir_tools::failure::{Asked, Result};

/// How often the view looks for readings and signals while no key is pressed.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Shows the processes until the user or a signal ends it.
pub(super) fn show(target: Target, interval: Duration, sort: Sort) -> Result<Ended> {
    let stop = Arc::new(AtomicBool::new(false));
    let signals = runtime_with(NonZeroUsize::new(1))?;
    let asked = || "show figures on this terminal".to_owned();
    signals.block_on(listen(stop.clone()))?;
    let readings = read(target, interval).asked(asked)?;
    let terminal = ratatui::try_init().asked(asked)?;
    let restored = Restore;
    let ended = run(terminal, &readings, &stop, State::new(sort));
    drop(restored);
    ended.asked(asked)
}

/// Restores the terminal. The library's panic hook does it before a message is printed.
struct Restore;

impl Drop for Restore {
    fn drop(&mut self) {
        // A terminal that is gone needs no restoring.
        let _ = ratatui::try_restore();
    }
}

/// Notes the signals that end the program.
async fn listen(stop: Arc<AtomicBool>) -> Result<()> {
    let mut signals = StopSignals::listen()?;
    tokio::spawn(async move {
        signals.any().await;
        stop.store(true, Ordering::Release);
    });
    Ok(())
}

/// Reads the counters once in each interval, as long as the readings are taken.
fn read(target: Target, interval: Duration) -> io::Result<Receiver<Readings>> {
    let (send, receive) = mpsc::channel();
    let thread = std::thread::Builder::new().name("weir-top".into());
    thread.spawn(move || {
        while send.send(Readings::take(&target, MOST_FILES)).is_ok() {
            std::thread::sleep(interval);
        }
    })?;
    Ok(receive)
}

/// Takes the readings that have arrived; returns whether there were any.
///
/// # Errors
/// There will be no more: the thread that reads has ended by a panic.
fn take_new(readings: &Receiver<Readings>, state: &mut State) -> io::Result<bool> {
    let mut is_new = false;
    loop {
        match readings.try_recv() {
            Ok(now) => state.take(now),
            Err(TryRecvError::Empty) => return Ok(is_new),
            Err(TryRecvError::Disconnected) => {
                return Err(io::Error::other("the thread that reads the counters has ended"));
            }
        }
        is_new = true;
    }
}

fn run(
    mut terminal: DefaultTerminal,
    readings: &Receiver<Readings>,
    stop: &AtomicBool,
    mut state: State,
) -> io::Result<Ended> {
    let mut is_changed = true;
    loop {
        if stop.load(Ordering::Acquire) {
            return Ok(Ended::Interrupted);
        }
        is_changed |= take_new(readings, &mut state)?;
        if std::mem::take(&mut is_changed) {
            terminal.draw(|frame| draw::draw(frame, &state))?;
        }
        if event::poll(LOOK_EVERY)? {
            is_changed = true;
            if let Event::Key(key) = event::read()?
                && key.kind != KeyEventKind::Release
                && state.key(key)
            {
                return Ok(Ended::Done);
            }
        }
    }
}
