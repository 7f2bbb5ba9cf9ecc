//! Open files of a [`MemoryFs`](super::MemoryFs). Reads and writes complete before they return.

use super::content::Content;
use super::locks::OpenId;
use super::node::Node;
use crate::rules::range_end;
use async_trait::async_trait;
use std::any::Any;
use std::sync::Arc;
use weir_base::PAGE_SIZE;
use weir_vfs::{
    Access, Attr, Error, Extent, Layout, Lock, LockOwner, LockRange, OpenFile, ReadOp, Result,
    WriteOp,
};

pub(super) struct MemoryFile {
    pub(super) node: Arc<Node>,
    pub(super) access: Access,
    pub(super) id: OpenId,
}

impl Drop for MemoryFile {
    fn drop(&mut self) {
        if let Ok(content) = self.node.content() {
            content.locks.release(self.id);
        }
    }
}

impl MemoryFile {
    fn read(&self, op: &mut ReadOp) -> Result<Layout> {
        self.readable()?;
        let (offset, len) = (op.offset(), op.len());
        let mut slices = Vec::new();
        op.buffer().slices(0, len, &mut slices);
        Ok(self.node.content()?.read().read(offset, len, slices))
    }

    fn write(&self, op: &WriteOp) -> Result<()> {
        let (offset, len) = (op.offset(), op.len());
        self.change(offset, len as u64, |content| {
            let mut slices = Vec::new();
            op.source().slices(0, len, &mut slices);
            content.write(offset, &slices);
        })
    }

    /// Runs a change that adds pages within `offset..offset + len` at most.
    fn change(&self, offset: u64, len: u64, change: impl FnOnce(&mut Content)) -> Result<()> {
        self.writable()?;
        let end = range_end(offset, len)?;
        if len == 0 {
            return Ok(());
        }
        self.node.change_data(|content| content.growth(offset, end), change)
    }

    fn readable(&self) -> Result<()> {
        if self.access.contains(Access::READ) { Ok(()) } else { Err(Error::BadFile) }
    }

    fn writable(&self) -> Result<()> {
        if self.access.contains(Access::WRITE) { Ok(()) } else { Err(Error::BadFile) }
    }
}

#[async_trait]
impl OpenFile for MemoryFile {
    fn access(&self) -> Access {
        self.access
    }

    fn is_marked_uncached(&self) -> bool {
        let meta = self.node.meta.lock();
        let value = meta.xattrs.get(weir_vfs::UNCACHED_XATTR);
        value.is_some_and(|value| value == weir_vfs::UNCACHED_MARK)
    }

    async fn getattr(&self) -> Result<Attr> {
        Ok(self.node.attr())
    }

    fn submit_read(&self, mut op: ReadOp) {
        let result = self.read(&mut op);
        op.complete(result);
    }

    fn submit_write(&self, op: WriteOp) {
        let result = self.write(&op);
        op.complete(result);
    }

    async fn sync(&self, _data_only: bool) -> Result<()> {
        Ok(())
    }

    async fn set_size(&self, size: u64) -> Result<()> {
        self.writable()?;
        self.node.set_size(size)
    }

    async fn punch_hole(&self, offset: u64, len: u64) -> Result<()> {
        self.writable()?;
        let end = range_end(offset, len)?;
        self.node.change_data(|_| 0, |content| content.punch(offset, end))
    }

    async fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        if len == 0 {
            return Err(Error::Invalid);
        }
        self.change(offset, len, |content| content.allocate(offset, offset + len))
    }

    async fn extent_at(&self, offset: u64) -> Result<Extent> {
        self.node.content()?.read().extent_at(offset).ok_or(Error::NoSuchRange)
    }

    async fn clone_range(
        &self,
        from: &dyn OpenFile,
        offset: u64,
        len: u64,
        to_offset: u64,
    ) -> Result<()> {
        let from = from.as_any().downcast_ref::<Self>().ok_or(Error::CrossDevice)?;
        if !Arc::ptr_eq(&self.node.content()?.space, &from.node.content()?.space) {
            return Err(Error::CrossDevice);
        }
        from.readable()?;
        // A copy of the map (which shares its pages), so that the two locks are never held
        // together.
        let source = from.node.content()?.read().clone();
        let end = if len == 0 { source.size().max(offset) } else { range_end(offset, len)? };
        let len = end - offset;
        let aligned = |at: u64| at.is_multiple_of(PAGE_SIZE as u64);
        let whole = aligned(offset) && aligned(to_offset) && (aligned(end) || end == source.size());
        let overlap = Arc::ptr_eq(&self.node, &from.node)
            && offset < to_offset.saturating_add(len)
            && to_offset < end;
        if end > source.size() || !whole || overlap {
            return Err(Error::Invalid);
        }
        self.change(to_offset, len, |content| content.share(&source, offset, end, to_offset))
    }

    async fn lock(&self, owner: LockOwner, lock: Lock, wait: bool) -> Result<()> {
        if lock.exclusive { self.writable() } else { self.readable() }?;
        self.node.content()?.locks.lock((self.id, owner), lock, wait).await
    }

    async fn test_lock(&self, owner: LockOwner, lock: Lock) -> Result<Option<Lock>> {
        Ok(self.node.content()?.locks.test((self.id, owner), lock))
    }

    async fn unlock(&self, owner: LockOwner, range: LockRange) -> Result<()> {
        self.node.content()?.locks.unlock((self.id, owner), range);
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
