//! Open files of a [`Fault`](super::Fault).
//!
//! A shortened read passes its memory to the store below as the buffer of another read, and gets it
//! back when that buffer is dropped.
//!
//! Sound because the lent buffer owns the read, and so its memory, for as long as it exists.

use super::{Call, Faults, What};
use async_trait::async_trait;
use parking_lot::Mutex;
use std::io::IoSliceMut;
use std::sync::Arc;
use weir_vfs::{
    Buffer, Error, OpenFile, OpenFileDecorator, OpenFileMethod, ReadOp, Result, WriteOp,
};

pub(super) struct FaultFile {
    pub(super) inner: Arc<dyn OpenFile>,
    pub(super) faults: Arc<Faults>,
}

/// The first `len` bytes of a read's memory; drop returns the read.
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

// SAFETY: the slices are those of the read's own buffer, which keeps the contract, and which this
// one owns until it is dropped.
unsafe impl Buffer for Lent {
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
impl OpenFileDecorator for FaultFile {
    fn below(&self) -> &dyn OpenFile {
        &*self.inner
    }

    async fn before(&self, method: OpenFileMethod) -> Result<()> {
        let call = match method {
            OpenFileMethod::Getattr => Call::Getattr,
            OpenFileMethod::Sync => Call::Sync,
            OpenFileMethod::SetSize => Call::SetSize,
            OpenFileMethod::PunchHole => Call::PunchHole,
            OpenFileMethod::Allocate => Call::Allocate,
            OpenFileMethod::ExtentAt => Call::ExtentAt,
            OpenFileMethod::CloneRange => Call::CloneRange,
            OpenFileMethod::CopyRange => Call::CopyRange,
            OpenFileMethod::Lock | OpenFileMethod::TestLock | OpenFileMethod::Unlock => {
                return Ok(());
            }
        };
        self.faults.pass(call).await
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

    async fn clone_range(
        &self,
        from: &dyn OpenFile,
        offset: u64,
        len: u64,
        to_offset: u64,
    ) -> Result<()> {
        self.before(OpenFileMethod::CloneRange).await?;
        let from = from.as_any().downcast_ref::<Self>().ok_or(Error::CrossDevice)?;
        self.inner.clone_range(&*from.inner, offset, len, to_offset).await
    }

    async fn copy_range(
        &self,
        from: &dyn OpenFile,
        offset: u64,
        len: u64,
        to_offset: u64,
    ) -> Result<u64> {
        self.before(OpenFileMethod::CopyRange).await?;
        let from = from.as_any().downcast_ref::<Self>().ok_or(Error::CrossDevice)?;
        self.inner.copy_range(&*from.inner, offset, len, to_offset).await
    }
}
