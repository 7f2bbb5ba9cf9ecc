//! IO_ADVISE (RFC 7862 section 15.5): the expected use of data.

use crate::macros::samples;
use crate::v4::bitmap::Bitmap;
use crate::v4::error::Error;
use crate::v4::types::StateId;
use weir_xdr::{xdr_enum, xdr_struct};

xdr_enum! {
    /// A hint: its number in the bitmap.
    pub enum Hint {
        /// No advice.
        Normal = 0,
        /// From front to back.
        Sequential = 1,
        /// From back to front.
        SequentialBackwards = 2,
        /// In no order.
        Random = 3,
        /// Soon.
        WillNeed = 4,
        /// Soon, but only if it costs little.
        WillNeedOpportunistic = 5,
        /// Not soon.
        DontNeed = 6,
        /// Once.
        NoReuse = 7,
        /// Reading.
        Read = 8,
        /// Writing.
        Write = 9,
        /// First bytes first.
        InitProximity = 10,
    }
}

xdr_struct! {
    /// The advice for the current file.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Args {
        /// The open, lock or delegation that the advice applies to.
        pub stateid: StateId,
        /// First byte.
        pub offset: u64,
        /// Bytes; 0: to the end of the file.
        pub count: u64,
        /// The [`Hint`]s.
        pub hints: Bitmap,
    }
}

/// The hints that the server heeds.
pub type Res = Result<Bitmap, Error>;

samples! {
    args: [
        Args {
            stateid: crate::v4::types::STATEID,
            offset: 1,
            count: 2,
            hints: Bitmap::of(&[Hint::NoReuse as u32, Hint::Read as u32]),
        } => "00000007 61626364 65666768 696a6b6c 00000000 00000001 00000000 00000002 \
              00000001 00000180",
    ],
    results: [
        Ok(Bitmap::of(&[Hint::NoReuse as u32])) => "00000000 00000001 00000080";
        Err(Error::BadStateId) => "00002729";
    ],
}
