//! Errors of an exchange.

use crate::{ProgramId, RecordError, ReplyBody};
use std::io;
use std::time::Duration;

/// Why an exchange failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket failed.
    #[error(transparent)]
    Socket(#[from] io::Error),
    /// The peer took longer than the deadline.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    /// The connection ended where a record was expected, or inside one.
    #[error("the peer closed the connection")]
    Closed,
    /// An earlier call on the connection failed, so the next record is unpredictable.
    #[error("the connection is of no use after a call that failed")]
    Unusable,
    /// The record is invalid.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The record does not hold a reply.
    #[error("the record is no reply")]
    NotAReply,
    /// The record does not hold a call.
    #[error("the record is no call")]
    NotACall,
    /// The reply belongs to another transaction.
    #[error("a reply to transaction {replied:#x} instead of {called:#x}")]
    OtherTransaction {
        /// The call's.
        called: u32,
        /// The reply's.
        replied: u32,
    },
    /// The peer refused the call.
    #[error("the call was refused: {0:?}")]
    Refused(ReplyBody),
    /// The results cannot be decoded.
    #[error("malformed results: {0}")]
    Results(weir_xdr::Error),
    /// The host's port mapper does not know the program.
    #[error("its port mapper knows no program {} version {}", .0.program, .0.version)]
    NotRegistered(ProgramId),
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match error {
            Error::Socket(error) => return error,
            Error::TimedOut(_) => io::ErrorKind::TimedOut,
            Error::Closed => io::ErrorKind::UnexpectedEof,
            Error::Unusable => io::ErrorKind::NotConnected,
            Error::NotRegistered(_) => io::ErrorKind::NotFound,
            _ => io::ErrorKind::InvalidData,
        };
        Self::new(kind, error)
    }
}
