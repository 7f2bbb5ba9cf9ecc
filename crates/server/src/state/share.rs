//! Share reservations: what an open may do, and what it denies to others.

use crate::state::tables::delegation::Touch;
use weir_vfs::Access;

/// Access and deny bits of an open: 1 for reading, 2 for writing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Share {
    /// The access of the open.
    pub(crate) access: Access,
    /// The access denied to other opens.
    pub(crate) deny: Access,
}

impl Share {
    /// Whether two opens exclude each other.
    pub(crate) fn conflicts(self, other: Self) -> bool {
        self.access.intersects(other.deny) || self.deny.intersects(other.access)
    }

    /// How the open affects delegations of other clients: as a change if it writes, or if it denies
    /// access that they may have granted to local opens.
    pub(crate) fn touch(self) -> Touch {
        let reads = !self.access.contains(Access::WRITE) && self.deny.is_empty();
        if reads { Touch::Read } else { Touch::Change }
    }

    /// The union of both.
    pub(crate) fn union(self, other: Self) -> Self {
        Self { access: self.access | other.access, deny: self.deny | other.deny }
    }

    /// Whether this is part of `other`.
    pub(crate) fn is_within(self, other: Self) -> bool {
        other.access.contains(self.access) && other.deny.contains(self.deny)
    }

    /// Whether this is the union of some of `opened` (RFC 8881 section 18.18.3).
    pub(crate) fn is_union_of(self, opened: &[Self]) -> bool {
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
    fn access_and_deny_modes_conflict_in_both_directions() {
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
