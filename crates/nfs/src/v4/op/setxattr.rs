//! SETXATTR (RFC 8276 section 8.4.2): sets an extended attribute.

use crate::macros::samples;
use crate::v4::error::Error;
use crate::v4::types::{Blob, ChangeInfo, Name};
use weir_xdr::{xdr_enum, xdr_struct};

xdr_enum! {
    /// What may be there already.
    pub enum Mode {
        /// Anything.
        Either = 0,
        /// Nothing.
        Create = 1,
        /// A value to replace.
        Replace = 2,
    }
}

xdr_struct! {
    /// What to set of the current file.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Args {
        /// What may be there already.
        pub mode: Mode,
        /// The name, without `user.`.
        pub name: Name,
        /// The value.
        pub value: Blob,
    }
}

/// The file's change.
pub type Res = Result<ChangeInfo, Error>;

samples! {
    args: [
        Args { mode: Mode::Replace, name: "key".into(), value: Blob::copy_from(b"v") } =>
            "00000002 00000003 6b657900 00000001 76000000",
    ],
    results: [
        Ok(ChangeInfo { atomic: true, before: 1, after: 2 }) =>
            "00000000 00000001 00000000 00000001 00000000 00000002";
        Err(Error::Xattr2Big) => "00002770";
    ],
}
