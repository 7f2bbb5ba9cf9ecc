//! The library's print macros panic when the stream cannot be written (a closed pipe, a full disk),
//! and a panic in the middle of a copy leaves half of it behind. Shipped code prints through
//! `output::print` and `output::say`, which do not panic.

use crate::tree::sources;
use anyhow::Result;
use std::path::Path;

/// Split, so that this file does not break its own rule.
const MACROS: [&str; 4] = ["print", "println", "eprint", "eprintln"];

pub(super) fn check(root: &Path) -> Result<Vec<String>> {
    let shipped = sources(root)?.into_iter().filter(|source| {
        let path = source.path.to_string_lossy();
        path.starts_with("crates/") && path.contains("/src/") && !path.contains("tests")
    });
    Ok(shipped.flat_map(|source| calls(&source.path.display().to_string(), &source.text)).collect())
}

/// The lines before a file's tests that call one of the macros.
fn calls(path: &str, text: &str) -> Vec<String> {
    let shipped = text.split("\n#[cfg(test)]\nmod ").next().unwrap_or_default();
    let mut found = Vec::new();
    for (number, line) in shipped.lines().enumerate() {
        let code = line.trim_start();
        if code.starts_with("//") {
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
        for fine in
            ["// println!(x)", "print(x)", "writeln!(out)", "\n#[cfg(test)]\nmod t { print!() }"]
        {
            assert_eq!(calls("a.rs", fine), [""; 0], "{fine}");
        }
    }
}
