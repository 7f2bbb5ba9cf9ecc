//! Every file is reached by `mod` lines; a file that is not is neither built nor tested.

use crate::modules;
use anyhow::Result;
use std::path::Path;

pub(super) fn check(root: &Path) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for part in modules::crates(root)? {
        let files = part.unreachable(root)?;
        findings.extend(files.iter().map(|file| format!("{}: no module", file.display())));
    }
    Ok(findings)
}
