//! A hash with stable values: for data on disk, and identities of files.

/// FNV-1a of bytes. Not for tables that a peer can fill: collisions are easy to construct.
///
/// Stable over restarts and releases of Rust and of Weir.
pub fn stable_hash<'a>(bytes: impl IntoIterator<Item = &'a u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The inode number that a mount of several file systems shows of a file that is not in the file system of its root. A
/// mount has one device number, by which programs tell files, and file systems have the same inode numbers. Never 0.
pub fn number_elsewhere(fsid: u64, ino: u64) -> u64 {
    let hash = stable_hash(&fsid.to_le_bytes());
    if ino == hash { hash } else { ino ^ hash }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_differ_between_file_systems() {
        let numbers = |fsid| [1, 2, 128, 1 << 40].map(|ino| number_elsewhere(fsid, ino));
        let mut all: Vec<u64> =
            [0, 1, 2, 1 << 32, u64::MAX].into_iter().flat_map(numbers).collect();
        all.extend([1, 2, 128, 1 << 40]);
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 24);
        assert_ne!(number_elsewhere(7, stable_hash(&7_u64.to_le_bytes())), 0);
    }

    #[test]
    fn values_are_those_of_fnv_1a() {
        assert_eq!(stable_hash(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(stable_hash(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(stable_hash(b"foobar"), 0x8594_4171_f739_67e8);
    }
}
