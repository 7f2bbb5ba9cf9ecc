//! The operations of the store.
//!
//! Each makes its system calls on the calling thread, except syncs.

use super::LocalFs;
use crate::local::attr::kind_of;
use crate::local::data::file::LocalFile;
use crate::local::sys;
use crate::local::sys::proc_path;
use crate::local::tree::nodes::Seen;
use crate::local::tree::{Name, Pinned, c_name, seen, stat};
use crate::rules::{DEFAULT_DIR_MODE, DEFAULT_FILE_MODE, check_name, check_owners};
use async_trait::async_trait;
use rustix::fs::{AtFlags, Mode, OFlags};
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use weir_vfs::{
    Access, Acl, AclName, Attr, Caller, Capabilities, CreateMode, Created, DirEntry, DirPage,
    EntryName, Error, FileId, FileKind, FileSystem, FsStat, NewFile, OpenFile, Permissions,
    ReaddirRequest, RenameFlags, Result, SetAttr, SpecialFile, Unnamed, XattrMode, XattrName,
};

/// Cookies are the kernel's positions plus this, because 0, 1 and 2 have special meanings.
const COOKIE_SHIFT: u64 = 3;

#[async_trait]
impl FileSystem for LocalFs {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn root(&self) -> FileId {
        self.tree.root_id
    }

    fn is_locked_by_programs(&self) -> bool {
        self.is_local
    }

    fn max_file_size(&self) -> u64 {
        self.io.max_file_size
    }

    fn numbering(&self) -> u64 {
        self.tree.device_number()
    }

    async fn statfs(&self) -> Result<FsStat> {
        self.call(|| {
            let stat = rustix::fs::fstatvfs(self.tree.root()).map_err(io::Error::from)?;
            Ok(FsStat {
                total_bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
                free_bytes: stat.f_bfree.saturating_mul(stat.f_frsize),
                available_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
                total_files: stat.f_files,
                free_files: stat.f_ffree,
                max_name: stat.f_namemax as u32,
                max_file_size: self.io.max_file_size,
                max_links: 65_000,
                clone_bytes: u32::try_from(stat.f_bsize).unwrap_or(0),
            })
        })
        .await
    }

    async fn getattr(&self, id: FileId) -> Result<Attr> {
        self.call(|| self.tree.getattr(id).map(|attr| self.refine(attr))).await
    }

    async fn setattr(&self, caller: &Caller, id: FileId, set: &SetAttr) -> Result<Attr> {
        self.call(|| {
            check_owners(set)?;
            let Pinned { file, stat: found } = self.tree.pin(id)?;
            if set.is_empty() {
                return Ok(self.attr(id, &found));
            }
            match (set.size, kind_of(&found)) {
                (Some(_), FileKind::Directory) => return Err(Error::IsDirectory),
                (Some(_), kind) if kind != FileKind::Regular => return Err(Error::Invalid),
                _ => {}
            }
            let modes = set.mode.is_some() || set.uid.is_some() || set.gid.is_some();
            let _modes = modes.then(|| self.lock_mode(id));
            let apply = || self.apply_as(caller, file.as_fd(), set);
            let applied = match self.inodes.get(id) {
                Some(inode) => inode.changing(&self.io, file.as_fd(), apply),
                None => apply(),
            };
            self.directories.changed_if(kind_of(&found) == FileKind::Directory, id);
            applied?;
            Ok(self.attr(id, &stat(file.as_fd())?))
        })
        .await
    }

    async fn access(&self, caller: &Caller, id: FileId, mask: Permissions) -> Result<Permissions> {
        self.call(|| {
            let pinned = self.tree.pin(id)?;
            let file = pinned.file.as_fd();
            let _as_caller = self.identity.assume(caller)?;
            Ok(sys::granted(file, mask, self.identity.likely_permissions(caller, &pinned.stat))?)
        })
        .await
    }

    async fn check_access(&self, caller: &Caller, id: FileId, mask: Permissions) -> Result<()> {
        self.call(|| {
            let pinned = self.tree.pin(id)?;
            let _as_caller = self.identity.assume(caller)?;
            match sys::may_access(pinned.file.as_fd(), mask)? {
                true => Ok(()),
                false => Err(Error::AccessDenied),
            }
        })
        .await
    }

    async fn lookup(&self, caller: &Caller, entry: EntryName<'_>) -> Result<Attr> {
        self.call(|| {
            check_name(entry.name)?;
            self.find(caller, entry)
        })
        .await
    }

    async fn parent(&self, dir: FileId) -> Result<Attr> {
        self.call(|| {
            self.tree.dir(dir)?;
            let parent = self.tree.parent_of(dir)?;
            self.tree.getattr(parent).map(|attr| self.refine(attr))
        })
        .await
    }

    async fn readdir(&self, caller: &Caller, request: ReaddirRequest) -> Result<DirPage> {
        self.call(|| {
            let ReaddirRequest { dir, cookie, max_entries, with_attr } = request;
            let dir_fd = self.tree.dir(dir)?;
            let position = cookie.saturating_sub(COOKIE_SHIFT);
            let mut entries: Vec<DirEntry> = Vec::new();
            let eof = {
                let _as_caller = self.identity.assume(caller)?;
                let each = |found: Name<'_>| {
                    if entries.len() == max_entries {
                        return false;
                    }
                    entries.push(DirEntry {
                        name: found.name.to_bytes().to_vec(),
                        cookie: found.next.wrapping_add(COOKIE_SHIFT),
                        attr: None,
                        ino: found.ino,
                    });
                    true
                };
                match self.for_command {
                    true => self.tree.each_next_name((dir, &dir_fd), position, each)?,
                    // Several may list the directory, in pages of their own.
                    false => self.tree.each_name(&dir_fd, position, each)?,
                }
            };
            if with_attr {
                let mut met: Vec<Seen> = Vec::new();
                for entry in &mut entries {
                    let name = c_name(&entry.name)?;
                    let Ok(found) = self.tree.stat_name(dir_fd.as_fd(), &name) else {
                        continue;
                    };
                    let identified = self.tree.identify(dir, dir_fd.as_fd(), &entry.name, &found);
                    if let Ok((id, seen)) = identified {
                        met.extend(seen);
                        entry.attr = Some(self.attr(id, &found));
                    }
                }
                self.tree.remember(met);
            }
            Ok(DirPage { entries, eof })
        })
        .await
    }

    async fn path_of(&self, id: FileId) -> Result<PathBuf> {
        self.call(|| self.tree.path(id)).await
    }

    async fn readlink(&self, _caller: &Caller, id: FileId) -> Result<Vec<u8>> {
        self.call(|| {
            let pinned = self.tree.pin(id)?;
            if kind_of(&pinned.stat) != FileKind::Symlink {
                return Err(Error::Invalid);
            }
            let target = rustix::fs::readlinkat(&pinned.file, c"", Vec::new());
            Ok(target.map_err(io::Error::from)?.into_bytes())
        })
        .await
    }

    async fn create(&self, caller: &Caller, new: NewFile<'_>, mode: CreateMode) -> Result<Created> {
        self.call(|| self.create_held(caller, new, mode).map(|(created, _)| created)).await
    }

    async fn create_open(
        &self,
        caller: &Caller,
        new: NewFile<'_>,
        mode: CreateMode,
    ) -> Result<(Created, Option<Arc<dyn OpenFile>>)> {
        self.call(|| {
            let (created, made) = self.create_held(caller, new, mode)?;
            let open = |made| -> Arc<dyn OpenFile> {
                let inode = self.inodes.get_or_insert(created.attr.id);
                let access = Access::READ | Access::WRITE;
                Arc::new(LocalFile::new(self.io.clone(), inode, made, access))
            };
            let file = made.map(open);
            Ok((created, file))
        })
        .await
    }

    async fn mkdir(&self, caller: &Caller, new: NewFile<'_>) -> Result<Attr> {
        self.call(|| {
            if new.set.size.is_some() {
                return Err(Error::IsDirectory);
            }
            self.make(caller, new, (FileKind::Directory, DEFAULT_DIR_MODE), |dir, name, mode| {
                rustix::fs::mkdirat(dir, name, mode)
            })
        })
        .await
    }

    async fn symlink(&self, caller: &Caller, new: NewFile<'_>, target: &[u8]) -> Result<Attr> {
        self.call(|| {
            if target.is_empty() || new.set.size.is_some() {
                return Err(Error::Invalid);
            }
            let target = c_name(target)?;
            self.make(caller, new, (FileKind::Symlink, 0o777), |dir, name, _| {
                rustix::fs::symlinkat(&*target, dir, name)
            })
        })
        .await
    }

    async fn mknod(&self, caller: &Caller, new: NewFile<'_>, node: SpecialFile) -> Result<Attr> {
        self.call(|| {
            use rustix::fs::FileType;
            let file_type = match node {
                SpecialFile::Block(..) => FileType::BlockDevice,
                SpecialFile::Char(..) => FileType::CharacterDevice,
                SpecialFile::Fifo => FileType::Fifo,
                SpecialFile::Socket => FileType::Socket,
            };
            let (major, minor) = node.rdev();
            let device = rustix::fs::makedev(major, minor);
            if new.set.size.is_some() {
                return Err(Error::Invalid);
            }
            self.make(caller, new, (node.kind(), DEFAULT_FILE_MODE), |dir, name, mode| {
                rustix::fs::mknodat(dir, name, file_type, mode, device)
            })
        })
        .await
    }

    async fn link(&self, caller: &Caller, id: FileId, entry: EntryName<'_>) -> Result<Attr> {
        self.call(|| {
            check_name(entry.name)?;
            let dir_fd = self.tree.dir(entry.dir)?;
            let Pinned { file, stat: found } = self.tree.pin(id)?;
            if kind_of(&found) == FileKind::Directory {
                return Err(Error::NotPermitted);
            }
            {
                let as_caller = self.identity.assume(caller)?;
                // NFS does not know fs.protected_hardlinks: clients with write permission to the
                // directory may create links that a local program may not (as with the kernel's
                // server).
                as_caller.count_as_owner()?;
                let path = proc_path(file.as_fd());
                let follow = AtFlags::SYMLINK_FOLLOW;
                rustix::fs::linkat(
                    rustix::fs::CWD,
                    &*path,
                    &*dir_fd,
                    &*c_name(entry.name)?,
                    follow,
                )
                .map_err(io::Error::from)?;
            }
            self.directories.changed(entry.dir);
            let found = stat(file.as_fd())?;
            self.tree.remember([seen(id, entry.dir.ino, entry.name, &found)]);
            Ok(self.attr(id, &found))
        })
        .await
    }

    async fn unlink(&self, caller: &Caller, entry: EntryName<'_>) -> Result<()> {
        self.call(|| self.remove(caller, entry, AtFlags::empty()).map(drop)).await
    }

    async fn unlink_counted(
        &self,
        caller: &Caller,
        entry: EntryName<'_>,
    ) -> Result<Option<Unnamed>> {
        self.call(|| self.remove(caller, entry, AtFlags::empty())).await
    }

    async fn rmdir(&self, caller: &Caller, entry: EntryName<'_>) -> Result<()> {
        self.call(|| self.remove(caller, entry, AtFlags::REMOVEDIR).map(drop)).await
    }

    async fn rename(
        &self,
        caller: &Caller,
        from: EntryName<'_>,
        to: EntryName<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        self.call(|| self.move_name(caller, from, to, flags).map(drop)).await
    }

    async fn rename_counted(
        &self,
        caller: &Caller,
        from: EntryName<'_>,
        to: EntryName<'_>,
        flags: RenameFlags,
    ) -> Result<Option<Unnamed>> {
        self.call(|| self.move_name(caller, from, to, flags)).await
    }

    async fn open(&self, caller: &Caller, id: FileId, access: Access) -> Result<Arc<dyn OpenFile>> {
        let file = self
            .call(|| {
                let Pinned { file, stat: found } = self.tree.pin(id)?;
                match kind_of(&found) {
                    FileKind::Regular => {}
                    FileKind::Directory => return Err(Error::IsDirectory),
                    _ => return Err(Error::Invalid),
                }
                let mode = match (access.contains(Access::READ), access.contains(Access::WRITE)) {
                    (true, true) => OFlags::RDWR,
                    (true, false) => OFlags::RDONLY,
                    (false, true) => OFlags::WRONLY,
                    (false, false) => return Err(Error::Invalid),
                };
                let opened = {
                    let _as_caller = self.identity.assume(caller)?;
                    let path = proc_path(file.as_fd());
                    let open = || rustix::fs::open(&*path, mode | OFlags::CLOEXEC, Mode::empty());
                    self.tree.with_fds(open).map_err(io::Error::from)?
                };
                let inode = self.inodes.get_or_insert(id);
                Ok(Arc::new(LocalFile::new(self.io.clone(), inode, opened, access)))
            })
            .await?;
        Ok(file)
    }

    /// The file is opened for this, and fails with the errors of writes by descriptors that are closed:
    /// since Linux 4.17, a new descriptor reports what no other has reported (`errseq_sample` in
    /// lib/errseq.c). Only if the kernel has dropped the inode from its memory meanwhile is the error
    /// lost; knfsd prevents that by keeping files open while they are written back
    /// (`nfsd_file_check_writeback` in fs/nfsd/filecache.c).
    async fn sync_node(&self, id: FileId) -> Result<()> {
        let opened = self.call(|| {
            let pinned = self.tree.pin(id)?;
            let file = pinned.file.as_fd();
            let kind = kind_of(&pinned.stat);
            if !matches!(kind, FileKind::Regular | FileKind::Directory) {
                return Ok(None);
            }
            let due = self.symlink_renames.due().filter(|_| kind == FileKind::Directory);
            let all = match due {
                Some(due) => Some((due, self.tree.open_to_sync(file, true)?)),
                None => None,
            };
            Ok(Some((all, self.tree.open_to_sync(file, false)?)))
        });
        let Some((all, sync)) = opened.await? else { return Ok(()) };
        if let Some((due, sync_all)) = all {
            self.symlink_renames.sync(due, self.io.engine.blocking(sync_all)).await?;
        }
        self.io.engine.blocking(sync).await
    }

    async fn get_xattr(&self, caller: &Caller, xattr: XattrName<'_>) -> Result<Vec<u8>> {
        self.call(|| self.xattr(caller, xattr)).await
    }

    async fn set_xattr(
        &self,
        caller: &Caller,
        xattr: XattrName<'_>,
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        self.call(|| self.change_xattr(caller, xattr, value, mode)).await
    }

    async fn list_xattrs(&self, caller: &Caller, id: FileId) -> Result<Vec<Vec<u8>>> {
        self.call(|| self.xattr_names(caller, id)).await
    }

    async fn remove_xattr(&self, caller: &Caller, xattr: XattrName<'_>) -> Result<()> {
        self.call(|| self.drop_xattr(caller, xattr)).await
    }

    async fn get_acl(&self, acl: AclName) -> Result<Option<Acl>> {
        self.call(|| self.acl(acl)).await
    }

    async fn set_acl(&self, caller: &Caller, acl: AclName, to: Option<&Acl>) -> Result<()> {
        self.call(|| self.change_acl(caller, acl, to)).await
    }
}
