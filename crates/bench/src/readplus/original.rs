//! The figures of the posting that proposed READ_PLUS for Linux's client, from
//! `data/readplus-2020.toml`.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// Seconds for versions 3, 4.0, 4.1 and 4.2: uncached at the server, and cached.
pub(crate) type Figures = [(f64, f64); 4];

#[derive(Deserialize)]
struct Table {
    file_bytes: u64,
    /// By file system, then by file.
    seconds: BTreeMap<String, BTreeMap<String, Figures>>,
}

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    match toml::from_str(include_str!("../data/readplus-2020.toml")) {
        Ok(table) => table,
        // The text is part of the program, and a test parses it.
        Err(error) => unreachable!("data/readplus-2020.toml: {error}"),
    }
});

/// Size of the files, in bytes.
pub(crate) fn file_bytes() -> u64 {
    TABLE.file_bytes
}

/// The figures for a file on a file system, by version.
pub(crate) fn figures(file_system: &str, file: &str) -> Option<Figures> {
    TABLE.seconds.get(file_system)?.get(file).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_text_is_there() {
        for name in ["ext4", "xfs", "btrfs", "ext3"] {
            for kind in super::super::files::Kind::all() {
                let figures = figures(name, &kind.name());
                let figures = figures.unwrap_or_else(|| panic!("{name} {}", kind.name()));
                assert!(figures.iter().all(|(uncached, cached)| uncached.min(*cached) > 0.7));
            }
        }
        // Spot checks against the posting.
        assert_eq!(figures("ext4", "hole").unwrap()[3], (0.708, 0.709));
        assert_eq!(figures("ext3", "mixed-8h").unwrap()[3], (77.958, 9.140));
        assert_eq!(figures("ext4", "nothing"), None);
    }
}
