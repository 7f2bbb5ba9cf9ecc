//! docs/SEMANTICS.md: each promise ends with `(test: name)` or `(tests: name, name)`, and each
//! name is a test function of the workspace.

use crate::tree;
use anyhow::{Context, Result};
use std::path::Path;

pub(super) fn check(root: &Path) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(root.join("docs/SEMANTICS.md"))
        .context("cannot read docs/SEMANTICS.md")?;
    let sources = tree::sources(root)?;
    let mut findings = Vec::new();
    let mut named = 0;
    for promise in promises(&text) {
        let tests = tests_of(&promise);
        if tests.is_empty() {
            findings.push(format!("names no test: {}", first_line(&promise)));
        }
        for test in tests {
            named += 1;
            let last = test.rsplit("::").next().unwrap_or(&test);
            let function = format!("fn {last}(");
            if !sources.iter().any(|s| s.text.contains(&function)) {
                findings.push(format!("there is no test `{test}`"));
            }
        }
    }
    if named == 0 {
        findings.push("docs/SEMANTICS.md promises nothing".into());
    }
    Ok(findings)
}

/// List items, each with its continuation lines joined.
fn promises(text: &str) -> Vec<String> {
    let mut items: Vec<String> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        if let Some(item) = line.strip_prefix("- ") {
            items.push(item.to_owned());
            inside = true;
        } else if inside && line.starts_with("  ") {
            if let Some(item) = items.last_mut() {
                item.push(' ');
                item.push_str(line.trim());
            }
        } else {
            inside = false;
        }
    }
    items
}

fn tests_of(promise: &str) -> Vec<String> {
    let Some(at) = promise.rfind("(test") else { return Vec::new() };
    promise[at..].split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn first_line(text: &str) -> String {
    text.chars().take(80).collect()
}
