//! CREATE_SESSION (RFC 8881 section 18.36): creates a session.

use crate::macros::{samples, wire_flags};
use crate::v4::error::Error;
use crate::v4::types::{CallbackSec, ClientId, MAX_LIST, SessionId};
use weir_xdr::{List, xdr_struct};

wire_flags! {
    /// What a session is like.
    pub struct Flags {
        /// Its replies survive a restart of the server.
        const PERSIST = 1;
        /// This connection also serves as the backchannel.
        const CONN_BACK_CHAN = 2;
        /// This connection goes over to RDMA.
        const CONN_RDMA = 4;
    }
}

xdr_struct! {
    /// What session is wanted.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Args {
        /// The client.
        pub client_id: ClientId,
        /// The client's next number.
        pub sequence_id: u32,
        /// What the session is like.
        pub flags: Flags,
        /// Limits of the fore channel.
        pub fore: ChannelAttrs,
        /// Limits of the backchannel.
        pub back: ChannelAttrs,
        /// Number of the client's callback program.
        pub cb_program: u32,
        /// Flavors with which the server may authenticate, best first.
        pub sec_parms: List<CallbackSec, MAX_LIST>,
    }

    /// Limits of a channel.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct ChannelAttrs {
        /// Padding of headers (RDMA).
        pub header_pad_size: u32,
        /// Most bytes in a request.
        pub max_request_size: u32,
        /// Most bytes in a reply.
        pub max_response_size: u32,
        /// Most bytes in a reply that is kept for retries.
        pub max_response_size_cached: u32,
        /// Most operations in a compound.
        pub max_operations: u32,
        /// Most requests at a time: slots.
        pub max_requests: u32,
        /// RDMA reads at a time.
        pub rdma_ird: List<u32, 1>,
    }

    /// A new session.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Created {
        /// Its name.
        pub session: SessionId,
        /// The call's number.
        pub sequence_id: u32,
        /// What it is like.
        pub flags: Flags,
        /// Limits of the fore channel.
        pub fore: ChannelAttrs,
        /// Limits of the backchannel.
        pub back: ChannelAttrs,
    }
}

/// The session.
pub type Res = Result<Created, Error>;

#[cfg(test)]
fn attrs(rdma_ird: Vec<u32>) -> ChannelAttrs {
    ChannelAttrs {
        header_pad_size: 0,
        max_request_size: 0x1000,
        max_response_size: 0x2000,
        max_response_size_cached: 0x800,
        max_operations: 16,
        max_requests: 64,
        rdma_ird: rdma_ird.into(),
    }
}

#[cfg(test)]
const ATTRS: &str = "00000000 00001000 00002000 00000800 00000010 00000040";

samples! {
    args: [
        Args {
            client_id: 9,
            sequence_id: 1,
            flags: Flags::PERSIST | Flags::CONN_BACK_CHAN,
            fore: attrs(vec![]),
            back: attrs(vec![5]),
            cb_program: 0x4000_0000,
            sec_parms: vec![CallbackSec::None, CallbackSec::Sys(Default::default())].into(),
        } => &format!(
            "00000000 00000009 00000001 00000003 {ATTRS} 00000000 {ATTRS} 00000001 00000005
            40000000 00000002 00000000 00000001 00000000 00000000 00000000 00000000 00000000"
        ),
    ],
    results: [
        Ok(Created {
            session: *b"0123456789abcdef",
            sequence_id: 1,
            flags: Flags::CONN_BACK_CHAN,
            fore: attrs(vec![]),
            back: attrs(vec![]),
        }) => &format!(
            "00000000 30313233 34353637 38396162 63646566 00000001 00000002
            {ATTRS} 00000000 {ATTRS} 00000000"
        );
        Err(Error::TooSmall) => "00002715";
    ],
}
