//! Decoding values from a message.

use crate::{Error, Result, padding};
use bytes::Bytes;

/// A value that can be decoded from a message.
pub trait Decode: Sized {
    /// The fewest bytes of a value on the wire; bounds how many a message can hold.
    const MIN_BYTES: usize = 4;

    /// Decodes one value.
    ///
    /// # Errors
    /// The bytes are not such a value.
    fn decode(d: &mut Decoder) -> Result<Self>;
}

/// A cursor over one message.
#[derive(Clone, Debug)]
pub struct Decoder {
    rest: Bytes,
}

impl Decoder {
    /// Starts at the beginning of `message`.
    pub fn new(message: Bytes) -> Self {
        Self { rest: message }
    }

    /// Bytes not yet read.
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// The undecoded rest.
    pub fn into_rest(self) -> Bytes {
        self.rest
    }

    /// Decodes one value.
    ///
    /// # Errors
    /// The bytes are not such a value.
    pub fn get<T: Decode>(&mut self) -> Result<T> {
        T::decode(self)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let bytes = *self.rest.first_chunk::<N>().ok_or(Error::Truncated)?;
        bytes::Buf::advance(&mut self.rest, N);
        Ok(bytes)
    }

    /// Reads an unsigned integer.
    ///
    /// # Errors
    /// [`Error::Truncated`].
    pub fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// The next unsigned integer, without consuming it.
    ///
    /// # Errors
    /// [`Error::Truncated`].
    pub fn peek_u32(&self) -> Result<u32> {
        self.rest.first_chunk().copied().map(u32::from_be_bytes).ok_or(Error::Truncated)
    }

    /// Reads an unsigned hyper integer.
    ///
    /// # Errors
    /// [`Error::Truncated`].
    pub fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// Reads fixed-length opaque data and its padding.
    ///
    /// # Errors
    /// [`Error::Truncated`].
    pub fn fixed<const N: usize>(&mut self) -> Result<[u8; N]> {
        let bytes = self.array()?;
        self.skip(padding(N))?;
        Ok(bytes)
    }

    /// Reads variable-length opaque data of at most `max` bytes, sharing the message.
    ///
    /// # Errors
    /// [`Error::TooLong`] over `max`, [`Error::Truncated`] past the end.
    pub fn opaque(&mut self, max: usize) -> Result<Bytes> {
        let len = self.u32()? as usize;
        if len > max {
            return Err(Error::TooLong);
        }
        if len + padding(len) > self.rest.len() {
            return Err(Error::Truncated);
        }
        let data = self.rest.split_to(len);
        self.skip(padding(len))?;
        Ok(data)
    }

    /// Reads a counted array of at most `max` elements.
    ///
    /// # Errors
    /// [`Error::TooLong`] over `max` or over what the message could hold.
    pub fn list<T: Decode>(&mut self, max: usize) -> Result<Vec<T>> {
        let len = self.u32()? as usize;
        if len > max || len > self.rest.len() / T::MIN_BYTES.max(1) {
            return Err(Error::TooLong);
        }
        (0..len).map(|_| T::decode(self)).collect()
    }

    /// Reads a list in which a `true` precedes every element, and a `false` ends it (RFC 4506
    /// section 4.19), of at most `max` elements.
    ///
    /// # Errors
    /// [`Error::TooLong`] over `max`.
    pub fn chain<T: Decode>(&mut self, max: usize) -> Result<Vec<T>> {
        let mut items = Vec::new();
        while self.get::<bool>()? {
            if items.len() == max {
                return Err(Error::TooLong);
            }
            items.push(self.get()?);
        }
        Ok(items)
    }

    /// Skips `n` bytes.
    ///
    /// # Errors
    /// [`Error::Truncated`].
    pub fn skip(&mut self, n: usize) -> Result<()> {
        if n > self.rest.len() {
            return Err(Error::Truncated);
        }
        bytes::Buf::advance(&mut self.rest, n);
        Ok(())
    }

    /// Checks that the whole message was read.
    ///
    /// # Errors
    /// [`Error::TooLong`] if bytes are left.
    pub fn finish(&self) -> Result<()> {
        if self.rest.is_empty() { Ok(()) } else { Err(Error::TooLong) }
    }
}
