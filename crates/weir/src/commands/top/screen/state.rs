//! What the screen shows, and what keys change.

use crate::commands::top::figures::Figures;
use crate::commands::top::figures::sort::Sort;
use crate::commands::top::reader::Readings;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// Readings of which the rates are kept, for the curves.
const HISTORY: usize = 512;

/// A table of the screen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Part {
    #[default]
    Operations,
    Clients,
    Files,
}

/// Rates of one reading, in bytes for each second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rates {
    pub(super) read: u64,
    pub(super) written: u64,
}

/// What the screen shows.
#[derive(Debug, Default)]
pub(super) struct State {
    before: Option<Readings>,
    all: Vec<Figures>,
    /// Why processes did not answer at the last reading.
    pub(super) failures: Vec<String>,
    /// The process that is shown, by its ID.
    chosen: Option<u32>,
    /// Its rates, the newest last.
    pub(super) history: Vec<Rates>,
    pub(super) sort: Sort,
    pub(super) part: Part,
    /// Rows of [`part`](Self::part) that are scrolled away.
    pub(super) scrolled: usize,
    pub(super) is_paused: bool,
    pub(super) is_help: bool,
}

impl State {
    pub(super) fn new(sort: Sort) -> Self {
        Self { sort, ..Self::default() }
    }

    /// The process that is shown, with its number and the number of processes.
    pub(super) fn shown(&self) -> Option<(&Figures, usize, usize)> {
        let at = self.at();
        self.all.get(at).map(|figures| (figures, at + 1, self.all.len()))
    }

    /// Takes a reading. While paused, the figures stay.
    pub(super) fn take(&mut self, now: Readings) {
        if !self.is_paused {
            self.failures.clone_from(&now.failures);
            // Without an answer, the last figures stay on the screen, with the reason.
            if !now.samples.is_empty() {
                self.all = now.figures_since(self.before.as_ref());
                self.sort();
                self.choose(self.at());
                self.remember();
            }
        }
        if !now.samples.is_empty() {
            self.before = Some(now);
        }
    }

    /// Handles a key; returns whether it ends the program.
    pub(super) fn key(&mut self, key: KeyEvent) -> bool {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if is_control => return true,
            // The help covers the rest: any key closes it.
            _ if self.is_help => self.is_help = false,
            KeyCode::Char('q') | KeyCode::Esc => return true,
            KeyCode::Char('h' | '?') => self.is_help = true,
            KeyCode::Char('p' | ' ') => self.is_paused = !self.is_paused,
            KeyCode::Char('s') => {
                self.sort = self.sort.next();
                self.sort();
            }
            KeyCode::Char('t') => self.next_part(),
            KeyCode::Tab | KeyCode::Right => self.choose_next(1),
            KeyCode::BackTab | KeyCode::Left => self.choose_next(self.all.len().saturating_sub(1)),
            KeyCode::Up => self.scroll(-1),
            KeyCode::Down => self.scroll(1),
            KeyCode::PageUp => self.scroll(-10),
            KeyCode::PageDown => self.scroll(10),
            KeyCode::Home => self.scrolled = 0,
            KeyCode::End => self.scroll(isize::MAX),
            _ => {}
        }
        false
    }

    /// The place of the chosen process. If it is gone, the first takes its place.
    fn at(&self) -> usize {
        self.all.iter().position(|one| Some(one.pid) == self.chosen).unwrap_or(0)
    }

    fn choose_next(&mut self, steps: usize) {
        let at = (self.at() + steps) % self.all.len().max(1);
        self.choose(at);
    }

    fn choose(&mut self, at: usize) {
        let pid = self.all.get(at).map(|figures| figures.pid);
        if pid != self.chosen {
            self.history.clear();
            self.scrolled = 0;
        }
        self.chosen = pid;
    }

    fn sort(&mut self) {
        let sort = self.sort;
        self.all.iter_mut().for_each(|figures| sort.apply(figures));
    }

    fn remember(&mut self) {
        let Some((figures, ..)) = self.shown().filter(|(figures, ..)| !figures.since_start) else {
            return;
        };
        let rate = |bytes| figures.per_second(bytes) as u64;
        let Rates { read, written } = Rates {
            read: rate(figures.data.read_bytes),
            written: rate(figures.data.written_bytes),
        };
        self.history.push(Rates { read, written });
        let old = self.history.len().saturating_sub(HISTORY);
        self.history.drain(..old);
    }

    fn next_part(&mut self) {
        let has_clients = self.shown().is_some_and(|(one, ..)| !one.connections.is_empty());
        self.part = match self.part {
            Part::Operations if has_clients => Part::Clients,
            Part::Operations | Part::Clients => Part::Files,
            Part::Files => Part::Operations,
        };
        self.scrolled = 0;
    }

    fn scroll(&mut self, by: isize) {
        let rows = self.shown().map_or(0, |(figures, ..)| match self.part {
            Part::Operations => figures.operations.len(),
            Part::Clients => figures.connections.len(),
            Part::Files => figures.files.len(),
        });
        self.scrolled = self.scrolled.saturating_add_signed(by).min(rows.saturating_sub(1));
    }
}
