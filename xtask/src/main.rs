//! `cargo xtask check`: the workspace's own rules, as tests of the source tree. `cargo xtask skips FILE`: the tests
//! that a run skipped, compared with those that it may skip.
//!
//! Each rule is a function in `rules/`; it returns one line for every place that breaks it.

use std::path::Path;
use std::process::ExitCode;

mod modules;
mod rules;
mod skips;
mod tree;

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."));
    let mut args = std::env::args().skip(1);
    match (args.next().as_deref(), args.next()) {
        (Some("check"), None) => check(root),
        (Some("skips"), Some(file)) => match skips::check(root, Path::new(&file)) {
            Ok(allowed) => ExitCode::from(u8::from(!allowed)),
            Err(error) => {
                eprintln!("cargo xtask skips: {error:#}");
                ExitCode::from(2)
            }
        },
        _ => {
            eprintln!("usage: cargo xtask check        checks the workspace's own rules");
            eprintln!(
                "       cargo xtask skips FILE   checks the skips that WEIR_SKIPS=FILE collected"
            );
            ExitCode::from(2)
        }
    }
}

fn check(root: &Path) -> ExitCode {
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
    match rules::count(root) {
        Ok((comments, lines)) => println!(
            "checked {comments} lines of comments, and {lines} lines of documents and scripts"
        ),
        Err(error) => {
            failed = true;
            println!("FAIL  lines cannot be counted: {error:#}");
        }
    }
    ExitCode::from(u8::from(failed))
}
