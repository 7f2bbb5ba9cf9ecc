//! Extended attributes, and access control lists, which Linux stores as two `system` attributes.
//!
//! Only the program itself reaches attributes outside the `user` name space.

use super::LocalFs;
use crate::local::sys::proc_path;
use crate::local::tree::c_name;
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use weir_vfs::{
    Acl, AclKind, AclName, Caller, Error, FileId, FileKind, Result, XattrMode, XattrName, acl_xattr,
};

/// Longest value, and longest list of names (Linux: XATTR_SIZE_MAX, XATTR_LIST_MAX).
const MAX_BYTES: usize = 65536;
/// The name space that is open to all callers.
const USER: &[u8] = b"user.";
/// The name space of access control lists, which have their own calls.
const SYSTEM: &[u8] = b"system.";
/// Room for an access control list of ordinary length.
const ACL_BYTES: usize = 512;

impl LocalFs {
    pub(super) fn xattr(&self, caller: &Caller, xattr: XattrName<'_>) -> Result<Vec<u8>> {
        self.with_xattr(caller, xattr, |path, name| get(path, name, MAX_BYTES))
    }

    pub(super) fn change_xattr(
        &self,
        caller: &Caller,
        xattr: XattrName<'_>,
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        let flags = match mode {
            XattrMode::Either => XattrFlags::empty(),
            XattrMode::Create => XattrFlags::CREATE,
            XattrMode::Replace => XattrFlags::REPLACE,
        };
        self.changing(xattr.id, || {
            self.with_xattr(caller, xattr, |path, name| {
                rustix::fs::setxattr(path, name, value, flags)
            })
        })
    }

    pub(super) fn xattr_names(&self, caller: &Caller, id: FileId) -> Result<Vec<Vec<u8>>> {
        let pinned = self.tree.pin(id)?;
        let _as_caller = self.identity.assume(caller)?;
        let mut names = Vec::with_capacity(MAX_BYTES);
        rustix::fs::listxattr(
            proc_path(pinned.file.as_fd()),
            rustix::buffer::spare_capacity(&mut names),
        )
        .map_err(io::Error::from)?;
        let listed = names.split(|&b| b == 0).filter(|name| is_reached(caller, name));
        Ok(listed.map(<[u8]>::to_vec).collect())
    }

    pub(super) fn drop_xattr(&self, caller: &Caller, xattr: XattrName<'_>) -> Result<()> {
        self.changing(xattr.id, || {
            self.with_xattr(caller, xattr, |path, name| rustix::fs::removexattr(path, name))
        })
    }

    pub(super) fn acl(&self, acl: AclName) -> Result<Option<Acl>> {
        let pinned = self.tree.pin(acl.id)?;
        let path = proc_path(pinned.file.as_fd());
        let name = acl_xattr(acl.kind);
        let value = match get(&path, name, ACL_BYTES) {
            Err(Errno::RANGE) => get(&path, name, MAX_BYTES),
            value => value,
        };
        match value {
            // If the kernel returns an invalid list, the file system is at fault.
            Ok(value) => Acl::from_xattr(&value).map(Some).map_err(|_| Error::Io),
            Err(Errno::NODATA) => Ok(None),
            Err(error) => Err(io::Error::from(error).into()),
        }
    }

    pub(super) fn change_acl(&self, caller: &Caller, acl: AclName, to: Option<&Acl>) -> Result<()> {
        let AclName { id, kind } = acl;
        let name = acl_xattr(kind);
        let pinned = self.tree.pin(id)?;
        let path = proc_path(pinned.file.as_fd());
        // A list includes permission bits.
        let _modes = self.lock_mode(id);
        self.changing(id, || {
            let _as_caller = self.identity.assume(caller)?;
            let set = match to {
                Some(acl) => {
                    rustix::fs::setxattr(&*path, name, &acl.to_xattr(), XattrFlags::empty())
                }
                None => match rustix::fs::removexattr(&*path, name) {
                    Err(Errno::NODATA) => Ok(()),
                    removed => removed,
                },
            };
            Ok(set.map_err(io::Error::from)?)
        })
    }

    /// Whether new files in a directory get an access control list from it.
    pub(super) fn has_default_acl(&self, dir: BorrowedFd<'_>) -> bool {
        let name = acl_xattr(AclKind::Default);
        rustix::fs::getxattr_query(proc_path(dir), name).is_ok_and(|bytes| bytes > 0)
    }

    /// Runs a change that time stamps may be too coarse to show.
    fn changing<T>(&self, id: FileId, change: impl FnOnce() -> Result<T>) -> Result<T> {
        if let Some(inode) = self.inodes.get(id) {
            let held = self.tree.pin(id)?;
            return inode.changing(&self.io, held.file.as_fd(), change);
        }
        let changed = change();
        let is_dir = self.tree.getattr(id).is_ok_and(|attr| attr.kind == FileKind::Directory);
        self.directories.changed_if(is_dir, id);
        changed
    }

    /// Runs a call on an extended attribute's path, which names the file itself.
    fn with_xattr<T>(
        &self,
        caller: &Caller,
        xattr: XattrName<'_>,
        call: impl FnOnce(&str, &CStr) -> rustix::io::Result<T>,
    ) -> Result<T> {
        if !is_reached(caller, xattr.name) {
            return Err(Error::NotSupported);
        }
        let name = c_name(xattr.name)?;
        let pinned = self.tree.pin(xattr.id)?;
        let _as_caller = self.identity.assume(caller)?;
        Ok(call(&proc_path(pinned.file.as_fd()), &name).map_err(io::Error::from)?)
    }
}

/// Whether a caller may address attributes of this name, permissions aside.
fn is_reached(caller: &Caller, name: &[u8]) -> bool {
    match caller {
        Caller::Own => !name.is_empty() && !name.starts_with(SYSTEM) && name != USER,
        Caller::As(_) => name.strip_prefix(USER).is_some_and(|rest| !rest.is_empty()),
    }
}

fn get(path: &str, name: &CStr, max_bytes: usize) -> rustix::io::Result<Vec<u8>> {
    let mut value = Vec::with_capacity(max_bytes);
    rustix::fs::getxattr(path, name, rustix::buffer::spare_capacity(&mut value))?;
    value.shrink_to_fit();
    Ok(value)
}
