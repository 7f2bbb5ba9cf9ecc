//! `bitmap4`: a set of small numbers, attributes for instance.

use weir_xdr::{Decode, Decoder, Encode, Encoder, Result};

/// Most words accepted from a peer; those past the fourth are only checked for being zero.
const MAX_WORDS: usize = 64;

/// A set of numbers below 128; every number from 127 on that a peer names is kept as 127, which
/// nothing is called.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Bitmap(pub u128);

impl Bitmap {
    /// The empty set.
    pub const EMPTY: Self = Self(0);

    /// The set of `numbers`.
    ///
    /// # Panics
    /// A number is 128 or more.
    pub const fn of(numbers: &[u32]) -> Self {
        let (mut bits, mut i) = (0, 0);
        while i < numbers.len() {
            bits |= 1 << numbers[i];
            i += 1;
        }
        Self(bits)
    }

    /// Whether `number` is in it.
    pub const fn contains(self, number: u32) -> bool {
        number < 128 && self.0 & (1 << number) != 0
    }

    /// Puts `number` in.
    ///
    /// # Panics
    /// `number` is 128 or more.
    pub const fn insert(&mut self, number: u32) {
        self.0 |= 1 << number;
    }

    /// Those in either.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Those in both.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Those in this but not in `other`.
    #[must_use]
    pub const fn difference(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether nothing is in it.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The numbers, in order.
    pub fn iter(self) -> impl Iterator<Item = u32> {
        let mut bits = self.0;
        std::iter::from_fn(move || {
            let number = (bits != 0).then(|| bits.trailing_zeros())?;
            bits &= bits - 1;
            Some(number)
        })
    }
}

impl FromIterator<u32> for Bitmap {
    fn from_iter<I: IntoIterator<Item = u32>>(numbers: I) -> Self {
        let mut set = Self::EMPTY;
        numbers.into_iter().for_each(|number| set.insert(number));
        set
    }
}

impl std::fmt::Debug for Bitmap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl Encode for Bitmap {
    fn encode(&self, e: &mut Encoder) {
        let words = (128 - self.0.leading_zeros()).div_ceil(32);
        e.u32(words);
        (0..words).for_each(|i| e.u32((self.0 >> (32 * i)) as u32));
    }
}

impl Decode for Bitmap {
    fn decode(d: &mut Decoder) -> Result<Self> {
        let words: Vec<u32> = d.list(MAX_WORDS)?;
        let known = words.iter().take(4).rev().fold(0, |bits, word| bits << 32 | u128::from(*word));
        let beyond = words.iter().skip(4).any(|word| *word != 0);
        Ok(Self(known | u128::from(beyond) << 127))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_xdr::sample::{check, hex};

    #[test]
    fn samples() {
        check(&Bitmap::EMPTY, "00000000");
        check(&Bitmap::of(&[1, 33]), "00000002 00000002 00000002");
        check(&Bitmap::of(&[81]), "00000003 00000000 00000000 00020000");
        assert_eq!(Bitmap::of(&[81, 1]).iter().collect::<Vec<_>>(), [1, 81]);
    }

    #[test]
    fn peers_may_send_empty_or_unknown_words() {
        let decode = |bytes| Decoder::new(hex(bytes)).get::<Bitmap>();
        assert_eq!(decode("00000003 00000002 00000000 00000000"), Ok(Bitmap::of(&[1])));
        assert_eq!(
            decode("00000005 00000002 00000000 00000000 00000000 00000001"),
            Ok(Bitmap::of(&[1, 127]))
        );
        assert_eq!(decode("00000041"), Err(weir_xdr::Error::TooLong));
    }
}
