//! Every dependency is named by code.

use crate::tree;
use anyhow::Result;
use std::path::Path;

/// Dependencies that count by being linked or by what they switch on, and why.
const SILENT: &[(&str, &str)] = &[];

pub(super) fn check(root: &Path) -> Result<Vec<String>> {
    let sources = tree::sources(root)?;
    let (mut findings, mut silent) = (Vec::new(), Vec::new());
    for package in super::layering::packages(&root.join("Cargo.toml"))? {
        let manifest = package["manifest_path"].as_str().unwrap_or_default();
        let dir = Path::new(manifest).parent().unwrap_or(root);
        let dir = dir.strip_prefix(root).unwrap_or(dir);
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let name = dependency["name"].as_str().unwrap_or_default();
            let shown = dependency["rename"].as_str().unwrap_or(name).replace('-', "_");
            let mut own = sources.iter().filter(|source| source.path.starts_with(dir));
            if own.any(|source| names(&source.text, &shown)) {
                continue;
            }
            silent.push(name.to_owned());
            if !SILENT.iter().any(|(allowed, _)| *allowed == name) {
                findings.push(format!("{}: no code names {name}", dir.display()));
            }
        }
    }
    findings.extend(super::stale(SILENT, &silent, "xtask/src/rules/dependencies.rs"));
    Ok(findings)
}

/// Whether a source names a crate, in code or in an example of its documentation.
fn names(text: &str, name: &str) -> bool {
    let uses = [format!("{name}::"), format!("use {name};"), format!("#[{name}")];
    uses.iter().any(|uses| text.contains(uses))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_is_named_by_a_path_an_import_or_an_attribute() {
        for text in ["use a::b;", "a::b()", "use a;", "#[a]", "/// use a::b;"] {
            assert!(names(text, "a"), "{text}");
        }
        for text in ["// the crate a", "let a = 1;", "a.b()"] {
            assert!(!names(text, "a"), "{text}");
        }
    }
}
