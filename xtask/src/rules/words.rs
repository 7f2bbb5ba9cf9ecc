//! No unfinished work is committed, and sentences name their actors.

use crate::tree;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::path::Path;

/// Split, so that this file does not break its own rule.
const UNFINISHED: &[[&str; 2]] =
    &[["TO", "DO"], ["FIX", "ME"], ["XX", "X:"], ["unimple", "mented!("]];

/// Words used instead of an actor's name (the flusher, the caller, another client). `xtask/words.txt`
/// lists the number of them in each file that has some, and only shrinks.
const NAMELESS: &[[&str; 2]] =
    &[["who", "ever"], ["some", "body"], ["no", "body"], ["any", "body"], ["what", "ever"]];

pub(super) fn check(root: &Path) -> Result<Vec<String>> {
    let listed = std::fs::read_to_string(root.join("xtask/words.txt"))
        .context("cannot read xtask/words.txt")?;
    let mut allowances = BTreeMap::new();
    for line in listed.lines().filter(|l| !l.trim().is_empty() && !l.starts_with('#')) {
        let (count, path) = line.split_once(' ').with_context(|| format!("bad line: {line}"))?;
        allowances.insert(path.trim().to_owned(), count.parse::<usize>()?);
    }
    let mut findings = Vec::new();
    let nameless: Vec<String> = NAMELESS.iter().map(|w| w.concat()).collect();
    for source in tree::sources(root)? {
        let path = source.path.to_string_lossy().into_owned();
        let mut found = Vec::new();
        for (number, line) in source.text.lines().enumerate() {
            for word in UNFINISHED.iter().map(|w| w.concat()) {
                if line.contains(&word) {
                    findings.push(format!("{path}:{}: {word}", number + 1));
                }
            }
            let lower = line.to_lowercase();
            let words = lower.split(|c: char| !c.is_alphabetic());
            found.extend(words.filter(|w| nameless.iter().any(|n| n == w)).map(|_| number + 1));
        }
        let allowed = allowances.remove(&path).unwrap_or(0);
        if found.len() > allowed {
            findings.push(format!(
                "{path}: {} words that name no actor, {allowed} allowed; lines {found:?}",
                found.len()
            ));
        } else if found.len() < allowed {
            let now = found.len();
            findings.push(format!("{path}: {now} nameless words: say so in xtask/words.txt"));
        }
    }
    findings.extend(allowances.keys().map(|p| format!("{p}: gone: take it off xtask/words.txt")));
    Ok(findings)
}
