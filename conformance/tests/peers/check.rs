//! `weir check` of other servers, compared with docs/CHECK.md.

use conformance::{Guest, program, scratch, skip, weir};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

/// The verdict of each rule in the JSON file at `path`.
fn found(path: &Path) -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(path).unwrap();
    let rows: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    let text = |row: &serde_json::Value, field: &str| row[field].as_str().unwrap().to_owned();
    rows.iter().map(|row| (text(row, "rule"), text(row, "verdict"))).collect()
}

/// The verdicts are those of the column `server` in docs/CHECK.md.
fn as_documented(found: &BTreeMap<String, String>, server: &str) {
    let text = std::fs::read_to_string(conformance::workspace().join("docs/CHECK.md")).unwrap();
    let cells = |line: &str| -> Vec<String> {
        line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
    };
    let mut rows = text.lines().filter(|line| line.starts_with('|')).map(cells);
    let heading = rows.next().unwrap();
    // The next row has the dashes below the heading.
    rows.next();
    let column = heading.iter().position(|cell| cell.starts_with(server)).unwrap();
    let told: BTreeMap<String, String> =
        rows.map(|row| (row[0].clone(), row[column].clone())).collect();
    assert_eq!(*found, told, "{server}");
}

#[test]
fn ganesha_keeps_and_breaks_the_rules_that_are_documented() {
    for needed in ["ganesha.nfsd", "rpcbind", "unshare", "ip"] {
        if program(needed).is_none() {
            return skip(format!("checking nfs-ganesha needs {needed}"));
        }
    }
    if !Command::new("unshare").args(["-mn", "true"]).status().is_ok_and(|s| s.success()) {
        return skip("checking nfs-ganesha needs root, for a network of its own");
    }
    let dir = scratch();
    let output = Command::new("unshare")
        .args(["-mn", "--pid", "--fork", "--kill-child", "--mount-proc", "bash"])
        .arg(conformance::workspace().join("conformance/guest/ganesha-check.sh"))
        .args([weir(), dir.path()])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    as_documented(&found(&dir.path().join("found")), "nfs-ganesha");
}

/// Checks knfsd, and that it keeps no state of clients that have ended.
#[test]
fn knfsd_keeps_and_breaks_the_rules_that_are_documented() {
    let Some(guest) = Guest::find() else { return };
    for needed in ["exportfs", "rpcbind", "mkfs.ext4"] {
        if program(needed).is_none() {
            return skip(format!("the kernel's server needs {needed}"));
        }
    }
    let dir = scratch();
    let image = dir.path().join("disk.img");
    File::create(&image).unwrap().set_len(256 << 20).unwrap();
    let mkfs = Command::new(program("mkfs.ext4").unwrap()).args(["-q", "-F"]).arg(&image).status();
    assert!(mkfs.unwrap().success());
    let client = format!(
        "trap \"touch {at}/done\" EXIT; while [[ ! -e {at}/up ]]; do sleep 0.2; done; \
         {weir} check --leases --json nfs://192.0.2.2/ >{at}/found",
        at = dir.path().display(),
        weir = weir().display(),
    );
    let harness = guest.harness().to_str().unwrap();
    let options = ["--disk", image.to_str().unwrap()];
    guest.run(&client, &options, "knfsd-locks.sh", &[harness, dir.path().to_str().unwrap()]);
    as_documented(&found(&dir.path().join("found")), "Linux");
}
