//! READ_PLUS (RFC 7862 section 15.10): data and holes.
//!
//! A receiver that puts data from the connection directly in place decodes the reply in pieces:
//! [`ReplyHeader`], then for each segment a [`SegmentHeader`] and, for data, that many bytes and
//! their padding. Each is decoded from the front of the received bytes;
//! [`Truncated`](weir_xdr::Error::Truncated) means that more are needed.

use crate::Data;
use crate::macros::samples;
use crate::v4::error::Error;
use weir_xdr::{Decode, Decoder, Encode, Encoder, Result as XdrResult, xdr_struct, xdr_union};

/// What to read: as for READ.
pub type Args = super::read::Args;

xdr_struct! {
    /// Bytes of the file.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct DataSegment {
        /// Offset of the first byte.
        pub offset: u64,
        /// The bytes.
        pub data: Data,
    }

    /// A hole.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct HoleSegment {
        /// Offset of its first byte.
        pub offset: u64,
        /// Length in bytes.
        pub length: u64,
    }

    /// The segments read, in order of offset, without gaps.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct ReadPlus {
        /// The request reached the end of the file.
        pub eof: bool,
        /// The segments.
        pub segments: Segments,
    }

    /// The part before the segments of a successful reply.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ReplyHeader {
        /// The request reached the end of the file.
        pub eof: bool,
        /// How many segments follow.
        pub segments: u32,
    }
}

xdr_union! {
    /// A part of the file.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum Segment {
        /// Data.
        Data(DataSegment) = 0,
        /// A hole.
        Hole(HoleSegment) = 1,
    }
}

/// Bytes of a data segment on the wire, without the data and its padding.
pub const DATA_HEADER_BYTES: usize = 16;
/// Bytes of a hole on the wire.
pub const HOLE_BYTES: usize = 20;

/// Segments; the message bounds their number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Segments(pub Vec<Segment>);

impl Encode for Segments {
    fn encode(&self, e: &mut Encoder) {
        e.list(&self.0);
    }
}

impl Decode for Segments {
    fn decode(d: &mut Decoder) -> XdrResult<Self> {
        // Each takes at least the header of empty data, so the message bounds their number.
        d.list(d.remaining() / DATA_HEADER_BYTES).map(Self)
    }
}

/// A segment without its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentHeader {
    /// Data: this many bytes follow, and padding to a multiple of four.
    Data {
        /// Offset of the first byte.
        offset: u64,
        /// Bytes that follow.
        len: u32,
    },
    /// A hole: nothing follows.
    Hole(HoleSegment),
}

impl Decode for SegmentHeader {
    const MIN_BYTES: usize = DATA_HEADER_BYTES;

    fn decode(d: &mut Decoder) -> XdrResult<Self> {
        match d.u32()? {
            0 => Ok(Self::Data { offset: d.u64()?, len: d.u32()? }),
            1 => d.get().map(Self::Hole),
            _ => Err(weir_xdr::Error::BadValue),
        }
    }
}

/// Data and holes.
pub type Res = Result<ReadPlus, Error>;

samples! {
    args: [
        Args { stateid: crate::v4::types::STATEID, offset: 4096, count: 5 } =>
            "00000007 61626364 65666768 696a6b6c 00000000 00001000 00000005",
    ],
    results: [
        Ok(ReadPlus {
            eof: true,
            segments: Segments(vec![
                Segment::Hole(HoleSegment { offset: 4096, length: 8192 }),
                Segment::Data(DataSegment { offset: 12288, data: "xyz".into() }),
            ]),
        }) => "00000000 00000001 00000002 \
               00000001 00000000 00001000 00000000 00002000 \
               00000000 00000000 00003000 00000003 78797a00", variable 40;
        Ok(ReadPlus { eof: true, segments: Segments(vec![]) }) => "00000000 00000001 00000000";
        Err(Error::Inval) => "00000016";
    ],
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_xdr::sample::hex;

    #[test]
    fn a_reply_is_read_in_pieces() {
        let reply = hex("00000001 00000002 00000001 00000000 00001000 00000000 00002000 \
             00000000 00000000 00003000 00000003 78797a00");
        let mut d = Decoder::new(reply);
        assert_eq!(d.get(), Ok(ReplyHeader { eof: true, segments: 2 }));
        let hole = HoleSegment { offset: 4096, length: 8192 };
        assert_eq!(d.get(), Ok(SegmentHeader::Hole(hole)));
        assert_eq!(d.get(), Ok(SegmentHeader::Data { offset: 12288, len: 3 }));
        assert_eq!(d.remaining(), 4);
        let mut part = Decoder::new(hex("00000001 00000000"));
        assert_eq!(part.get::<SegmentHeader>(), Err(weir_xdr::Error::Truncated));
    }

    #[test]
    fn a_count_that_the_message_cannot_hold_is_refused() {
        let mut d = Decoder::new(hex("00000001 0fffffff 00000000 00000000 00003000 00000000"));
        assert_eq!(d.get::<ReadPlus>(), Err(weir_xdr::Error::TooLong));
    }
}
