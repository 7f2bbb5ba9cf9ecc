//! Acting on a caller's behalf: the thread assumes the caller's identity, and always drops it
//! again.
//!
//! Sound because the system calls used here touch nothing but the calling thread's credentials
//! (the raw calls are per thread; only libc's wrappers are per process), and read only the group
//! list that they are given.
//!
//! 1. [`Identity::assume`] returns with the whole identity assumed, or with none of it.
//! 2. The identity ends with the guard, which cannot leave its thread. A thread that failed to
//!    restore its own identity would act as another user from then on: the process aborts.
//! 3. Threads that write data accepted by the cache do so as a user other than the superuser
//!    ([`write_unprivileged`]), so that clients do not get the blocks that a file system reserves
//!    for the superuser. If such a thread acts for a caller, it is that user again when the caller's
//!    identity ends, or could not be assumed.
//! 4. A thread inherits the identity of the thread that starts it, which may be one of those: the
//!    cache starts its threads wherever a transfer ends. Such a thread has the superuser's rights,
//!    and would keep them as any other user, because the kernel takes them away only with the
//!    change from user 0 to another one. So each thread takes the process's identity before it
//!    first acts for a caller.
//! 5. What file systems reserve for the superuser, and their quotas, are a right of its own (CAP_SYS_RESOURCE), which
//!    the kernel leaves to a thread that becomes another user. So a thread gives it up while it acts for an ordinary
//!    user.

use crate::rules::{self, Ownership};
use rustix::fs::Statx;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use std::cell::Cell;
use std::io;
use std::marker::PhantomData;
use weir_vfs::{Caller, Cred, Error, Permissions, Result};

/// The user that writes accepted data: any but the superuser (65,534 usually owns no files).
const WRITER: u32 = 65_534;
/// The right to what is reserved for the superuser.
const RESERVES: CapabilitySet = CapabilitySet::SYS_RESOURCE;

thread_local! {
    /// Whether this thread has the process's identity, apart from what it assumes.
    static IS_OWN: Cell<bool> = const { Cell::new(false) };
    /// Whether this thread writes data that the cache has accepted, as another user.
    static WRITES: Cell<bool> = const { Cell::new(false) };
}

/// The identity of the process, and whether it may assume others.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    own: Cred,
    can_switch: bool,
    /// Whether the process may use what is reserved for the superuser, and exceed quotas.
    has_reserves: bool,
}

/// While it exists, this thread makes file system calls as the caller.
pub(super) struct Assumed<'a> {
    restore: Option<&'a Identity>,
    /// Dropped after the identity has ended.
    _writer: WriterAgain,
    _not_send: PhantomData<*const ()>,
}

impl Identity {
    /// Determines what this process may do, by trying.
    pub(super) fn of_process() -> Self {
        let own = Cred {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: rustix::process::getgroups()
                .map(|groups| groups.into_iter().map(|g| g.as_raw()).collect())
                .unwrap_or_default(),
        };
        // Not the effective rights: those of this thread may be fewer.
        let has_reserves = capabilities(None).is_ok_and(|now| now.permitted.contains(RESERVES));
        let mut identity = Self { own, can_switch: false, has_reserves };
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

    /// Whether calls can be made as users other than the process's.
    pub(super) fn can_switch(&self) -> bool {
        self.can_switch
    }

    /// The user as whom calls for a caller are made.
    pub(super) fn user_of(&self, caller: &Caller) -> u32 {
        match caller {
            Caller::As(cred) if self.can_switch => cred.uid,
            _ => self.own.uid,
        }
    }

    /// The permissions that a file's mode gives a caller: an estimate of the kernel's decision.
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

    /// Assumes the caller's identity if the process may; otherwise calls stay the process's own.
    pub(super) fn assume(&self, caller: &Caller) -> Result<Assumed<'_>> {
        // From here on, so that the thread is a writer again also if a call fails.
        let writer = WriterAgain;
        if self.can_switch && !IS_OWN.get() {
            self.take_back()?;
            IS_OWN.set(true);
        }
        let cred = match caller {
            Caller::As(cred) if self.can_switch && *cred != self.own => Some(cred),
            _ => None,
        };
        let restore = cred.map(|_| self);
        let assumed = Assumed { restore, _writer: writer, _not_send: PhantomData };
        let Some(cred) = cred else { return Ok(assumed) };
        // Groups first: without the superuser's rights they could not be set.
        set_groups(&cred.groups).map_err(|_| Error::NotPermitted)?;
        if !set_fs_ids(cred.uid, cred.gid) {
            return Err(Error::NotPermitted);
        }
        if self.has_reserves && cred.uid != 0 {
            change_rights(|effective, _| effective - RESERVES)?;
        }
        Ok(assumed)
    }

    /// Gives this thread the process's identity, whichever it has inherited.
    fn take_back(&self) -> Result<()> {
        let is_back =
            set_fs_ids(self.own.uid, self.own.gid) && set_groups(&self.own.groups).is_ok();
        if !is_back {
            return Err(Error::NotPermitted);
        }
        // The change to user 0 has restored all rights but this one.
        Ok(change_rights(|effective, permitted| effective | permitted & RESERVES)?)
    }
}

impl Assumed<'_> {
    /// While the guard exists, the caller counts as the owner of every file (CAP_FOWNER), and is
    /// checked as itself in all other respects. No effect if no identity was assumed.
    ///
    /// # Errors The kernel refuses.
    pub(super) fn count_as_owner(&self) -> Result<()> {
        if self.restore.is_some() {
            // Ends with the identity: switching back to user 0 resets these rights.
            let owner = CapabilitySet::FOWNER;
            change_rights(|effective, permitted| effective | permitted & owner)?;
        }
        Ok(())
    }
}

/// From now on, this thread changes files as a user other than the superuser, if the process is the
/// superuser, with all of the process's rights except that to reserved resources.
///
/// Logs a refusal by the kernel; the thread then keeps the process's rights.
pub(super) fn write_unprivileged() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    IS_OWN.set(false);
    let become_writer = || -> io::Result<()> {
        let now = capabilities(None)?;
        if !set_fs_ids(WRITER, rustix::process::getegid().as_raw()) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        // The change of user cleared some effective rights, which are still permitted. Open files
        // can be written with any rights, but FSETID preserves set-user-ID and set-group-ID.
        let effective = now.effective - RESERVES;
        Ok(set_capabilities(None, CapabilitySets { effective, ..now })?)
    };
    match become_writer() {
        Ok(()) => WRITES.set(true),
        Err(error) => {
            tracing::warn!(%error, "clients can use the space that is reserved for the superuser");
        }
    }
}

/// Makes a thread that [writes data](write_unprivileged) a writer again when dropped.
struct WriterAgain;

impl Drop for WriterAgain {
    fn drop(&mut self) {
        if WRITES.get() {
            write_unprivileged();
        }
    }
}

impl Drop for Assumed<'_> {
    fn drop(&mut self) {
        if let Some(identity) = self.restore {
            abort_unless(set_fs_ids(identity.own.uid, identity.own.gid));
            abort_unless(set_groups(&identity.own.groups).is_ok());
            if identity.has_reserves {
                abort_unless(change_rights(|effective, own| effective | own & RESERVES).is_ok());
            }
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
    // SAFETY: the pointer is to as many group ids as the length says; the call changes this
    // thread's credentials only.
    match unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Changes this thread's effective rights: `to` gets these and the permitted ones.
fn change_rights(to: impl FnOnce(CapabilitySet, CapabilitySet) -> CapabilitySet) -> io::Result<()> {
    let now = capabilities(None)?;
    let effective = to(now.effective, now.permitted);
    if effective != now.effective {
        set_capabilities(None, CapabilitySets { effective, ..now })?;
    }
    Ok(())
}

/// Sets the identity for file system calls; returns whether that succeeded.
fn set_fs_ids(uid: u32, gid: u32) -> bool {
    // The calls return the old value, whether or not they succeed; the invalid id -1 reads the
    // current one.
    // SAFETY: they take numbers only, and change this thread's credentials only.
    unsafe {
        libc::syscall(libc::SYS_setfsgid, gid);
        libc::syscall(libc::SYS_setfsuid, uid);
        libc::syscall(libc::SYS_setfsuid, u32::MAX) == i64::from(uid)
            && libc::syscall(libc::SYS_setfsgid, u32::MAX) == i64::from(gid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{File, Permissions};
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    #[test]
    fn a_thread_that_a_writer_of_data_starts_has_its_callers_rights_only() {
        let identity = Identity::of_process();
        if !identity.can_switch() {
            return weir_skip::skip("this process cannot act as other users");
        }
        let dir = tempfile::tempdir().unwrap();
        let (secret, made) = (dir.path().join("secret"), dir.path().join("made"));
        File::create(&secret).unwrap().set_permissions(Permissions::from_mode(0o600)).unwrap();
        let user = Caller::As(Cred { uid: 4711, gid: 4711, groups: vec![4711] });
        let act = || {
            let opened = {
                let _as_user = identity.assume(&user).unwrap();
                File::open(&secret).map(drop)
            };
            assert_eq!(opened.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        };
        let make = || {
            let _as_own = identity.assume(&Caller::Own).unwrap();
            let owner = File::create(&made).unwrap().metadata().unwrap().uid();
            assert_eq!(owner, identity.own.uid);
            std::fs::remove_file(&made).unwrap();
        };
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                write_unprivileged();
                std::thread::scope(|started| {
                    started.spawn(act);
                    started.spawn(make);
                });
                (act(), make())
            });
            writer.join().unwrap();
        });
    }

    /// The user as whom this thread makes file system calls, and whether it may use what is reserved
    /// for the superuser.
    fn now() -> (u32, bool) {
        // SAFETY: the call takes a number only, and an invalid one changes nothing.
        let user = unsafe { libc::syscall(libc::SYS_setfsuid, u32::MAX) };
        let effective = capabilities(None).unwrap().effective;
        (user as u32, effective.contains(CapabilitySet::SYS_RESOURCE))
    }

    #[test]
    fn who_acts_for_a_user_may_not_use_what_is_reserved_for_the_superuser() {
        let identity = Identity::of_process();
        if !identity.can_switch() || !now().1 {
            return weir_skip::skip("this process cannot act as other users, or has no such right");
        }
        let before = capabilities(None).unwrap().effective;
        let user = Caller::As(Cred { uid: 4711, gid: 4711, groups: vec![4711] });
        for _ in 0..2 {
            let as_user = identity.assume(&user).unwrap();
            assert_eq!(now(), (4711, false));
            as_user.count_as_owner().unwrap();
            assert_eq!(now(), (4711, false), "as the owner");
            let start = || {
                let _as_own = identity.assume(&Caller::Own).unwrap();
                assert_eq!(now(), (0, true), "a thread that was started meanwhile");
            };
            std::thread::scope(|scope| scope.spawn(start).join().unwrap());
            drop(as_user);
            assert_eq!(capabilities(None).unwrap().effective, before, "afterwards");
        }
        let root = Caller::As(Cred { uid: 0, gid: 4711, groups: vec![4711] });
        let as_root = identity.assume(&root).unwrap();
        assert_eq!(now(), (0, true), "a superuser");
        drop(as_root);
        assert_eq!(capabilities(None).unwrap().effective, before, "after a superuser");
    }

    #[test]
    fn a_writer_of_data_that_acts_for_a_caller_is_a_writer_again() {
        let identity = Identity::of_process();
        if !identity.can_switch() {
            return weir_skip::skip("this process cannot act as other users");
        }
        let user = Caller::As(Cred { uid: 4711, gid: 4711, groups: vec![4711] });
        let writer = || {
            write_unprivileged();
            for caller in [&user, &Caller::Own] {
                drop(identity.assume(caller).unwrap());
                assert_eq!(now(), (WRITER, false), "{caller:?}");
            }
            // Without the right to set groups, no identity can be assumed.
            let rights = capabilities(None).unwrap();
            let effective = rights.effective - CapabilitySet::SETGID;
            set_capabilities(None, CapabilitySets { effective, ..rights }).unwrap();
            assert!(identity.assume(&user).is_err());
            assert_eq!(now(), (WRITER, false), "after a refusal");
        };
        std::thread::scope(|scope| scope.spawn(writer).join().unwrap());
        assert_eq!(now().0, 0, "this thread stays as it was");
    }
}
