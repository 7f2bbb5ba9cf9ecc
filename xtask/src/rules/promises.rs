//! docs/SEMANTICS.md: each promise names the tests that prove it. Each name is a function with its own
//! `#[test]`, or one of the suite that every store passes. `name_*` matches all tests with that prefix.
//! A promise is an item of a list, which ends with `(test: name)` or `(tests: name, name)`, or a row of
//! a table whose last column is headed `test`.

use crate::tree;
use anyhow::{Context, Result};
use std::collections::HashSet;
use std::path::Path;

pub(super) fn check(root: &Path) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(root.join("docs/SEMANTICS.md"))
        .context("cannot read docs/SEMANTICS.md")?;
    let sources = tree::sources(root)?;
    let is_suite = |path: &Path| path.starts_with("crates/stores/src/testing");
    let tests = sources.iter().flat_map(|s| tests_in(&s.text, is_suite(&s.path)));
    let known: HashSet<&str> = tests.collect();
    let mut findings = Vec::new();
    let mut named = 0;
    for promise in items(&text).into_iter().chain(rows(&text)) {
        if promise.tests.is_empty() {
            let start: String = promise.text.chars().take(80).collect();
            findings.push(format!("names no test: {start}"));
        }
        for test in promise.tests {
            named += 1;
            let function = test.rsplit("::").next().unwrap_or(&test);
            let is_known = match function.strip_suffix('*') {
                Some(start) => known.iter().any(|test| test.starts_with(start)),
                None => known.contains(function),
            };
            // A single word may be something other than a test.
            if !is_known && function.contains('_') {
                findings.push(format!("there is no test `{test}`"));
            }
        }
    }
    if named == 0 {
        findings.push("docs/SEMANTICS.md promises nothing".into());
    }
    Ok(findings)
}

struct Promise {
    text: String,
    tests: Vec<String>,
}

/// List items, each with its continuation lines joined.
fn items(text: &str) -> Vec<Promise> {
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
    let with_tests = |text: String| {
        let at = text.rfind("(test").unwrap_or(text.len());
        Promise { tests: quoted(&text[at..]), text }
    };
    items.into_iter().map(with_tests).collect()
}

/// Rows of tables that have a column for tests.
fn rows(text: &str) -> Vec<Promise> {
    let mut rows = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        let Some(row) = line.strip_prefix('|').and_then(|row| row.trim_end().strip_suffix('|'))
        else {
            inside = false;
            continue;
        };
        let last = row.rsplit('|').next().unwrap_or_default().trim();
        if last == "test" {
            inside = true;
        } else if inside && !last.starts_with("---") {
            rows.push(Promise { text: row.trim().to_owned(), tests: quoted(last) });
        }
    }
    rows
}

/// The texts in backquotes that may be functions' names, rather than files, variables or commands.
fn quoted(text: &str) -> Vec<String> {
    let is_name = |text: &&str| {
        let of_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_:*".contains(c);
        !text.is_empty() && text.chars().all(of_name)
    };
    text.split('`').skip(1).step_by(2).filter(is_name).map(str::to_owned).collect()
}

/// The functions with `#[test]` or `#[tokio::test]`.
fn tests_in(text: &str, is_suite: bool) -> Vec<&str> {
    let mut tests = Vec::new();
    let mut is_test = false;
    for line in text.lines().map(str::trim_start) {
        if line.starts_with("#[") {
            is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
        } else if let Some((_, rest)) = line.split_once("fn ").filter(|_| is_test || is_suite) {
            tests.extend(rest.split(['(', '<']).next());
            is_test = false;
        } else if !line.starts_with("//") && !line.is_empty() {
            is_test = false;
        }
    }
    tests
}
