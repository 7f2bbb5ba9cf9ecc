//! The library's print macros panic when the stream cannot be written (a closed pipe, a full disk),
//! and a panic in the middle of a copy leaves half of it behind. Shipped code prints through
//! `output::print` and `output::say`, which do not panic.

use crate::tree::sources;
use anyhow::Result;
use std::path::Path;

/// Split, so that this file does not break its own rule.
const MACROS: [&str; 4] = ["print", "println", "eprint", "eprintln"];

/// Folders that may call them, and why.
const MAY_PRINT: &[(&str, &str)] = &[
    ("crates/sim/src", "it is no part of the shipped program"),
    ("crates/hostile/src", "it is no part of the shipped program"),
];

pub(super) fn check(root: &Path) -> Result<Vec<String>> {
    let (mut findings, mut used) = (Vec::new(), Vec::new());
    for source in sources(root)? {
        let path = source.shown();
        let calls = calls(&path, &source.text);
        if let Some((exempt, _)) = MAY_PRINT.iter().find(|(dir, _)| source.path.starts_with(dir)) {
            used.extend((!calls.is_empty()).then_some(*exempt));
        } else if path.starts_with("crates/") && path.contains("/src/") && !path.contains("tests") {
            findings.extend(calls);
        }
    }
    findings.extend(super::stale(MAY_PRINT, &used, "xtask/src/rules/prints.rs"));
    Ok(findings)
}

/// The lines that call one of the macros, those of inline test modules left out.
fn calls(path: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut is_test = false;
    let mut before = "";
    for (number, line) in text.lines().enumerate() {
        // `mod tests;` is a file of its own, and what follows it is not tests.
        let begins = before == "#[cfg(test)]" && line.starts_with("mod ") && !line.ends_with(';');
        is_test = (is_test || begins) && before != "}";
        before = line;
        let code = line.trim_start();
        if is_test || code.starts_with("//") {
            continue;
        }
        let words = code.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '!');
        for name in words.filter_map(|word| word.strip_suffix('!')) {
            if MACROS.contains(&name) {
                found.push(format!("{path}:{}: {name}! panics where it cannot write", number + 1));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_found_and_the_like_is_not() {
        let text = "fn f() {\n    eprintln!(\"x\");\n    match x { _ => println!() }\n}\n";
        assert_eq!(calls("a.rs", text).len(), 2);
        let fine = ["// println!(x)", "print(x)", "writeln!(out)"];
        for fine in fine.into_iter().chain(["#[cfg(test)]\nmod t {\n    print!()\n}\n"]) {
            assert_eq!(calls("a.rs", fine), [""; 0], "{fine}");
        }
    }

    #[test]
    fn code_after_a_test_module_is_checked() {
        let inline = "#[cfg(test)]\nmod tests {\n    print!()\n}\n";
        for tests in ["#[cfg(test)]\nmod tests;\n", inline] {
            let text = format!("use a;\n{tests}\nfn f() {{\n    print!()\n}}\n");
            assert_eq!(calls("a.rs", &text).len(), 1, "{text}");
        }
    }
}
