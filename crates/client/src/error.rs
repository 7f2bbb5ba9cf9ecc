//! Errors between this client and a server, one variant for each kind; mapped to errno at the edge
//! ([`vfs::Error`](weir_vfs::Error)).

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// Result of a client operation.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an operation failed. The text names the server, the operation and its answer.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The URL is not that of an NFS export.
    #[error("cannot read {url}: {reason}")]
    Url {
        /// The URL as given.
        url: String,
        /// The fault, and what to write instead.
        reason: Cow<'static, str>,
    },
    /// A mount option is unknown, or its value is invalid.
    #[error("mount option {option}: {reason}")]
    Option {
        /// The option as given.
        option: String,
        /// The fault.
        reason: &'static str,
    },
    /// Connecting failed.
    #[error("cannot reach {server}: {source}")]
    Connect {
        /// Host and port.
        server: Arc<str>,
        /// The socket's error.
        source: Arc<std::io::Error>,
    },
    /// The address accepted connections but never answered.
    #[error("no NFS server answers at {server}")]
    NoAnswer {
        /// Host and port.
        server: Arc<str>,
    },
    /// The time limit of a soft mount (`timeo`, `retrans`) has expired.
    #[error("{server}: no answer to {operation} in time")]
    TimedOut {
        /// Host and port.
        server: Arc<str>,
        /// The operation.
        operation: &'static str,
    },
    /// The server speaks RPC, but rejected the call.
    #[error("{server}: {operation} refused: {refusal}")]
    Refused {
        /// Host and port.
        server: Arc<str>,
        /// The operation.
        operation: &'static str,
        /// The reason.
        refusal: Refusal,
    },
    /// The server answered with a status other than OK.
    #[error("{server}: {operation}: {status}")]
    Status {
        /// Host and port.
        server: Arc<str>,
        /// The operation.
        operation: &'static str,
        /// The status, by its name in the protocol.
        status: String,
        /// The same in neutral terms.
        error: weir_vfs::Error,
    },
    /// The answer breaks the protocol.
    #[error("{server}: bad answer to {operation}: {violation}")]
    Protocol {
        /// Host and port.
        server: Arc<str>,
        /// The operation.
        operation: &'static str,
        /// The violation.
        violation: Violation,
    },
    /// The server offers none of the versions that the client may use.
    #[error("cannot mount {server}: it does not offer NFS version {asked}")]
    Version {
        /// Host and port.
        server: Arc<str>,
        /// The version or versions tried.
        asked: String,
    },
    /// A [`raw`](crate::raw) call on a mount of another version, or on a file of another store.
    #[error("{0} needs a mount with vers=4 (READ_PLUS: 4.2)")]
    NoSuchCall(&'static str),
    /// The mount has ended, or its options forbid the operation.
    #[error("{0}")]
    Local(weir_vfs::Error),
}

impl Error {
    /// Whether a path does not lead to a directory: it leads to a file or a link, or does not exist (yet).
    pub(crate) fn is_no_directory(&self) -> bool {
        use weir_vfs::Error::{Invalid, Loop, NotDirectory, NotFound};
        matches!(self.to_vfs(), NotFound | NotDirectory | Invalid | Loop)
    }

    /// The closest neutral error.
    pub fn to_vfs(&self) -> weir_vfs::Error {
        match self {
            Self::Status { error, .. } | Self::Local(error) => *error,
            Self::TimedOut { .. } | Self::NoAnswer { .. } => weir_vfs::Error::TimedOut,
            Self::Url { .. } | Self::Option { .. } => weir_vfs::Error::Invalid,
            Self::Refused { refusal: Refusal::Auth(_), .. } => weir_vfs::Error::AccessDenied,
            Self::Version { .. } | Self::NoSuchCall(_) => weir_vfs::Error::NotSupported,
            Self::Connect { .. } | Self::Refused { .. } | Self::Protocol { .. } => {
                weir_vfs::Error::Io
            }
        }
    }
}

impl From<Error> for weir_vfs::Error {
    fn from(error: Error) -> Self {
        let neutral = error.to_vfs();
        match error {
            Error::Status { .. } | Error::Local(_) => tracing::debug!("{error}"),
            _ => tracing::warn!("{error}"),
        }
        neutral
    }
}

impl From<weir_vfs::Error> for Error {
    fn from(error: weir_vfs::Error) -> Self {
        Self::Local(error)
    }
}

/// Why a server rejected a call before it looked at the arguments (RFC 5531 section 9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The server does not serve the program.
    ProgramUnavailable,
    /// The server does not serve the version, only these (lowest and highest).
    VersionMismatch(u32, u32),
    /// The server does not know the procedure.
    ProcedureUnavailable,
    /// The server could not decode the arguments.
    GarbageArguments,
    /// The server failed.
    SystemError,
    /// The server does not know the RPC version.
    RpcMismatch,
    /// The credential was rejected, with this `auth_stat`.
    Auth(u32),
}

impl Refusal {
    /// Whether the server may accept another version.
    pub(crate) const fn is_other_version(self) -> bool {
        matches!(self, Self::ProgramUnavailable | Self::VersionMismatch(..))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ProgramUnavailable => f.write_str("the program is not served"),
            Self::VersionMismatch(low, high) => {
                write!(f, "only versions {low} to {high} are served")
            }
            Self::ProcedureUnavailable => f.write_str("the procedure is not known"),
            Self::GarbageArguments => f.write_str("the server could not read the arguments"),
            Self::SystemError => f.write_str("the server failed"),
            Self::RpcMismatch => f.write_str("the RPC version is not served"),
            Self::Auth(stat) => write!(f, "the credential was not accepted (auth_stat {stat})"),
        }
    }
}

/// A peer's violation of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// The reply ended inside a value.
    Truncated,
    /// The reply is longer than the call allows.
    TooLong,
    /// A discriminant has no such value.
    BadValue,
    /// More data than was asked for.
    MoreThanAsked,
    /// A segment does not begin where the one before it ended.
    NotContiguous,
    /// A data segment is outside the requested range.
    OutsideRequest,
    /// The end of a hole exceeds the largest offset.
    EndOverflows,
    /// Neither data nor end of file: the read would never end.
    NoProgress,
    /// Results of operations other than those sent.
    WrongOperation,
    /// The reply to a call on one slot named another slot, sequence or session.
    WrongSlot,
    /// A record longer than any reply to the calls sent.
    RecordTooLong,
    /// The reported count of a write is 0, or more than was sent.
    WrongCount,
    /// The server did not store a write durably as requested.
    NotDurable,
    /// A directory has an entry whose name is empty, `.`, `..`, or has a slash or a zero byte.
    BadName,
    /// The server may have executed a call that changes something, and has not kept its reply.
    ReplyLost,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Truncated => "it ends within a value",
            Self::TooLong => "it is longer than the call allows",
            Self::BadValue => "an unknown discriminant",
            Self::MoreThanAsked => "more data than requested",
            Self::NotContiguous => "a segment does not begin at the end of the preceding one",
            Self::OutsideRequest => "a data segment outside of the requested range",
            Self::EndOverflows => "a hole ends past the largest offset",
            Self::NoProgress => "neither data nor end of file",
            Self::WrongOperation => "results of operations that were not called",
            Self::WrongSlot => "another slot, sequence or session than the call's",
            Self::RecordTooLong => "a record longer than any expected reply",
            Self::WrongCount => "a write of no bytes, or of more bytes than were sent",
            Self::NotDurable => "a write that is not durable as requested",
            Self::BadName => "a name that is not that of a file in a directory",
            Self::ReplyLost => "it may have been executed, but its reply was not kept",
        })
    }
}

impl From<weir_xdr::Error> for Violation {
    fn from(error: weir_xdr::Error) -> Self {
        match error {
            weir_xdr::Error::Truncated => Self::Truncated,
            weir_xdr::Error::TooLong => Self::TooLong,
            weir_xdr::Error::BadValue => Self::BadValue,
        }
    }
}
