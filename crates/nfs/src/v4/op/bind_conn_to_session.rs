//! BIND_CONN_TO_SESSION (RFC 8881 section 18.34): adds a connection to a session.

use crate::macros::samples;
use crate::v4::error::Error;
use crate::v4::types::SessionId;
use weir_xdr::{xdr_enum, xdr_struct};

xdr_enum! {
    /// Channels that the client asks for.
    pub enum DirFromClient {
        /// The fore channel.
        Fore = 1,
        /// The backchannel.
        Back = 2,
        /// The fore channel; both if the server prefers.
        ForeOrBoth = 3,
        /// The backchannel; both if the server prefers.
        BackOrBoth = 7,
    }

    /// Channels that the connection serves.
    pub enum DirFromServer {
        /// The fore channel.
        Fore = 1,
        /// The backchannel.
        Back = 2,
        /// Both.
        Both = 3,
    }
}

xdr_struct! {
    /// What to bind this connection to.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Args {
        /// The session.
        pub session: SessionId,
        /// Channels.
        pub dir: DirFromClient,
        /// Whether to go over to RDMA.
        pub use_rdma: bool,
    }

    /// What the connection is bound to.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Bound {
        /// The session.
        pub session: SessionId,
        /// Channels.
        pub dir: DirFromServer,
        /// Whether it goes over to RDMA.
        pub use_rdma: bool,
    }
}

/// The binding.
pub type Res = Result<Bound, Error>;

samples! {
    args: [
        Args { session: *b"0123456789abcdef", dir: DirFromClient::BackOrBoth, use_rdma: false } =>
            "30313233 34353637 38396162 63646566 00000007 00000000",
    ],
    results: [
        Ok(Bound { session: *b"0123456789abcdef", dir: DirFromServer::Both, use_rdma: false }) =>
            "00000000 30313233 34353637 38396162 63646566 00000003 00000000";
        Err(Error::BadSession) => "00002744";
    ],
}
