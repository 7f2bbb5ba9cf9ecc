//! Names: LOOKUP, and what creates, removes and changes names.

use crate::mounted::file_system::{Answer, Answered, Mounted};
use crate::wire::reply::{Errno, device_parts};
use crate::wire::request::Requester;
use weir_vfs::{CreateMode, Error, RenameFlags, SetAttr, SpecialFile};

/// The permission bits and the umask of a new file.
type Mode = (u32, u32);

/// The attributes of a new file.
pub(super) fn new_attributes((mode, umask): Mode) -> SetAttr {
    SetAttr { mode: Some(mode & 0o7777), umask: Some(umask), ..SetAttr::default() }
}

impl Mounted {
    pub(super) async fn lookup(&self, from: Requester, dir: u64, name: &[u8]) -> Answered {
        let dir = self.nodes.file(dir)?;
        if name == b".." {
            return Ok(self.entry(self.fs.parent(dir).await?));
        }
        if name == b"." {
            return Ok(self.entry(self.fs.getattr(dir).await?));
        }
        match self.fs.lookup(&self.caller(from), dir.entry(name)).await {
            Err(Error::AccessDenied) if self.settings.show_mount_points => {
                self.stand_in(dir, name).await
            }
            found => Ok(self.entry(found?)),
        }
    }

    pub(super) async fn readlink(&self, from: Requester, node: u64) -> Answered {
        let id = self.nodes.file(node)?;
        Ok(Answer::bytes(self.fs.readlink(&self.caller(from), id).await?))
    }

    pub(super) async fn symlink(
        &self,
        from: Requester,
        dir: u64,
        name: &[u8],
        target: &[u8],
    ) -> Answered {
        let dir = self.nodes.file(dir)?;
        let set = SetAttr::default();
        let new = dir.entry(name).with(&set);
        Ok(self.entry(self.fs.symlink(&self.caller(from), new, target).await?))
    }

    pub(super) async fn mknod(
        &self,
        from: Requester,
        dir: u64,
        name: &[u8],
        mode: Mode,
        rdev: u32,
    ) -> Answered {
        let dir = self.nodes.file(dir)?;
        let set = new_attributes(mode);
        let new = dir.entry(name).with(&set);
        let caller = self.caller(from);
        let (major, minor) = device_parts(rdev);
        let special = match mode.0 & libc::S_IFMT {
            libc::S_IFIFO => SpecialFile::Fifo,
            libc::S_IFSOCK => SpecialFile::Socket,
            libc::S_IFCHR => SpecialFile::Char(major, minor),
            libc::S_IFBLK => SpecialFile::Block(major, minor),
            libc::S_IFREG | 0 => {
                let made = self.fs.create(&caller, new, CreateMode::MustBeNew).await?;
                return Ok(self.entry(made.attr));
            }
            _ => return Err(Errno(libc::EINVAL)),
        };
        Ok(self.entry(self.fs.mknod(&caller, new, special).await?))
    }

    pub(super) async fn mkdir(
        &self,
        from: Requester,
        dir: u64,
        name: &[u8],
        mode: Mode,
    ) -> Answered {
        let dir = self.nodes.file(dir)?;
        let set = new_attributes(mode);
        Ok(self.entry(self.fs.mkdir(&self.caller(from), dir.entry(name).with(&set)).await?))
    }

    pub(super) async fn unlink(&self, from: Requester, dir: u64, name: &[u8]) -> Answered {
        let dir = self.nodes.file(dir)?;
        self.fs.unlink(&self.caller(from), dir.entry(name)).await?;
        Ok(Answer::nothing())
    }

    pub(super) async fn rmdir(&self, from: Requester, dir: u64, name: &[u8]) -> Answered {
        let dir = self.nodes.file(dir)?;
        self.fs.rmdir(&self.caller(from), dir.entry(name)).await?;
        Ok(Answer::nothing())
    }

    pub(super) async fn rename(
        &self,
        from: Requester,
        (dir, name): (u64, &[u8]),
        (to_dir, to_name): (u64, &[u8]),
        flags: u32,
    ) -> Answered {
        let flags = match flags {
            0 => RenameFlags::Replace,
            libc::RENAME_NOREPLACE => RenameFlags::NoReplace,
            libc::RENAME_EXCHANGE => RenameFlags::Exchange,
            _ => return Err(Errno(libc::EINVAL)),
        };
        // A server has no such request, and several are not atomic. Programs that get this error look first, and
        // then rename (coreutils does, for each mv), as on the kernel's own mounts of servers.
        if flags != RenameFlags::Replace && !self.fs.store().names_change_here() {
            return Err(Errno(libc::EINVAL));
        }
        let (old, new) =
            (self.nodes.file(dir)?.entry(name), self.nodes.file(to_dir)?.entry(to_name));
        self.fs.rename(&self.caller(from), old, new, flags).await?;
        Ok(Answer::nothing())
    }

    pub(super) async fn link(&self, from: Requester, node: u64, dir: u64, name: &[u8]) -> Answered {
        let (id, dir) = (self.nodes.file(node)?, self.nodes.file(dir)?);
        let mut attr = self.fs.link(&self.caller(from), id, dir.entry(name)).await?;
        if let hidden @ Some(_) = self.nodes.take_hidden(node) {
            self.unhide(hidden).await;
            attr = self.fs.getattr(id).await?;
        }
        Ok(self.entry(attr))
    }
}
