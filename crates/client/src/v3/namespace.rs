//! Operations that create and remove names, none of them idempotent: if a server executes a resent
//! call as a new one, the client recognises the effect of the first ([`retried`](crate::retried)).

use super::convert::{Status, handle_of, set_attr};
use super::{V3, dir_op};
use crate::error::Result;
use crate::protocol::{Handle, NewEntry, Node, Protocol, Special};
use crate::retried;
use weir_nfs::v3::op::{create, link, mkdir, mknod, remove, rename, rmdir, symlink};
use weir_nfs::v3::types::Device;
use weir_nfs::v3::{Error as Nfs3Error, Procedure};
use weir_rpc::OpaqueAuth;
use weir_vfs::{Attr, RenameFlags, SpecialFile};

impl V3 {
    /// Creates a regular file that must not exist.
    pub(super) async fn create_file(
        &self,
        cred: &OpaqueAuth,
        entry: NewEntry<'_>,
        exclusive: bool,
    ) -> Result<Node> {
        let target = || dir_op(entry.dir, entry.name);
        if exclusive {
            let how = create::How::Exclusive(retried::verifier());
            let (outcome, _) = self.outcome(cred, create::Args { target: target(), how }).await?;
            match outcome {
                // Not every server supports exclusive creation.
                Err(failure) if failure.status() == Nfs3Error::NotSupp => {}
                Err(failure) => return Err(self.failed(Procedure::Create.name(), failure.status())),
                Ok(created) => {
                    let mut node = self.created(cred, &entry, created).await?;
                    node.attr = retried::complete(self, cred, &entry, &node).await?;
                    return Ok(node);
                }
            }
        }
        let how = create::How::Guarded(set_attr(entry.set));
        let created = self.call(cred, create::Args { target: target(), how }).await?;
        self.created(cred, &entry, created).await
    }

    /// Creates a file of another kind.
    pub(super) async fn make_name(
        &self,
        cred: &OpaqueAuth,
        entry: NewEntry<'_>,
        special: Special<'_>,
    ) -> Result<Node> {
        let (target, set) = (dir_op(entry.dir, entry.name), set_attr(entry.set));
        let created = match special {
            Special::Directory => self.call(cred, mkdir::Args { target, set }).await?,
            Special::Symlink(path) => {
                let args = symlink::Args { target, set, path: path.into() };
                let (outcome, resent) = self.outcome(cred, args).await?;
                match outcome {
                    Ok(created) => created,
                    Err(failure) => {
                        if failure.status() == Nfs3Error::Exist
                            && resent
                            && let Some(node) =
                                retried::symlink_made(self, cred, &entry, path).await
                        {
                            return Ok(node);
                        }
                        return Err(self.failed(Procedure::Symlink.name(), failure.status()));
                    }
                }
            }
            Special::File(file) => {
                let device =
                    |major, minor, set| mknod::DeviceData { set, device: Device { major, minor } };
                let what = match file {
                    SpecialFile::Block(major, minor) => mknod::What::Blk(device(major, minor, set)),
                    SpecialFile::Char(major, minor) => mknod::What::Chr(device(major, minor, set)),
                    SpecialFile::Socket => mknod::What::Sock(set),
                    SpecialFile::Fifo => mknod::What::Fifo(set),
                };
                self.call(cred, mknod::Args { target, what }).await?
            }
        };
        self.created(cred, &entry, created).await
    }

    /// Adds a name for a file.
    pub(super) async fn link_name(
        &self,
        cred: &OpaqueAuth,
        handle: &Handle,
        dir: &Handle,
        name: &[u8],
    ) -> Result<Attr> {
        let args = link::Args { file: handle_of(handle), link: dir_op(dir, name) };
        let (outcome, resent) = self.outcome(cred, args).await?;
        match outcome {
            Ok(linked) => match linked.file {
                Some(attr) => Ok(super::convert::attr_of(&attr, handle)),
                None => self.getattr(cred, handle).await,
            },
            Err(failure) => {
                if failure.status() == Nfs3Error::Exist
                    && resent
                    && let Some(attr) = retried::linked(self, cred, handle, (dir, name)).await
                {
                    return Ok(attr);
                }
                Err(self.failed(Procedure::Link.name(), failure.status()))
            }
        }
    }

    /// Removes a name.
    pub(super) async fn remove_name(
        &self,
        cred: &OpaqueAuth,
        dir: &Handle,
        name: &[u8],
        directory: bool,
    ) -> Result<()> {
        let target = dir_op(dir, name);
        let (status, procedure, resent) = match directory {
            true => {
                let (outcome, resent) = self.outcome(cred, rmdir::Args { target }).await?;
                (outcome.map(drop).map_err(|f| f.status()), Procedure::Rmdir, resent)
            }
            false => {
                let (outcome, resent) = self.outcome(cred, remove::Args { target }).await?;
                (outcome.map(drop).map_err(|f| f.status()), Procedure::Remove, resent)
            }
        };
        match status {
            // The name is gone as requested: the first call removed it, or there was none.
            Err(Nfs3Error::NoEnt) if resent => Ok(()),
            status => status.map_err(|error| self.failed(procedure.name(), error)),
        }
    }

    /// Renames an entry.
    pub(super) async fn rename_name(
        &self,
        cred: &OpaqueAuth,
        from: (&Handle, &[u8]),
        to: (&Handle, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        if flags != RenameFlags::Replace {
            return crate::exclusive_rename::rename_with(self, cred, from, to, flags).await;
        }
        // After the rename, the file that had the name could not be identified.
        let source = self.lookup(cred, from.0, from.1).await?.attr;
        let args = rename::Args { from: dir_op(from.0, from.1), to: dir_op(to.0, to.1) };
        let (outcome, resent) = self.outcome(cred, args).await?;
        match outcome {
            Ok(_) => Ok(()),
            Err(failure)
                if failure.status() == Nfs3Error::NoEnt
                    && resent
                    && retried::has_name(self, cred, &source, to).await =>
            {
                Ok(())
            }
            Err(failure) => Err(self.failed(Procedure::Rename.name(), failure.status())),
        }
    }
}
