//! Reads and writes in flight: each owns its memory until it completes.
//!
//! Stores pass addresses of that memory to the kernel, which continues to use them after a borrow
//! has ended. Types that lend their memory promise with `unsafe impl` that the addresses stay
//! valid.

#![allow(unsafe_code, reason = "`Vec` and `Bytes` keep the contracts of `Buffer` and `Source`")]

use crate::{Error, Layout, Result};
use std::io::{IoSlice, IoSliceMut};
use std::sync::{Arc, Mutex, PoisonError};

/// Memory that a store fills: a run of page frames, or an ordinary vector.
///
/// # Safety
/// A device or socket writes to the addresses of [`slices`](Self::slices) while the owner holds the
/// buffer, even after the borrow has ended and the buffer was moved. Until the buffer is dropped:
///
/// - the memory of a slice stays allocated and writable, at the same address;
/// - nothing reads or writes that memory except through this buffer;
/// - [`len`](Self::len) does not change, and `slices` appends exactly `to - from` bytes, in order.
pub unsafe trait Buffer: Send {
    /// Length in bytes.
    fn len(&self) -> usize;

    /// Whether the length is 0.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends writable slices that together form the bytes `from..to`.
    fn slices<'a>(&'a mut self, from: usize, to: usize, out: &mut Vec<IoSliceMut<'a>>);

    /// Copies `bytes` to position `at`.
    ///
    /// # Panics
    /// The bytes do not fit.
    fn copy_in(&mut self, at: usize, mut bytes: &[u8]) {
        let mut slices = Vec::new();
        self.slices(at, at + bytes.len(), &mut slices);
        for slice in &mut slices {
            let (now, later) = bytes.split_at(slice.len());
            slice.copy_from_slice(now);
            bytes = later;
        }
    }

    /// Writes zeros to bytes `from..to`.
    fn zero(&mut self, from: usize, to: usize) {
        let mut slices = Vec::new();
        self.slices(from, to, &mut slices);
        for slice in &mut slices {
            slice.fill(0);
        }
    }
}

// SAFETY: the vector owns its memory, which does not move with it; no call through the trait makes
// it grow or shrink.
unsafe impl Buffer for Vec<u8> {
    fn len(&self) -> usize {
        Vec::len(self)
    }

    fn slices<'a>(&'a mut self, from: usize, to: usize, out: &mut Vec<IoSliceMut<'a>>) {
        out.push(IoSliceMut::new(&mut self[from..to]));
    }
}

/// Memory that a store writes out.
///
/// # Safety
/// A device or socket reads from the addresses of [`slices`](Self::slices) while the owner holds
/// the source, even after the borrow has ended and the source was moved. Until the source is
/// dropped:
///
/// - the memory of a slice stays allocated and readable, at the same address;
/// - nothing writes to that memory;
/// - [`len`](Self::len) does not change, and `slices` appends exactly `to - from` bytes, in order.
pub unsafe trait Source: Send + Sync {
    /// Length in bytes.
    fn len(&self) -> usize;

    /// Whether the length is 0.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends slices that together form the bytes `from..to`.
    fn slices<'a>(&'a self, from: usize, to: usize, out: &mut Vec<IoSlice<'a>>);
}

// SAFETY: the vector's memory does not move with it, and is not written to: `Source` lends it for
// reading only.
unsafe impl Source for Vec<u8> {
    fn len(&self) -> usize {
        Vec::len(self)
    }

    fn slices<'a>(&'a self, from: usize, to: usize, out: &mut Vec<IoSlice<'a>>) {
        out.push(IoSlice::new(&self[from..to]));
    }
}

// SAFETY: the bytes are immutable while any handle of them exists, and their memory does not move with
// a handle.
unsafe impl Source for bytes::Bytes {
    fn len(&self) -> usize {
        bytes::Bytes::len(self)
    }

    fn slices<'a>(&'a self, from: usize, to: usize, out: &mut Vec<IoSlice<'a>>) {
        out.push(IoSlice::new(&self[from..to]));
    }
}

/// A vector that is returned when the buffer is dropped.
struct Returning {
    bytes: Vec<u8>,
    to: Arc<Mutex<Vec<u8>>>,
}

impl Drop for Returning {
    fn drop(&mut self) {
        *self.to.lock().unwrap_or_else(PoisonError::into_inner) = std::mem::take(&mut self.bytes);
    }
}

// SAFETY: as for the vector in it, which nothing else refers to before the buffer is dropped.
unsafe impl Buffer for Returning {
    fn len(&self) -> usize {
        self.bytes.len()
    }

    fn slices<'a>(&'a mut self, from: usize, to: usize, out: &mut Vec<IoSliceMut<'a>>) {
        out.push(IoSliceMut::new(&mut self.bytes[from..to]));
    }
}

type ReadDone = Box<dyn FnOnce(Box<dyn Buffer>, Result<Layout>) + Send>;
type WriteDone = Box<dyn FnOnce(Box<dyn Source>, Result<()>) + Send>;

/// A read in flight: fill the buffer, then [`complete`](Self::complete).
pub struct ReadOp {
    offset: u64,
    uncached: bool,
    inner: Option<(Box<dyn Buffer>, ReadDone)>,
}

impl ReadOp {
    /// A read of `buffer.len()` bytes at `offset`; `done` is called once, on the thread that
    /// completes the read, and must not block.
    pub fn new(
        offset: u64,
        buffer: Box<dyn Buffer>,
        done: impl FnOnce(Box<dyn Buffer>, Result<Layout>) + Send + 'static,
    ) -> Self {
        Self { offset, uncached: false, inner: Some((buffer, Box::new(done))) }
    }

    /// A read of `len` bytes at `offset` into a new vector, which `done` gets. Where nothing was read,
    /// holes included, it has zeros.
    pub fn to_vec(
        offset: u64,
        len: usize,
        done: impl FnOnce(Vec<u8>, Result<Layout>) + Send + 'static,
    ) -> Self {
        let returned = Arc::new(Mutex::new(Vec::new()));
        let buffer = Returning { bytes: vec![0; len], to: Arc::clone(&returned) };
        Self::new(offset, Box::new(buffer), move |buffer, result| {
            drop(buffer);
            let bytes =
                std::mem::take(&mut *returned.lock().unwrap_or_else(PoisonError::into_inner));
            done(bytes, result);
        })
    }

    /// Marks the read as one whose data the caller will not read again soon, for stores that
    /// forward this.
    pub fn uncached(mut self, uncached: bool) -> Self {
        self.uncached = uncached;
        self
    }

    /// The offset in the file, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The number of bytes to read.
    pub fn len(&self) -> usize {
        self.inner.as_ref().map_or(0, |(b, _)| b.len())
    }

    /// Whether the read is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the caller will not use the data again.
    pub fn is_uncached(&self) -> bool {
        self.uncached
    }

    /// The memory to fill: byte `i` of it is byte `offset() + i` of the file.
    pub fn buffer(&mut self) -> &mut dyn Buffer {
        // `inner` is only taken by `complete` and `drop`, which consume the operation.
        match &mut self.inner {
            Some((buffer, _)) => &mut **buffer,
            None => unreachable!("a completed read has no buffer"),
        }
    }

    /// Returns the buffer with the result.
    pub fn complete(mut self, result: Result<Layout>) {
        if let Some((buffer, done)) = self.inner.take() {
            done(buffer, result);
        }
    }
}

impl Drop for ReadOp {
    fn drop(&mut self) {
        if let Some((buffer, done)) = self.inner.take() {
            done(buffer, Err(Error::Io));
        }
    }
}

impl std::fmt::Debug for ReadOp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ReadOp({} bytes at {})", self.len(), self.offset)
    }
}

/// A write in flight: store the bytes, then [`complete`](Self::complete).
///
/// After success, the bytes survive a restart of the store (an NFS client completes after COMMIT),
/// but not a power failure: that needs [`OpenFile::sync`](crate::OpenFile::sync).
pub struct WriteOp {
    offset: u64,
    uncached: bool,
    // The lock makes the operation `Sync`, so that a store may send pieces of it from several
    // threads; it is never contended.
    inner: Option<(Box<dyn Source>, Mutex<WriteDone>)>,
}

impl WriteOp {
    /// A write of `source.len()` bytes at `offset`; `done` is called once, on the thread that
    /// completes the write, and must not block.
    pub fn new(
        offset: u64,
        source: Box<dyn Source>,
        done: impl FnOnce(Box<dyn Source>, Result<()>) + Send + 'static,
    ) -> Self {
        Self { offset, uncached: false, inner: Some((source, Mutex::new(Box::new(done)))) }
    }

    /// Marks the write as one whose data the caller will not read again soon.
    pub fn uncached(mut self, uncached: bool) -> Self {
        self.uncached = uncached;
        self
    }

    /// The offset in the file, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The number of bytes to write.
    pub fn len(&self) -> usize {
        self.inner.as_ref().map_or(0, |(s, _)| s.len())
    }

    /// Whether the write is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the caller will not use the data again.
    pub fn is_uncached(&self) -> bool {
        self.uncached
    }

    /// The bytes to write.
    pub fn source(&self) -> &dyn Source {
        match &self.inner {
            Some((source, _)) => &**source,
            None => unreachable!("a completed write has no source"),
        }
    }

    /// Returns the source; all of its bytes are written, or the write failed.
    pub fn complete(mut self, result: Result<()>) {
        self.finish(result);
    }

    fn finish(&mut self, result: Result<()>) {
        if let Some((source, done)) = self.inner.take() {
            done.into_inner().unwrap_or_else(PoisonError::into_inner)(source, result);
        }
    }
}

impl Drop for WriteOp {
    fn drop(&mut self) {
        self.finish(Err(Error::Io));
    }
}

impl std::fmt::Debug for WriteOp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WriteOp({} bytes at {})", self.len(), self.offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_dropped_operation_fails_and_returns_its_buffer() {
        let (tx, rx) = mpsc::channel();
        drop(ReadOp::new(0, Box::new(vec![0; 8]), move |buffer, result| {
            tx.send((buffer.len(), result)).unwrap();
        }));
        assert_eq!(rx.recv().unwrap(), (8, Err(Error::Io)));
    }

    #[test]
    fn copy_in_lands_at_its_place() {
        let mut buffer = vec![9; 6];
        Buffer::copy_in(&mut buffer, 2, b"ab");
        Buffer::zero(&mut buffer, 4, 5);
        assert_eq!(buffer, [9, 9, b'a', b'b', 0, 9]);
    }
}
