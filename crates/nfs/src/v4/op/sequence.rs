//! SEQUENCE (RFC 8881 section 18.46): starts a compound in a session.

use crate::macros::{samples, wire_flags};
use crate::v4::error::Error;
use crate::v4::types::SessionId;
use weir_xdr::xdr_struct;

wire_flags! {
    /// What the client should look after.
    pub struct StatusFlags {
        /// No connection serves a backchannel of the client.
        const CB_PATH_DOWN = 0x0001;
        /// The backchannel's GSS contexts are about to expire.
        const CB_GSS_CONTEXTS_EXPIRING = 0x0002;
        /// The backchannel's GSS contexts have expired.
        const CB_GSS_CONTEXTS_EXPIRED = 0x0004;
        /// The lease expired, and all state was revoked.
        const EXPIRED_ALL_STATE_REVOKED = 0x0008;
        /// The lease expired, and some state was revoked.
        const EXPIRED_SOME_STATE_REVOKED = 0x0010;
        /// An administrator revoked state.
        const ADMIN_STATE_REVOKED = 0x0020;
        /// Delegations or layouts were revoked because they were not returned.
        const RECALLABLE_STATE_REVOKED = 0x0040;
        /// State has moved to another server.
        const LEASE_MOVED = 0x0080;
        /// The server has restarted, and state must be reclaimed.
        const RESTART_RECLAIM_NEEDED = 0x0100;
        /// No connection serves this session's backchannel.
        const CB_PATH_DOWN_SESSION = 0x0200;
        /// The backchannel's slots are in an impossible state.
        const BACKCHANNEL_FAULT = 0x0400;
        /// A pNFS device has changed.
        const DEVID_CHANGED = 0x0800;
        /// A pNFS device is gone.
        const DEVID_DELETED = 0x1000;
    }
}

xdr_struct! {
    /// The request's session, slot and number.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Args {
        /// The session.
        pub session: SessionId,
        /// The slot's next sequence id, or its last for a retry.
        pub sequence_id: u32,
        /// The slot.
        pub slot: u32,
        /// Highest slot with a request under way.
        pub highest_slot: u32,
        /// Whether to keep the reply for a retry.
        pub cache_this: bool,
    }

    /// The request, and the session's slots.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Sequenced {
        /// The session.
        pub session: SessionId,
        /// The call's number.
        pub sequence_id: u32,
        /// The slot.
        pub slot: u32,
        /// Highest slot that the server takes.
        pub highest_slot: u32,
        /// Highest slot that the client should use.
        pub target_highest_slot: u32,
        /// What the client should look after.
        pub status_flags: StatusFlags,
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
            cache_this: true,
        } => "30313233 34353637 38396162 63646566 00000001 00000002 00000003 00000001",
    ],
    results: [
        Ok(Sequenced {
            session: *b"0123456789abcdef",
            sequence_id: 1,
            slot: 2,
            highest_slot: 63,
            target_highest_slot: 31,
            status_flags: StatusFlags::CB_PATH_DOWN | StatusFlags::CB_PATH_DOWN_SESSION,
        }) => "00000000 30313233 34353637 38396162 63646566 00000001 00000002 0000003f 0000001f
            00000201";
        Err(Error::SeqMisordered) => "0000274f";
    ],
}
