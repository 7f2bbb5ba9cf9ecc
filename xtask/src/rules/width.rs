//! Comment lines have at most 120 columns; rustfmt does not break comments.

use crate::tree;
use anyhow::Result;
use std::path::Path;

/// Columns of a line of Rust, comments included.
const WIDEST: usize = 120;

pub(super) fn check(root: &Path) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for source in tree::sources(root)? {
        for (number, line) in source.text.lines().enumerate() {
            // A string literal may need its width.
            if line.chars().count() > WIDEST && line.trim_start().starts_with("//") {
                findings.push(format!("{}:{}: too wide", source.path.display(), number + 1));
            }
        }
    }
    Ok(findings)
}
