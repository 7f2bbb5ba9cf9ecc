//! The rules, one file each.

use anyhow::Result;
use std::path::Path;

mod circles;
mod dependencies;
mod headers;
mod layering;
mod layers;
mod members;
mod paths;
mod prints;
mod promises;
mod reachable;
mod sizes;
mod skips;
mod width;
mod words;

type Rule = fn(&Path) -> Result<Vec<String>>;

/// Every rule with the sentence that it checks.
pub(crate) const ALL: &[(&str, Rule)] = &[
    ("crates depend downwards only", layering::check),
    ("modules depend downwards only, where a crate states its layers", layers::check),
    ("no import circle outgrows its allowance", circles::check),
    ("every file below src is part of a module", reachable::check),
    ("every file says at its top what it is", headers::check),
    ("nothing that is shipped panics where it cannot print", prints::check),
    ("a test that is skipped says so where CI collects it", skips::check),
    ("every promise in docs/SEMANTICS.md names a test that exists", promises::check),
    ("every dependency is named by code", dependencies::check),
    ("no line is wider than the rest", width::check),
    ("every path that the documents name is there", paths::check),
    ("every `Type::member` that docs/LOCKING.md names is there", members::check),
    ("no file outgrows its allowance", sizes::check),
    ("no unfinished work is committed, and sentences name their actors", words::check),
];
