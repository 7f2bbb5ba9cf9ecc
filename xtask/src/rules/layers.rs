//! Layers inside a crate. Its `lib.rs` lists its top-level modules under a line that ends with "Layers,
//! from the top:", one layer a line. A module may name modules of its own layer and of those below.
//! The list contains every top-level module.

use crate::modules;
use anyhow::Result;
use std::collections::BTreeMap;
use std::path::Path;

pub(super) fn check(root: &Path) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for part in modules::crates(root)? {
        let dir = part.dir.to_string_lossy().into_owned();
        let Some(top) = part.modules.get(&Vec::new()) else { continue };
        let text = std::fs::read_to_string(root.join(&top.file))?;
        let Some(layers) = layers(&text) else { continue };
        for name in layers.keys() {
            if !part.modules.contains_key(&vec![name.clone()]) {
                findings.push(format!("{dir}: `{name}` is a layer, but no module"));
            }
        }
        for (path, module) in part.modules.iter().filter(|(_, module)| !module.is_test) {
            let Some(name) = path.first() else { continue };
            let Some(layer) = layers.get(name) else {
                if path.len() == 1 {
                    findings.push(format!("{dir}: `{name}` is in no layer"));
                }
                continue;
            };
            for named in module.names.iter().filter_map(|named| named.first()) {
                if layers.get(named).is_some_and(|below| below < layer) {
                    let file = module.file.display();
                    findings.push(format!("{file}: `{name}` names `{named}`, which is above it"));
                }
            }
        }
    }
    Ok(findings)
}

/// The layer of each module, counted from the top.
fn layers(text: &str) -> Option<BTreeMap<String, usize>> {
    let mut lines =
        text.lines().skip_while(|line| !line.ends_with("Layers, from the top:")).skip(1);
    lines.by_ref().find(|line| line.starts_with("//! ```"))?;
    let mut layers = BTreeMap::new();
    let block = lines.take_while(|line| !line.starts_with("//! ```"));
    for (layer, line) in block.enumerate() {
        // What stands after a dash says what the layer is.
        let names = line.trim_start_matches("//!").split(" - ").next().unwrap_or_default();
        layers.extend(
            names.split([' ', ',']).filter(|n| !n.is_empty()).map(|n| (n.to_owned(), layer)),
        );
    }
    Some(layers)
}
