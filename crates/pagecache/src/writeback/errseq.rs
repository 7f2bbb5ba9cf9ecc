//! Errors of writeback and of the store's sync, reported once to each open file.
//!
//! 1. Each error is reported to every file that was open when it happened, independently of the
//!    other open files, like Linux's `errseq_t`.
//! 2. Until one open file got an error, it is also reported to files opened later, even if the
//!    file's mapping is dropped in between ([`Untold`]), and finally to the caller that unmounts
//!    the store.
//! 3. What an open file is only shown ([`WriteErrors::show`]: the close of one of its descriptors) it still
//!    gets by its next write or sync.
//! 4. Several errors that an open file has not got yet are reported as one, the last.

use std::collections::HashMap;
use weir_base::sync::atomic::{AtomicU64, Ordering};
use weir_vfs::{Error, FileId, Result};

/// Most files without a mapping whose errors are kept: less than a megabyte.
const UNTOLD_FILES: usize = 16 << 10;

/// The errors of a file so far.
#[derive(Debug)]
pub(crate) struct WriteErrors {
    last: Error,
    count: u64,
    /// The last error was reported to an open file.
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

    /// Number of errors.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// The last error.
    pub(crate) fn last(&self) -> Error {
        self.last
    }

    /// The last error, if there were more than `count`.
    pub(crate) fn since(&self, count: u64) -> Result<()> {
        if self.count == count { Ok(()) } else { Err(self.last) }
    }

    /// The last error, if no open file got it.
    pub(crate) fn untold(&self) -> Option<Error> {
        (!self.told).then_some(self.last)
    }

    /// The cursor of a file that is opened now.
    pub(crate) fn cursor(&self) -> u64 {
        if self.told { self.count } else { self.count - 1 }
    }

    /// Reports the last error to the open file with this cursor, unless it got it before.
    pub(crate) fn tell(&mut self, cursor: &AtomicU64) -> Result<()> {
        self.show(cursor.swap(self.count, Ordering::Relaxed))
    }

    /// Reports the last error to an open file with this cursor, which stays: the file gets it again.
    pub(crate) fn show(&mut self, cursor: u64) -> Result<()> {
        if cursor == self.count {
            return Ok(());
        }
        self.told = true;
        Err(self.last)
    }
}

/// Errors that no open file got, of files without a mapping.
#[derive(Default)]
pub(crate) struct Untold {
    files: HashMap<FileId, Error>,
}

impl Untold {
    /// The file's mapping is about to be dropped. If there are too many files, only the log has the
    /// error.
    pub(crate) fn keep(&mut self, id: FileId, errors: &WriteErrors) {
        if let Some(error) = errors.untold() {
            self.note(id, error);
        }
    }

    /// An error of a file without a mapping.
    pub(crate) fn note(&mut self, id: FileId, error: Error) {
        if self.files.len() < UNTOLD_FILES {
            self.files.insert(id, error);
        } else {
            tracing::error!("an error of file {} is reported to no open file: {error}", id.ino);
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

    /// One of the errors; clears all.
    pub(crate) fn take(&mut self) -> Option<Error> {
        self.files.drain().map(|(_, error)| error).last()
    }
}

/// Whether a write to the store that failed with this error may succeed when it is retried.
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

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn an_error_without_a_mapping_is_passed_on_once_unless_its_file_is_gone() {
        let id = |ino| FileId { ino, generation: 1 };
        let mut untold = Untold::default();
        let mut errors = WriteErrors::default();
        untold.keep(id(1), &errors);
        errors.note(Error::NoSpace);
        untold.keep(id(2), &errors);
        untold.keep(id(3), &errors);
        assert_eq!(errors.show(0), Err(Error::NoSpace));
        untold.keep(id(4), &errors);
        untold.forget(id(3));
        for (ino, count) in [(1, 0), (2, 1), (2, 0), (3, 0), (4, 0)] {
            let mut errors = WriteErrors::default();
            untold.pass_on(id(ino), &mut errors);
            assert_eq!(errors.count(), count, "file {ino}");
        }
        assert_eq!(untold.take(), None);
    }

    #[test]
    fn each_open_file_gets_an_error_once_and_later_ones_if_none_did() {
        let mut errors = WriteErrors::default();
        let [early, other] = [(); 2].map(|()| AtomicU64::new(errors.cursor()));
        errors.note(Error::NoSpace);
        let late = AtomicU64::new(errors.cursor());
        for open in [&early, &late, &other] {
            assert_eq!([0; 2].map(|_| errors.tell(open)), [Err(Error::NoSpace), Ok(())]);
        }
        assert_eq!((errors.untold(), errors.cursor()), (None, 1), "told");
        assert_eq!((errors.since(0), errors.since(1)), (Err(Error::NoSpace), Ok(())));
    }
}
