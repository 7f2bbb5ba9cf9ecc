//! The source tree as the rules see it.

use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};

/// A file: its path below the root, and its text.
pub(crate) struct Source {
    pub(crate) path: PathBuf,
    pub(crate) text: String,
}

impl Source {
    /// The path, as findings show it.
    pub(crate) fn shown(&self) -> String {
        self.path.display().to_string()
    }
}

/// Every Rust source of the workspace's own, in order of path.
pub(crate) fn sources(root: &Path) -> Result<Vec<Source>> {
    files(root, &["crates", "xtask", "conformance", "fuzz"], |path| {
        path.extension().is_some_and(|extension| extension == "rs")
    })
}

/// Every document and script, in order of path: what people read and Rust does not check.
pub(crate) fn texts(root: &Path) -> Result<Vec<Source>> {
    let scripts = ["conformance/guest", "conformance/fetch-source", ".ci", "dist"];
    let tops = [&["README.md", "CHANGELOG.md", "docs"][..], &scripts].concat();
    files(root, &tops, |_| true)
}

/// The files below `tops`, or `tops` themselves, that `is_wanted`.
fn files(root: &Path, tops: &[&str], is_wanted: fn(&Path) -> bool) -> Result<Vec<Source>> {
    let mut found = Vec::new();
    for top in tops {
        let top = root.join(top);
        ensure!(top.exists(), "there is no {}", top.display());
        walk(&top, &mut found)?;
    }
    found.retain(|path| is_wanted(path));
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

fn walk(path: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    if !path.is_dir() {
        found.push(path.to_owned());
    } else if path.file_name().is_some_and(|name| name != "target") {
        for entry in std::fs::read_dir(path)? {
            walk(&entry?.path(), found)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_and_scripts_are_texts() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let texts: Vec<String> = texts(root).unwrap().iter().map(Source::shown).collect();
        let scripts = ["conformance/guest/lib.sh", "conformance/guest/scenarios/files.sh"];
        let others = ["README.md", "CHANGELOG.md", "docs/ARCHITECTURE.md", ".ci/run"];
        for path in scripts.into_iter().chain(others) {
            assert!(texts.iter().any(|text| text == path), "{path}");
        }
    }

    #[test]
    fn a_folder_that_is_gone_is_an_error() {
        assert!(files(Path::new(env!("CARGO_MANIFEST_DIR")), &["none"], |_| true).is_err());
    }
}
