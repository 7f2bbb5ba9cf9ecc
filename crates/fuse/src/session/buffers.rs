//! Buffers for requests: one for each thread that receives, and one for each large WRITE that is not
//! carried out yet. Their number is bounded; without a free one, a thread waits before it receives.

use parking_lot::{Condvar, Mutex, MutexGuard};
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::time::Duration;

/// WRITEs up to this size are copied out of the buffer.
const SMALL: usize = 16 << 10;
/// How long a thread waits for room before it looks after the requests that it cannot receive interrupts for.
pub(crate) const PATIENCE: Duration = Duration::from_millis(if cfg!(test) { 20 } else { 1000 });

#[derive(Debug)]
pub(crate) struct Buffers {
    len: usize,
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Debug)]
struct State {
    free: Vec<Vec<u8>>,
    /// Buffers that may still be allocated.
    left: usize,
}

impl Buffers {
    /// At most `most` buffers of `len` bytes.
    pub(crate) fn new(len: usize, most: usize) -> Arc<Self> {
        let state = Mutex::new(State { free: Vec::new(), left: most });
        Arc::new(Self { len, state, freed: Condvar::new() })
    }

    /// A buffer; waits for one, and calls `waits` each time that it has waited for [`PATIENCE`].
    pub(crate) fn take(self: &Arc<Self>, waits: impl Fn()) -> Buffer {
        let mut state = self.state.lock();
        let bytes = loop {
            if let Some(bytes) = state.free.pop() {
                break bytes;
            }
            if state.left > 0 {
                state.left -= 1;
                break vec![0; self.len];
            }
            if self.freed.wait_for(&mut state, PATIENCE).timed_out() {
                MutexGuard::unlocked(&mut state, &waits);
            }
        };
        Buffer { bytes, home: Arc::clone(self) }
    }
}

/// A buffer, which returns to the others when it is dropped.
#[derive(Debug)]
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    home: Arc<Buffers>,
}

impl Buffer {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.home.state.lock().free.push(std::mem::take(&mut self.bytes));
        self.home.freed.notify_one();
    }
}

/// The data of a WRITE.
#[derive(Debug)]
pub(crate) enum Payload {
    Copied(Vec<u8>),
    Whole(Buffer, Range<usize>),
}

impl Payload {
    /// The bytes `range` of `buffer`: a copy if they are few, else all of the buffer, in whose place comes
    /// another one, which this [waits](Buffers::take) for.
    pub(crate) fn take(buffer: &mut Buffer, range: Range<usize>, waits: impl Fn()) -> Self {
        if range.len() <= SMALL {
            return Self::Copied(buffer.bytes[range].to_vec());
        }
        let other = buffer.home.take(waits);
        Self::Whole(std::mem::replace(buffer, other), range)
    }
}

impl Deref for Payload {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Copied(bytes) => bytes,
            Self::Whole(buffer, range) => &buffer.bytes[range.clone()],
        }
    }
}
