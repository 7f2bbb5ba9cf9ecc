//! TEST_STATEID (RFC 8881 section 18.48): checks stateids.

use crate::macros::samples;
use crate::v4::error::Error;
use crate::v4::types::{MAX_LIST, StateId, Status};
use weir_xdr::List;

/// The stateids.
pub type Args = List<StateId, MAX_LIST>;

/// What each is, in the same order.
pub type Res = Result<List<Status, MAX_LIST>, Error>;

samples! {
    args: [
        vec![crate::v4::types::STATEID, StateId::ANONYMOUS].into() =>
            "00000002 00000007 61626364 65666768 696a6b6c 00000000 00000000 00000000 00000000",
    ],
    results: [
        Ok(vec![Ok(()), Err(Error::BadStateId)].into()) =>
            "00000000 00000002 00000000 00002729", variable 8;
        Err(Error::Delay) => "00002718";
    ],
}
