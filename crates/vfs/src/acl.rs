//! POSIX access control lists (POSIX.1e draft 17; acl(5)).
//!
//! 1. An [`Acl`] is always complete: owner, owning group and others have an entry, and if a user or
//!    group is named there is a mask. Named entries are unique, and sorted by id.
//! 2. Arbitrary bytes decode to an [`Acl`] that satisfies 1, or to an error; its memory is at most
//!    a small multiple of the input.

use crate::{Error, Result};
use std::ffi::CStr;

/// Rights of an entry: read (4), write (2), execute or search (1).
pub type AclRights = u8;

/// One of a file's two lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AclKind {
    /// Controls access to the file.
    Access,
    /// New entries of the directory inherit it.
    Default,
}

/// The subject of an entry, in the order of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AclWho {
    /// The file's owner.
    Owner,
    /// A named user.
    User(u32),
    /// The file's owning group.
    Group,
    /// A named group.
    NamedGroup(u32),
    /// Upper bound of the rights of named users, the owning group and named groups.
    Mask,
    /// All other users.
    Other,
}

/// A POSIX access control list.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Acl {
    entries: Vec<(AclWho, AclRights)>,
}

impl Acl {
    /// The list of these entries, in any order.
    ///
    /// # Errors
    /// [`Error::Invalid`]: an entry is missing or duplicate, or has invalid rights.
    pub fn new(entries: impl IntoIterator<Item = (AclWho, AclRights)>) -> Result<Self> {
        let mut entries: Vec<_> = entries.into_iter().collect();
        entries.sort_unstable();
        let twice = entries.windows(2).any(|pair| pair[0].0 == pair[1].0);
        let has = |who| entries.iter().any(|&(w, _)| w == who);
        let named =
            entries.iter().any(|(w, _)| matches!(w, AclWho::User(_) | AclWho::NamedGroup(_)));
        let whole = has(AclWho::Owner) && has(AclWho::Group) && has(AclWho::Other);
        let rights = entries.iter().all(|&(_, rights)| rights <= 7);
        if twice || !whole || !rights || (named && !has(AclWho::Mask)) {
            return Err(Error::Invalid);
        }
        Ok(Self { entries })
    }

    /// The list equivalent to permission bits.
    pub fn of_mode(mode: u32) -> Self {
        let rights = |shift: u32| (mode >> shift & 7) as AclRights;
        let entries =
            [(AclWho::Owner, rights(6)), (AclWho::Group, rights(3)), (AclWho::Other, rights(0))];
        Self { entries: entries.to_vec() }
    }

    /// The entries, in order.
    pub fn entries(&self) -> &[(AclWho, AclRights)] {
        &self.entries
    }

    /// The rights of an entry.
    pub fn get(&self, who: AclWho) -> Option<AclRights> {
        self.entries.iter().find(|&&(w, _)| w == who).map(|&(_, rights)| rights)
    }

    /// Whether permission bits express the whole list.
    pub fn is_minimal(&self) -> bool {
        self.entries.len() == 3
    }

    /// The permission bits (nine) that represent the list: the group's are the mask's, if there is
    /// one.
    pub fn mode(&self) -> u32 {
        let rights = |who| u32::from(self.get(who).unwrap_or(0));
        let group = self.get(AclWho::Mask).map_or(rights(AclWho::Group), u32::from);
        rights(AclWho::Owner) << 6 | group << 3 | rights(AclWho::Other)
    }

    /// Changes the list like chmod(2): the group's bits go to the mask, if there is one.
    pub fn set_mode(&mut self, mode: u32) {
        let group = self.group_class();
        for (who, rights) in &mut self.entries {
            let shift = match *who {
                AclWho::Owner => 6,
                who if who == group => 3,
                AclWho::Other => 0,
                _ => continue,
            };
            *rights = (mode >> shift & 7) as AclRights;
        }
    }

    /// The list of a file that is created with `mode` in a directory with this default list: no
    /// class of users gets more rights than either allows. No umask applies.
    pub fn inherited(&self, mode: u32) -> Self {
        let mut acl = self.clone();
        acl.set_mode(self.mode() & mode);
        acl
    }

    /// The entry that the group's permission bits represent.
    fn group_class(&self) -> AclWho {
        if self.get(AclWho::Mask).is_some() { AclWho::Mask } else { AclWho::Group }
    }
}

/// The extended attribute in which Linux keeps a list.
pub const fn acl_xattr(kind: AclKind) -> &'static CStr {
    match kind {
        AclKind::Access => c"system.posix_acl_access",
        AclKind::Default => c"system.posix_acl_default",
    }
}

/// The attribute's value begins with this number; all numbers in it are little-endian.
const XATTR_VERSION: u32 = 2;
const XATTR_HEADER_BYTES: usize = 4;
/// Tag and rights of 16 bits, id of 32.
const XATTR_ENTRY_BYTES: usize = 8;
/// The id of entries without an id.
const NO_ID: u32 = u32::MAX;

/// Linux's external form of a list (`linux/posix_acl_xattr.h`).
impl Acl {
    /// Decodes a list.
    ///
    /// # Errors [`Error::Invalid`]: the bytes are not a valid list.
    pub fn from_xattr(bytes: &[u8]) -> Result<Self> {
        let (header, entries) =
            bytes.split_first_chunk::<XATTR_HEADER_BYTES>().ok_or(Error::Invalid)?;
        let (entries, rest) = entries.as_chunks::<XATTR_ENTRY_BYTES>();
        if u32::from_le_bytes(*header) != XATTR_VERSION || !rest.is_empty() {
            return Err(Error::Invalid);
        }
        let entries = entries.iter().map(|&[t0, t1, r0, r1, i0, i1, i2, i3]| {
            let id = u32::from_le_bytes([i0, i1, i2, i3]);
            let who = who_of(u16::from_le_bytes([t0, t1]).into(), id).ok_or(Error::Invalid)?;
            let rights = AclRights::try_from(u16::from_le_bytes([r0, r1]));
            Ok((who, rights.map_err(|_| Error::Invalid)?))
        });
        Self::new(entries.collect::<Result<Vec<_>>>()?)
    }

    /// Decodes the tag, id and rights of each entry of NFSACL, in which a list without named entries has a mask
    /// all the same.
    ///
    /// # Errors [`Error::Invalid`]: they are no valid list.
    pub fn from_nfsacl(entries: impl IntoIterator<Item = (u32, u32, u32)>) -> Result<Self> {
        let entry = |(tag, id, rights)| {
            let rights = AclRights::try_from(rights).map_err(|_| Error::Invalid)?;
            Ok((who_of(tag, id).ok_or(Error::Invalid)?, rights))
        };
        let mut entries = entries.into_iter().map(entry).collect::<Result<Vec<_>>>()?;
        let rights = |who| entries.iter().find(|entry| entry.0 == who).map(|entry| entry.1);
        if entries.len() == 4 && rights(AclWho::Mask) == rights(AclWho::Group) {
            entries.retain(|entry| entry.0 != AclWho::Mask);
        }
        Self::new(entries)
    }

    /// Encodes the list.
    pub fn to_xattr(&self) -> Vec<u8> {
        let mut bytes = XATTR_VERSION.to_le_bytes().to_vec();
        for &(who, rights) in &self.entries {
            let (tag, id) = tag_of(who);
            // Tags are below 64.
            bytes.extend((tag as u16).to_le_bytes());
            bytes.extend(u16::from(rights).to_le_bytes());
            bytes.extend(id.unwrap_or(NO_ID).to_le_bytes());
        }
        bytes
    }
}

/// An entry's tag in Linux and in the NFSACL protocol, and its id if it has one.
pub const fn tag_of(who: AclWho) -> (u32, Option<u32>) {
    match who {
        AclWho::Owner => (0x01, None),
        AclWho::User(id) => (0x02, Some(id)),
        AclWho::Group => (0x04, None),
        AclWho::NamedGroup(id) => (0x08, Some(id)),
        AclWho::Mask => (0x10, None),
        AclWho::Other => (0x20, None),
    }
}

/// The subject with this tag and id.
pub const fn who_of(tag: u32, id: u32) -> Option<AclWho> {
    match tag {
        0x01 => Some(AclWho::Owner),
        0x02 => Some(AclWho::User(id)),
        0x04 => Some(AclWho::Group),
        0x08 => Some(AclWho::NamedGroup(id)),
        0x10 => Some(AclWho::Mask),
        0x20 => Some(AclWho::Other),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named() -> Acl {
        Acl::new([
            (AclWho::Other, 0),
            (AclWho::Owner, 7),
            (AclWho::Mask, 5),
            (AclWho::NamedGroup(9), 7),
            (AclWho::User(1000), 6),
            (AclWho::Group, 4),
        ])
        .unwrap()
    }

    #[test]
    fn acls_are_valid_or_refused() {
        let minimal = [(AclWho::Owner, 6), (AclWho::Group, 4), (AclWho::Other, 0)];
        assert_eq!(Acl::new(minimal).unwrap(), Acl::of_mode(0o640));
        for missing in 0..3 {
            let rest = minimal.iter().enumerate().filter(|&(i, _)| i != missing);
            assert_eq!(Acl::new(rest.map(|(_, &e)| e)), Err(Error::Invalid));
        }
        let with = |extra: &[(AclWho, u8)]| Acl::new(minimal.iter().chain(extra).copied());
        assert_eq!(with(&[(AclWho::User(1), 4)]), Err(Error::Invalid), "no mask");
        assert_eq!(with(&[(AclWho::Mask, 8)]), Err(Error::Invalid), "no right");
        assert_eq!(with(&[(AclWho::Mask, 4), (AclWho::Mask, 5)]), Err(Error::Invalid), "twice");
        assert!(!with(&[(AclWho::Mask, 4)]).unwrap().is_minimal());
    }

    #[test]
    fn modes_show_and_set_the_mask() {
        let mut acl = named();
        assert_eq!(acl.mode(), 0o750);
        acl.set_mode(0o4624);
        assert_eq!((acl.mode(), acl.get(AclWho::Group)), (0o624, Some(4)));
        assert_eq!(acl.get(AclWho::Mask), Some(2));
        let inherited = named().inherited(0o666);
        assert_eq!((inherited.mode(), inherited.get(AclWho::User(1000))), (0o640, Some(6)));
        assert_eq!(Acl::of_mode(0o775).inherited(0o666).mode(), 0o664);
    }

    #[test]
    fn the_form_of_linux() {
        let acl = Acl::new([
            (AclWho::Owner, 6),
            (AclWho::User(1000), 4),
            (AclWho::Group, 4),
            (AclWho::Mask, 4),
            (AclWho::Other, 0),
        ])
        .unwrap();
        let bytes = [
            [2, 0, 0, 0].as_slice(),
            &[1, 0, 6, 0, 255, 255, 255, 255],
            &[2, 0, 4, 0, 0xe8, 3, 0, 0],
            &[4, 0, 4, 0, 255, 255, 255, 255],
            &[16, 0, 4, 0, 255, 255, 255, 255],
            &[32, 0, 0, 0, 255, 255, 255, 255],
        ]
        .concat();
        assert_eq!(acl.to_xattr(), bytes);
        assert_eq!(Acl::from_xattr(&bytes), Ok(acl));
        for cut in 0..bytes.len() {
            assert_eq!(Acl::from_xattr(&bytes[..cut]), Err(Error::Invalid), "{cut} bytes");
        }
    }

    #[test]
    fn any_bytes_make_a_whole_list_or_none() {
        // xorshift; the bytes are shaped like a list, as few random ones would be.
        let mut state = 0x9E37_79B9_7F4A_7C15u64;
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let mut lists = 0;
        for _ in 0..100_000 {
            let mut bytes = 2u32.to_le_bytes().to_vec();
            for _ in 0..random() % 8 {
                let tag = 1u16 << (random() % 7);
                bytes.extend(tag.to_le_bytes());
                bytes.extend(((random() % 9) as u16).to_le_bytes());
                bytes.extend(((random() % 3) as u32).to_le_bytes());
            }
            if random() % 4 == 0 {
                let at = random() as usize % bytes.len();
                bytes[at] = random() as u8;
            }
            if let Ok(acl) = Acl::from_xattr(&bytes) {
                lists += 1;
                assert_eq!(Acl::new(acl.entries().iter().copied()), Ok(acl.clone()));
                assert_eq!(Acl::from_xattr(&acl.to_xattr()), Ok(acl));
            }
        }
        assert!(lists > 50, "{lists} lists");
    }
}
