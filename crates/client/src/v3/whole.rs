//! Small files that are written or read whole: in three or four calls, and in two.
//!
//! 1. The file gets its final name last, when its data and attributes are durable.
//! 2. After a failure the temporary name is removed: it is used once, and by one program. The caller
//!    then takes single operations.

use super::convert::{Status, attr_of, handle_of};
use super::{V3, dir_op};
use crate::error::{Result, Violation};
use crate::protocol::{Handle, NewEntry, Node, Protocol, broken};
use crate::retried;
use std::time::SystemTime;
use weir_nfs::Data;
use weir_nfs::v3::op::{access, read, rename, write};
use weir_nfs::v3::{Error as Nfs3Error, Procedure};
use weir_rpc::OpaqueAuth;
use weir_vfs::{Attr, SetAttr, SetTime, WholeFile, WholeRead};
use weir_xdr::Bytes;

/// The mode of a file that is being written.
const MODE: u32 = 0o600;

impl V3 {
    /// Creates a small file whole; `None` if that is not possible.
    pub(super) async fn put_file(
        &self,
        cred: &OpaqueAuth,
        dir: &Handle,
        file: &WholeFile,
    ) -> Result<Option<Node>> {
        let bytes: usize = file.data.iter().map(|(_, run)| run.len()).sum();
        // A server may clear these bits when the owner is set, which a single SETATTR cannot order.
        let has_special_bits = file.mode & 0o6000 != 0;
        if has_special_bits || bytes > self.limits().write || file.data.len() > 1 {
            return Ok(None);
        }
        match self.put_in_calls(cred, dir, file).await {
            Ok(node) => Ok(Some(node)),
            Err(error @ crate::Error::TimedOut { .. }) => Err(error),
            Err(error) => {
                tracing::debug!("{error}; writing the file in more calls");
                // The failure before is the one that counts.
                if let Err(error) = self.remove(cred, dir, &file.temporary, false).await {
                    tracing::debug!("{error}");
                }
                Ok(None)
            }
        }
    }

    async fn put_in_calls(
        &self,
        cred: &OpaqueAuth,
        dir: &Handle,
        file: &WholeFile,
    ) -> Result<Node> {
        // The final mode at once, if that protects the file as it will be.
        let is_plain = file.owner.is_none() && file.times.is_none();
        let mode = if is_plain { file.mode } else { MODE };
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        let entry = NewEntry { dir, name: &file.temporary, set: &set };
        let Node { handle, mut attr } = self.create(cred, entry, false).await?;
        let (mut end, mut written) = (0, None);
        for (offset, run) in &file.data {
            end = offset + run.len() as u64;
            written = self.write_durably(cred, &handle, (*offset, run)).await?;
        }
        let attr_now = written.unwrap_or_else(|| attr.clone());
        let alike = |attr: &Attr| attr.mode == file.mode && attr.size == file.size;
        if is_plain && alike(&attr_now) {
            attr = attr_now;
        } else {
            let set = SetAttr {
                size: (file.size > end).then_some(file.size),
                uid: file.owner.map(|(uid, _)| uid),
                gid: file.owner.map(|(_, gid)| gid),
                mode: Some(file.mode),
                atime: file.times.map(|(atime, _)| SetTime::To(atime)),
                mtime: file.times.map(|(_, mtime)| SetTime::To(mtime)),
                ..SetAttr::default()
            };
            attr = self.setattr(cred, &handle, None, &set).await?.0;
        }
        if attr.size != file.size {
            return Err(broken(&self.server, "WRITE", Violation::WrongCount));
        }
        let (from, to) = (dir_op(dir, &file.temporary), dir_op(dir, &file.name));
        let (outcome, resent) = self.outcome(cred, rename::Args { from, to }).await?;
        match outcome {
            Ok(_) => Ok(Node { handle, attr }),
            Err(failure)
                if failure.status() == Nfs3Error::NoEnt
                    && resent
                    && retried::has_name(self, cred, &attr, (dir, &file.name)).await =>
            {
                Ok(Node { handle, attr })
            }
            Err(failure) => Err(self.failed(Procedure::Rename.name(), failure.status())),
        }
    }

    /// Writes all of a run durably; returns the file's attributes, if the server reports them.
    async fn write_durably(
        &self,
        cred: &OpaqueAuth,
        handle: &Handle,
        (offset, run): (u64, &[u8]),
    ) -> Result<Option<Attr>> {
        let args = write::Args {
            file: handle_of(handle),
            offset,
            count: run.len() as u32,
            stable: write::Stability::FileSync,
            data: Data::from(Bytes::copy_from_slice(run)),
        };
        let written = self.call(cred, args).await?;
        if written.count as usize != run.len() {
            return Err(broken(&self.server, "WRITE", Violation::WrongCount));
        }
        if written.committed == write::Stability::Unstable {
            return Err(broken(&self.server, "WRITE", Violation::NotDurable));
        }
        Ok(written.file.after.map(|attr| attr_of(&attr, handle)))
    }

    /// Reads a small file whole; `None` if that is not possible. ACCESS tells the attributes from
    /// before the read.
    pub(super) async fn get_file(
        &self,
        cred: &OpaqueAuth,
        handle: &Handle,
        most: usize,
    ) -> Result<Option<WholeRead>> {
        let began = SystemTime::now();
        let args = access::Args { object: handle_of(handle), rights: access::Rights::READ };
        let (Ok(granted), _) = self.outcome(cred, args).await? else { return Ok(None) };
        let Some(before) = granted.attr else { return Ok(None) };
        if !granted.rights.contains(access::Rights::READ) || before.size > most as u64 {
            return Ok(None);
        }
        let count = most.min(self.limits().read) as u32;
        let args = read::Args { file: handle_of(handle), offset: 0, count };
        let (Ok(read), _) = self.outcome(cred, args).await? else { return Ok(None) };
        let Some(after) = read.attr else { return Ok(None) };
        let (before, after) = (attr_of(&before, handle), attr_of(&after, handle));
        if !read.eof || read.data.len() as u64 != after.size {
            return Ok(None);
        }
        let data = read.data.to_bytes().to_vec();
        Ok(Some(WholeRead { before, after, began, data, xattrs: None, access_list: None }))
    }
}
