//! PUTFH (RFC 8881 section 18.19): sets the current filehandle.

use crate::macros::samples;
use crate::v4::error::Error;
use crate::v4::types::FileHandle;

/// The filehandle.
pub type Args = FileHandle;

/// Done.
pub type Res = Result<(), Error>;

samples! {
    args: [FileHandle::copy_from(b"handle") => "00000006 68616e64 6c650000"],
    results: [Ok(()) => "00000000"; Err(Error::Stale) => "00000046"],
}
