//! Which crate may depend on which; docs/ARCHITECTURE.md shows the same table.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Crate, and the workspace crates that it may depend on.
const MAY_SEE: &[(&str, &[&str])] = &[
    ("weir-base", &[]),
    ("weir-xdr", &[]),
    ("weir-skip", &[]),
    ("weir-vfs", &["base"]),
    ("weir-rpc", &["base", "xdr"]),
    ("weir-nfs", &["base", "xdr", "rpc"]),
    ("weir-pagecache", &["base", "vfs"]),
    ("weir-stores", &["base", "vfs", "skip"]),
    ("weir-client", &["base", "vfs", "xdr", "rpc", "nfs"]),
    ("weir-server", &["base", "vfs", "xdr", "rpc", "nfs", "pagecache"]),
    ("weir-tools", &["base", "vfs", "pagecache", "stores", "client"]),
    ("weir-check", &["vfs", "nfs", "client"]),
    ("weir-bench", &["vfs", "pagecache", "stores", "client", "server", "tools"]),
    ("weir", &["vfs", "pagecache", "stores", "client", "server", "tools", "bench", "check"]),
    ("weir-sim", &["vfs", "xdr", "rpc", "nfs", "pagecache", "stores", "server"]),
    ("conformance", &["skip"]),
    ("xtask", &[]),
];

/// The crates that may do RPC over sockets (`weir-rpc`'s feature `net`).
const MAY_CALL: &[&str] = &["weir-client", "weir-server"];

pub(super) fn check(root: &Path) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    let packages = packages(root)?;
    for (name, _) in MAY_SEE {
        if !packages.iter().any(|package| package["name"] == *name) {
            findings.push(format!("{name}: is in the table, but no crate"));
        }
    }
    for package in &packages {
        let name = package["name"].as_str().unwrap_or_default();
        let Some((_, allowed)) = MAY_SEE.iter().find(|(n, _)| *n == name) else {
            findings.push(format!("{name}: not in the table of xtask/src/rules/layering.rs"));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            // Tests may look up: a store is tested through the cache, a client against the server.
            if dependency["kind"] == "dev" {
                continue;
            }
            let features = dependency["features"].as_array();
            let dependency = dependency["name"].as_str().unwrap_or_default();
            if dependency == "weir-rpc"
                && features.is_some_and(|features| features.iter().any(|f| f == "net"))
                && !MAY_CALL.contains(&name)
            {
                findings.push(format!("{name} may not use the feature net of {dependency}"));
            }
            if let Some(short) = dependency.strip_prefix("weir-")
                && !allowed.contains(&short)
            {
                findings.push(format!("{name} may not depend on {dependency}"));
            }
        }
    }
    Ok(findings)
}

/// The packages of the workspace, as `cargo metadata` describes them.
pub(super) fn packages(root: &Path) -> Result<Vec<Value>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(root)
        .output()
        .context("cannot run cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    }
    let mut metadata: Value = serde_json::from_slice(&output.stdout)?;
    match metadata["packages"].take() {
        Value::Array(packages) => Ok(packages),
        _ => bail!("cargo metadata names no packages"),
    }
}
