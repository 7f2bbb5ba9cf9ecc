//! COMMIT (RFC 8881 section 18.3): makes unstable data durable.

use crate::macros::samples;
use crate::v4::error::Error;
use crate::v4::types::Verifier;
use weir_xdr::xdr_struct;

xdr_struct! {
    /// The range of the current file to make durable.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Args {
        /// First byte.
        pub offset: u64,
        /// Bytes; 0: to the end of the file.
        pub count: u32,
    }
}

/// The verifier: if it differs from the writes', their data may be lost.
pub type Res = Result<Verifier, Error>;

samples! {
    args: [Args { offset: 1 << 32, count: 5 } => "00000001 00000000 00000005"],
    results: [
        Ok(*b"verifier") => "00000000 76657269 66696572";
        Err(Error::Io) => "00000005";
    ],
}
