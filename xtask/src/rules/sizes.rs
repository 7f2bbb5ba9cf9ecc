//! A file may have 700 lines. `xtask/sizes.txt` lists files that need more with their allowance, and
//! only shrinks.

use crate::tree;
use anyhow::{Context, Result};
use std::path::Path;

const ORDINARY: usize = 700;

pub(super) fn check(root: &Path) -> Result<Vec<String>> {
    let listed = std::fs::read_to_string(root.join("xtask/sizes.txt"))
        .context("cannot read xtask/sizes.txt")?;
    let mut allowances = Vec::new();
    for line in listed.lines().filter(|l| !l.trim().is_empty() && !l.starts_with('#')) {
        let (lines, path) = line.split_once(' ').with_context(|| format!("bad line: {line}"))?;
        allowances.push((path.trim(), lines.parse::<usize>()?));
    }
    let mut findings = Vec::new();
    let sources = tree::sources(root)?;
    for source in &sources {
        let path = source.path.to_string_lossy();
        let lines = source.text.lines().count();
        let allowed = allowances.iter().find(|(p, _)| *p == path).map(|(_, n)| *n);
        match allowed {
            None if lines > ORDINARY => findings.push(format!(
                "{path}: {lines} lines; split it by idea, or list it in xtask/sizes.txt"
            )),
            Some(n) if lines > n => {
                findings.push(format!("{path}: {lines} lines, its allowance is {n}"));
            }
            Some(_) if lines <= ORDINARY => {
                findings.push(format!("{path}: {lines} lines: take it off xtask/sizes.txt"));
            }
            _ => {}
        }
    }
    for (path, _) in allowances {
        if !sources.iter().any(|s| s.path.to_string_lossy() == path) {
            findings.push(format!("{path}: gone: take it off xtask/sizes.txt"));
        }
    }
    Ok(findings)
}
