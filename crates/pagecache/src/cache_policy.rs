//! Whether an operation leaves its pages in the cache.

/// What happens to the pages that an operation brings into the cache. The order is the order in
/// which operations get memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CachePolicy {
    /// The pages stay until memory is short.
    #[default]
    Cached,
    /// The operation's end drops them ([`IoFlags::UNCACHED`](weir_vfs::IoFlags)).
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
