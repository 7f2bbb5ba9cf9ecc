//! A file as its store has it open for locks.

use crate::state::tables::lock::Holder;
use std::fmt;
use std::sync::Arc;
use weir_vfs::{Error, Lock, LockConflict as Conflict, LockRange, LockRange as Range, OpenFile};

/// A file as its store has it open for locks.
#[derive(Clone)]
pub struct Machine(pub(in crate::state) Arc<dyn OpenFile>);

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Machine")
    }
}

impl Machine {
    /// A lock of a program that is in the way.
    pub(in crate::state) fn conflict(
        &self,
        range: Range,
        exclusive: bool,
    ) -> Option<Conflict<Holder>> {
        let found = self.0.program_test_lock(Lock { range, exclusive }).ok().flatten()?;
        let Lock { range, exclusive } = found;
        Some(Conflict { owner: Holder::Machine, range, exclusive })
    }

    /// Takes a range.
    ///
    /// # Errors
    /// A program's lock that is in the way.
    pub(in crate::state) fn take(
        &self,
        range: Range,
        exclusive: bool,
    ) -> Result<(), Conflict<Holder>> {
        match self.0.program_lock(Lock { range, exclusive }) {
            Err(Error::WouldBlock) => {
                let found = self.conflict(range, exclusive);
                Err(found.unwrap_or(Conflict { owner: Holder::Machine, range, exclusive }))
            }
            Ok(()) => Ok(()),
            Err(error) => {
                tracing::debug!(%error, "a lock is not taken in the store");
                Ok(())
            }
        }
    }

    pub(in crate::state) fn give_back(&self, ranges: impl IntoIterator<Item = LockRange>) {
        for range in ranges {
            if let Err(error) = self.0.program_unlock(range) {
                tracing::debug!(%error, "a lock is not given back to the store");
            }
        }
    }
}
