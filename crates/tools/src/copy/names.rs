//! Names that the destination may take for one.
//!
//! 1. File systems fold case, normalize, or leave out dots at the end of a name. [`fold`] gives one
//!    result for all names that any of them takes for one. Only for names with one result is the
//!    destination asked.
//! 2. A directory takes about 30 bytes of memory for each name while it is copied. If there are
//!    several sources, those of all directories stay in memory.

use crate::failure::{Asked, Result};
use crate::listing::Listing;
use crate::mounts::Place;
use icu_normalizer::DecomposingNormalizer;
use std::collections::{HashMap, HashSet};
use weir_pagecache::CachedFs;
use weir_vfs::FileId;
use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128};

/// Names for which there is room after a directory.
const MOST_ROOM: usize = 4096;

/// The names that were used as destinations.
pub(super) struct Names {
    /// By directory and the hash of the name, if there are several sources.
    exact: Option<HashSet<(FileId, u128)>>,
    /// By the hash of directory and folded name: the number of the source.
    folded: HashMap<u64, u32>,
    /// The sources, as the user named them, if there are several.
    sources: Vec<String>,
    /// The sources that were begun.
    begun: u32,
}

/// Which names an entry meets.
pub(super) enum Met {
    /// None like it.
    First,
    /// Its own, from another source.
    Again,
    /// One that the destination may take for it, from this source.
    Similar(u32),
}

impl Names {
    /// No names, for a copy of these places.
    pub(super) fn new(pairs: &[(Place, Place)]) -> Self {
        let several = pairs.len() > 1;
        let shown = |(from, _): &(Place, Place)| from.shown.clone();
        Self {
            exact: several.then(HashSet::new),
            folded: HashMap::new(),
            sources: if several { pairs.iter().map(shown).collect() } else { Vec::new() },
            begun: 0,
        }
    }

    /// Whether names of one source may meet those of another.
    pub(super) fn has_several_sources(&self) -> bool {
        self.exact.is_some()
    }

    /// The names that follow are those of the next source.
    pub(super) fn begin_source(&mut self) {
        self.begun += 1;
    }

    /// All names in a directory of the source were met.
    pub(super) fn end_directory(&mut self) {
        if !self.has_several_sources() {
            self.folded.clear();
            self.folded.shrink_to(MOST_ROOM);
        }
    }

    /// Records the name in the directory `dir` of the destination.
    pub(super) fn meet(&mut self, dir: FileId, name: &[u8]) -> Met {
        if let Some(exact) = &mut self.exact
            && !exact.insert((dir, xxh3_128(name)))
        {
            return Met::Again;
        }
        let source = self.begun - 1;
        match self.folded.insert(xxh3_64_with_seed(&fold(name), dir.ino), source) {
            None => Met::First,
            Some(other) => Met::Similar(other),
        }
    }

    /// The source, copied before as a part of the source `number`, whose name the destination takes
    /// for that of `to`, which exists. `from` is the directory of the source that is being copied.
    pub(super) async fn other(
        &self,
        number: u32,
        from: Option<(&Place, FileId)>,
        to: &Place,
    ) -> Result<Option<String>> {
        let name = to.name.as_deref().unwrap_or_default();
        let other = match (self.sources.get(number as usize), from) {
            (Some(source), None) if number != self.begun - 1 => source.clone(),
            (Some(source), _) if number != self.begun - 1 => format!("one in {source}"),
            (_, Some((from, id))) => {
                let here = similar((&from.fs, id), name).await;
                let here = here.asked(|| format!("list {}", from.shown))?;
                match here.iter().find(|other| &other[..] != name) {
                    Some(other) => from.shown_below(other),
                    None => return Ok(None),
                }
            }
            (_, None) => return Ok(None),
        };
        let there = similar((&to.fs, to.dir), name).await;
        let there = there.asked(|| format!("list the directory of {}", to.shown))?;
        // A directory that has both names distinguishes them.
        let has_both = there.len() > 1 && there.iter().any(|found| found == name);
        Ok((!has_both).then_some(other))
    }
}

/// The names in a directory that fold as `name` does.
async fn similar((fs, dir): (&CachedFs, FileId), name: &[u8]) -> weir_vfs::Result<Vec<Vec<u8>>> {
    let folded = fold(name);
    let mut names = Vec::new();
    let mut listing = Listing::of_names(fs, dir);
    while let Some(entries) = listing.next().await? {
        let alike = entries.into_iter().map(|entry| entry.name);
        names.extend(alike.filter(|name| fold(name) == folded));
    }
    Ok(names)
}

/// What is equal for names that a file system may take for one.
pub(crate) fn fold(name: &[u8]) -> Vec<u8> {
    let end = name.iter().rposition(|&byte| byte != b'.' && byte != b' ');
    let name = &name[..end.map_or(name.len(), |end| end + 1)];
    if name.is_ascii() {
        return name.to_ascii_lowercase();
    }
    let normalizer = DecomposingNormalizer::new_nfkd();
    let text = String::from_utf8_lossy(name);
    let text = normalizer.normalize(&text).to_uppercase().to_lowercase();
    normalizer.normalize(&text).into_owned().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::fold;

    #[test]
    fn names_that_file_systems_take_for_one_fold_to_one() {
        for (a, b) in [
            ("Makefile", "makefile"),
            ("caf\u{e9}", "cafe\u{301}"),
            ("CAF\u{c9}", "cafe\u{301}"),
            ("stra\u{df}e", "STRASSE"),
            ("\u{3c3}", "\u{3c2}"),
            ("\u{212a}", "k"),
            ("name", "name."),
            ("name. .", "Name"),
        ] {
            assert_eq!(fold(a.as_bytes()), fold(b.as_bytes()), "{a} {b}");
        }
        for (a, b) in
            [("a", "b"), (".", ".."), ("a.b", "ab"), ("e", "\u{e9}"), ("\u{4e00}", "\u{4e8c}")]
        {
            assert_ne!(fold(a.as_bytes()), fold(b.as_bytes()), "{a} {b}");
        }
    }
}
