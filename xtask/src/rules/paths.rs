//! The files and folders that the documents name are there.

use anyhow::Result;
use std::path::Path;

/// Where a path of the tree begins.
const TOPS: &[&str] = &["crates/", "conformance/", "xtask/", "docs/", "dist/", "fuzz/"];

pub(super) fn check(root: &Path) -> Result<Vec<String>> {
    let mut texts = vec![root.join("README.md")];
    for entry in std::fs::read_dir(root.join("docs"))? {
        texts.push(entry?.path());
    }
    texts.retain(|text| text.extension().is_some_and(|extension| extension == "md"));
    texts.sort();
    let mut findings = Vec::new();
    for text in texts {
        let content = std::fs::read_to_string(&text)?;
        let shown = text.strip_prefix(root).unwrap_or(&text).display();
        for (number, line) in content.lines().enumerate() {
            for name in line.split('`').skip(1).step_by(2) {
                let is_path = TOPS.iter().any(|top| name.starts_with(top))
                    && !name.contains(|c: char| c.is_whitespace() || "*{<".contains(c));
                if is_path && !root.join(name).exists() {
                    findings.push(format!("{shown}:{}: there is no {name}", number + 1));
                }
            }
        }
    }
    Ok(findings)
}
