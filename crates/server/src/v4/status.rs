//! Converts the errors of the layers below to NFSv4 errors.

use crate::export::HandleError;
use crate::state::StateError;
use crate::storage::client_tracking::NotWritten;
use weir_nfs::v4::Error;

/// The NFSv4 error for an error of the file system.
pub(crate) fn of_vfs(error: weir_vfs::Error) -> Error {
    use weir_vfs::Error as E;
    match error {
        E::NotPermitted => Error::Perm,
        E::NotFound => Error::NoEnt,
        E::NoSuchRange => Error::NxIo,
        E::AccessDenied => Error::Access,
        E::Exists => Error::Exist,
        E::CrossDevice => Error::XDev,
        E::NotDirectory => Error::NotDir,
        E::IsDirectory => Error::IsDir,
        E::Invalid => Error::Inval,
        E::BadFile => Error::OpenMode,
        E::Busy | E::TextBusy => Error::FileOpen,
        E::TooBig => Error::FBig,
        E::TooLong => Error::Xattr2Big,
        E::NoSpace => Error::NoSpc,
        E::ReadOnly => Error::RoFs,
        E::TooManyLinks => Error::MLink,
        E::Range => Error::TooSmall,
        E::Deadlock => Error::Deadlock,
        E::NameTooLong => Error::NameTooLong,
        E::NotEmpty => Error::NotEmpty,
        E::Loop => Error::Symlink,
        E::NoAttribute => Error::NoXattr,
        E::NotSupported => Error::NotSupp,
        E::Stale => Error::Stale,
        E::Quota => Error::DQuot,
        E::WouldBlock | E::Interrupted | E::TimedOut | E::OutOfMemory | E::TooManyOpen => {
            Error::Delay
        }
        _ => Error::Io,
    }
}

/// The NFSv4 error for an error of the state.
pub(crate) fn of_state(error: StateError) -> Error {
    use StateError as E;
    match error {
        E::BadStateId => Error::BadStateId,
        E::OldStateId => Error::OldStateId,
        E::StaleStateId => Error::StaleStateId,
        E::StaleClientId => Error::StaleClientId,
        E::NoSuchClient => Error::NoEnt,
        E::NotSameVerifier => Error::NotSame,
        E::NotSamePrincipal => Error::Perm,
        E::NotTheOpener => Error::Access,
        E::ClientInUse => Error::ClIdInUse,
        E::ClientBusy => Error::ClientIdBusy,
        E::TooMany => Error::Delay,
        E::TooSmall => Error::TooSmall,
        E::BadSession => Error::BadSession,
        E::BadSlot => Error::BadSlot,
        E::Misordered => Error::SeqMisordered,
        E::Uncached => Error::RetryUncachedRep,
        E::FalseRetry => Error::SeqFalseRetry,
        E::Busy | E::Unrecorded | E::Unsettled => Error::Delay,
        E::Delegated => Error::Delay,
        E::Revoked => Error::DelegRevoked,
        E::Expired => Error::Expired,
        E::AdminRevoked => Error::AdminRevoked,
        E::ShareDenied => Error::ShareDenied,
        E::Locked => Error::Locked,
        E::OpenMode => Error::OpenMode,
        E::NotASubset => Error::Inval,
        E::LocksHeld => Error::LocksHeld,
        E::Grace => Error::Grace,
        E::NoGrace => Error::NoGrace,
        E::ReclaimDenied => Error::ReclaimBad,
        E::CompleteAlready => Error::CompleteAlready,
    }
}

/// The NFSv4 error for a request that depends on a record that is not on disk.
pub(crate) fn of_unwritten(error: NotWritten) -> Error {
    match error {
        NotWritten::Yet => Error::Delay,
        NotWritten::Anymore => Error::ServerFault,
    }
}

/// The NFSv4 error for a filehandle that names no file.
pub(crate) fn of_handle(error: HandleError) -> Error {
    match error {
        HandleError::Bad => Error::BadHandle,
        HandleError::Stale => Error::Stale,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_io_errors_become_nfs4err_io() {
        for &error in weir_vfs::Error::ALL {
            let unnamed = [weir_vfs::Error::Io, weir_vfs::Error::NoDevice];
            assert_eq!(of_vfs(error) == Error::Io, unnamed.contains(&error), "{error}");
        }
    }
}
