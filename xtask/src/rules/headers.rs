//! A file begins with a `//!` header: its subject and its invariants.

use crate::tree;
use anyhow::Result;
use std::path::Path;

pub(super) fn check(root: &Path) -> Result<Vec<String>> {
    Ok(tree::sources(root)?
        .iter()
        .filter(|s| !s.text.trim_start_matches("#![no_main]").trim_start().starts_with("//!"))
        .map(|s| format!("{}: begin with a //! header", s.path.display()))
        .collect())
}
