//! docs/SEMANTICS.md: each promise names the tests that prove it. Each name is a function with its own
//! `#[test]`, or one of the suite that every store passes. `name_*` matches all tests with that prefix.
//! A promise is an item of a list, which contains `(test: name)` or `(tests: name, name)`, or a row of
//! a table whose last column is headed `test`. `file.rs`: before names says which file they are in, up to the next
//! semicolon or file; the file's path may begin below the crate.

use crate::tree;
use anyhow::{Context, Result, ensure};
use std::collections::HashMap;
use std::path::Path;

/// The suite that every store passes: each of its functions is a test.
const SUITE: &str = "crates/stores/src/testing";

pub(super) fn check(root: &Path) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(root.join("docs/SEMANTICS.md"))
        .context("cannot read docs/SEMANTICS.md")?;
    let sources = tree::sources(root)?;
    let is_suite = |path: &Path| path.starts_with(SUITE);
    ensure!(root.join(SUITE).exists(), "there is no {SUITE}");
    let mut known: Known = HashMap::new();
    for source in &sources {
        for test in tests_in(&source.text, is_suite(&source.path)) {
            known.entry(test).or_default().push(&source.path);
        }
    }
    let mut findings = Vec::new();
    let mut named = 0;
    for promise in blocks(&text).into_iter().chain(rows(&text)) {
        if promise.is_promise && promise.tests.is_empty() {
            let start: String = promise.text.chars().take(80).collect();
            findings.push(format!("names no test: {start}"));
        }
        named += promise.tests.len();
        findings.extend(promise.tests.iter().filter_map(|test| test.problem(&known)));
    }
    if named == 0 {
        findings.push("docs/SEMANTICS.md promises nothing".into());
    }
    Ok(findings)
}

/// Tests, and the files that they are in.
type Known<'a> = HashMap<&'a str, Vec<&'a Path>>;

struct Promise {
    text: String,
    tests: Vec<Named>,
    /// Not just a paragraph, which may name tests, too.
    is_promise: bool,
}

/// A test that the document names.
#[derive(Debug, PartialEq, Eq)]
struct Named {
    file: Option<String>,
    test: String,
}

impl Named {
    /// What is wrong with the name.
    fn problem(&self, known: &Known<'_>) -> Option<String> {
        let function = self.test.rsplit("::").next().unwrap_or(&self.test);
        let files: Vec<&Path> = match function.strip_suffix('*') {
            Some(start) => {
                let all = known.iter().filter(|(test, _)| test.starts_with(start));
                all.flat_map(|(_, files)| files.iter().copied()).collect()
            }
            None => known.get(function).cloned().unwrap_or_default(),
        };
        match &self.file {
            _ if files.is_empty() => Some(format!("there is no test `{}`", self.test)),
            Some(file) if !files.iter().any(|path| path.ends_with(file)) => {
                Some(format!("`{}` is not in {file}, but in {}", self.test, files[0].display()))
            }
            _ => None,
        }
    }
}

/// List items and paragraphs, each with its lines joined.
fn blocks(text: &str) -> Vec<Promise> {
    let mut blocks: Vec<(bool, String)> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        let item = line.strip_prefix("- ");
        if line.trim().is_empty() || line.starts_with(['|', '#']) {
            inside = false;
        } else if let (true, None, Some((_, block))) = (inside, item, blocks.last_mut()) {
            block.push(' ');
            block.push_str(line.trim());
        } else {
            blocks.push((item.is_some(), item.unwrap_or(line).to_owned()));
            inside = true;
        }
    }
    let with_tests = |(is_promise, text): (bool, String)| {
        let tests = groups(&text).into_iter().flat_map(names).collect();
        Promise { tests, text, is_promise }
    };
    blocks.into_iter().map(with_tests).collect()
}

/// Each `(test: ...)` and `(tests: ...)`, up to the bracket that closes it.
fn groups(text: &str) -> Vec<&str> {
    let mut groups = Vec::new();
    for (at, _) in text.match_indices("(test") {
        let mut depth = 0;
        let end = text[at..].find(|c| {
            depth += i32::from(c == '(') - i32::from(c == ')');
            depth == 0
        });
        groups.push(&text[at..end.map_or(text.len(), |end| at + end)]);
    }
    groups
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
            let text = row.trim().to_owned();
            rows.push(Promise { text, tests: names(last), is_promise: true });
        }
    }
    rows
}

/// The texts in backquotes that may be functions' names, rather than variables or commands.
fn names(text: &str) -> Vec<Named> {
    let of_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_:*".contains(c);
    let mut names = Vec::new();
    let mut file = None;
    let mut parts = text.split('`').skip(1);
    while let Some(quoted) = parts.next() {
        let after = parts.next().unwrap_or_default();
        if quoted.ends_with(".rs") {
            file = after.starts_with(':').then(|| quoted.to_owned());
        } else if !quoted.is_empty() && quoted.chars().all(of_name) {
            names.push(Named { file: file.clone(), test: quoted.to_owned() });
        }
        if after.contains(';') {
            file = None;
        }
    }
    names
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

#[cfg(test)]
mod tests {
    use super::*;

    fn named(file: Option<&str>, test: &str) -> Named {
        Named { file: file.map(str::to_owned), test: test.to_owned() }
    }

    #[test]
    fn every_group_of_an_item_is_read() {
        let text = "- One (test: `a_b` (`WEIR_X`), `c_d`), two `no_test`\n  (tests: `e_f`).\n\nText (test: `g_h`).\n";
        let found: Vec<_> = blocks(text).into_iter().map(|block| block.tests).collect();
        let item = [named(None, "a_b"), named(None, "c_d"), named(None, "e_f")];
        assert_eq!(found, [&item[..], &[named(None, "g_h")]]);
    }

    #[test]
    fn a_name_belongs_to_the_file_before_it() {
        let text = "`x.rs`: `a_b`, `c_d`; `e_f`; `src/y.rs`: `g_*`; others of `z.rs` and `h_i`";
        let (x, y) = (Some("x.rs"), Some("src/y.rs"));
        let wanted = [(x, "a_b"), (x, "c_d"), (None, "e_f"), (y, "g_*"), (None, "h_i")];
        assert_eq!(names(text), wanted.map(|(file, test)| named(file, test)));
    }

    #[test]
    fn a_name_in_another_file_is_a_finding() {
        let path = Path::new("crates/a/src/lane/y.rs");
        let known = HashMap::from([("g_h", vec![path])]);
        for right in [Some("y.rs"), Some("lane/y.rs"), Some("crates/a/src/lane/y.rs"), None] {
            assert_eq!(named(right, "g_h").problem(&known), None);
            assert_eq!(named(right, "g_*").problem(&known), None);
        }
        for wrong in [Some("src/y.rs"), Some("x.rs")] {
            assert!(named(wrong, "g_h").problem(&known).is_some(), "{wrong:?}");
            assert!(named(wrong, "g_*").problem(&known).is_some(), "{wrong:?}");
        }
        for none in ["a_b", "word", "x_*"] {
            assert!(named(None, none).problem(&known).is_some(), "{none}");
        }
    }
}
