//! Numbers of page frames, a type of their own: a page's number cannot pass for its frame's, nor a count of
//! frames.

/// The number of a frame in its arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub(crate) struct FrameNo(pub(crate) u32);

impl FrameNo {
    /// No frame.
    pub(crate) const NONE: Self = Self(u32::MAX);

    /// Its place in a table of all frames.
    #[inline]
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }

    /// The frame that lies so many behind this one.
    #[inline]
    pub(crate) const fn plus(self, count: u32) -> Self {
        Self(self.0.wrapping_add(count))
    }
}

impl std::fmt::Display for FrameNo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}
