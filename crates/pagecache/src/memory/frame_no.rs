//! Page frame numbers. A separate type keeps them apart from page numbers and from counts of
//! frames.

/// The number of a frame in its arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub(crate) struct FrameNo(pub(crate) u32);

impl FrameNo {
    /// No frame.
    pub(crate) const NONE: Self = Self(u32::MAX);

    /// Its index in a table of all frames.
    #[inline]
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }

    /// The frame `count` positions after this one.
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
