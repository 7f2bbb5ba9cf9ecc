//! Errors of writeback and of the store's sync, told to each open file once.
//!
//! 1. Each error is told to every open file that was open when it happened, whether or not the others
//!    have been told, as Linux's `errseq_t` does.
//! 2. As long as no open file has been told, an error is also told to files opened later, also if the
//!    file's mapping is let go of in between ([`Untold`]), and at last to who unmounts the store.
//! 3. Several errors that an open file has not been told of are told as one, the last.

use std::collections::HashMap;
use weir_base::sync::atomic::{AtomicU64, Ordering};
use weir_vfs::{Error, FileId, Result};

/// Files without a mapping whose errors are kept at most: hardly a megabyte.
const UNTOLD_FILES: usize = 16 << 10;

/// The errors of a file so far.
#[derive(Debug)]
pub(crate) struct WriteErrors {
    last: Error,
    count: u64,
    /// An open file has been told of the last one.
    told: bool,
}

impl Default for WriteErrors {
    fn default() -> Self {
        Self { last: Error::Io, count: 0, told: true }
    }
}

impl WriteErrors {
    pub(crate) fn note(&mut self, error: Error) {
        self.last = error;
        self.count += 1;
        self.told = false;
    }

    /// How many there were.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// The last one.
    pub(crate) fn last(&self) -> Error {
        self.last
    }

    /// The last one, if no open file has been told of it.
    pub(crate) fn untold(&self) -> Option<Error> {
        (!self.told).then_some(self.last)
    }

    /// What a file that is opened now has been told of.
    pub(crate) fn cursor(&self) -> u64 {
        if self.told { self.count } else { self.count - 1 }
    }

    /// Tells the open file with this cursor of the last error, unless it has been told.
    pub(crate) fn tell(&mut self, cursor: &AtomicU64) -> Result<()> {
        if cursor.swap(self.count, Ordering::Relaxed) == self.count {
            return Ok(());
        }
        self.told = true;
        Err(self.last)
    }
}

/// Errors of files without a mapping, of which no open file has been told.
#[derive(Default)]
pub(crate) struct Untold {
    files: HashMap<FileId, Error>,
}

impl Untold {
    /// The file's mapping is about to go. Of too many files nothing is kept but the log's line.
    pub(crate) fn keep(&mut self, id: FileId, errors: &WriteErrors) {
        match errors.untold() {
            Some(error) if self.files.len() < UNTOLD_FILES => _ = self.files.insert(id, error),
            Some(error) => tracing::error!(
                "no open file will be told of this error of file {}: {error}",
                id.ino
            ),
            None => {}
        }
    }

    /// The file has a mapping again.
    pub(crate) fn pass_on(&mut self, id: FileId, errors: &mut WriteErrors) {
        if let Some(error) = self.files.remove(&id) {
            errors.note(error);
        }
    }

    /// The file is gone.
    pub(crate) fn forget(&mut self, id: FileId) {
        self.files.remove(&id);
    }

    /// One of all; none is kept.
    pub(crate) fn take(&mut self) -> Option<Error> {
        self.files.drain().map(|(_, error)| error).last()
    }
}

/// Whether a write to the store that failed with this error may succeed when it is tried again.
pub(crate) fn may_pass(error: Error) -> bool {
    matches!(
        error,
        Error::Io
            | Error::Interrupted
            | Error::WouldBlock
            | Error::OutOfMemory
            | Error::Busy
            | Error::TooManyOpen
            | Error::TextBusy
            | Error::TimedOut
    )
}
