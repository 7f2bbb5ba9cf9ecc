//! Access control lists (RFC 8881 section 6.2).

use super::types::Name;
use crate::macros::wire_flags;
use weir_xdr::{List, xdr_enum, xdr_struct};

/// Most entries in a list.
pub const MAX_ACES: usize = 1024;

xdr_enum! {
    /// What an entry does when it applies.
    pub enum AceType {
        /// Grants the access.
        Allow = 0,
        /// Denies the access.
        Deny = 1,
        /// Logs the access.
        Audit = 2,
        /// Raises an alarm.
        Alarm = 3,
    }
}

wire_flags! {
    /// How an entry is inherited, and the kind of its `who`.
    pub struct AceFlags {
        /// New files inherit it.
        const FILE_INHERIT = 0x01;
        /// New directories inherit it.
        const DIRECTORY_INHERIT = 0x02;
        /// It is not inherited further.
        const NO_PROPAGATE_INHERIT = 0x04;
        /// It does not apply to the directory itself.
        const INHERIT_ONLY = 0x08;
        /// Audit or alarm on success.
        const SUCCESSFUL_ACCESS = 0x10;
        /// Audit or alarm on failure.
        const FAILED_ACCESS = 0x20;
        /// `who` is a group.
        const IDENTIFIER_GROUP = 0x40;
        /// It was inherited.
        const INHERITED = 0x80;
    }

    /// Kinds of access.
    pub struct AceMask {
        /// Read data.
        const READ_DATA = 0x01;
        /// List a directory.
        const LIST_DIRECTORY = 0x01;
        /// Write data.
        const WRITE_DATA = 0x02;
        /// Add a file.
        const ADD_FILE = 0x02;
        /// Append data.
        const APPEND_DATA = 0x04;
        /// Add a directory.
        const ADD_SUBDIRECTORY = 0x04;
        /// Read named attributes.
        const READ_NAMED_ATTRS = 0x08;
        /// Write named attributes.
        const WRITE_NAMED_ATTRS = 0x10;
        /// Execute, or traverse.
        const EXECUTE = 0x20;
        /// Remove an entry of a directory.
        const DELETE_CHILD = 0x40;
        /// Read attributes.
        const READ_ATTRIBUTES = 0x80;
        /// Write attributes.
        const WRITE_ATTRIBUTES = 0x100;
        /// Set retention.
        const WRITE_RETENTION = 0x200;
        /// Set retention holds.
        const WRITE_RETENTION_HOLD = 0x400;
        /// Remove the file.
        const DELETE = 0x0001_0000;
        /// Read the access control list.
        const READ_ACL = 0x0002_0000;
        /// Write the access control list or the mode.
        const WRITE_ACL = 0x0004_0000;
        /// Change owner or group.
        const WRITE_OWNER = 0x0008_0000;
        /// Use the file to synchronise.
        const SYNCHRONIZE = 0x0010_0000;
    }

    /// Origin of a whole list (`aclflag4`).
    pub struct AclFlags {
        /// Inheritance is automatic.
        const AUTO_INHERIT = 1;
        /// Keep inherited entries out.
        const PROTECTED = 2;
        /// The list was made by default.
        const DEFAULTED = 4;
    }
}

xdr_struct! {
    /// An entry of an access control list.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Ace {
        /// What it does.
        pub kind: AceType,
        /// Inheritance.
        pub flags: AceFlags,
        /// Kinds of access it is about.
        pub mask: AceMask,
        /// Its subject: a name at a domain, or `OWNER@`, `GROUP@`, `EVERYONE@`.
        pub who: Name,
    }

    /// A list with flags (`nfsacl41`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Acl {
        /// How it came about.
        pub flags: AclFlags,
        /// Its entries.
        pub aces: List<Ace, MAX_ACES>,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_xdr::sample::check;

    #[test]
    fn samples() {
        let ace = Ace {
            kind: AceType::Allow,
            flags: AceFlags::IDENTIFIER_GROUP,
            mask: AceMask::READ_DATA | AceMask::READ_ACL,
            who: "GROUP@".into(),
        };
        check(&ace, "00000000 00000040 00020001 00000006 47524f55 50400000");
        check(&Acl { flags: AclFlags::PROTECTED, aces: vec![].into() }, "00000002 00000000");
    }
}
