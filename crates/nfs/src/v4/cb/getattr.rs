//! CB_GETATTR (RFC 8881 section 20.1): attributes of a file for which the client holds a write
//! delegation.

use crate::macros::samples;
use crate::v4::attr::Attrs;
use crate::v4::bitmap::Bitmap;
use crate::v4::error::Error;
use crate::v4::types::FileHandle;
use weir_xdr::xdr_struct;

xdr_struct! {
    /// What to tell.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Args {
        /// The file.
        pub file: FileHandle,
        /// Which attributes: change and size.
        pub attrs: Bitmap,
    }
}

/// The attributes.
pub type Res = Result<Attrs, Error>;

samples! {
    args: [
        Args { file: "fh".into(), attrs: Bitmap::of(&[3, 4]) } =>
            "00000002 66680000 00000001 00000018",
    ],
    results: [
        Ok(Attrs::default()) => "00000000 00000000 00000000";
        Err(Error::BadHandle) => "00002711";
    ],
}
