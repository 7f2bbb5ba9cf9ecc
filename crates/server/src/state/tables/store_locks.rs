//! A file that is open in its store for locking.

use crate::state::tables::lock::Holder;
use std::fmt;
use std::sync::Arc;
use weir_vfs::{Error, Lock, LockConflict as Conflict, LockRange, LockRange as Range, OpenFile};

/// A file that is open in its store for locking.
#[derive(Clone)]
pub struct Machine(pub(in crate::state) Arc<dyn OpenFile>);

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Machine")
    }
}

impl Machine {
    /// The conflicting lock of a local program, if there is one.
    pub(in crate::state) fn conflict(
        &self,
        range: Range,
        exclusive: bool,
    ) -> Option<Conflict<Holder>> {
        let found = self.0.program_test_lock(Lock { range, exclusive }).ok().flatten()?;
        let Lock { range, exclusive } = found;
        Some(Conflict { owner: Holder::Machine, range, exclusive })
    }

    /// Locks a range in the store. If the store fails for any other reason than a conflict, the range
    /// counts as locked: NFS clients are still kept apart by the table.
    ///
    /// # Errors
    /// The conflicting lock of a local program.
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
                tracing::debug!(%error, "cannot lock a range in the store");
                Ok(())
            }
        }
    }

    /// Unlocks ranges in the store.
    pub(in crate::state) fn give_back(&self, ranges: impl IntoIterator<Item = LockRange>) {
        for range in ranges {
            if let Err(error) = self.0.program_unlock(range) {
                tracing::debug!(%error, "cannot unlock a range in the store");
            }
        }
    }
}
