//! The targets of the benchmarks, from `data/targets.toml`.

use crate::report::Target;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// A bound by name.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Bound {
    what: String,
    at_least: Option<f64>,
    at_most: Option<f64>,
}

type Bounds = BTreeMap<String, BTreeMap<String, Bound>>;

static BOUNDS: LazyLock<Bounds> = LazyLock::new(|| match toml::from_str(TEXT) {
    Ok(bounds) => bounds,
    // The text is part of the program, and a test parses it.
    Err(error) => unreachable!("data/targets.toml: {error}"),
});

const TEXT: &str = include_str!("data/targets.toml");

/// The target `name` of a benchmark with the result `got`; `detail` replaces `{}` in its text.
pub(crate) fn target(benchmark: &str, name: &str, detail: &str, got: f64) -> Target {
    let Some(bound) = BOUNDS.get(benchmark).and_then(|bounds| bounds.get(name)) else {
        unreachable!("data/targets.toml has no {benchmark}.{name}")
    };
    let what = bound.what.replace("{}", detail);
    match (bound.at_least, bound.at_most) {
        (Some(want), None) => Target::at_least(what, got, want),
        (None, Some(want)) => Target::at_most(what, got, want),
        _ => unreachable!("{benchmark}.{name} has one bound"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_has_one_bound() {
        for (benchmark, bounds) in &*BOUNDS {
            for (name, bound) in bounds {
                let one = bound.at_least.is_some() != bound.at_most.is_some();
                assert!(one, "{benchmark}.{name}");
            }
        }
    }
}
