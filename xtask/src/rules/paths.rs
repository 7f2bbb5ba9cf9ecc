//! The files and folders that the documents name are there. The path of a source file may begin below its crate
//! (`writeback/lane.rs`).

use crate::tree;
use anyhow::Result;
use std::path::{Path, PathBuf};

/// Where a path of the tree begins.
const TOPS: &[&str] = &["crates/", "conformance/", "xtask/", "docs/", "dist/", "fuzz/", ".ci/"];

pub(super) fn check(root: &Path) -> Result<Vec<String>> {
    let sources: Vec<PathBuf> = tree::sources(root)?.into_iter().map(|s| s.path).collect();
    let mut texts = vec![root.join("README.md")];
    for entry in std::fs::read_dir(root.join("docs"))? {
        texts.push(entry?.path());
    }
    texts.retain(|text| text.extension().is_some_and(|extension| extension == "md"));
    texts.sort();
    let gone = TOPS.iter().filter(|top| !root.join(top).exists());
    let mut findings: Vec<String> = gone.map(|top| format!("there is no {top}")).collect();
    for text in texts {
        let content = std::fs::read_to_string(&text)?;
        let shown = text.strip_prefix(root).unwrap_or(&text).display();
        for (number, line) in content.lines().enumerate() {
            for name in line.split('`').skip(1).step_by(2) {
                if !is_there(name, root, &sources) {
                    findings.push(format!("{shown}:{}: there is no {name}", number + 1));
                }
            }
        }
    }
    Ok(findings)
}

/// Whether `name`, if it is a path, is one of the tree.
fn is_there(name: &str, root: &Path, sources: &[PathBuf]) -> bool {
    if name.contains(|c: char| c.is_whitespace() || "*{<".contains(c)) {
        true
    } else if TOPS.iter().any(|top| name.starts_with(top)) {
        root.join(name).exists()
    } else {
        !name.ends_with(".rs") || sources.iter().any(|source| source.ends_with(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_files_and_folders() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let sources = [PathBuf::from("crates/a/src/b/c.rs")];
        for there in ["docs/", "xtask/src/main.rs", "b/c.rs", "src/b/c.rs", "c.rs", "cargo x.rs"] {
            assert!(is_there(there, root, &sources), "{there}");
        }
        for gone in ["docs/none", "src/c.rs", "d.rs", ".ci/none"] {
            assert!(!is_there(gone, root, &sources), "{gone}");
        }
    }
}
