//! COPY (RFC 7862 section 15.2): copies a range of the saved file to the current one.

use crate::macros::samples;
use crate::v4::error::{Detail, Detailed, Error};
use crate::v4::types::{NetLoc, StateId, WriteResponse};
use weir_xdr::{List, xdr_struct};

xdr_struct! {
    /// What to copy.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Args {
        /// To read the saved file under.
        pub source: StateId,
        /// To write the current file under.
        pub destination: StateId,
        /// First byte in the saved file.
        pub source_offset: u64,
        /// First byte in the current file.
        pub destination_offset: u64,
        /// Length in bytes; 0: to the end of the saved file.
        pub count: u64,
        /// Copy the bytes sequentially.
        pub consecutive: bool,
        /// Return only when all is copied.
        pub synchronous: bool,
        /// The saved file's servers, if it is on other servers.
        pub source_servers: List<NetLoc, 64>,
    }

    /// What the server can do.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Requirements {
        /// Bytes arrive from front to back.
        pub consecutive: bool,
        /// Whether the call returned after all was copied.
        pub synchronous: bool,
    }

    /// What was copied, or began to be.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Copied {
        /// How far, and how stable.
        pub response: WriteResponse,
        /// How it is done.
        pub requirements: Requirements,
    }
}

/// Details of [`Error::OffloadNoReqs`]: what the server could do instead.
impl Detail for Requirements {
    const ERROR: Error = Error::OffloadNoReqs;
}

/// What was copied, or began to be.
pub type Res = Result<Copied, Detailed<Requirements>>;

samples! {
    args: [
        Args {
            source: crate::v4::types::STATEID,
            destination: StateId::ANONYMOUS,
            source_offset: 1,
            destination_offset: 2,
            count: 3,
            consecutive: true,
            synchronous: false,
            source_servers: List::default(),
        } => "00000007 61626364 65666768 696a6b6c 00000000 00000000 00000000 00000000 \
              00000000 00000001 00000000 00000002 00000000 00000003 00000001 00000000 00000000",
    ],
    results: [
        Ok(Copied {
            response: WriteResponse {
                callback_id: List(vec![crate::v4::types::STATEID]),
                count: 3,
                committed: crate::v4::types::StableHow::Unstable,
                verifier: *b"verifier",
            },
            requirements: Requirements { consecutive: true, synchronous: false },
        }) => "00000000 00000001 00000007 61626364 65666768 696a6b6c 00000000 00000003 \
               00000000 76657269 66696572 00000001 00000000";
        Err(Detailed::Detail(Requirements { consecutive: true, synchronous: true })) =>
            "0000276e 00000001 00000001";
        Err(Detailed::Plain(Error::Inval)) => "00000016";
    ],
}
