//! The codec of the basic types.

use crate::{Bytes, Decode, Decoder, Encode, Encoder, Error, Result};

impl Encode for u32 {
    fn encode(&self, e: &mut Encoder) {
        e.u32(*self);
    }
}

impl Decode for u32 {
    fn decode(d: &mut Decoder) -> Result<Self> {
        d.u32()
    }
}

impl Encode for i32 {
    fn encode(&self, e: &mut Encoder) {
        e.u32(self.cast_unsigned());
    }
}

impl Decode for i32 {
    fn decode(d: &mut Decoder) -> Result<Self> {
        d.u32().map(u32::cast_signed)
    }
}

impl Encode for u64 {
    fn encode(&self, e: &mut Encoder) {
        e.u64(*self);
    }
}

impl Decode for u64 {
    const MIN_BYTES: usize = 8;

    fn decode(d: &mut Decoder) -> Result<Self> {
        d.u64()
    }
}

impl Encode for i64 {
    fn encode(&self, e: &mut Encoder) {
        e.u64(self.cast_unsigned());
    }
}

impl Decode for i64 {
    const MIN_BYTES: usize = 8;

    fn decode(d: &mut Decoder) -> Result<Self> {
        d.u64().map(u64::cast_signed)
    }
}

impl Encode for bool {
    fn encode(&self, e: &mut Encoder) {
        e.u32(u32::from(*self));
    }
}

impl Decode for bool {
    fn decode(d: &mut Decoder) -> Result<Self> {
        match d.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Error::BadValue),
        }
    }
}

impl Encode for () {
    fn encode(&self, _: &mut Encoder) {}
}

impl Decode for () {
    const MIN_BYTES: usize = 0;

    fn decode(_: &mut Decoder) -> Result<Self> {
        Ok(())
    }
}

impl<const N: usize> Encode for [u8; N] {
    fn encode(&self, e: &mut Encoder) {
        e.fixed(self);
    }
}

impl<const N: usize> Decode for [u8; N] {
    const MIN_BYTES: usize = N;

    fn decode(d: &mut Decoder) -> Result<Self> {
        d.fixed()
    }
}

/// XDR optional data: a boolean, then the value if it is true.
impl<T: Encode> Encode for Option<T> {
    fn encode(&self, e: &mut Encoder) {
        self.is_some().encode(e);
        if let Some(value) = self {
            value.encode(e);
        }
    }
}

impl<T: Decode> Decode for Option<T> {
    fn decode(d: &mut Decoder) -> Result<Self> {
        if d.get::<bool>()? { d.get().map(Some) } else { Ok(None) }
    }
}

/// A union over a status: 0 and the value, or an error that begins with its own (nonzero) status.
impl<T: Encode, E: Encode> Encode for std::result::Result<T, E> {
    fn encode(&self, e: &mut Encoder) {
        match self {
            Ok(value) => {
                e.u32(0);
                e.put(value);
            }
            Err(failure) => e.put(failure),
        }
    }
}

impl<T: Decode, E: Decode> Decode for std::result::Result<T, E> {
    fn decode(d: &mut Decoder) -> Result<Self> {
        if d.peek_u32()? == 0 {
            d.u32()?;
            d.get().map(Ok)
        } else {
            d.get().map(Err)
        }
    }
}

impl<T: Encode> Encode for Box<T> {
    fn encode(&self, e: &mut Encoder) {
        (**self).encode(e);
    }
}

impl<T: Decode> Decode for Box<T> {
    const MIN_BYTES: usize = T::MIN_BYTES;

    fn decode(d: &mut Decoder) -> Result<Self> {
        d.get().map(Box::new)
    }
}

/// Variable-length opaque data (or a string, the same on the wire) of at most `MAX` bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Opaque<const MAX: usize>(pub Bytes);

impl<const MAX: usize> Opaque<MAX> {
    /// A copy of `bytes`.
    pub fn copy_from(bytes: &[u8]) -> Self {
        Self(Bytes::copy_from_slice(bytes))
    }
}

impl<const MAX: usize> std::ops::Deref for Opaque<MAX> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl<const MAX: usize> Encode for Opaque<MAX> {
    fn encode(&self, e: &mut Encoder) {
        e.opaque(&self.0);
    }
}

impl<const MAX: usize> Decode for Opaque<MAX> {
    fn decode(d: &mut Decoder) -> Result<Self> {
        d.opaque(MAX).map(Self)
    }
}

impl<const MAX: usize> From<&[u8]> for Opaque<MAX> {
    fn from(bytes: &[u8]) -> Self {
        Self::copy_from(bytes)
    }
}

impl<const MAX: usize> From<&str> for Opaque<MAX> {
    fn from(text: &str) -> Self {
        Self::copy_from(text.as_bytes())
    }
}

impl<const MAX: usize> From<Bytes> for Opaque<MAX> {
    fn from(bytes: Bytes) -> Self {
        Self(bytes)
    }
}

/// A counted array of at most `MAX` elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct List<T, const MAX: usize>(pub Vec<T>);

impl<T, const MAX: usize> Default for List<T, MAX> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T, const MAX: usize> From<Vec<T>> for List<T, MAX> {
    fn from(items: Vec<T>) -> Self {
        Self(items)
    }
}

impl<T, const MAX: usize> std::ops::Deref for List<T, MAX> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T: Encode, const MAX: usize> Encode for List<T, MAX> {
    fn encode(&self, e: &mut Encoder) {
        e.list(&self.0);
    }
}

impl<T: Decode, const MAX: usize> Decode for List<T, MAX> {
    fn decode(d: &mut Decoder) -> Result<Self> {
        d.list(MAX).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode<T: Decode>(bytes: &'static [u8]) -> Result<T> {
        let mut d = Decoder::new(Bytes::from_static(bytes));
        let value = d.get()?;
        d.finish()?;
        Ok(value)
    }

    #[test]
    fn lengths_are_checked_before_anything_is_allocated() {
        assert_eq!(decode::<Opaque<8>>(b"\xff\xff\xff\xff"), Err(Error::TooLong));
        assert_eq!(decode::<Opaque<{ usize::MAX }>>(b"\xff\xff\xff\xff"), Err(Error::Truncated));
        assert_eq!(decode::<Opaque<8>>(b"\0\0\0\x03abc"), Err(Error::Truncated));
        assert_eq!(
            decode::<List<u64, { usize::MAX }>>(b"\0\0\0\x02\0\0\0\0\0\0\0\x01"),
            Err(Error::TooLong)
        );
        assert_eq!(decode::<bool>(b"\0\0\0\x02"), Err(Error::BadValue));
    }

    #[test]
    fn opaque_shares_the_message() {
        let message = Bytes::from_static(b"\0\0\0\x05hello\0\0\0");
        let value: Opaque<16> = Decoder::new(message.clone()).get().unwrap();
        assert_eq!(value.0.as_ptr(), message[4..].as_ptr());
    }
}
