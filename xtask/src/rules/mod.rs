//! The rules, one file each.

use anyhow::Result;
use std::path::Path;

mod circles;
mod dependencies;
mod functions;
mod headers;
mod layering;
mod layers;
mod members;
mod paths;
mod prints;
mod promises;
mod pure;
mod reachable;
mod reasons;
mod sizes;
mod skips;
mod width;
mod words;

pub(crate) use words::count;

type Rule = fn(&Path) -> Result<Vec<String>>;

/// Every rule with the sentence that it checks.
pub(crate) const ALL: &[(&str, Rule)] = &[
    ("crates depend only on what docs/ARCHITECTURE.md lists", layering::check),
    ("modules depend downwards only, where a crate states its layers", layers::check),
    ("no import circle outgrows its allowance", circles::check),
    ("a module whose header says \"no I/O\" does none", pure::check),
    ("every Rust file is part of a target", reachable::check),
    ("every file says at its top what it is", headers::check),
    ("nothing that is shipped panics where it cannot print", prints::check),
    ("a test that is skipped says so where CI collects it", skips::check),
    ("every promise in docs/SEMANTICS.md names a test that exists", promises::check),
    ("every dependency is named by code", dependencies::check),
    ("every lint that is switched off has a reason", reasons::check),
    ("no line is wider than 120 columns", width::check),
    ("every path that the documents name exists", paths::check),
    ("every `Type::member` that docs/LOCKING.md names exists", members::check),
    ("no file outgrows its allowance", sizes::check),
    ("no function has more than 100 lines of code", functions::check),
    ("no unfinished work is committed, and sentences name their actors", words::check),
];

/// Findings for the exceptions (name and reason) of a rule that no longer apply.
fn stale<N: AsRef<str>>(exceptions: &[(&str, &str)], used: &[N], file: &str) -> Vec<String> {
    exceptions
        .iter()
        .filter(|(name, _)| !used.iter().any(|used| used.as_ref() == *name))
        .map(|(name, _)| format!("{name}: the exception in {file} no longer applies: remove it"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exception_that_nothing_uses_is_a_finding() {
        let exceptions = [("a", "reason"), ("b", "reason")];
        assert_eq!(stale(&exceptions, &["a", "b"], "x.rs"), [""; 0]);
        let found = stale(&exceptions, &["b"], "x.rs");
        assert_eq!(found, ["a: the exception in x.rs no longer applies: remove it"]);
    }
}
