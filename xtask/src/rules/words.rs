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
    for source in tree::sources(root)?.into_iter().chain(tree::texts(root)?) {
        let path = source.shown();
        findings.extend(unfinished(&path, &source.text));
        let is_code = source.path.extension().is_some_and(|extension| extension == "rs");
        let found = nameless(&source.text, is_code);
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

/// The lines with comments in the sources, and the lines of documents and scripts.
pub(crate) fn count(root: &Path) -> Result<(usize, usize)> {
    let is_comment = |line: &&str| line.trim_start().starts_with("//");
    let comments = |source: &tree::Source| source.text.lines().filter(is_comment).count();
    let lines = |source: &tree::Source| source.text.lines().count();
    let sources = tree::sources(root)?.iter().map(comments).sum();
    Ok((sources, tree::texts(root)?.iter().map(lines).sum()))
}

fn unfinished(path: &str, text: &str) -> Vec<String> {
    let words: Vec<String> = UNFINISHED.iter().map(|word| word.concat()).collect();
    let mut findings = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let found = words.iter().filter(|word| line.contains(*word));
        findings.extend(found.map(|word| format!("{path}:{}: {word}", number + 1)));
    }
    findings
}

/// The line of each word that names no actor. In backticks, in a path (`Squash::Nobody`), and in code with a capital it
/// is a name: of a user, say.
fn nameless(text: &str, is_code: bool) -> Vec<usize> {
    let nameless: Vec<String> = NAMELESS.iter().map(|word| word.concat()).collect();
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let is_prose = !is_code || line.trim_start().starts_with("//");
        let outside = line.split('`').step_by(2);
        let is_between = |c: char| !c.is_alphabetic() && c != ':';
        for word in outside.flat_map(|part| part.split(is_between)) {
            let word = word.trim_matches(':');
            let is_name = !is_prose && word.starts_with(char::is_uppercase);
            if !is_name && nameless.contains(&word.to_lowercase()) {
                found.push(number + 1);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_names_no_actor_is_found_in_code_comments_and_documents() {
        let word = NAMELESS[1].concat();
        let (first, rest) = word.split_at(1);
        let capital = format!("{}{rest}", first.to_uppercase());
        for line in [
            format!("// {word} waits"),
            format!("/// {capital} waits"),
            format!("fn {word}_waits() {{}}"),
            format!("help: \"{word}'s file\""),
        ] {
            assert_eq!(nameless(&format!("x\n{line}\n"), true), [2], "{line}");
        }
        for line in [format!("text in which {word} waits"), format!("{capital} waits.")] {
            assert_eq!(nameless(&format!("x\n{line}\n"), false), [2], "{line}");
        }
    }

    #[test]
    fn a_name_is_not_one_of_these_words() {
        let word = NAMELESS[2].concat();
        let upper = word.to_uppercase();
        for line in [
            format!("// the user `{word}`"),
            format!("const {upper}: u32 = 1;"),
            format!("/// A::{word}"),
        ] {
            assert_eq!(nameless(&line, true), [0; 0], "{line}");
        }
    }

    #[test]
    fn unfinished_work_is_a_finding() {
        let mark = UNFINISHED[0].concat();
        assert_eq!(unfinished("a.md", &format!("x\n// {mark}: y\n")), [format!("a.md:2: {mark}")]);
        assert_eq!(unfinished("a.md", "to do"), [""; 0]);
    }
}
