//! Import circles: files that can only be understood together. A circle may have five files; a larger
//! one is listed in `xtask/circles.txt` with its size, and the list only shrinks.

use crate::modules::{self, Crate, ModulePath};
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::path::Path;

const ORDINARY: usize = 5;

pub(super) fn check(root: &Path) -> Result<Vec<String>> {
    let listed = std::fs::read_to_string(root.join("xtask/circles.txt"))
        .context("cannot read xtask/circles.txt")?;
    let mut allowances = BTreeMap::new();
    for line in listed.lines().filter(|l| !l.trim().is_empty() && !l.starts_with('#')) {
        let (files, name) = line.split_once(' ').with_context(|| format!("bad line: {line}"))?;
        allowances.insert(name.trim().to_owned(), files.parse::<usize>()?);
    }
    let mut findings = Vec::new();
    for part in modules::crates(root)? {
        let dir = part.dir.to_string_lossy().into_owned();
        let largest = circles(&part).into_iter().max_by_key(Vec::len).unwrap_or_default();
        let (now, allowed) = (largest.len(), allowances.remove(&dir));
        if now > allowed.unwrap_or(ORDINARY) {
            let files: Vec<String> = largest.iter().map(|module| module.join("::")).collect();
            findings.push(format!("{dir}: a circle of {now} files: {}", files.join(", ")));
        } else if allowed.is_some_and(|allowed| now < allowed) {
            findings.push(format!(
                "{dir}: its largest circle has {now} files: say so in xtask/circles.txt"
            ));
        }
    }
    findings
        .extend(allowances.keys().map(|dir| format!("{dir}: gone: take it off xtask/circles.txt")));
    Ok(findings)
}

/// Sets of modules that name each other, directly or by way of others (Tarjan's algorithm).
fn circles(part: &Crate) -> Vec<Vec<ModulePath>> {
    let mut search = Search { part, ..Search::new(part) };
    for (path, module) in &part.modules {
        if !module.is_test && !search.number.contains_key(path) {
            search.visit(path);
        }
    }
    search.found.retain(|circle| circle.len() > 1);
    search.found
}

struct Search<'a> {
    part: &'a Crate,
    number: BTreeMap<&'a ModulePath, usize>,
    lowest: BTreeMap<&'a ModulePath, usize>,
    stack: Vec<&'a ModulePath>,
    found: Vec<Vec<ModulePath>>,
}

impl<'a> Search<'a> {
    fn new(part: &'a Crate) -> Self {
        let (number, lowest) = (BTreeMap::new(), BTreeMap::new());
        Self { part, number, lowest, stack: Vec::new(), found: Vec::new() }
    }

    fn visit(&mut self, path: &'a ModulePath) {
        let number = self.number.len();
        self.number.insert(path, number);
        self.lowest.insert(path, number);
        self.stack.push(path);
        for next in &self.part.modules[path].names {
            // The root only puts the crate together.
            if next.is_empty() || self.part.modules[next].is_test {
                continue;
            }
            let reached = match self.number.get(next) {
                None => {
                    self.visit(next);
                    self.lowest[next]
                }
                Some(number) if self.stack.contains(&next) => *number,
                Some(_) => continue,
            };
            let lowest = self.lowest[path].min(reached);
            self.lowest.insert(path, lowest);
        }
        if self.lowest[path] == number {
            let at = self.stack.iter().position(|on| *on == path).unwrap_or(0);
            self.found.push(self.stack.drain(at..).cloned().collect());
        }
    }
}
