//! One file of a [`MemoryFs`](super::MemoryFs): its attributes and its body.

use super::content::{Content, Regular};
use crate::rules::{MAX_FILE_BYTES, Ownership};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::SystemTime;
use weir_vfs::{
    Acl, AclKind, Attr, Caller, Error, FileId, FileKind, Result, SetAttr, SetTime, SpecialFile,
};

/// A file. Lock order: `body`, then `meta`; `meta` is held for moments only.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) id: FileId,
    pub(super) body: Body,
    pub(super) meta: Mutex<Meta>,
}

/// A file's content by kind. The tree keeps the entries of directories.
#[derive(Debug)]
pub(super) enum Body {
    File(Regular),
    Directory,
    Symlink(Vec<u8>),
    Special(SpecialFile),
}

/// Attributes apart from the content.
#[derive(Debug)]
pub(super) struct Meta {
    pub(super) mode: u32,
    pub(super) nlink: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) atime: SystemTime,
    pub(super) mtime: SystemTime,
    pub(super) ctime: SystemTime,
    btime: SystemTime,
    change: u64,
    pub(super) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(super) acls: Acls,
}

/// Access control lists; the access list only if it says more than the permission bits, which
/// always agree with it.
#[derive(Debug, Default)]
pub(super) struct Acls {
    access: Option<Acl>,
    pub(super) default: Option<Acl>,
}

impl Acls {
    pub(super) fn get(&self, kind: AclKind) -> &Option<Acl> {
        match kind {
            AclKind::Access => &self.access,
            AclKind::Default => &self.default,
        }
    }
}

/// No two changes of any file get the same number.
static CHANGES: AtomicU64 = AtomicU64::new(1);

impl Meta {
    pub(super) fn new(mode: u32, nlink: u32, uid: u32, gid: u32) -> Self {
        let now = SystemTime::now();
        Self {
            mode,
            nlink,
            uid,
            gid,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            change: CHANGES.fetch_add(1, Relaxed),
            xattrs: BTreeMap::new(),
            acls: Acls::default(),
        }
    }

    /// Updates the times after a change of data.
    pub(super) fn touch_data(&mut self) {
        self.touch();
        self.mtime = self.ctime;
    }

    /// Updates the times after a change of attributes.
    pub(super) fn touch(&mut self) {
        self.ctime = SystemTime::now();
        self.change = CHANGES.fetch_add(1, Relaxed);
    }

    /// Sets the attributes in `set` except the size; the caller has checked the permissions.
    pub(super) fn apply(&mut self, set: &SetAttr) {
        self.touch();
        let now = self.ctime;
        let time = |to| match to {
            SetTime::Now => now,
            SetTime::To(time) => time,
        };
        if set.uid.is_some() || set.gid.is_some() {
            self.mode &= !0o6000; // a set-id program must not change hands as one
        }
        self.uid = set.uid.unwrap_or(self.uid);
        self.gid = set.gid.unwrap_or(self.gid);
        if let Some(mode) = set.mode_of(self.mode) {
            self.mode = mode & 0o7777;
            if let Some(acl) = &mut self.acls.access {
                acl.set_mode(mode);
            }
        }
        self.atime = set.atime.map_or(self.atime, time);
        self.mtime = set.mtime.map_or(self.mtime, time);
    }

    /// Applies the directory's default list to a new file.
    pub(super) fn inherit(&mut self, default: Acl, is_dir: bool) {
        self.show(default.inherited(self.mode));
        if is_dir {
            self.acls.default = Some(default);
        }
    }

    /// Sets an access control list; `of_group`: the user belongs to the file's group.
    pub(super) fn set_acl(&mut self, kind: AclKind, acl: Option<&Acl>, of_group: bool) {
        self.touch();
        match (kind, acl) {
            (AclKind::Default, acl) => self.acls.default = acl.cloned(),
            (AclKind::Access, None) => self.acls.access = None,
            (AclKind::Access, Some(acl)) => {
                self.show(acl.clone());
                if !of_group {
                    self.mode &= !0o2000; // as chmod(2) does
                }
            }
        }
    }

    fn show(&mut self, acl: Acl) {
        self.mode = self.mode & 0o7000 | acl.mode();
        self.acls.access = Some(acl).filter(|acl| !acl.is_minimal());
    }
}

impl Node {
    pub(super) fn kind(&self) -> FileKind {
        match &self.body {
            Body::File(_) => FileKind::Regular,
            Body::Directory => FileKind::Directory,
            Body::Symlink(_) => FileKind::Symlink,
            Body::Special(file) => file.kind(),
        }
    }

    pub(super) fn is_dir(&self) -> bool {
        matches!(self.body, Body::Directory)
    }

    pub(super) fn ownership(&self) -> Ownership {
        let meta = self.meta.lock();
        Ownership {
            mode: meta.mode,
            uid: meta.uid,
            gid: meta.gid,
            is_dir: self.is_dir(),
            acl: meta.acls.access.clone(),
        }
    }

    /// Fails for symbolic links, which have no access control lists.
    pub(super) fn keeps_acls(&self) -> Result<()> {
        if matches!(self.body, Body::Symlink(_)) { Err(Error::NotSupported) } else { Ok(()) }
    }

    /// The data of a regular file.
    pub(super) fn content(&self) -> Result<&Regular> {
        match &self.body {
            Body::File(content) => Ok(content),
            Body::Directory => Err(Error::IsDirectory),
            _ => Err(Error::Invalid),
        }
    }

    /// Changes the data of a regular file, and its times with it.
    pub(super) fn change_data(
        &self,
        growth: impl FnOnce(&Content) -> u64,
        change: impl FnOnce(&mut Content),
    ) -> Result<()> {
        self.content()?.change(growth, change, || self.meta.lock().touch_data())
    }

    /// Truncates a regular file, or extends it with a hole.
    pub(super) fn set_size(&self, size: u64) -> Result<()> {
        if size > MAX_FILE_BYTES {
            return Err(Error::TooBig);
        }
        self.change_data(|_| 0, |content| content.set_size(size))
    }

    pub(super) fn attr(&self) -> Attr {
        let (size, allocated) = match &self.body {
            Body::File(content) => {
                let content = content.read();
                // Under the content's lock, so that size and change attribute are of one moment.
                return self.attr_with(content.size(), content.allocated());
            }
            Body::Symlink(target) => (target.len() as u64, 0),
            Body::Directory | Body::Special(..) => (0, 0),
        };
        self.attr_with(size, allocated)
    }

    fn attr_with(&self, size: u64, allocated: u64) -> Attr {
        let meta = self.meta.lock();
        Attr {
            id: self.id,
            kind: self.kind(),
            mode: meta.mode,
            nlink: meta.nlink,
            uid: meta.uid,
            gid: meta.gid,
            size,
            allocated,
            rdev: if let Body::Special(file) = self.body { file.rdev() } else { (0, 0) },
            fsid: 0,
            atime: meta.atime,
            mtime: meta.mtime,
            ctime: meta.ctime,
            btime: Some(meta.btime),
            change: meta.change,
        }
    }
}

/// The identity that a new file gets.
pub(super) fn owner_of(caller: &Caller) -> (u32, u32) {
    match caller {
        // Miri does not support this call.
        Caller::Own if cfg!(miri) => (0, 0),
        Caller::Own => (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
        Caller::As(cred) => (cred.uid, cred.gid),
    }
}
