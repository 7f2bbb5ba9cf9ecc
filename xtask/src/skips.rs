//! `cargo xtask skips FILE`: whether each skip in FILE, which the tests of a run wrote, is allowed.
//!
//! A skip is a line `skipped: TEST: REASON`. `.ci/allowed-skips` has a line `PATTERN  # REASON` for each skip that is
//! allowed, where `*` in PATTERN matches any characters; PATTERN has to match all of `TEST: REASON`. Lines that begin
//! with `#` are comments. Entries without a skip are reported and do not fail: machines differ.

use anyhow::{Context, Result, bail};
use std::collections::BTreeSet;
use std::path::Path;

/// Prints the skips of a run, and returns whether all of them are allowed.
pub(crate) fn check(root: &Path, skips: &Path) -> Result<bool> {
    let list = root.join(".ci/allowed-skips");
    let read = |path: &Path| {
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
    };
    let judged = judge(&read(skips)?, &read(&list)?)?;
    for (what, lines) in [
        ("allowed", &judged.allowed),
        ("allowed, and did not occur here", &judged.stale),
        ("NOT ALLOWED (mend it, or add it to .ci/allowed-skips with the reason)", &judged.other),
    ] {
        if !lines.is_empty() {
            println!("{what}:");
            lines.iter().for_each(|line| println!("  {line}"));
        }
    }
    Ok(judged.other.is_empty())
}

#[derive(Debug, Default, PartialEq)]
struct Judged {
    allowed: BTreeSet<String>,
    other: BTreeSet<String>,
    /// Patterns that match no skip.
    stale: BTreeSet<String>,
}

fn judge(skips: &str, list: &str) -> Result<Judged> {
    let mut patterns = Vec::new();
    for line in list.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
        match line.split_once("  # ") {
            Some((pattern, reason)) if !reason.trim().is_empty() => patterns.push(pattern.trim()),
            _ => bail!(".ci/allowed-skips: no reason: {line}"),
        }
    }
    let mut judged = Judged::default();
    let mut used = BTreeSet::new();
    for line in skips.lines() {
        let skip = line.strip_prefix("skipped: ").unwrap_or(line);
        let matching: Vec<&str> =
            patterns.iter().copied().filter(|pattern| matches(pattern, skip)).collect();
        let to = if matching.is_empty() { &mut judged.other } else { &mut judged.allowed };
        to.insert(skip.to_owned());
        used.extend(matching);
    }
    judged.stale =
        patterns.iter().filter(|p| !used.contains(*p)).map(|p| (*p).to_owned()).collect();
    Ok(judged)
}

/// Whether a pattern, where `*` matches any characters, matches all of a text.
fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((first, rest)) => text.strip_prefix(first).is_some_and(|text| {
            let mut ends = text.char_indices().map(|(at, _)| at).chain([text.len()]);
            ends.any(|at| matches(rest, &text[at..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(lines: &[&str]) -> BTreeSet<String> {
        lines.iter().map(|line| (*line).to_owned()).collect()
    }

    #[test]
    fn only_what_the_list_contains_is_allowed() {
        let skips = "skipped: p:a:x: no y\nskipped: p:b:x: no z\nskipped: p:a:x: no y here\n";
        let list = "# comment\n\np:a:*: no y  # there is none\nq:*  # never\n";
        let judged = judge(skips, list).unwrap();
        let expected = Judged {
            allowed: set(&["p:a:x: no y"]),
            other: set(&["p:b:x: no z", "p:a:x: no y here"]),
            stale: set(&["q:*"]),
        };
        assert_eq!(judged, expected);
    }

    #[test]
    fn a_line_that_is_no_skip_is_not_allowed() {
        assert_eq!(judge("garbage\n", "").unwrap().other, set(&["garbage"]));
    }

    #[test]
    fn an_entry_without_a_reason_is_an_error() {
        for list in ["p:a:x", "p:a:x  #  ", "p:a:x # one space"] {
            assert!(judge("", list).is_err(), "{list}");
        }
    }

    #[test]
    fn a_star_stands_for_any_characters() {
        for (pattern, text, expected) in [
            ("a*c", "abc", true),
            ("a*c", "ac", true),
            ("a*c", "acb", false),
            ("*b*", "abc", true),
            ("*", "", true),
            ("abc", "abcd", false),
            ("a*b*c", "a b x c", true),
            ("ü*", "üx", true),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }
}
