//! Comments, documents and the scripts of the continuous integration have at most 120 columns; rustfmt does not break
//! comments.

use crate::tree;
use anyhow::Result;
use std::path::Path;

/// Columns of a line, comments of Rust included.
const WIDEST: usize = 120;

/// Documents whose tables may be wider, and why: Markdown cannot break a table's row.
const WIDE_TABLES: &[(&str, &str)] = &[
    ("docs/CHECK.md", "six columns, of which a test compares the first three with the code"),
    ("docs/LIMITS.md", "five columns: a limit with its option, default and effect"),
    ("docs/LOCKING.md", "three columns: a lock, what it guards and how long it is held"),
    ("docs/RELIABILITY.md", "four columns: an event and its effects side by side"),
    ("docs/SECURITY.md", "three columns: an attacker, the defence and what is left"),
];

pub(super) fn check(root: &Path) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for source in tree::sources(root)? {
        // A string literal may need its width.
        findings.extend(wide(&source.shown(), &source.text, |line| !line.starts_with("//")));
    }
    let mut wide_tables = Vec::new();
    for text in tree::texts(root)? {
        let path = text.shown();
        if text.path.extension().is_some_and(|e| e == "md") || text.path.starts_with(".ci") {
            let exempt = WIDE_TABLES.iter().any(|(exempt, _)| *exempt == path);
            findings.extend(wide(&path, &text.text, |line| exempt && line.starts_with('|')));
            if exempt && !wide(&path, &text.text, |line| !line.starts_with('|')).is_empty() {
                wide_tables.push(path);
            }
        }
    }
    findings.extend(super::stale(WIDE_TABLES, &wide_tables, "xtask/src/rules/width.rs"));
    Ok(findings)
}

/// The lines that are too wide, those left out that may be.
fn wide(path: &str, text: &str, may_be: impl Fn(&str) -> bool) -> Vec<String> {
    let lines = text.lines().enumerate();
    lines
        .filter(|(_, line)| line.chars().count() > WIDEST && !may_be(line.trim_start()))
        .map(|(number, _)| format!("{path}:{}: more than {WIDEST} columns", number + 1))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_counted_and_not_bytes() {
        let fits = "ü".repeat(WIDEST);
        assert_eq!(wide("a.md", &fits, |_| false), [""; 0]);
        let found = wide("a.md", &format!("x\n{fits}x\n"), |_| false);
        assert_eq!(found, ["a.md:2: more than 120 columns"]);
    }

    #[test]
    fn a_line_that_may_be_wide_is_no_finding() {
        let line = format!("  | {} |", "x".repeat(WIDEST));
        assert_eq!(wide("a.md", &line, |line| line.starts_with('|')), [""; 0]);
        assert_eq!(wide("a.md", &line, |line| line.starts_with("//")).len(), 1);
    }
}
