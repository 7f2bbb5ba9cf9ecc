//! The free frames, and how many may be used.
//!
//! 1. No frame is handed out while as many are used as the limit allows. The lowest free ones go
//!    first; so a frame at or above the limit is handed out only if the limit was higher, and a
//!    stream that recycles its frames stays in a small, cache-warm part of the arena.
//! 2. Frames get memory before they are first handed out ([`ahead`](FrameBitmap::ahead)): never more
//!    than were handed out so far, at most [`AHEAD`], and none above the limit. So a cache that is
//!    hardly used takes little memory, and an idle one none.

use crate::memory::frame_no::FrameNo;
use std::ops::Range;

/// Frames that get memory in one system call: 2 MiB, a huge page where the machine has them.
pub(crate) const COMMIT: u32 = 512;
/// Most frames with memory above those that were handed out: 32 MiB, which lasts a stream longer
/// than the system takes to run the thread that commits more.
pub(crate) const AHEAD: u32 = 16 * COMMIT;

/// A bitmap with a summary above it.
pub(crate) struct FrameBitmap {
    /// One bit per frame.
    words: Vec<u64>,
    /// One bit per word that is not zero.
    summary: Vec<u64>,
    /// All summary words below this one are zero.
    hint: usize,
    used: u32,
    limit: u32,
    /// From here on, no frame was handed out since its memory was last released.
    touched: u32,
    /// From here on, no frame has memory; at least `touched`.
    committed: u32,
}

impl FrameBitmap {
    /// All of `frames` are free; `limit` of them may be used.
    pub(crate) fn new(frames: u32, limit: u32) -> Self {
        let words = (frames as usize).div_ceil(64);
        let mut list = Self {
            words: vec![u64::MAX; words],
            summary: vec![u64::MAX; words.div_ceil(64)],
            hint: 0,
            used: 0,
            limit,
            touched: 0,
            committed: 0,
        };
        // The last words may be partly filled.
        if !frames.is_multiple_of(64) {
            list.words[words - 1] = (1 << (frames % 64)) - 1;
        }
        if !words.is_multiple_of(64) {
            list.summary[words / 64] = (1 << (words % 64)) - 1;
        }
        list
    }

    /// Number of used frames.
    pub(crate) fn used(&self) -> u32 {
        self.used
    }

    /// Number of frames that may be used.
    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }

    /// Sets the number of frames that may be used; more may be in use.
    pub(crate) fn set_limit(&mut self, limit: u32) {
        self.limit = limit;
    }

    /// Number of frames available now.
    pub(crate) fn available(&self) -> u32 {
        self.limit.saturating_sub(self.used)
    }

    /// Frames at or above the limit that may have memory.
    pub(crate) fn above(&self) -> Range<u32> {
        self.limit..self.committed.max(self.limit)
    }

    /// Notes that frames at or above the limit have no memory.
    pub(crate) fn released_above(&mut self) {
        self.touched = self.touched.min(self.limit);
        self.committed = self.committed.min(self.limit);
    }

    /// Number of frames above those handed out that are to have memory.
    fn distance(&self) -> u32 {
        // Nothing for the first frames: most commands need no more.
        (self.touched / COMMIT * COMMIT).min(AHEAD)
    }

    /// Whether so few frames have memory ahead that more should get some.
    pub(crate) fn is_behind(&self) -> bool {
        self.committed < self.limit.min(self.touched + self.distance() / 2)
    }

    /// The next frames to get memory ahead of their use, at most [`COMMIT`].
    pub(crate) fn ahead(&self) -> Option<Range<u32>> {
        let end = self.limit.min(self.touched + self.distance());
        let next = self.committed..end.min(self.committed + COMMIT);
        (!next.is_empty()).then_some(next)
    }

    /// Notes that the frames below `end` have memory.
    pub(crate) fn committed(&mut self, end: u32) {
        self.committed = self.committed.max(end);
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

    /// Takes the `count` lowest free frames; the caller has checked that as many are available.
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
            self.committed = self.committed.max(self.touched);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn take(bitmap: &mut FrameBitmap, count: u32) -> Vec<u32> {
        let mut taken = Vec::new();
        bitmap.take(count as usize, &mut taken);
        taken.into_iter().map(|frame| frame.0).collect()
    }

    #[test]
    fn each_frame_is_handed_out_once_also_where_the_last_words_are_partly_filled() {
        const WORD: u32 = 64;
        const SUMMARY: u32 = 64 * 64;
        for edge in [WORD, SUMMARY, 2 * SUMMARY] {
            for frames in [edge - 1, edge, edge + 1, edge + WORD, edge + WORD + 1] {
                let mut bitmap = FrameBitmap::new(frames, frames);
                let mut all = take(&mut bitmap, frames - 1);
                assert_eq!((bitmap.available(), bitmap.used()), (1, frames - 1));
                assert!(bitmap.is_free(FrameNo(frames - 1)));
                all.extend(take(&mut bitmap, 1));
                assert!(all.into_iter().eq(0..frames), "{frames} frames");
                assert_eq!((bitmap.available(), bitmap.used()), (0, frames));
                assert!(!bitmap.is_free(FrameNo(frames - 1)));
            }
        }
    }

    #[test]
    fn the_lowest_free_frames_go_first() {
        const FRAMES: u32 = 64 * 64 + 70;
        let mut bitmap = FrameBitmap::new(FRAMES, FRAMES);
        take(&mut bitmap, FRAMES);
        // Each in another word of the bitmap or of the summary; the last one is behind the hint.
        for frame in [FRAMES - 1, 64 * 64, 64 * 64 - 1, 64, 63, 0] {
            bitmap.put(FrameNo(frame));
        }
        assert_eq!(take(&mut bitmap, 3), [0, 63, 64]);
        bitmap.put(FrameNo(1));
        assert_eq!(take(&mut bitmap, 4), [1, 64 * 64 - 1, 64 * 64, FRAMES - 1]);
        assert_eq!(bitmap.used(), FRAMES);
    }

    #[test]
    fn frames_above_the_limit_have_memory_only_if_they_were_handed_out() {
        let mut bitmap = FrameBitmap::new(200, 100);
        assert_eq!(bitmap.above(), 100..100, "never handed out");
        take(&mut bitmap, 100);
        bitmap.set_limit(30);
        assert_eq!((bitmap.above(), bitmap.available()), (30..100, 0));
        bitmap.released_above();
        assert_eq!(bitmap.above(), 30..30);
        // Frames below the limit still have theirs.
        bitmap.set_limit(20);
        assert_eq!(bitmap.above(), 20..30);
        bitmap.set_limit(101);
        assert_eq!((bitmap.above(), bitmap.available()), (101..101, 1));
        assert_eq!(take(&mut bitmap, 1), [100]);
        bitmap.set_limit(0);
        assert_eq!(bitmap.above(), 0..101);
    }

    /// Commits all that is to be committed; returns the frames.
    fn commit(bitmap: &mut FrameBitmap) -> Range<u32> {
        let start = bitmap.committed;
        while let Some(next) = bitmap.ahead() {
            assert!(next.start == bitmap.committed && next.len() <= COMMIT as usize);
            bitmap.committed(next.end);
        }
        start..bitmap.committed
    }

    #[test]
    fn no_more_memory_is_committed_ahead_than_was_used_nor_than_the_bound_and_the_limit() {
        const FRAMES: u32 = 2 * AHEAD + AHEAD / 2;
        let mut bitmap = FrameBitmap::new(FRAMES, FRAMES);
        assert_eq!(commit(&mut bitmap), 0..0, "nothing was used");
        take(&mut bitmap, COMMIT - 1);
        assert!(!bitmap.is_behind() && bitmap.ahead().is_none(), "little was used");
        take(&mut bitmap, 1);
        assert!(bitmap.is_behind());
        assert_eq!(commit(&mut bitmap), COMMIT..2 * COMMIT);
        // What is used again and again is no reason for more.
        (0..COMMIT).for_each(|frame| bitmap.put(FrameNo(frame)));
        take(&mut bitmap, COMMIT);
        assert!(!bitmap.is_behind() && bitmap.ahead().is_none());
        take(&mut bitmap, AHEAD);
        let used = COMMIT + AHEAD;
        assert_eq!(commit(&mut bitmap), used..used + AHEAD);
        // More is committed when half of it is used, and then up to the bound again.
        take(&mut bitmap, AHEAD / 2);
        assert!(!bitmap.is_behind());
        take(&mut bitmap, 1);
        assert!(bitmap.is_behind());
        assert_eq!(commit(&mut bitmap), used + AHEAD..FRAMES, "the limit is below the bound");
        let rest = bitmap.available();
        take(&mut bitmap, rest);
        assert!(!bitmap.is_behind() && bitmap.ahead().is_none());
    }

    #[test]
    fn memory_committed_ahead_is_returned_with_that_above_the_limit_and_committed_again() {
        let mut bitmap = FrameBitmap::new(8 * COMMIT, 8 * COMMIT);
        take(&mut bitmap, 3 * COMMIT);
        assert_eq!(commit(&mut bitmap), 3 * COMMIT..6 * COMMIT);
        bitmap.set_limit(4 * COMMIT);
        assert_eq!(bitmap.above(), 4 * COMMIT..6 * COMMIT);
        assert!(!bitmap.is_behind() && bitmap.ahead().is_none());
        bitmap.released_above();
        assert_eq!(bitmap.above(), 4 * COMMIT..4 * COMMIT);
        bitmap.set_limit(8 * COMMIT);
        assert!(bitmap.is_behind());
        assert_eq!(commit(&mut bitmap), 4 * COMMIT..6 * COMMIT);
    }
}
