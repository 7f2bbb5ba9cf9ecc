//! SECINFO (RFC 8881 section 18.29): security flavors for a name.

use crate::macros::samples;
use crate::v4::error::Error;
use crate::v4::types::{Name, SecInfo};
use weir_xdr::List;

/// Most flavors that a reply may name.
pub const MAX_FLAVORS: usize = 64;

/// The name in the current directory.
pub type Args = Name;

/// The flavors, best first. From minor version 1 on there is no current file afterwards.
pub type Res = Result<List<SecInfo, MAX_FLAVORS>, Error>;

samples! {
    args: ["file".into() => "00000004 66696c65"],
    results: [
        Ok(List(vec![SecInfo::Flavor(1), SecInfo::Flavor(0)])) =>
            "00000000 00000002 00000001 00000000", variable 8;
        Err(Error::NoEnt) => "00000002";
    ],
}
