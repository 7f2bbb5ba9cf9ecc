//! BACKCHANNEL_CTL (RFC 8881 section 18.33): sets the backchannel's security.

use crate::macros::samples;
use crate::v4::types::{CallbackSec, MAX_LIST, Status};
use weir_xdr::{List, xdr_struct};

xdr_struct! {
    /// How to call back from now on.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Args {
        /// Number of the client's callback program.
        pub cb_program: u32,
        /// Flavors with which the server may authenticate, best first.
        pub sec_parms: List<CallbackSec, MAX_LIST>,
    }
}

/// Nothing more.
pub type Res = Status;

samples! {
    args: [
        Args { cb_program: 0x4000_0000, sec_parms: vec![CallbackSec::None].into() } =>
            "40000000 00000001 00000000",
    ],
    results: [
        Ok(()) => "00000000";
        Err(crate::v4::error::Error::Inval) => "00000016";
    ],
}
