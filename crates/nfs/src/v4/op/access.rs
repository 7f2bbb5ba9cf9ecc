//! ACCESS (RFC 8881 section 18.1, RFC 8276 section 8.6.1).

use crate::macros::{samples, wire_flags};
use crate::v4::error::Error;
use weir_xdr::xdr_struct;

wire_flags! {
    /// Rights to a file or directory.
    pub struct Rights {
        /// Read data, or names.
        const READ = 0x01;
        /// Look up a name in a directory.
        const LOOKUP = 0x02;
        /// Change existing data, or names.
        const MODIFY = 0x04;
        /// Add data, or names.
        const EXTEND = 0x08;
        /// Remove a name from a directory.
        const DELETE = 0x10;
        /// Run a file.
        const EXECUTE = 0x20;
        /// Read extended attributes.
        const XAREAD = 0x40;
        /// Change extended attributes.
        const XAWRITE = 0x80;
        /// List extended attributes.
        const XALIST = 0x100;
    }
}

/// The rights in question.
pub type Args = Rights;

xdr_struct! {
    /// What the caller may do.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Granted {
        /// The rights that the server can evaluate.
        pub supported: Rights,
        /// Those that the caller has.
        pub rights: Rights,
    }
}

/// The rights.
pub type Res = Result<Granted, Error>;

samples! {
    args: [Rights::READ | Rights::XALIST => "00000101"],
    results: [
        Ok(Granted { supported: Rights::READ | Rights::EXECUTE, rights: Rights::READ }) =>
            "00000000 00000021 00000001";
        Err(Error::Stale) => "00000046";
    ],
}
