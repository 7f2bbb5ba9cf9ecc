//! CB_SEQUENCE (RFC 8881 section 20.9): starts a callback in a session.

use crate::macros::samples;
use crate::v4::error::Error;
use crate::v4::types::{MAX_LIST, SessionId};
use weir_xdr::{List, xdr_struct};

xdr_struct! {
    /// Which request of which session this is.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Args {
        /// The session.
        pub session: SessionId,
        /// The slot's next number, or its last for a retry.
        pub sequence_id: u32,
        /// The slot.
        pub slot: u32,
        /// Highest slot with a request under way.
        pub highest_slot: u32,
        /// Whether to keep the reply for a retry.
        pub cache_this: bool,
        /// Calls of the client whose replies it should have received before it executes this.
        pub referring_calls: List<ReferringCalls, MAX_LIST>,
    }

    /// Calls in one session (`referring_call_list4`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct ReferringCalls {
        /// The session.
        pub session: SessionId,
        /// The calls.
        pub calls: List<ReferringCall, MAX_LIST>,
    }

    /// A call of the client.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ReferringCall {
        /// Its number in the slot.
        pub sequence_id: u32,
        /// Its slot.
        pub slot: u32,
    }

    /// The request, and the backchannel's slots.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Sequenced {
        /// The session.
        pub session: SessionId,
        /// The call's number.
        pub sequence_id: u32,
        /// The slot.
        pub slot: u32,
        /// Highest slot that the client takes.
        pub highest_slot: u32,
        /// Highest slot that the server should use.
        pub target_highest_slot: u32,
    }
}

/// The request's place.
pub type Res = Result<Sequenced, Error>;

samples! {
    args: [
        Args {
            session: *b"0123456789abcdef",
            sequence_id: 1,
            slot: 2,
            highest_slot: 3,
            cache_this: false,
            referring_calls: vec![ReferringCalls {
                session: *b"0123456789abcdef",
                calls: vec![ReferringCall { sequence_id: 4, slot: 5 }].into(),
            }]
            .into(),
        } => "30313233 34353637 38396162 63646566 00000001 00000002 00000003 00000000
            00000001 30313233 34353637 38396162 63646566 00000001 00000004 00000005",
    ],
    results: [
        Ok(Sequenced {
            session: *b"0123456789abcdef",
            sequence_id: 1,
            slot: 2,
            highest_slot: 3,
            target_highest_slot: 4,
        }) => "00000000 30313233 34353637 38396162 63646566 00000001 00000002 00000003 00000004";
        Err(Error::BadSession) => "00002744";
    ],
}
