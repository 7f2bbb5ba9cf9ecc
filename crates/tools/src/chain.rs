//! A list that shares its tail: the directories above a file, for any number of files.

use std::sync::Arc;

/// The values from the innermost one outwards.
pub(crate) struct Chain<T>(Option<Arc<Link<T>>>);

struct Link<T> {
    value: T,
    above: Chain<T>,
}

impl<T> Chain<T> {
    /// This chain below one more value, the innermost.
    pub(crate) fn with(&self, value: T) -> Self {
        Self(Some(Arc::new(Link { value, above: self.clone() })))
    }

    /// The values, the innermost first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        let first = self.0.as_deref();
        std::iter::successors(first, |link| link.above.0.as_deref()).map(|link| &link.value)
    }
}

impl<T> Clone for Chain<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Default for Chain<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> Drop for Chain<T> {
    /// Without recursion: a server decides how deep a tree is, and the stack is bounded.
    fn drop(&mut self) {
        let mut next = self.0.take();
        while let Some(link) = next {
            next = Arc::into_inner(link).and_then(|mut link| link.above.0.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_chains_are_dropped_without_recursion() {
        let mut chain = Chain::default();
        for n in 0..1_000_000 {
            chain = chain.with(n);
        }
        let other = chain.with(7);
        assert_eq!(other.iter().take(3).collect::<Vec<_>>(), [&7, &999_999, &999_998]);
        drop(other);
        assert_eq!(chain.iter().count(), 1_000_000);
    }
}
