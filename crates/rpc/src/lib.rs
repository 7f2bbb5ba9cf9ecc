//! ONC RPC (RFC 5531): calls, replies, credentials and record marking. Only [`net`] uses sockets,
//! and only with the feature of that name.
//!
//! A transport feeds received bytes to a [`RecordReader`], decodes each record's [`CallHeader`] or
//! [`ReplyHeader`], and passes the rest to the program's own codec. To send, it writes a header and
//! a body into an encoder from [`start_record`] and closes it with [`finish_record`].
//!
//! 1. No input makes this code panic, or keep more than the transport's limit.
//! 2. Every message that can be answered is answered as RFC 5531 requires ([`CallError::reply`]);
//!    only one without a transaction is not.

#![forbid(unsafe_code)]

mod answer;
mod auth;
mod message;
#[cfg(feature = "net")]
pub mod net;
mod record;
pub mod rpcbind;

pub use answer::answer;
pub use auth::{AuthFlavor, AuthStatus, AuthSys, MAX_AUTH_BYTES, OpaqueAuth};
pub use message::{
    AcceptStatus, CallError, CallHeader, Denial, MessageType, ProgramId, RPC_VERSION, ReplyBody,
    ReplyHeader, VersionRange, message_type,
};
pub use record::{
    FragmentHeader, RECORD_HEADER_BYTES, RecordError, RecordReader, finish_record, start_record,
};
