//! Byte-range locks of local files: the kernel's open file description locks (fcntl(2),
//! F_OFD_SETLK), so that they hold against every program on the machine.
//!
//! 1. Each owner has its own open file description, as the kernel's locks belong to those; it is
//!    closed when the owner releases everything, or with the open file.
//! 2. The kernel's own wait would block a thread without a way to cancel it, so a thread polls for
//!    the lock, and ends when the caller stops waiting.

use crate::local::sys::proc_path;
use crate::local::sys::{self, LockCommand};
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use weir_vfs::{Access, Error, Lock, LockOwner, LockRange, Result};

/// Pauses between attempts.
const PAUSE: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(5)..=Duration::from_millis(200);

/// The open file descriptions of an open file's owners.
#[derive(Debug, Default)]
pub(in crate::local) struct Locks {
    owners: Mutex<HashMap<LockOwner, Arc<OwnedFd>>>,
}

impl Locks {
    pub(in crate::local) async fn lock(
        &self,
        file: BorrowedFd<'_>,
        access: Access,
        owner: LockOwner,
        lock: Lock,
        wait: bool,
    ) -> Result<()> {
        let description = self.description(file, access, owner)?;
        match sys::lock(description.as_fd(), LockCommand::Take, lock) {
            Err(error) if is_denied(&error) && wait => wait_for(description, lock).await,
            Err(error) if is_denied(&error) => Err(Error::WouldBlock),
            taken => Ok(taken.map(drop)?),
        }
    }

    pub(in crate::local) fn test(
        &self,
        file: BorrowedFd<'_>,
        access: Access,
        owner: LockOwner,
        lock: Lock,
    ) -> Result<Option<Lock>> {
        let description = self.description(file, access, owner)?;
        Ok(sys::lock(description.as_fd(), LockCommand::Test, lock)?)
    }

    pub(in crate::local) fn unlock(&self, owner: LockOwner, range: LockRange) -> Result<()> {
        let mut owners = self.owners.lock();
        let Some(description) = owners.get(&owner) else { return Ok(()) };
        let lock = Lock { range, exclusive: false };
        sys::lock(description.as_fd(), LockCommand::Free, lock)?;
        if range == LockRange::ALL {
            owners.remove(&owner);
        }
        Ok(())
    }

    fn description(
        &self,
        file: BorrowedFd<'_>,
        access: Access,
        owner: LockOwner,
    ) -> Result<Arc<OwnedFd>> {
        let mut owners = self.owners.lock();
        if let Some(description) = owners.get(&owner) {
            return Ok(description.clone());
        }
        let mode = if access == Access::READ {
            OFlags::RDONLY
        } else if access == Access::WRITE {
            OFlags::WRONLY
        } else {
            OFlags::RDWR
        };
        let opened = rustix::fs::open(proc_path(file), mode | OFlags::CLOEXEC, Mode::empty());
        let description = Arc::new(opened.map_err(io::Error::from)?);
        owners.insert(owner, description.clone());
        Ok(description)
    }
}

fn is_denied(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES))
}

async fn wait_for(description: Arc<OwnedFd>, lock: Lock) -> Result<()> {
    let (tell, told) = oneshot::channel();
    let waiting = move || {
        let mut pause = *PAUSE.start();
        while !tell.is_closed() {
            match sys::lock(description.as_fd(), LockCommand::Take, lock) {
                Err(error) if is_denied(&error) => {}
                taken => {
                    let taken = taken.map(drop).map_err(Error::from);
                    if tell.send(taken).is_err() {
                        // The caller stopped waiting, but did not ask to release the lock.
                        drop(sys::lock(description.as_fd(), LockCommand::Free, lock));
                    }
                    return;
                }
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(*PAUSE.end());
        }
    };
    std::thread::Builder::new().name("weir-lock".into()).spawn(waiting)?;
    told.await.unwrap_or(Err(Error::Io))
}
