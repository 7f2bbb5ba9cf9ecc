//! Record marking (RFC 5531 section 11): messages on a byte stream, as runs of fragments.
//!
//! 1. A record over the limit is rejected when its fragment header arrives, before its bytes are
//!    kept.
//! 2. A record of one fragment, the usual case, is returned without a copy.

use bytes::{Buf, Bytes, BytesMut};
use weir_xdr::{Encoder, Message};

/// Bytes of the header before each fragment.
pub const RECORD_HEADER_BYTES: usize = 4;

const LAST_FRAGMENT: u32 = 1 << 31;

/// The header of a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentHeader {
    /// This is the record's last fragment.
    pub last: bool,
    /// Bytes in the fragment, without the header.
    pub len: usize,
}

impl From<[u8; RECORD_HEADER_BYTES]> for FragmentHeader {
    fn from(bytes: [u8; RECORD_HEADER_BYTES]) -> Self {
        let word = u32::from_be_bytes(bytes);
        Self { last: word & LAST_FRAGMENT != 0, len: (word & !LAST_FRAGMENT) as usize }
    }
}

/// Why a stream of records is unreadable from here on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The peer announced a record over the limit.
    #[error("a record of over {max_bytes} bytes")]
    TooLong {
        /// The limit.
        max_bytes: usize,
    },
}

/// Extracts records from a byte stream.
///
/// ```text
///            4 bytes                    the fragment's bytes, and it is the last
/// at a header ------> in a fragment ----------------------------------------------> a record
///      ^                    |
///      +--------------------+  the fragment's bytes, and it is not
/// ```
#[derive(Debug)]
pub struct RecordReader {
    max_bytes: usize,
    fragment: Option<FragmentHeader>,
    earlier: BytesMut,
}

impl RecordReader {
    /// A reader that rejects records of more than `max_bytes` (without headers).
    pub fn new(max_bytes: usize) -> Self {
        Self { max_bytes, fragment: None, earlier: BytesMut::new() }
    }

    /// Removes the next complete record from the front of `input`; `None` if more bytes are needed.
    ///
    /// # Errors The stream is unreadable from here on.
    pub fn next_record(&mut self, input: &mut BytesMut) -> Result<Option<Bytes>, RecordError> {
        loop {
            let fragment = match self.fragment {
                Some(fragment) => fragment,
                None => match self.take_header(input)? {
                    Some(fragment) => fragment,
                    None => return Ok(None),
                },
            };
            if input.len() < fragment.len {
                return Ok(None);
            }
            self.fragment = None;
            let bytes = input.split_to(fragment.len);
            if fragment.last && self.earlier.is_empty() {
                return Ok(Some(bytes.freeze()));
            }
            self.earlier.unsplit(bytes);
            if fragment.last {
                return Ok(Some(std::mem::take(&mut self.earlier).freeze()));
            }
        }
    }

    fn take_header(&mut self, input: &mut BytesMut) -> Result<Option<FragmentHeader>, RecordError> {
        let Some(&header) = input.first_chunk::<RECORD_HEADER_BYTES>() else { return Ok(None) };
        let fragment = FragmentHeader::from(header);
        if fragment.len > self.max_bytes - self.earlier.len() {
            return Err(RecordError::TooLong { max_bytes: self.max_bytes });
        }
        input.advance(RECORD_HEADER_BYTES);
        self.fragment = Some(fragment);
        Ok(self.fragment)
    }

    /// Bytes that `input` must hold before [`next_record`](Self::next_record) can continue.
    pub fn wanted_bytes(&self) -> usize {
        self.fragment.map_or(RECORD_HEADER_BYTES, |fragment| fragment.len)
    }

    /// Bytes of the current record, as far as its fragment headers have announced them.
    pub fn pending_bytes(&self) -> usize {
        self.earlier.len() + self.fragment.map_or(0, |fragment| fragment.len)
    }

    /// Length of the current record, once its last fragment has announced itself.
    pub fn whole_bytes(&self) -> Option<usize> {
        let last = self.fragment.filter(|fragment| fragment.last)?;
        Some(self.earlier.len() + last.len)
    }

    /// Whether the stream may end here: no record has started.
    pub fn is_between_records(&self, input: &BytesMut) -> bool {
        input.is_empty() && self.fragment.is_none() && self.earlier.is_empty()
    }
}

/// Room for an ordinary call or reply without payload: credentials, a session's operations.
const ORDINARY_BYTES: usize = 384;

/// An encoder for one message, with room for the fragment header in front.
pub fn start_record() -> Encoder {
    let mut e = Encoder::with_capacity(ORDINARY_BYTES);
    e.u32(0);
    e
}

/// Closes a message begun with [`start_record`] as a record of one fragment.
///
/// # Panics
/// The encoder is not from [`start_record`], or the message is of 2 GiB or more.
pub fn finish_record(mut e: Encoder) -> Message {
    let len = e.len() - RECORD_HEADER_BYTES;
    assert!(len < LAST_FRAGMENT as usize, "a fragment is shorter than 2 GiB");
    e.patch_u32(0, LAST_FRAGMENT | len as u32);
    e.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// Feeds `stream` to a reader in pieces of `piece` bytes.
    fn read(stream: &[u8], piece: usize, max_bytes: usize) -> Result<Vec<Bytes>, RecordError> {
        let mut reader = RecordReader::new(max_bytes);
        let (mut input, mut records) = (BytesMut::new(), Vec::new());
        for chunk in stream.chunks(piece) {
            input.extend_from_slice(chunk);
            while let Some(record) = reader.next_record(&mut input)? {
                records.push(record);
            }
            assert!(reader.wanted_bytes() > input.len());
            assert!(input.len() <= max_bytes + RECORD_HEADER_BYTES);
        }
        assert!(reader.is_between_records(&input));
        Ok(records)
    }

    #[test]
    fn records_are_found_in_a_stream_cut_anywhere() {
        let stream = b"\x80\0\0\x04abcd\0\0\0\x02ef\0\0\0\0\0\0\0\x02gh\x80\0\0\x02ij\x80\0\0\0\x80\0\0\x01k";
        for piece in 1..=stream.len() {
            let records = read(stream, piece, 6).unwrap();
            assert_eq!(records, [&b"abcd"[..], b"efghij", b"", b"k"], "pieces of {piece}");
        }
    }

    #[test]
    fn the_length_of_a_record_is_known_from_its_last_fragment_on() {
        let mut reader = RecordReader::new(100);
        let mut input = BytesMut::new();
        let mut feed = |bytes: &[u8]| {
            input.extend_from_slice(bytes);
            assert_eq!(reader.next_record(&mut input), Ok(None));
            reader.whole_bytes()
        };
        assert_eq!(feed(b"\0\0\0"), None);
        assert_eq!(feed(b"\x03a"), None);
        assert_eq!(feed(b"bc\x80\0"), None);
        assert_eq!(feed(b"\0\x05"), Some(8));
    }

    #[test]
    fn a_long_record_is_refused_at_its_header() {
        let too_long = Err(RecordError::TooLong { max_bytes: 6 });
        assert_eq!(read(b"\x80\0\0\x07", 4, 6), too_long);
        assert_eq!(read(b"\x7f\xff\xff\xff", 1, 6), too_long);
        assert_eq!(read(b"\0\0\0\x04abcd\x80\0\0\x03", 3, 6), too_long);
    }

    #[test]
    fn a_record_is_written_with_its_length() {
        let mut e = start_record();
        e.u32(5);
        e.payload(Arc::new(Bytes::from_static(b"xyz")));
        let bytes = finish_record(e).to_bytes();
        assert_eq!(&bytes[..], b"\x80\0\0\x0c\0\0\0\x05\0\0\0\x03xyz\0");
        assert_eq!(read(&bytes, 5, 100).unwrap(), [&bytes[4..]]);
    }
}
