//! Open files of a [`Fault`](super::Fault).
//!
//! A read that is shortened is lent to the store below as the buffer of another one, and
//! comes back when that one's buffer is dropped.

use super::{Call, Faults, What};
use async_trait::async_trait;
use parking_lot::Mutex;
use std::any::Any;
use std::io::IoSliceMut;
use std::sync::Arc;
use weir_vfs::{
    Access, Attr, Buffer, Error, Extent, Lock, LockOwner, LockRange, OpenFile, ReadOp, Result,
    WriteOp,
};

pub(super) struct FaultFile {
    pub(super) inner: Arc<dyn OpenFile>,
    pub(super) faults: Arc<Faults>,
}

/// The first `len` bytes of a read's memory; dropped, it gives the read back.
struct Lent {
    op: Option<ReadOp>,
    len: usize,
    back: Arc<Mutex<Option<ReadOp>>>,
}

impl Drop for Lent {
    fn drop(&mut self) {
        *self.back.lock() = self.op.take();
    }
}

impl Buffer for Lent {
    fn len(&self) -> usize {
        self.len
    }

    fn slices<'a>(&'a mut self, from: usize, to: usize, out: &mut Vec<IoSliceMut<'a>>) {
        if let Some(op) = &mut self.op {
            op.buffer().slices(from, to, out);
        }
    }
}

impl FaultFile {
    fn short_read(&self, op: ReadOp, most: usize) {
        let (offset, uncached, len) = (op.offset(), op.is_uncached(), op.len().min(most));
        let back = Arc::new(Mutex::new(None));
        let lent = Lent { op: Some(op), len, back: back.clone() };
        let short = ReadOp::new(offset, Box::new(lent), move |lent, result| {
            drop(lent);
            if let Some(op) = back.lock().take() {
                op.complete(result);
            }
        });
        self.inner.submit_read(short.uncached(uncached));
    }

    fn short_write(&self, op: WriteOp, most: usize) {
        let mut slices = Vec::new();
        op.source().slices(0, op.len().min(most), &mut slices);
        let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
        let short = WriteOp::new(op.offset(), Box::new(bytes), move |_, result| {
            op.complete(result.and(Err(Error::Io)));
        });
        self.inner.submit_write(short);
    }
}

#[async_trait]
impl OpenFile for FaultFile {
    fn access(&self) -> Access {
        self.inner.access()
    }

    fn is_marked_uncached(&self) -> bool {
        self.inner.is_marked_uncached()
    }

    fn changes_by_others(&self) -> Option<u64> {
        self.inner.changes_by_others()
    }

    async fn getattr(&self) -> Result<Attr> {
        self.faults.pass(Call::Getattr).await?;
        self.inner.getattr().await
    }

    fn submit_read(&self, op: ReadOp) {
        let bytes = op.offset()..op.offset().saturating_add(op.len() as u64);
        match self.faults.decide(Call::Read, bytes) {
            None => self.inner.submit_read(op),
            Some(What::Fail(error)) => op.complete(Err(error)),
            Some(What::Short(most)) => self.short_read(op, most),
            Some(What::Delay(delay)) => {
                let inner = self.inner.clone();
                self.faults.timer.after(delay, move || inner.submit_read(op));
            }
            Some(What::Hold) => {
                let inner = self.inner.clone();
                self.faults.hold(move || inner.submit_read(op));
            }
        }
    }

    fn submit_write(&self, op: WriteOp) {
        let bytes = op.offset()..op.offset().saturating_add(op.len() as u64);
        match self.faults.decide(Call::Write, bytes) {
            None => self.inner.submit_write(op),
            Some(What::Fail(error)) => op.complete(Err(error)),
            Some(What::Short(most)) => self.short_write(op, most),
            Some(What::Delay(delay)) => {
                let inner = self.inner.clone();
                self.faults.timer.after(delay, move || inner.submit_write(op));
            }
            Some(What::Hold) => {
                let inner = self.inner.clone();
                self.faults.hold(move || inner.submit_write(op));
            }
        }
    }

    async fn sync(&self, data_only: bool) -> Result<()> {
        self.faults.pass(Call::Sync).await?;
        self.inner.sync(data_only).await
    }

    async fn set_size(&self, size: u64) -> Result<()> {
        self.faults.pass(Call::SetSize).await?;
        self.inner.set_size(size).await
    }

    async fn punch_hole(&self, offset: u64, len: u64) -> Result<()> {
        self.faults.pass(Call::PunchHole).await?;
        self.inner.punch_hole(offset, len).await
    }

    async fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        self.faults.pass(Call::Allocate).await?;
        self.inner.allocate(offset, len).await
    }

    async fn extent_at(&self, offset: u64) -> Result<Extent> {
        self.faults.pass(Call::ExtentAt).await?;
        self.inner.extent_at(offset).await
    }

    async fn clone_range(
        &self,
        from: &dyn OpenFile,
        offset: u64,
        len: u64,
        to_offset: u64,
    ) -> Result<()> {
        self.faults.pass(Call::CloneRange).await?;
        let from = from.as_any().downcast_ref::<Self>().ok_or(Error::CrossDevice)?;
        self.inner.clone_range(&*from.inner, offset, len, to_offset).await
    }

    async fn lock(&self, owner: LockOwner, lock: Lock, wait: bool) -> Result<()> {
        self.inner.lock(owner, lock, wait).await
    }

    async fn test_lock(&self, owner: LockOwner, lock: Lock) -> Result<Option<Lock>> {
        self.inner.test_lock(owner, lock).await
    }

    async fn unlock(&self, owner: LockOwner, range: LockRange) -> Result<()> {
        self.inner.unlock(owner, range).await
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
