//! Every dependency is named by code.

use crate::tree;
use anyhow::Result;
use std::path::Path;

/// Dependencies that count by being linked or by what they switch on, and why.
const SILENT: &[(&str, &str)] = &[];

pub(super) fn check(root: &Path) -> Result<Vec<String>> {
    let sources = tree::sources(root)?;
    let mut findings = Vec::new();
    let mut silent: Vec<&str> = SILENT.iter().map(|(name, _)| *name).collect();
    for package in super::layering::packages(root)? {
        let manifest = package["manifest_path"].as_str().unwrap_or_default();
        let dir = Path::new(manifest).parent().unwrap_or(root);
        let dir = dir.strip_prefix(root).unwrap_or(dir);
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let name = dependency["name"].as_str().unwrap_or_default();
            let shown = dependency["rename"].as_str().unwrap_or(name).replace('-', "_");
            let named = sources.iter().filter(|s| s.path.starts_with(dir)).any(|source| {
                let uses = |line: &str| {
                    line.contains(&format!("{shown}::"))
                        || line.contains(&format!("use {shown};"))
                        || line.contains(&format!("#[{shown}"))
                };
                // Not what a comment says, but for the examples of the documentation.
                source.text.lines().any(uses)
            });
            if let Some(at) = silent.iter().position(|silent| *silent == name) {
                silent.remove(at);
            } else if !named {
                findings.push(format!("{}: no code names {name}", dir.display()));
            }
        }
    }
    findings.extend(
        silent.iter().map(|name| format!("{name}: is no dependency: take it off the list")),
    );
    Ok(findings)
}
