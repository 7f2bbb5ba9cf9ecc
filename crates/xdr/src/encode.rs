//! Encoding values into a message.

use crate::padding;
use bytes::{Bytes, BytesMut};
use std::io::IoSlice;
use std::sync::Arc;

/// A value that can be encoded.
pub trait Encode {
    /// Appends the value.
    fn encode(&self, e: &mut Encoder);
}

/// Length of a value on the wire, in bytes.
pub fn wire_len<T: Encode + ?Sized>(value: &T) -> usize {
    let mut e = Encoder::new();
    e.put(value);
    e.len()
}

/// Bytes stored elsewhere (cached pages, a received buffer) that the transport gathers when it
/// sends the message, without copying them into it.
pub trait Payload: Send + Sync {
    /// Length in bytes.
    fn len(&self) -> usize;

    /// Whether the length is 0.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends slices that together form the payload's bytes `from..len()`.
    fn slices<'a>(&'a self, from: usize, out: &mut Vec<IoSlice<'a>>);
}

impl Payload for Bytes {
    fn len(&self) -> usize {
        Bytes::len(self)
    }

    fn slices<'a>(&'a self, from: usize, out: &mut Vec<IoSlice<'a>>) {
        out.push(IoSlice::new(&self[from..]));
    }
}

impl Payload for &'static [u8] {
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    fn slices<'a>(&'a self, from: usize, out: &mut Vec<IoSlice<'a>>) {
        out.push(IoSlice::new(&self[from..]));
    }
}

/// A payload, and its position in the inline bytes.
pub struct Splice {
    /// Offset into [`Message::inline`].
    pub at: usize,
    /// The payload.
    pub payload: Arc<dyn Payload>,
}

impl std::fmt::Debug for Splice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Splice({} bytes at {})", self.payload.len(), self.at)
    }
}

/// A finished message: inline bytes, with payloads spliced in at increasing offsets.
#[derive(Debug, Default)]
pub struct Message {
    /// Headers, small values and padding.
    pub inline: BytesMut,
    /// Payloads, by increasing `at`.
    pub splices: Vec<Splice>,
}

impl Message {
    /// Length on the wire, in bytes.
    pub fn len(&self) -> usize {
        self.inline.len() + self.splices.iter().map(|s| s.payload.len()).sum::<usize>()
    }

    /// Whether the message is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the message's slices in wire order, without its first `from` bytes.
    pub fn slices<'a>(&'a self, from: usize, out: &mut Vec<IoSlice<'a>>) {
        let mut skip = from;
        let mut at = 0;
        for splice in &self.splices {
            push_from(&self.inline[at..splice.at], &mut skip, out);
            at = splice.at;
            let len = splice.payload.len();
            if skip < len {
                splice.payload.slices(skip, out);
            }
            skip = skip.saturating_sub(len);
        }
        push_from(&self.inline[at..], &mut skip, out);
    }

    /// The whole message in one buffer (tests, and transports that cannot gather).
    pub fn to_bytes(&self) -> Bytes {
        let mut slices = Vec::new();
        self.slices(0, &mut slices);
        let mut out = BytesMut::with_capacity(self.len());
        for s in slices {
            out.extend_from_slice(&s);
        }
        out.freeze()
    }
}

fn push_from<'a>(bytes: &'a [u8], skip: &mut usize, out: &mut Vec<IoSlice<'a>>) {
    if *skip < bytes.len() {
        out.push(IoSlice::new(&bytes[*skip..]));
    }
    *skip = skip.saturating_sub(bytes.len());
}

/// Writes one message.
#[derive(Debug, Default)]
pub struct Encoder {
    message: Message,
    spliced: usize,
}

impl Encoder {
    /// An empty message.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty message with room for `bytes` besides payloads.
    pub fn with_capacity(bytes: usize) -> Self {
        let message = Message { inline: BytesMut::with_capacity(bytes), splices: Vec::new() };
        Self { message, spliced: 0 }
    }

    /// Bytes on the wire so far, payloads included.
    pub fn len(&self) -> usize {
        self.message.inline.len() + self.spliced
    }

    /// Whether the message is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends one value.
    pub fn put<T: Encode + ?Sized>(&mut self, value: &T) {
        value.encode(self);
    }

    /// Appends an unsigned integer.
    pub fn u32(&mut self, value: u32) {
        self.message.inline.extend_from_slice(&value.to_be_bytes());
    }

    /// Appends an unsigned hyper integer.
    pub fn u64(&mut self, value: u64) {
        self.message.inline.extend_from_slice(&value.to_be_bytes());
    }

    /// Appends fixed-length opaque data and its padding.
    pub fn fixed(&mut self, bytes: &[u8]) {
        self.message.inline.extend_from_slice(bytes);
        self.pad(bytes.len());
    }

    /// Appends variable-length opaque data: length, bytes (copied), padding.
    pub fn opaque(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.fixed(bytes);
    }

    /// Appends variable-length opaque data that is not copied before the message is sent.
    pub fn payload(&mut self, payload: Arc<dyn Payload>) {
        let len = payload.len();
        self.u32(len as u32);
        if len > 0 {
            self.spliced += len;
            self.message.splices.push(Splice { at: self.message.inline.len(), payload });
        }
        self.pad(len);
    }

    /// Appends a counted array.
    pub fn list<T: Encode>(&mut self, items: &[T]) {
        self.u32(items.len() as u32);
        for item in items {
            item.encode(self);
        }
    }

    /// Appends a list in which a `true` precedes every element, and a `false` ends it (RFC 4506
    /// section 4.19).
    pub fn chain<T: Encode>(&mut self, items: &[T]) {
        for item in items {
            true.encode(self);
            item.encode(self);
        }
        false.encode(self);
    }

    /// Appends bytes that are already encoded.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.message.inline.extend_from_slice(bytes);
    }

    /// The current position, for [`truncate`](Self::truncate) or [`patch_u32`](Self::patch_u32).
    pub fn mark(&self) -> usize {
        self.message.inline.len()
    }

    /// Overwrites the integer at `mark`.
    ///
    /// # Panics
    /// `mark` is not the position of a complete integer.
    pub fn patch_u32(&mut self, mark: usize, value: u32) {
        self.message.inline[mark..mark + 4].copy_from_slice(&value.to_be_bytes());
    }

    /// Removes everything encoded since `mark`, payloads included.
    pub fn truncate(&mut self, mark: usize) {
        self.message.inline.truncate(mark);
        while self.message.splices.last().is_some_and(|s| s.at > mark) {
            if let Some(splice) = self.message.splices.pop() {
                self.spliced -= splice.payload.len();
            }
        }
    }

    /// A copy of everything encoded since `mark`, payloads included.
    pub fn copy_since(&self, mark: usize) -> Bytes {
        let inline = self.message.inline.len() - mark;
        let spliced = self.message.splices.iter().filter(|s| s.at > mark);
        let spliced = spliced.map(|s| s.payload.len()).sum::<usize>();
        // What is kept of a reply takes no more memory than it has bytes.
        let (mut out, mut at) = (BytesMut::with_capacity(inline + spliced), mark);
        for splice in self.message.splices.iter().filter(|s| s.at > mark) {
            out.extend_from_slice(&self.message.inline[at..splice.at]);
            at = splice.at;
            let mut slices = Vec::new();
            splice.payload.slices(0, &mut slices);
            slices.iter().for_each(|slice| out.extend_from_slice(slice));
        }
        out.extend_from_slice(&self.message.inline[at..]);
        out.freeze()
    }

    /// Copies the payloads into the message, and drops them. Marks after the first payload become
    /// invalid.
    pub fn own_payloads(&mut self) {
        if !self.message.splices.is_empty() {
            self.message.inline = self.copy_since(0).into();
            self.message.splices.clear();
            self.spliced = 0;
        }
    }

    /// Returns the message.
    pub fn finish(self) -> Message {
        self.message
    }

    fn pad(&mut self, len: usize) {
        self.message.inline.extend_from_slice(&[0; 3][..padding(len)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_are_gathered_in_place_and_from_any_offset() {
        let mut e = Encoder::new();
        e.u32(7);
        e.payload(Arc::new(Bytes::from_static(b"hello")));
        e.payload(Arc::new(Bytes::new()));
        e.opaque(b"xy");
        let expected = b"\0\0\0\x07\0\0\0\x05hello\0\0\0\0\0\0\0\0\0\0\x02xy\0\0";
        assert_eq!(e.len(), expected.len());
        let message = e.finish();
        assert_eq!(message.len(), expected.len());
        for from in 0..=expected.len() {
            let mut slices = Vec::new();
            message.slices(from, &mut slices);
            let got: Vec<u8> = slices.iter().flat_map(|s| s.to_vec()).collect();
            assert_eq!(got, &expected[from..], "from {from}");
        }
    }

    #[test]
    fn owned_payloads_leave_the_message_unchanged() {
        let mut e = Encoder::new();
        let mark = e.mark();
        e.u32(7);
        let payload = Arc::new(Bytes::from_static(b"hello"));
        e.payload(payload.clone());
        let len = e.len();
        e.own_payloads();
        assert_eq!((e.len(), Arc::strong_count(&payload)), (len, 1));
        e.payload(Arc::new(Bytes::from_static(b"more")));
        e.patch_u32(mark, 8);
        let expected = b"\0\0\0\x08\0\0\0\x05hello\0\0\0\0\0\0\x04more";
        assert_eq!(e.len(), expected.len());
        assert_eq!(&e.finish().to_bytes()[..], expected);
    }

    #[test]
    fn truncate_removes_payloads() {
        let mut e = Encoder::new();
        e.payload(Arc::new(Bytes::from_static(b"kept")));
        let mark = e.mark();
        e.payload(Arc::new(Bytes::from_static(b"lost")));
        assert_eq!(&e.copy_since(mark)[..], b"\0\0\0\x04lost");
        e.truncate(mark);
        assert_eq!(&e.copy_since(mark)[..], b"");
        assert_eq!(&e.finish().to_bytes()[..], b"\0\0\0\x04kept");
    }
}
