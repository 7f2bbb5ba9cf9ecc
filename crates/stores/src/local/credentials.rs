//! Acting on a caller's behalf: the thread takes on the identity, and always gives it back.
//!
//! Sound because the system calls used here touch nothing but the calling thread's credentials
//! (the raw calls are per thread; only libc's wrappers are per process), and read only the group
//! list that they are given.
//!
//! 1. [`Identity::assume`] returns with all of the identity taken on, or with none of it.
//! 2. The identity ends with the guard, which cannot leave its thread. A thread that could not
//!    get its own identity back would act as another user from then on: the process aborts.
//! 3. Threads that write what the cache accepted earlier do so as a user who is not the superuser
//!    ([`write_unprivileged`]), so that no block that a file system reserves for the
//!    superuser goes to clients.

use crate::rules::{self, Ownership};
use rustix::fs::Statx;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use std::io;
use std::marker::PhantomData;
use weir_vfs::{Caller, Cred, Error, Permissions, Result};

/// The user as whom accepted data is written: any but the superuser (65,534 usually owns no files).
const WRITER: u32 = 65_534;

/// The identity of the process, and whether it may take on others.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    own: Cred,
    can_switch: bool,
}

/// While it lives, this thread makes file system calls as the caller.
pub(super) struct Assumed<'a> {
    restore: Option<&'a Identity>,
    _not_send: PhantomData<*const ()>,
}

impl Identity {
    /// Finds out what this process may do, by trying.
    pub(super) fn of_process() -> Self {
        let own = Cred {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: rustix::process::getgroups()
                .map(|groups| groups.into_iter().map(|g| g.as_raw()).collect())
                .unwrap_or_default(),
        };
        let mut identity = Self { own, can_switch: false };
        if identity.own.uid == 0 {
            identity.can_switch = set_groups(&identity.own.groups).is_ok() && {
                let probe = set_fs_ids(65_534, 65_534);
                let restored = set_fs_ids(identity.own.uid, identity.own.gid);
                abort_unless(restored);
                probe
            };
        }
        identity
    }

    /// Whether calls can be made as others than the process's user.
    pub(super) fn can_switch(&self) -> bool {
        self.can_switch
    }

    /// Which permissions a file's mode gives a caller: a guess at what the kernel says.
    pub(super) fn likely_permissions(&self, caller: &Caller, file: &Statx) -> Permissions {
        let cred = match caller {
            Caller::As(cred) if self.can_switch => cred,
            _ => &self.own,
        };
        let mode = u32::from(file.stx_mode);
        let ownership = Ownership {
            mode,
            uid: file.stx_uid,
            gid: file.stx_gid,
            is_dir: mode & libc::S_IFMT == libc::S_IFDIR,
            acl: None,
        };
        rules::granted_to(Some(cred).filter(|cred| cred.uid != 0), &ownership, Permissions::all())
    }

    /// Takes on the caller's identity, where the process may; else calls stay the process's own.
    pub(super) fn assume(&self, caller: &Caller) -> Result<Assumed<'_>> {
        let cred = match caller {
            Caller::As(cred) if self.can_switch && *cred != self.own => cred,
            _ => return Ok(Assumed { restore: None, _not_send: PhantomData }),
        };
        let assumed = Assumed { restore: Some(self), _not_send: PhantomData };
        // Groups first: without the superuser's rights they could not be set.
        set_groups(&cred.groups).map_err(|_| Error::NotPermitted)?;
        if !set_fs_ids(cred.uid, cred.gid) {
            return Err(Error::NotPermitted);
        }
        Ok(assumed)
    }
}

impl Assumed<'_> {
    /// While the guard lives, the caller counts as the owner of every file (CAP_FOWNER), and is
    /// checked as itself in every other way. Nothing where no identity was taken on.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(super) fn count_as_owner(&self) -> Result<()> {
        if self.restore.is_some() {
            // It goes with the identity: taking on user 0 again sets these rights anew.
            let now = capabilities(None).map_err(io::Error::from)?;
            let effective = now.effective | now.permitted & CapabilitySet::FOWNER;
            set_capabilities(None, CapabilitySets { effective, ..now }).map_err(io::Error::from)?;
        }
        Ok(())
    }
}

/// From now on, this thread changes files as a user who is not the superuser, if the process is, with
/// all of the process's rights but that to resources that are reserved for the superuser.
///
/// Says so in the log if the kernel refuses; the thread goes on with the process's rights then.
pub(super) fn write_unprivileged() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let become_writer = || -> io::Result<()> {
        let now = capabilities(None)?;
        if !set_fs_ids(WRITER, rustix::process::getegid().as_raw()) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        // Some rights went with the user; they are still permitted. Files that are open are written
        // with any rights, but FSETID keeps set-user-ID and set-group-ID where they were left.
        let effective = now.effective - CapabilitySet::SYS_RESOURCE;
        Ok(set_capabilities(None, CapabilitySets { effective, ..now })?)
    };
    if let Err(error) = become_writer() {
        tracing::warn!(%error, "clients can use the space that is reserved for the superuser");
    }
}

impl Drop for Assumed<'_> {
    fn drop(&mut self) {
        if let Some(identity) = self.restore {
            abort_unless(set_fs_ids(identity.own.uid, identity.own.gid));
            abort_unless(set_groups(&identity.own.groups).is_ok());
        }
    }
}

fn abort_unless(restored: bool) {
    if !restored {
        tracing::error!("cannot return to the process's own identity");
        std::process::abort();
    }
}

fn set_groups(groups: &[u32]) -> io::Result<()> {
    // SAFETY: the pointer is to as many group ids as the call is told; it changes this thread's
    // credentials only.
    match unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether the identity is now the one asked for.
fn set_fs_ids(uid: u32, gid: u32) -> bool {
    // The calls return the value before, whether or not they succeed; asking for the impossible id
    // -1 is how to read it.
    // SAFETY: they take numbers only, and change this thread's credentials only.
    unsafe {
        libc::syscall(libc::SYS_setfsgid, gid);
        libc::syscall(libc::SYS_setfsuid, uid);
        libc::syscall(libc::SYS_setfsuid, u32::MAX) == i64::from(uid)
            && libc::syscall(libc::SYS_setfsgid, u32::MAX) == i64::from(gid)
    }
}
