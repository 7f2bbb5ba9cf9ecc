//! Sample messages, written as hexadecimal words, for tests of codecs.

use crate::{Decode, Decoder, Encode, Encoder};
use bytes::Bytes;
use std::fmt::Debug;

/// The bytes given by `hex`; white space is ignored.
///
/// # Panics
/// `hex` is not a sequence of hexadecimal digit pairs.
pub fn hex(hex: &str) -> Bytes {
    let digits: Vec<u8> = hex.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    let nibble = |b: u8| (b as char).to_digit(16).expect("hexadecimal digits") as u8;
    assert!(digits.len().is_multiple_of(2), "whole bytes");
    digits.chunks(2).map(|pair| nibble(pair[0]) << 4 | nibble(pair[1])).collect()
}

/// A value's encoding.
pub fn wire<T: Encode + ?Sized>(value: &T) -> Bytes {
    let mut e = Encoder::new();
    e.put(value);
    e.finish().to_bytes()
}

/// Checks that `value` is encoded as `expected` (hexadecimal), is decoded from it, and from no
/// shorter message.
///
/// # Panics A check fails.
pub fn check<T: Encode + Decode + PartialEq + Debug>(value: &T, expected: &str) {
    let expected = hex(expected);
    let written = wire(value);
    assert_eq!(words(&written), words(&expected), "the wire form of {value:?}");
    let mut d = Decoder::new(expected.clone());
    assert_eq!(d.get::<T>().as_ref(), Ok(value));
    assert_eq!(d.finish(), Ok(()), "bytes left after {value:?}");
    for len in 0..expected.len() {
        let mut d = Decoder::new(expected.slice(..len));
        assert!(d.get::<T>().is_err(), "the first {len} bytes were taken for {value:?}");
    }
    assert!(T::MIN_BYTES <= expected.len(), "MIN_BYTES is over the length of {value:?}");
}

fn words(bytes: &[u8]) -> String {
    bytes
        .chunks(4)
        .map(|word| word.iter().map(|b| format!("{b:02x}")).collect::<String>() + " ")
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_checked_both_ways() {
        check(&Some(7_u32), "00000001 00000007");
        check(&Ok::<u64, u32>(7), "00000000 00000000 00000007");
        check(&Err::<u64, u32>(70), "00000046");
    }

    #[test]
    #[should_panic(expected = "the wire form")]
    fn a_wrong_sample_is_caught() {
        check(&7_u32, "00000008");
    }
}
