//! An NFSv4 operation is `crates/nfs/src/v4/op/NAME.rs` on the wire; where the server has a file
//! for it in `crates/server/src/v4/ops/`, that has the same name.

use anyhow::Result;
use std::collections::BTreeSet;
use std::path::Path;

/// Server files that hold a family of operations, or what several share.
const FAMILIES: &[&str] = &["mod"];

pub(super) fn check(root: &Path) -> Result<Vec<String>> {
    let wire = stems(&root.join("crates/nfs/src/v4/op"));
    let server = stems(&root.join("crates/server/src/v4/ops"));
    if wire.is_empty() || server.is_empty() {
        return Ok(vec!["crates/nfs/src/v4/op or crates/server/src/v4/ops is empty".into()]);
    }
    Ok(server
        .iter()
        .filter(|name| !wire.contains(*name) && !FAMILIES.contains(&name.as_str()))
        .map(|name| format!("crates/server/src/v4/ops/{name}.rs: no operation has that name"))
        .collect())
}

fn stems(dir: &Path) -> BTreeSet<String> {
    let Ok(entries) = std::fs::read_dir(dir) else { return BTreeSet::new() };
    entries.filter_map(|e| Some(e.ok()?.path().file_stem()?.to_str()?.to_owned())).collect()
}
