//! The algorithms of checksums.

use sha2::Digest;
use std::fmt;

/// An algorithm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// SHA-256 (FIPS 180-4), as of sha256sum(1).
    #[default]
    Sha256,
    /// BLAKE3, as of b3sum(1).
    Blake3,
}

impl Algorithm {
    /// Its name on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Blake3 => "blake3",
        }
    }
}

/// A checksum; both algorithms have 256 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checksum(pub [u8; 32]);

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Computes a checksum.
pub(super) enum Hasher {
    Sha256(sha2::Sha256),
    Blake3(Box<blake3::Hasher>),
}

impl Hasher {
    pub(super) fn new(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::Sha256 => Self::Sha256(sha2::Sha256::new()),
            Algorithm::Blake3 => Self::Blake3(Box::new(blake3::Hasher::new())),
        }
    }

    /// Adds bytes at the end.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hasher) => hasher.update(bytes),
            Self::Blake3(hasher) => drop(hasher.update(bytes)),
        }
    }

    pub(super) fn finish(self) -> Checksum {
        Checksum(match self {
            Self::Sha256(hasher) => hasher.finalize().into(),
            Self::Blake3(hasher) => hasher.finalize().into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_the_algorithms() {
        // FIPS 180-4, and the test vectors of BLAKE3, for no input.
        for (algorithm, sum) in [
            (Algorithm::Sha256, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
            (Algorithm::Blake3, "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"),
        ] {
            assert_eq!(Hasher::new(algorithm).finish().to_string(), sum);
        }
    }
}
