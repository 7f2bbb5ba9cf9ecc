//! Power cuts on a real kernel: what a server acknowledged must be on the disk, wherever the power fails.
//!
//! The server runs in the guest over a file system on dm-log-writes, which records each write and each
//! flush of the disk. `load` changes files through Linux's NFS clients, and marks the log after each
//! reply. `log` replays a part of the log: the disk as a power cut at that place leaves it.
//! `check` compares the disk, and the handles at a server that is started on it, with `journal`.
//!
//! 1. A mark is in the log before the next operation of its worker begins. dm-log-writes records writes
//!    when a flush has made them durable, so all that is durable at the time of a mark is before it.
//! 2. Each worker changes a directory of its own, one operation at a time. At a cut, the operations before
//!    the last mark are acknowledged. The ones up to the next mark, and one more of each worker, have
//!    possibly begun.
//! 3. Names are as after one of those operations, and bytes, sizes and modes of each file are as after one
//!    of them.

pub mod check;
pub mod journal;
pub mod load;
pub mod log;
pub mod rpc;

/// A small generator of pseudo-random numbers (SplitMix64): the same seed gives the same numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The numbers of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound.max(1) as u64) as usize
    }
}
