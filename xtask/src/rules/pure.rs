//! A module whose header says "no I/O" does none, and waits for nothing: its code, with that of the
//! modules below it, names no file, socket, store or system call, and has no `async` function.
//! Tests are left out.

use crate::tree::{Source, sources};
use anyhow::Result;
use std::path::Path;

/// What code that does I/O, or waits for it, contains.
const IMPURE: [&str; 15] = [
    "std::fs",
    "File::open",
    "std::net::Tcp",
    "std::net::Udp",
    "TcpStream",
    "UdpSocket",
    "rustix::",
    "libc::",
    "weir_pagecache",
    "CachedFs",
    "OpenFile",
    "FileSystem",
    ".await",
    "async fn",
    "tokio::",
];

/// Contains one of the above, but only wakes a task.
const PURE: &str = "tokio::sync::Notify";

pub(super) fn check(root: &Path) -> Result<Vec<String>> {
    let sources = sources(root)?;
    let promises = |source: &&Source| {
        let is_top = source.path.ends_with("mod.rs") || source.path.ends_with("lib.rs");
        let mut header = source.text.lines().take_while(|line| line.starts_with("//!"));
        is_top && header.any(|line| line.contains("no I/O"))
    };
    let folders: Vec<&Path> =
        sources.iter().filter(promises).filter_map(|s| s.path.parent()).collect();
    let bound = sources.iter().filter(|source| {
        let is_test = source.path.to_string_lossy().contains("tests");
        !is_test && folders.iter().any(|folder| source.path.starts_with(folder))
    });
    Ok(bound
        .flat_map(|source| found_in(&source.path.display().to_string(), &source.text))
        .collect())
}

/// The lines that do I/O, those of an inline test module left out.
fn found_in(path: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let (mut is_test, mut before) = (false, "");
    for (number, line) in text.lines().enumerate() {
        let begins = before == "#[cfg(test)]" && line.starts_with("mod ") && !line.ends_with(';');
        is_test = (is_test || begins) && before != "}";
        before = line;
        let code = line.split("//").next().unwrap_or_default().replace(PURE, "");
        if is_test {
            continue;
        }
        let named = IMPURE.iter().filter(|name| code.contains(**name));
        found.extend(named.map(|name| {
            format!("{path}:{}: `{name}`, but its module's header says \"no I/O\"", number + 1)
        }));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn io_is_found_and_the_like_is_not() {
        for impure in
            ["use std::fs::File;", "    file.read().await", "async fn f() {}", "use tokio::net;"]
        {
            assert_eq!(found_in("a.rs", impure).len(), 1, "{impure}");
        }
        let fine = ["use tokio::sync::Notify;", "// waits: .await", "use std::net::IpAddr;"];
        for fine in fine.into_iter().chain(["#[cfg(test)]\nmod t {\n    use std::fs;\n}\n"]) {
            assert_eq!(found_in("a.rs", fine), [""; 0], "{fine}");
        }
    }
}
