//! OFFLOAD_CANCEL (RFC 7862 section 15.8): cancels a background copy.

use crate::macros::samples;
use crate::v4::error::Error;
use crate::v4::types::StateId;

/// The copy, by the stateid in its reply; the current file is its destination.
pub type Args = StateId;

/// Done.
pub type Res = Result<(), Error>;

samples! {
    args: [crate::v4::types::STATEID => "00000007 61626364 65666768 696a6b6c"],
    results: [Ok(()) => "00000000"; Err(Error::BadStateId) => "00002729"],
}
