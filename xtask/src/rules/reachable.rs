//! Every Rust file is reached by `mod` lines from a library, program, test, benchmark, example or fuzz target; a file
//! that is not is neither built nor tested.

use crate::{modules, tree};
use anyhow::Result;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

pub(super) fn check(root: &Path) -> Result<Vec<String>> {
    let mut reached = BTreeSet::new();
    for manifest in ["Cargo.toml", "fuzz/Cargo.toml"] {
        for package in super::layering::packages(&root.join(manifest))? {
            for target in package["targets"].as_array().into_iter().flatten() {
                let top = Path::new(target["src_path"].as_str().unwrap_or_default());
                reached.extend(modules::files(root, top.strip_prefix(root)?)?);
            }
        }
    }
    let sources = tree::sources(root)?.into_iter().map(|source| source.path);
    Ok(unreached(sources, &reached))
}

fn unreached(sources: impl Iterator<Item = PathBuf>, reached: &BTreeSet<PathBuf>) -> Vec<String> {
    sources
        .filter(|path| !reached.contains(path))
        .map(|path| format!("{}: no target has it as a module", path.display()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_no_mod_line_names_is_a_finding() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        std::fs::create_dir_all(root.join("tests/common")).unwrap();
        for (path, text) in [
            ("tests/a.rs", "mod common; mod beside;"),
            ("tests/beside.rs", ""),
            ("tests/common/mod.rs", "mod deep;"),
            ("tests/common/deep.rs", ""),
            ("tests/common/lost.rs", ""),
        ] {
            std::fs::write(root.join(path), text).unwrap();
        }
        let reached = modules::files(root, Path::new("tests/a.rs")).unwrap();
        let found = ["tests/a.rs", "tests/common/deep.rs", "tests/common/lost.rs"];
        let found = unreached(found.into_iter().map(PathBuf::from), &reached);
        assert_eq!(found, ["tests/common/lost.rs: no target has it as a module"]);
    }
}
