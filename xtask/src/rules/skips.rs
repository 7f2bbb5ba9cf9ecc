//! A test that does not run says so through `weir_skip::skip`, which CI collects: not by a message of its own, which
//! the test harness hides, and not by `#[ignore]`.

use crate::tree;
use anyhow::Result;
use std::path::Path;

/// Files that may have ignored tests, and why.
const IGNORED: &[(&str, &str)] = &[(
    "crates/client/tests/peer.rs",
    "the conformance suites run them against a server of theirs",
)];

pub(super) fn check(root: &Path) -> Result<Vec<String>> {
    let sources = tree::sources(root)?;
    let rules = Path::new("xtask/src/rules");
    let mut found = Vec::new();
    for source in sources.iter().filter(|source| !source.path.starts_with(rules)) {
        found.extend(findings(&source.shown(), &source.text));
    }
    let ignores = sources.iter().filter(|source| ignored(&source.text).next().is_some());
    let ignores: Vec<String> = ignores.map(|source| source.shown()).collect();
    found.extend(super::stale(IGNORED, &ignores, "xtask/src/rules/skips.rs"));
    Ok(found)
}

/// The numbers of the lines with `#[ignore]`.
fn ignored(text: &str) -> impl Iterator<Item = usize> {
    let lines = text.lines().enumerate();
    lines.filter(|(_, line)| line.trim_start().starts_with("#[ignore")).map(|(at, _)| at + 1)
}

fn findings(path: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    if !IGNORED.iter().any(|(file, _)| *file == path) {
        let call = "call weir_skip::skip in place of #[ignore]";
        found.extend(ignored(text).map(|number| format!("{path}:{number}: {call}")));
    }
    for (number, line) in text.lines().enumerate() {
        let code = line.trim_start();
        let at = format!("{path}:{}", number + 1);
        let prints = code.contains("println!(") || code.contains("print!(");
        let skips = ["\"skip", "\"SKIP", "\"not tested", "\"not run"];
        if prints && skips.iter().any(|says| code.contains(says)) {
            found.push(format!("{at}: call weir_skip::skip in place of a message"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skips_that_ci_would_not_see_are_findings() {
        for line in [
            "    #[ignore = \"x\"]",
            "println!(\"skipped: x\");",
            "return eprintln!(\"not tested\");",
        ] {
            assert_eq!(findings("a.rs", line).len(), 1, "{line}");
        }
        for line in ["weir_skip::skip(\"x\");", "println!(\"{skipped} skipped\");", "// #[ignore]"]
        {
            assert_eq!(findings("a.rs", line), [""; 0], "{line}");
        }
        assert_eq!(findings(IGNORED[0].0, "#[ignore]"), [""; 0]);
    }
}
