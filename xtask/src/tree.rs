//! The source tree as the rules see it.

use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// A source file: its path below the root, and its text.
pub(crate) struct Source {
    pub(crate) path: PathBuf,
    pub(crate) text: String,
}

/// Every Rust source of the workspace's own, in order of path.
pub(crate) fn sources(root: &Path) -> Result<Vec<Source>> {
    let mut found = Vec::new();
    for top in ["crates", "xtask", "conformance", "fuzz"] {
        walk(&root.join(top), &mut found)?;
    }
    found.sort();
    found
        .into_iter()
        .map(|path| {
            let text = std::fs::read_to_string(&path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            Ok(Source { path: path.strip_prefix(root).unwrap_or(&path).to_owned(), text })
        })
        .collect()
}

fn walk(dir: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Ok(()) };
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            if path.file_name().is_some_and(|n| n != "target") {
                walk(&path, found)?;
            }
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
    Ok(())
}
