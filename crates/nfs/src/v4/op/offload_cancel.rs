//! OFFLOAD_CANCEL (RFC 7862 section 15.8): ends a copy that goes on in the background.

use crate::macros::samples;
use crate::v4::error::Error;
use crate::v4::types::StateId;

/// The copy, as its reply named it; the current file is its destination.
pub type Args = StateId;

/// Done.
pub type Res = Result<(), Error>;

samples! {
    args: [crate::v4::types::STATEID => "00000007 61626364 65666768 696a6b6c"],
    results: [Ok(()) => "00000000"; Err(Error::BadStateId) => "00002729"],
}
