//! Whether an operation uses the cache as all others do, or leaves it as it was.

/// What becomes of the pages that an operation brings into the cache; in the order in which operations
/// get memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CachePolicy {
    /// They stay until memory is short.
    #[default]
    Cached,
    /// They go when the operation is done with them ([`IoFlags::UNCACHED`](weir_vfs::IoFlags)).
    Uncached,
}

impl CachePolicy {
    #[inline]
    pub(crate) const fn uncached_if(uncached: bool) -> Self {
        if uncached { Self::Uncached } else { Self::Cached }
    }

    #[inline]
    pub(crate) const fn is_uncached(self) -> bool {
        matches!(self, Self::Uncached)
    }
}
