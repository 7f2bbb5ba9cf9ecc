//! RENAME (RFC 8881 section 18.26).

use crate::macros::samples;
use crate::v4::error::Error;
use crate::v4::types::{ChangeInfo, Name};
use weir_xdr::xdr_struct;

xdr_struct! {
    /// What to rename.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Args {
        /// Its name in the saved directory.
        pub from: Name,
        /// Its new name in the current directory.
        pub to: Name,
    }

    /// What changed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Renamed {
        /// The saved directory's change.
        pub source: ChangeInfo,
        /// The current directory's change.
        pub target: ChangeInfo,
    }
}

/// What changed.
pub type Res = Result<Renamed, Error>;

samples! {
    args: [Args { from: "a".into(), to: "b".into() } => "00000001 61000000 00000001 62000000"],
    results: [
        Ok(Renamed {
            source: ChangeInfo { atomic: true, before: 1, after: 2 },
            target: ChangeInfo { atomic: false, before: 3, after: 4 },
        }) => "00000000 00000001 00000000 00000001 00000000 00000002 \
               00000000 00000000 00000003 00000000 00000004";
        Err(Error::XDev) => "00000012";
    ],
}
