//! GETFH (RFC 8881 section 18.8): the current filehandle.

use crate::macros::samples;
use crate::v4::error::Error;
use crate::v4::types::FileHandle;

/// None.
pub type Args = ();

/// The filehandle.
pub type Res = Result<FileHandle, Error>;

samples! {
    args: [() => ""],
    results: [
        Ok(FileHandle::copy_from(b"handle")) => "00000000 00000006 68616e64 6c650000";
        Err(Error::NoFilehandle) => "00002724";
    ],
}
