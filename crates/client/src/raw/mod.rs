//! Single calls to an NFSv4 server, for conformance tests.
//!
//! [`Connection`] and [`Session`] send any compound, and share nothing with a mount. The functions make one
//! call each for a mount, or for an open file of one. All return what the server answers, before this
//! client interprets it or recovers from an error; a program that wants a file's data uses [`NfsFs`]
//! instead. A function that the mount's version does not have, or for a file of another file system, fails
//! with [`Error::NoSuchCall`]: READ_PLUS is an operation of version 4.2.

mod callbacks;
mod session;

pub use callbacks::Callbacks;
pub use session::{Connection, Reply, Session, create_session, exchange_id, new_client};

use crate::error::{Error, Result};
use crate::fs::NfsFs;
use crate::fs::file::NfsFile;
use crate::protocol::Protocol;
use crate::v4::client::V4;
use std::any::Any;
use std::sync::Arc;
use std::time::Duration;
use weir_nfs::v4::op::read_plus::ReadPlus;
use weir_nfs::v4::types::{LockDenied, StateId};
use weir_vfs::{Lock, LockOwner, OpenFile};

/// One READ_PLUS (RFC 7862 section 15.10) of an open file, as the server answers it.
///
/// # Errors
/// The server refuses it, or the version has no such call.
pub async fn read_plus(file: &dyn OpenFile, offset: u64, count: u32) -> Result<ReadPlus> {
    let file = nfs_file(file, "READ_PLUS")?;
    let opened = Arc::clone(&file.opened);
    let call = |_| async move {
        v4_2(&*opened.protocol, "READ_PLUS")?.raw_read_plus(&opened.open, offset, count).await
    };
    file.mount.try_run(call).await
}

/// One READ_PLUS of the first byte of an open file, under any stateid.
///
/// # Errors
/// The server refuses it, or the version has no such call.
pub async fn read_under(file: &dyn OpenFile, stateid: StateId) -> Result<()> {
    let file = nfs_file(file, "READ_PLUS")?;
    let opened = Arc::clone(&file.opened);
    let call = |_| async move {
        v4_2(&*opened.protocol, "READ_PLUS")?.raw_read_under(&opened.open, stateid).await
    };
    file.mount.try_run(call).await
}

/// The stateid of an open file (RFC 8881 section 8.2).
///
/// # Errors
/// The version has no stateids.
pub fn stateid(file: &dyn OpenFile) -> Result<StateId> {
    let opened = &nfs_file(file, "a stateid")?.opened;
    v4(&*opened.protocol, "a stateid")?
        .raw_stateid(&opened.open)
        .ok_or(Error::NoSuchCall("a stateid"))
}

/// A lock that conflicts with `lock`, as LOCKT (RFC 8881 section 18.11) reports it.
///
/// # Errors
/// The server refuses the call, or the version has no such call.
pub async fn test_lock(
    file: &dyn OpenFile,
    owner: LockOwner,
    lock: Lock,
) -> Result<Option<LockDenied>> {
    let file = nfs_file(file, "LOCKT")?;
    let opened = Arc::clone(&file.opened);
    let owner = opened.owners.get(owner);
    let call =
        |_| async move { v4(&*opened.protocol, "LOCKT")?.denied(&opened.open, owner, lock).await };
    file.mount.try_run(call).await
}

/// Suspends or resumes lease renewal (RFC 8881 section 8.3); returns the duration of the lease.
///
/// # Errors
/// The version has no leases.
pub fn fall_silent(nfs: &NfsFs, silent: bool) -> Result<Duration> {
    v4(nfs.protocol(), "a lease")?.fall_silent(silent).ok_or(Error::NoSuchCall("a lease"))
}

fn nfs_file<'a>(file: &'a dyn OpenFile, call: &'static str) -> Result<&'a NfsFile> {
    file.as_any().downcast_ref().ok_or(Error::NoSuchCall(call))
}

fn v4<'a>(protocol: &'a dyn Protocol, call: &'static str) -> Result<&'a V4> {
    let protocol: &dyn Any = protocol;
    protocol.downcast_ref().ok_or(Error::NoSuchCall(call))
}

fn v4_2<'a>(protocol: &'a dyn Protocol, call: &'static str) -> Result<&'a V4> {
    let protocol = v4(protocol, call)?;
    if protocol.has_read_plus() { Ok(protocol) } else { Err(Error::NoSuchCall(call)) }
}
