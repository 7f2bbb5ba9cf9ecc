//! Finding and writing zeros fast.

use weir_base::PAGE_SIZE;

static ZEROS: [u8; 256 << 10] = [0; 256 << 10];

/// At most `len` zeros.
pub fn some(len: u64) -> &'static [u8] {
    let len = usize::try_from(len).map_or(ZEROS.len(), |len| len.min(ZEROS.len()));
    &ZEROS[..len]
}

/// The non-zero runs of `bytes`, which are at `offset` of a file: pages of the file whose part in
/// `bytes` is all zeros are left out.
pub fn data_runs(offset: u64, bytes: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    let mut at = 0;
    std::iter::from_fn(move || {
        while at < bytes.len() && is_zero(&bytes[at..page_end(offset, at, bytes.len())]) {
            at = page_end(offset, at, bytes.len());
        }
        let start = at;
        while at < bytes.len() {
            let end = page_end(offset, at, bytes.len());
            if is_zero(&bytes[at..end]) {
                break;
            }
            at = end;
        }
        (at > start).then(|| (offset + start as u64, &bytes[start..at]))
    })
}

/// The end, within `len` bytes at `offset`, of the page with byte `at` of them.
fn page_end(offset: u64, at: usize, len: usize) -> usize {
    let into_page = (offset % PAGE_SIZE as u64) as usize + at;
    (at + PAGE_SIZE - into_page % PAGE_SIZE).min(len)
}

/// Whether a page or less is all zeros. The comparison uses memcmp(3), which is as fast as memory
/// can be read, even in debug builds.
fn is_zero(bytes: &[u8]) -> bool {
    *bytes == ZEROS[..bytes.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(offset: u64, bytes: &[u8]) -> Vec<(u64, usize)> {
        data_runs(offset, bytes).map(|(at, run)| (at, run.len())).collect()
    }

    #[test]
    fn zero_pages_are_left_out_and_neighbours_kept_together() {
        let mut bytes = vec![0; 5 * PAGE_SIZE];
        assert_eq!(runs(0, &bytes), []);
        bytes[PAGE_SIZE] = 1;
        bytes[3 * PAGE_SIZE - 1] = 1;
        assert_eq!(runs(0, &bytes), [(4096, 8192)]);
        bytes[5 * PAGE_SIZE - 1] = 1;
        assert_eq!(runs(0, &bytes), [(4096, 8192), (16384, 4096)]);
        assert_eq!(runs(0, &[]), []);
    }

    #[test]
    fn pages_are_the_files_and_not_the_buffers() {
        let mut bytes = vec![0; 2 * PAGE_SIZE];
        bytes[0] = 1;
        assert_eq!(runs(4000, &bytes), [(4000, 96)]);
        bytes[96] = 1;
        assert_eq!(runs(4000, &bytes), [(4000, 96 + 4096)]);
    }

    #[test]
    fn zeros_come_in_bounded_pieces() {
        assert_eq!(some(7).len(), 7);
        assert_eq!(some(u64::MAX).len(), ZEROS.len());
    }
}
