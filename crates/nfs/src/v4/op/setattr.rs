//! SETATTR (RFC 8881 section 18.30): sets attributes.

use crate::macros::samples;
use crate::v4::attr::Fattr;
use crate::v4::bitmap::Bitmap;
use crate::v4::error::{Error, Outcome};
use crate::v4::types::{StateId, Status};
use weir_xdr::xdr_struct;

xdr_struct! {
    /// What to set of the current file.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Args {
        /// To set the size under.
        pub stateid: StateId,
        /// The attributes.
        pub attrs: Fattr,
    }

    /// How it went.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Res {
        /// Success, or why it failed.
        pub status: Status,
        /// The attributes set, also after a failure.
        pub set: Bitmap,
    }
}

impl From<Error> for Res {
    fn from(error: Error) -> Self {
        Self { status: Err(error), set: Bitmap::EMPTY }
    }
}

impl Outcome for Res {
    fn status(&self) -> Status {
        self.status
    }
}

samples! {
    args: [
        Args { stateid: StateId::ANONYMOUS, attrs: Fattr::default() } =>
            "00000000 00000000 00000000 00000000 00000000 00000000",
    ],
    results: [
        Res { status: Ok(()), set: Bitmap::of(&[4, 33]) } =>
            "00000000 00000002 00000010 00000002";
        Res::from(Error::Perm) => "00000001 00000000";
    ],
}
