//! Lines are no wider than rustfmt makes code; comments and texts are not rustfmt's to break.

use crate::tree;
use anyhow::Result;
use std::path::Path;

/// Columns of a line of Rust, comments included.
const WIDEST: usize = 120;

pub(super) fn check(root: &Path) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for source in tree::sources(root)? {
        for (number, line) in source.text.lines().enumerate() {
            // A literal that rustfmt leaves alone may be what it has to be.
            if line.chars().count() > WIDEST && line.trim_start().starts_with("//") {
                findings.push(format!("{}:{}: too wide", source.path.display(), number + 1));
            }
        }
    }
    Ok(findings)
}
