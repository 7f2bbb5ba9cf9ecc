//! The locks of a file in its store, as the transitions use them.

use crate::state::tables::lock::Holder;
use std::fmt::Debug;
use std::net::IpAddr;
use std::sync::Arc;
use weir_vfs::{Lock, LockConflict as Conflict, LockRange as Range};

/// The locks that the server holds on one file in its store, on behalf of all NFS clients. Local
/// programs see them. Dropping this closes the file there.
///
/// Transitions call these methods while the state is locked, so that a range is locked in the store
/// and entered in the table at once. No method may wait or take a lock.
pub(crate) trait StoreLocks: Debug + Send + Sync {
    /// A local program's lock that conflicts with this one.
    fn conflict(&self, lock: Lock) -> Option<Lock>;

    /// Locks a range. If the store fails for any other reason than a conflict, the range counts as
    /// locked: NFS clients are still kept apart by the table.
    ///
    /// # Errors
    /// The conflicting lock of a local program.
    fn lock(&self, lock: Lock) -> Result<(), Lock>;

    /// Unlocks a range.
    fn unlock(&self, range: Range);
}

/// The locks of a file in its store, for a transition.
#[derive(Clone, Debug)]
pub(crate) struct OpenedStoreLocks {
    pub(crate) locks: Arc<dyn StoreLocks>,
    /// The address at which the open file is counted, if the transition keeps it.
    pub(crate) by: Option<IpAddr>,
}

/// The conflict with a lock of a local program.
pub(in crate::state) fn with_program(Lock { range, exclusive }: Lock) -> Conflict<Holder> {
    Conflict { owner: Holder::LocalProgram, range, exclusive }
}
