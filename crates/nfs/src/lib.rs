//! NFS on the wire: types, constants and codecs, with no I/O.
//!
//! - [`v4`]: NFSv4.0, 4.1 and 4.2 (RFC 7530, 8881, 7862, 8276), one file per operation.
//! - [`v3`]: NFSv3 (RFC 1813), and [`mount`], the protocol that returns its first filehandle;
//!   [`nlm`] and [`nsm`], its locking protocols; [`nfsacl`], for access control lists.
//!
//! 1. Decoding is bounded by the message and never panics (see [`weir_xdr`]).
//! 2. File data is not copied: received data shares the record ([`Data::Bytes`]), data to send
//!    stays in place until the transport gathers it ([`Data::Shared`]).

#![forbid(unsafe_code)]

mod data;
pub mod decoders;
mod macros;
pub mod mount;
pub mod nfsacl;
pub mod nlm;
pub mod nsm;
pub mod v3;
pub mod v4;

pub use data::Data;
