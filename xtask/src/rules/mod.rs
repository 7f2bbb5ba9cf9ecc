//! The rules, one file each.

use anyhow::Result;
use std::path::Path;

mod headers;
mod layering;
mod prints;
mod promises;
mod sizes;
mod words;

type Rule = fn(&Path) -> Result<Vec<String>>;

/// Every rule with the sentence that it checks.
pub(crate) const ALL: &[(&str, Rule)] = &[
    ("crates depend downwards only", layering::check),
    ("every file says at its top what it is", headers::check),
    ("nothing that is shipped panics where it cannot print", prints::check),
    ("every promise in docs/SEMANTICS.md names a test that exists", promises::check),
    ("no file outgrows its allowance", sizes::check),
    ("no unfinished work and no foreign words in the tree", words::check),
];
