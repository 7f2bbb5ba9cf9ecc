//! Which frames are free, and how many may be used.
//!
//! 1. No frame is handed out while as many are used as the limit says. The lowest ones are handed
//!    out first; so a frame at or above the limit is handed out only if the limit was higher, and a
//!    stream that recycles its frames stays in a small, cache-warm part of the arena.

use crate::memory::frame_no::FrameNo;

/// A bitmap with a summary above it.
pub(crate) struct FrameBitmap {
    /// One bit per frame.
    words: Vec<u64>,
    /// One bit per word that has a bit.
    summary: Vec<u64>,
    /// No summary word below this one has a bit.
    hint: usize,
    used: u32,
    limit: u32,
    /// No frame from here on was handed out since it was without memory.
    touched: u32,
}

impl FrameBitmap {
    /// `frames` free ones, of which `limit` may be used.
    pub(crate) fn new(frames: u32, limit: u32) -> Self {
        let words = (frames as usize).div_ceil(64);
        let mut list = Self {
            words: vec![u64::MAX; words],
            summary: vec![u64::MAX; words.div_ceil(64)],
            hint: 0,
            used: 0,
            limit,
            touched: 0,
        };
        // The last words have bits for less than all.
        if !frames.is_multiple_of(64) {
            list.words[words - 1] = (1 << (frames % 64)) - 1;
        }
        if !words.is_multiple_of(64) {
            list.summary[words / 64] = (1 << (words % 64)) - 1;
        }
        list
    }

    /// How many are not free.
    pub(crate) fn used(&self) -> u32 {
        self.used
    }

    /// How many may be used.
    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }

    /// Says how many may be used; more may be used already.
    pub(crate) fn set_limit(&mut self, limit: u32) {
        self.limit = limit;
    }

    /// How many can be had.
    pub(crate) fn available(&self) -> u32 {
        self.limit.saturating_sub(self.used)
    }

    /// Frames at or above the limit that may have memory.
    pub(crate) fn above(&self) -> std::ops::Range<u32> {
        self.limit..self.touched.max(self.limit)
    }

    /// Frames at or above the limit have no memory.
    pub(crate) fn released_above(&mut self) {
        self.touched = self.touched.min(self.limit);
    }

    pub(crate) fn is_free(&self, frame: FrameNo) -> bool {
        self.words[frame.index() / 64] & (1 << (frame.0 % 64)) != 0
    }

    pub(crate) fn put(&mut self, frame: FrameNo) {
        let word = frame.index() / 64;
        debug_assert!(!self.is_free(frame), "frame {frame} freed twice");
        self.words[word] |= 1 << (frame.0 % 64);
        self.summary[word / 64] |= 1 << (word % 64);
        self.hint = self.hint.min(word / 64);
        self.used -= 1;
    }

    /// Takes the `count` lowest free frames; the caller knows that as many are available.
    pub(crate) fn take(&mut self, mut count: usize, out: &mut Vec<FrameNo>) {
        self.used += count as u32;
        while count > 0 {
            while self.summary[self.hint] == 0 {
                self.hint += 1;
            }
            let index = self.hint * 64 + self.summary[self.hint].trailing_zeros() as usize;
            let word = &mut self.words[index];
            while *word != 0 && count > 0 {
                out.push(FrameNo((index * 64) as u32 + word.trailing_zeros()));
                *word &= *word - 1;
                count -= 1;
            }
            if *word == 0 {
                self.summary[index / 64] &= !(1 << (index % 64));
            }
        }
        if let Some(&last) = out.last() {
            self.touched = self.touched.max(last.0 + 1);
        }
    }
}
