//! Every `allow` and `expect` of a lint has a reason. Clippy checks the code that it builds; this rule also checks code
//! for loom, shuttle, the fuzzer and other systems.

use crate::tree;
use anyhow::{Result, anyhow};
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::path::Path;

pub(super) fn check(root: &Path) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for source in tree::sources(root)? {
        findings.extend(without_reason(&source.shown(), &source.text)?);
    }
    Ok(findings)
}

fn without_reason(path: &str, text: &str) -> Result<Vec<String>> {
    let tokens = text.parse().map_err(|error| anyhow!("{path}: {error}"))?;
    let mut lines = Vec::new();
    attributes(tokens, &mut lines);
    Ok(lines.iter().map(|line| format!("{path}:{line}: a lint is off without a reason")).collect())
}

/// Looks for attributes, in macros too: a `#`, possibly a `!`, and brackets.
fn attributes(tokens: TokenStream, lines: &mut Vec<usize>) {
    let mut after_hash = false;
    for token in tokens {
        match token {
            TokenTree::Punct(punct) => {
                after_hash = punct.as_char() == '#' || (after_hash && punct.as_char() == '!');
            }
            TokenTree::Group(group) if after_hash && group.delimiter() == Delimiter::Bracket => {
                exceptions(group.stream(), lines);
                after_hash = false;
            }
            TokenTree::Group(group) => {
                attributes(group.stream(), lines);
                after_hash = false;
            }
            _ => after_hash = false,
        }
    }
}

/// Looks for `allow(...)` and `expect(...)` in an attribute, in `cfg_attr(...)` too.
fn exceptions(attribute: TokenStream, lines: &mut Vec<usize>) {
    let mut tokens = attribute.into_iter().peekable();
    while let Some(token) = tokens.next() {
        let TokenTree::Ident(name) = token else { continue };
        let Some(TokenTree::Group(group)) = tokens.peek() else { continue };
        let has_reason = || group.stream().into_iter().any(|token| token.to_string() == "reason");
        if name == "cfg_attr" {
            exceptions(group.stream(), lines);
        } else if (name == "allow" || name == "expect") && !has_reason() {
            lines.push(name.span().start().line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allow_or_expect_without_a_reason_is_a_finding() {
        for text in [
            "#![allow(dead_code)]",
            "#[expect(dead_code)] fn f() {}",
            "#[cfg_attr(loom, allow(dead_code))] fn f() {}",
            "m! { #[allow(dead_code)] fn f() {} }",
            "mod a { fn f() { #[allow(dead_code)] let x = 1; } }",
        ] {
            let found = without_reason("a.rs", text).unwrap();
            assert_eq!(found, ["a.rs:1: a lint is off without a reason"], "{text}");
        }
    }

    #[test]
    fn a_reason_and_other_calls_are_no_finding() {
        for text in [
            "#[allow(dead_code, reason = \"x\")] fn f() {}",
            "#[cfg_attr(loom, expect(dead_code, reason = \"x\"))] fn f() {}",
            "fn f() { x.expect(\"y\"); allow(z); }",
            "#[warn(dead_code)] fn f() {}",
        ] {
            assert_eq!(without_reason("a.rs", text).unwrap(), [""; 0], "{text}");
        }
    }
}
