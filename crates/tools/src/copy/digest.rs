//! A checksum of a file's data that ignores holes: zeros count the same, stored or not.

use super::zeros;
use weir_base::PAGE_SIZE;
use xxhash_rust::xxh3::xxh3_128_with_seed;

/// The sum of the hashes of all non-zero pages, each with its position.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Digest(u128);

impl Digest {
    /// Adds bytes at `offset`: whole pages, except at the end of the file.
    pub(crate) fn add(&mut self, offset: u64, bytes: &[u8]) {
        for (at, run) in zeros::data_runs(offset, bytes) {
            for (n, page) in run.chunks(PAGE_SIZE).enumerate() {
                let hash = xxh3_128_with_seed(page, at + (n * PAGE_SIZE) as u64);
                self.0 = self.0.wrapping_add(hash);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(parts: &[(u64, &[u8])]) -> Digest {
        let mut digest = Digest::default();
        parts.iter().for_each(|(at, bytes)| digest.add(*at, bytes));
        digest
    }

    #[test]
    fn digests_ignore_zeros_and_depend_on_offsets() {
        let (ones, zeros) = (vec![1; 4096], vec![0; 8192]);
        assert_eq!(of(&[(0, &ones), (4096, &zeros)]), of(&[(0, &ones)]));
        assert_eq!(of(&[(8192, &ones), (0, &ones)]), of(&[(0, &ones), (8192, &ones)]));
        assert_ne!(of(&[(0, &ones)]), of(&[(4096, &ones)]));
        assert_ne!(of(&[(0, &ones)]), of(&[(0, &ones[1..])]));
    }
}
