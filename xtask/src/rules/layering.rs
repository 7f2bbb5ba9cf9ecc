//! Which crate may depend on which: the table of crates in docs/ARCHITECTURE.md is the rule.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

/// The crates that may do RPC over sockets (`weir-rpc`'s feature `net`).
const MAY_CALL: &[(&str, &str)] = &[
    ("crates/client", "calls servers"),
    ("crates/server", "serves programs, and calls port mappers and clients"),
];

pub(super) fn check(root: &Path) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(root.join("docs/ARCHITECTURE.md"))
        .context("cannot read docs/ARCHITECTURE.md")?;
    let crates = packages(&root.join("Cargo.toml"))?
        .iter()
        .map(|package| depends(root, package))
        .collect::<Result<BTreeMap<_, _>>>()?;
    let mut findings = compare(&table(&text)?, &crates);
    let calls = |(_, on): &(&String, &BTreeSet<String>)| on.contains(NET);
    let callers: Vec<&String> = crates.iter().filter(calls).map(|(name, _)| name).collect();
    for name in &callers {
        if !MAY_CALL.iter().any(|(allowed, _)| allowed == name) {
            findings.push(format!("{name} may not use the feature net of crates/rpc"));
        }
    }
    findings.extend(super::stale(MAY_CALL, &callers, "xtask/src/rules/layering.rs"));
    Ok(findings)
}

/// The feature of `crates/rpc` that [`MAY_CALL`] is about, among what a crate depends on.
const NET: &str = "rpc/net";

/// What differs between the table and the manifests.
fn compare(
    table: &BTreeMap<String, BTreeSet<String>>,
    crates: &BTreeMap<String, BTreeSet<String>>,
) -> Vec<String> {
    let mut findings = Vec::new();
    for name in table.keys().filter(|name| !crates.contains_key(*name)) {
        findings.push(format!("docs/ARCHITECTURE.md: {name} is no crate"));
    }
    for (name, on) in crates {
        let Some(allowed) = table.get(name) else {
            findings.push(format!("docs/ARCHITECTURE.md: the table of crates lacks {name}"));
            continue;
        };
        for other in on.iter().filter(|other| *other != NET && !allowed.contains(*other)) {
            findings.push(format!("{name} may not depend on {other}"));
        }
        for other in allowed.difference(on) {
            findings.push(format!(
                "docs/ARCHITECTURE.md: {name} does not depend on {other}: take it off the table"
            ));
        }
    }
    findings
}

/// The table of crates: the folder of each, and the short names of the crates that it may depend on.
fn table(text: &str) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let rows = text.lines().skip_while(|line| *line != "| crate | content | may depend on |");
    let mut table = BTreeMap::new();
    for row in rows.skip(2).take_while(|line| line.starts_with('|')) {
        let mut cells = row.trim_matches('|').split('|').map(str::trim);
        let name = cells.next().unwrap_or_default().trim_matches('`').to_owned();
        let names = cells.next_back().unwrap_or_default().split(", ");
        let names = names.filter(|name| *name != "none").map(str::to_owned).collect();
        table.insert(name, names);
    }
    if table.is_empty() {
        bail!("docs/ARCHITECTURE.md has no table of crates");
    }
    Ok(table)
}

/// A package's folder, and the short names of the workspace crates that it depends on (tests may depend on any: a store
/// is tested through the cache, a client against the server).
fn depends(root: &Path, package: &Value) -> Result<(String, BTreeSet<String>)> {
    let manifest = Path::new(package["manifest_path"].as_str().unwrap_or_default());
    let dir = manifest.strip_prefix(root)?.with_file_name("").to_string_lossy().into_owned();
    let mut on = BTreeSet::new();
    for dependency in package["dependencies"].as_array().into_iter().flatten() {
        let name = dependency["name"].as_str().unwrap_or_default();
        let Some(name) = name.strip_prefix("weir-").filter(|_| dependency["kind"] != "dev") else {
            continue;
        };
        on.insert(name.to_owned());
        let features = dependency["features"].as_array().into_iter().flatten();
        on.extend(features.filter_map(Value::as_str).map(|feature| format!("{name}/{feature}")));
    }
    on.retain(|name| name == NET || !name.contains('/'));
    Ok((dir.trim_end_matches('/').to_owned(), on))
}

/// The packages of the manifest's workspace, as `cargo metadata` describes them.
pub(super) fn packages(manifest: &Path) -> Result<Vec<Value>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps", "--offline", "--manifest-path"])
        .arg(manifest)
        .output()
        .context("cannot run cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    }
    let mut metadata: Value = serde_json::from_slice(&output.stdout)?;
    match metadata["packages"].take() {
        Value::Array(packages) => Ok(packages),
        _ => bail!("cargo metadata names no packages"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crates(list: &[(&str, &[&str])]) -> BTreeMap<String, BTreeSet<String>> {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        list.iter().map(|(name, on)| ((*name).to_owned(), names(on))).collect()
    }

    #[test]
    fn the_table_of_crates_is_read() {
        let text = "| a |\n\n| crate | content | may depend on |\n| --- | --- | --- |\n\
                    | `crates/a` | `x` and y | b, c |\n| `b` | z | none |\n\n| `crates/d` | | b |\n";
        assert_eq!(table(text).unwrap(), crates(&[("crates/a", &["b", "c"]), ("b", &[])]));
        assert!(table("| crate | content |\n").is_err());
    }

    #[test]
    fn a_dependency_that_the_table_lacks_is_a_finding() {
        let table = crates(&[("crates/a", &["b"]), ("crates/b", &[])]);
        assert_eq!(compare(&table, &table), [""; 0]);
        let manifests = crates(&[("crates/a", &["b", NET]), ("crates/b", &["a"])]);
        assert_eq!(compare(&table, &manifests), ["crates/b may not depend on a"]);
    }

    #[test]
    fn an_entry_of_the_table_that_no_longer_applies_is_a_finding() {
        let table = crates(&[("crates/a", &["b"]), ("crates/gone", &[])]);
        let found = compare(&table, &crates(&[("crates/a", &[]), ("crates/new", &[])]));
        let expected = [
            "docs/ARCHITECTURE.md: crates/gone is no crate",
            "docs/ARCHITECTURE.md: crates/a does not depend on b: take it off the table",
            "docs/ARCHITECTURE.md: the table of crates lacks crates/new",
        ];
        assert_eq!(found, expected);
    }
}
