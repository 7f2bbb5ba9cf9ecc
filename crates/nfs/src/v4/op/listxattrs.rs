//! LISTXATTRS (RFC 8276 section 8.4.3): names of the extended attributes.

use crate::macros::samples;
use crate::v4::error::Error;
use crate::v4::types::{MAX_LIST, Name};
use weir_xdr::{List, xdr_struct};

xdr_struct! {
    /// Which names to list.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Args {
        /// Where to go on; 0: from the front.
        pub cookie: u64,
        /// Most bytes of the list.
        pub max_bytes: u32,
    }

    /// Names.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Names {
        /// Where to go on after them.
        pub cookie: u64,
        /// The names, without `user.`.
        pub names: List<Name, MAX_LIST>,
        /// No more follow.
        pub eof: bool,
    }
}

/// Names.
pub type Res = Result<Names, Error>;

samples! {
    args: [Args { cookie: 1, max_bytes: 4096 } => "00000000 00000001 00001000"],
    results: [
        Ok(Names { cookie: 2, names: List(vec!["key".into()]), eof: true }) =>
            "00000000 00000000 00000002 00000001 00000003 6b657900 00000001", variable 8;
        Err(Error::NotSupp) => "00002714";
    ],
}
