//! `weir check` of a missing server. (The crate weir-check tests the rules.)

use std::process::Command;

#[test]
fn a_server_that_cannot_be_reached_is_named() {
    let weir = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["check", "nfs://127.0.0.1:1/"])
        .output()
        .unwrap();
    assert_eq!(weir.status.code(), Some(1));
    let said = String::from_utf8_lossy(&weir.stderr);
    assert!(said.contains("cannot reach 127.0.0.1:1"), "{said}");
}
