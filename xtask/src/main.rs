//! `cargo xtask check`: the workspace's own rules, as tests of the source tree.
//!
//! Each rule is a function in `rules/`; it returns one line for every place that breaks it.

use std::path::Path;
use std::process::ExitCode;

mod modules;
mod rules;
mod tree;

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("check") => check(),
        _ => {
            eprintln!("usage: cargo xtask check    checks the workspace's own rules");
            ExitCode::from(2)
        }
    }
}

fn check() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."));
    let mut failed = false;
    for (name, rule) in rules::ALL {
        match rule(root) {
            Ok(findings) if findings.is_empty() => println!("ok    {name}"),
            Ok(findings) => {
                failed = true;
                println!("FAIL  {name}");
                for finding in findings {
                    println!("      {finding}");
                }
            }
            Err(error) => {
                failed = true;
                println!("FAIL  {name}: {error:#}");
            }
        }
    }
    ExitCode::from(u8::from(failed))
}
