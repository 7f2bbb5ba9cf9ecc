//! NFS on the wire: types, constants and codecs, with no I/O.
//!
//! - [`v3`]: NFSv3 (RFC 1813), and [`mount`], the protocol that hands out its first filehandle.
//!
//! 1. Decoding is bounded by the message and never panics (see [`weir_xdr`]).
//! 2. File data is not copied: received data shares the record ([`Data::Bytes`]), data to send
//!    stays where it is until the transport gathers it ([`Data::Shared`]).

#![forbid(unsafe_code)]

mod data;
mod macros;
pub mod mount;
pub mod v3;

pub use data::Data;
