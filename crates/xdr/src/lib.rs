//! XDR (RFC 4506): encoding and decoding of Rust values.
//!
//! 1. Decoding never reads past the message, never allocates more than the message could fill,
//!    and never panics, on any input.
//! 2. Opaque data is not copied: a decoder returns [`Bytes`] that share the message; an encoder
//!    keeps [`Payload`]s and their positions, so that the transport can gather them.

#![forbid(unsafe_code)]

mod codec;
mod decode;
mod encode;
mod macros;
pub mod sample;

pub use bytes::Bytes;
pub use codec::{List, Opaque};
pub use decode::{Decode, Decoder};
pub use encode::{Encode, Encoder, Message, Payload, Splice, wire_len};

/// Why bytes cannot be decoded as the requested type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The message ended inside a value.
    Truncated,
    /// A length exceeds the limit of its type, or the rest of the message.
    TooLong,
    /// A boolean, enumeration or union discriminant has no such value.
    BadValue,
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Truncated => "the message ends within a value",
            Self::TooLong => "a length is over its limit",
            Self::BadValue => "an unknown discriminant",
        })
    }
}

impl std::error::Error for Error {}

/// Result of decoding.
pub type Result<T> = std::result::Result<T, Error>;

/// The zero bytes that follow `len` bytes of opaque data (RFC 4506 section 4.10): 0 to 3.
pub const fn padding(len: usize) -> usize {
    len.wrapping_neg() & 3
}
