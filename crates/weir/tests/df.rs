//! `weir df` of local file systems.

mod common;

use common::{json, run};

#[test]
fn space_agrees_with_statvfs() {
    let space = &json(["df", "--json", "/"])[0];
    let stat = rustix::fs::statvfs("/").unwrap();
    assert_eq!(space["total_bytes"], stat.f_blocks * stat.f_frsize);
    assert!(run(["df", "/"]).lines().nth(1).unwrap().ends_with("  /"));
}
