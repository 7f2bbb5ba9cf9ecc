//! The NFSACL protocol, version 3: POSIX access control lists in addition to NFSv3, designed by Sun
//! and implemented by Linux's client and server (no RFC; `fs/nfs_common/nfsacl.c`).

use crate::macros::{numbered, wire_flags};
use crate::v3::Failure;
use crate::v3::types::{FileHandle, PostOpAttr};
use weir_xdr::{Decode, Encode, List, xdr_struct};

/// Program number.
pub const PROGRAM: u32 = 100_227;
/// Version of the program.
pub const VERSION: u32 = 3;
/// Most entries in a list.
pub const MAX_ENTRIES: usize = 1024;
/// Added to the tags of a default list's entries.
pub const DEFAULT_TAG: u32 = 0x1000;

wire_flags! {
    /// What is asked for, sent or set.
    pub struct Mask {
        /// The access list.
        const ACCESS = 1;
        /// The number of its entries.
        const ACCESS_COUNT = 2;
        /// The default list.
        const DEFAULT = 4;
        /// The number of its entries.
        const DEFAULT_COUNT = 8;
    }
}

numbered! {
    /// A procedure.
    pub enum Procedure {
        /// Does nothing.
        Null = 0, null;
        /// Access control lists of a file.
        Getacl = 1, getacl;
        /// Sets access control lists.
        Setacl = 2, setacl;
    }
}

xdr_struct! {
    /// An entry of a list.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Entry {
        /// Its subject: the system's number for the kind of entry.
        pub tag: u32,
        /// Which user or group.
        pub id: u32,
        /// Read (4), write (2), execute (1).
        pub rights: u32,
    }

    /// A list, or only the number of its entries.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Entries {
        /// How many there are.
        pub count: u32,
        /// The entries, if asked for.
        pub entries: List<Entry, MAX_ENTRIES>,
    }

    /// Which lists of which file.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Getacl {
        /// The file.
        pub file: FileHandle,
        /// The lists.
        pub mask: Mask,
    }

    /// The lists asked for.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Lists {
        /// Attributes of the file.
        pub attr: PostOpAttr,
        /// Which lists these are.
        pub mask: Mask,
        /// The access list.
        pub access: Entries,
        /// The default list; empty if there is none.
        pub default: Entries,
    }

    /// Lists to set.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Setacl {
        /// The file.
        pub file: FileHandle,
        /// Which lists.
        pub mask: Mask,
        /// The access list.
        pub access: Entries,
        /// The new default list; empty to remove it.
        pub default: Entries,
    }
}

/// The lists; a failure carries the file's attributes.
pub type GetaclRes = Result<Lists, Failure<PostOpAttr>>;
/// The file's attributes, either way.
pub type SetaclRes = Result<PostOpAttr, Failure<PostOpAttr>>;

/// A procedure's arguments, tied to its number and results, as a client needs them for a call.
pub trait Call: Encode + Decode {
    /// Which procedure.
    const PROCEDURE: Procedure;
    /// What it returns.
    type Res: Encode + Decode;
}

impl Call for Getacl {
    const PROCEDURE: Procedure = Procedure::Getacl;
    type Res = GetaclRes;
}

impl Call for Setacl {
    const PROCEDURE: Procedure = Procedure::Setacl;
    type Res = SetaclRes;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v3::Error;
    use crate::v3::types::sample::{ATTR, HANDLE, attr, handle};
    use weir_xdr::sample::check;

    fn entries() -> Entries {
        let entry = |tag, rights| Entry { tag, id: 0, rights };
        let entries = vec![entry(1, 6), entry(4, 4), entry(0x10, 4), entry(0x20, 0)];
        Entries { count: 4, entries: entries.into() }
    }

    const ENTRIES: &str = "00000004 00000004 00000001 00000000 00000006 00000004 00000000 00000004 \
        00000010 00000000 00000004 00000020 00000000 00000000";

    #[test]
    fn getacl() {
        let mask = Mask::ACCESS | Mask::DEFAULT;
        check(&Getacl { file: handle(), mask }, &format!("{HANDLE} 00000005"));
        let lists =
            Lists { attr: Some(attr()), mask, access: entries(), default: Entries::default() };
        check::<GetaclRes>(
            &Ok(lists),
            &format!("00000000 00000001 {ATTR} 00000005 {ENTRIES} 00000000 00000000"),
        );
        let failed = Failure { status: Error::NotSupp, rest: None };
        check::<GetaclRes>(&Err(failed), "00002714 00000000");
    }

    #[test]
    fn setacl() {
        let set = Setacl {
            file: handle(),
            mask: Mask::ACCESS,
            access: entries(),
            default: Entries::default(),
        };
        check(&set, &format!("{HANDLE} 00000001 {ENTRIES} 00000000 00000000"));
        check::<SetaclRes>(&Ok(None), "00000000 00000000");
        assert_eq!(Procedure::from_number(3), None);
    }
}
