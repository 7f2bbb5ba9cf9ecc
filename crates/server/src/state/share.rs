//! Share reservations: what an open may do, and what it denies to others.

use crate::state::tables::delegation::Touch;
use weir_vfs::Access;

/// Access and deny bits of an open: 1 for reading, 2 for writing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Share {
    /// The access of the open.
    pub access: Access,
    /// The access denied to other opens.
    pub deny: Access,
}

impl Share {
    /// Whether two opens exclude each other.
    pub fn conflicts(self, other: Self) -> bool {
        self.access.intersects(other.deny) || self.deny.intersects(other.access)
    }

    /// How the open affects delegations of other clients: as a change if it writes, or if it denies
    /// access that they may have granted to local opens.
    pub fn touch(self) -> Touch {
        let reads = !self.access.contains(Access::WRITE) && self.deny.is_empty();
        if reads { Touch::Read } else { Touch::Change }
    }

    /// The union of both.
    pub fn union(self, other: Self) -> Self {
        Self { access: self.access | other.access, deny: self.deny | other.deny }
    }

    /// Whether this is part of `other`.
    pub fn is_within(self, other: Self) -> bool {
        other.access.contains(self.access) && other.deny.contains(self.deny)
    }

    /// Whether this is the union of some of `opened` (RFC 8881 section 18.18.3).
    pub fn is_union_of(self, opened: &[Self]) -> bool {
        let parts = opened.iter().filter(|o| o.is_within(self));
        parts.fold(Self::default(), |all, &o| all.union(o)) == self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn share(access: u32, deny: u32) -> Share {
        Share { access: Access::from_bits_truncate(access), deny: Access::from_bits_truncate(deny) }
    }

    #[test]
    fn denial_works_both_ways() {
        assert!(!share(3, 0).conflicts(share(3, 0)));
        assert!(share(1, 0).conflicts(share(2, 1)));
        assert!(share(2, 1).conflicts(share(1, 0)));
        assert!(!share(1, 2).conflicts(share(1, 2)));
    }

    #[test]
    fn a_downgrade_is_a_union_of_earlier_opens() {
        let opened = [share(1, 0), share(3, 2)];
        assert!(share(1, 0).is_union_of(&opened));
        assert!(share(3, 2).is_union_of(&opened));
        assert!(!share(2, 0).is_union_of(&opened));
        assert!(!share(1, 2).is_union_of(&opened));
    }
}
