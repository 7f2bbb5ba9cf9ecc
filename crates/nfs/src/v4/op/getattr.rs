//! GETATTR (RFC 8881 section 18.7): attributes of a file.

use crate::macros::samples;
use crate::v4::attr::Attrs;
use crate::v4::bitmap::Bitmap;
use crate::v4::error::Error;

/// The attributes in question.
pub type Args = Bitmap;

/// Those of them that the server knows.
pub type Res = Result<Attrs, Error>;

samples! {
    args: [Bitmap::of(&[4]) => "00000001 00000010"],
    results: [
        Ok(Attrs { size: Some(5), ..Attrs::default() }) =>
            "00000000 00000001 00000010 00000008 00000000 00000005", variable 8;
        Err(Error::Stale) => "00000046";
    ],
}
