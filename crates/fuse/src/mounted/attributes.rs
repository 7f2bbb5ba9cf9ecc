//! Attributes, extended attributes, access control lists, permissions.

use crate::mounted::file_system::{Answer, Answered, Mounted};
use crate::wire::abi::{Fattr, GetxattrOut, SetattrIn};
use crate::wire::reply::{Errno, statfs_out, time};
use crate::wire::request::Requester;
use rustix::thread::CapabilitySet;
use weir_vfs::{
    Acl, AclKind, Attr, Caller, Capabilities, Error, FileId, Permissions, SetAttr, SetTime,
    XattrMode, acl_xattr,
};

impl Mounted {
    pub(super) async fn getattr(&self, node: u64, fh: Option<u64>) -> Answered {
        let id = self.nodes.file(node)?;
        if let Some(answer) = self.stand_in_attr(id) {
            return Ok(answer);
        }
        let attr = match fh.and_then(|fh| self.files.get(fh as usize).map(|file| file.file.clone()))
        {
            Some(file) => file.getattr().await?,
            None => self.fs.getattr(id).await?,
        };
        Ok(self.attr_answer(node, &attr))
    }

    pub(super) async fn setattr(&self, from: Requester, node: u64, args: &SetattrIn) -> Answered {
        let id = self.nodes.file(node)?;
        let caller = self.caller(from);
        let sets = args.sets();
        let mut set = set_of(args);
        if sets.contains(Fattr::KILL_SUIDGID) && set.mode.is_none() {
            if set.size.is_some() {
                self.kill_set_ids(id).await?;
            } else {
                // With the owner, in one operation: a change that is refused leaves the bits, and no other owner has
                // them for a moment.
                remove_bits(&mut set, killed_bits(&self.fs.getattr(id).await?));
            }
        }
        // ftruncate(2) needs the rights that the file was opened with, not those of the moment.
        let open = match (sets.contains(Fattr::FH), set.size) {
            (true, Some(_)) => self.files.get(args.fh as usize).map(|file| file.file.clone()),
            _ => None,
        };
        if let (Some(file), Some(size)) = (open, set.size) {
            set.size = None;
            file.truncate_async(size).await?;
            if set.is_empty() {
                return Ok(self.attr_answer(node, &file.getattr().await?));
            }
        }
        let attr = self.fs.setattr(&caller, id, &set).await?;
        if self.kernel_pages.is_window() && self.nodes.is_kept_by_kernel(node) {
            // The kernel takes these times over, so it does not see by them what others wrote before.
            self.kernel_pages.drop_soon(node);
        }
        Ok(self.attr_answer(node, &attr))
    }

    /// Removes set-id bits: a change of data removes the rights that go with the old data. A program
    /// that may change the data need not own the file, so this runs in this process's own name.
    pub(super) async fn kill_set_ids(&self, id: FileId) -> Result<(), Errno> {
        let killed = killed_bits(&self.fs.getattr(id).await?);
        if killed != 0 {
            let mut set = SetAttr::default();
            remove_bits(&mut set, killed);
            match self.fs.setattr(&Caller::Own, id, &set).await {
                // Only the owner changes the mode. The write itself removes the bits.
                Err(Error::NotPermitted) if self.writes_kill_set_ids() => {}
                done => _ = done?,
            }
        }
        Ok(())
    }

    /// Whether the store removes set-id bits from files of others that this process writes: as servers do, and as
    /// Linux does for a process without CAP_FSETID in the first user namespace.
    fn writes_kill_set_ids(&self) -> bool {
        !self.fs.store().names_change_here() || !keeps_set_ids()
    }

    pub(super) async fn access(&self, from: Requester, node: u64, mask: u32) -> Answered {
        let id = self.nodes.file(node)?;
        let wanted = Permissions::from_bits_truncate(mask);
        if wanted.is_empty() {
            self.fs.getattr(id).await?;
            return Ok(Answer::nothing());
        }
        self.fs.check_access(&self.caller(from), id, wanted).await?;
        Ok(Answer::nothing())
    }

    pub(super) async fn statfs(&self) -> Answered {
        Ok(Answer::of(&statfs_out(&self.fs.statfs().await?)))
    }

    pub(super) async fn getxattr(
        &self,
        from: Requester,
        node: u64,
        name: &[u8],
        size: u32,
    ) -> Answered {
        let id = self.nodes.file(node)?;
        let value = match acl_kind(name) {
            // The lists of a server can be read in part, and not set.
            Some(_) if !self.fs.store().capabilities().contains(Capabilities::POSIX_ACL) => {
                return Err(Error::NotSupported.into());
            }
            Some(kind) => {
                let acl = self.fs.get_acl(id.acl(kind)).await?;
                acl.ok_or(Error::NoAttribute)?.to_xattr()
            }
            None => self.fs.get_xattr(&self.caller(from), id.xattr(name)).await?,
        };
        sized(value, size)
    }

    pub(super) async fn listxattr(&self, from: Requester, node: u64, size: u32) -> Answered {
        let id = self.nodes.file(node)?;
        let names = match self.fs.list_xattrs(&self.caller(from), id).await {
            // As file systems without attributes do.
            Err(Error::NotSupported) => Vec::new(),
            names => names?,
        };
        let mut all = Vec::new();
        for name in names {
            all.extend_from_slice(&name);
            all.push(0);
        }
        sized(all, size)
    }

    pub(super) async fn setxattr(
        &self,
        from: Requester,
        node: u64,
        name: &[u8],
        value: &[u8],
        flags: u32,
    ) -> Answered {
        let id = self.nodes.file(node)?;
        let caller = self.caller(from);
        let mode = match flags.cast_signed() {
            libc::XATTR_CREATE => XattrMode::Create,
            libc::XATTR_REPLACE => XattrMode::Replace,
            _ => XattrMode::Either,
        };
        match acl_kind(name) {
            Some(kind) => {
                let acl = Acl::from_xattr(value)?;
                self.fs.set_acl(&caller, id.acl(kind), Some(&acl)).await?;
                // The list determines the permission bits.
                self.drop_attributes(node);
            }
            None => self.fs.set_xattr(&caller, id.xattr(name), value, mode).await?,
        }
        Ok(Answer::nothing())
    }

    pub(super) async fn removexattr(&self, from: Requester, node: u64, name: &[u8]) -> Answered {
        let id = self.nodes.file(node)?;
        let caller = self.caller(from);
        match acl_kind(name) {
            Some(kind) => {
                self.fs.set_acl(&caller, id.acl(kind), None).await?;
                self.drop_attributes(node);
            }
            None => self.fs.remove_xattr(&caller, id.xattr(name)).await?,
        }
        Ok(Answer::nothing())
    }
}

/// Whether this process may write files of others without removing their set-id bits.
fn keeps_set_ids() -> bool {
    // PROC_USER_INIT_INO of Linux.
    const FIRST_NAMESPACE: &str = "user:[4026531837]";
    let namespace = std::fs::read_link("/proc/self/ns/user");
    let is_elsewhere = namespace.is_ok_and(|name| name.as_os_str() != FIRST_NAMESPACE);
    let sets = rustix::thread::capabilities(None);
    !is_elsewhere && sets.is_ok_and(|sets| sets.effective.contains(CapabilitySet::FSETID))
}

/// The set-id bits of a file that a change of its data removes. A set-group-id bit without permission
/// to execute for the group means mandatory locking, and stays.
fn killed_bits(attr: &Attr) -> u32 {
    let group = if attr.mode & 0o010 != 0 { 0o2000 } else { 0 };
    attr.mode & (0o4000 | group)
}

/// Removes permission bits from a file, and only these: its other bits may have changed since they were read.
fn remove_bits(set: &mut SetAttr, bits: u32) {
    if bits != 0 {
        (set.mode, set.mode_mask) = (Some(0), Some(bits));
    }
}

fn set_of(args: &SetattrIn) -> SetAttr {
    let sets = args.sets();
    let given = |flag, value| sets.contains(flag).then_some(value);
    let when = |flag, now, seconds, nanos| match (sets.contains(flag), sets.contains(now)) {
        (_, true) => Some(SetTime::Now),
        (true, false) => Some(SetTime::To(time(seconds, nanos))),
        (false, false) => None,
    };
    SetAttr {
        mode: given(Fattr::MODE, args.mode & 0o7777),
        uid: given(Fattr::UID, args.uid),
        gid: given(Fattr::GID, args.gid),
        size: sets.contains(Fattr::SIZE).then_some(args.size),
        atime: when(Fattr::ATIME, Fattr::ATIME_NOW, args.atime, args.atimensec),
        mtime: when(Fattr::MTIME, Fattr::MTIME_NOW, args.mtime, args.mtimensec),
        ..SetAttr::default()
    }
}

/// Which access control list an extended attribute is, if it is one.
fn acl_kind(name: &[u8]) -> Option<AclKind> {
    [AclKind::Access, AclKind::Default].into_iter().find(|&kind| acl_xattr(kind).to_bytes() == name)
}

/// A value for a buffer of `size` bytes; its length if `size` is 0.
fn sized(value: Vec<u8>, size: u32) -> Answered {
    match size {
        0 => Ok(Answer::of(&GetxattrOut { size: value.len() as u32, padding: 0 })),
        size if value.len() > size as usize => Err(Error::Range.into()),
        _ => Ok(Answer::bytes(value)),
    }
}
