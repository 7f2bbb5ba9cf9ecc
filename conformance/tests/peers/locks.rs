//! Locks of the Linux kernel's client on `weir serve`, over v3 (with the kernel's lock manager and
//! rpc.statd) and v4.2 together.

use conformance::{Guest, scratch, serve_command, weir};
use std::path::Path;

/// The guest, if the programs for locks over v3 are installed.
fn find() -> Option<Guest> {
    let guest = Guest::find()?;
    for needed in ["rpcbind", "rpc.statd", "python3", "flock"] {
        if conformance::program(needed).is_none() {
            conformance::skip(format!("locks over v3 need {needed}"));
            return None;
        }
    }
    Some(guest)
}

/// A server with its own port mapper, which is killed and restarted when `export.kill` appears.
fn server(export: &Path) -> String {
    let serve = serve_command(export, "--lease 10 --rpcbind");
    let serve = serve.strip_prefix("exec ").unwrap();
    let base = export.display();
    // `unshare` ignores SIGTERM; all processes end when the test's directory is removed.
    let serving = format!(
        "while [[ -e {base} ]]; do {serve} & pid=$!; \
         while [[ -e {base} ]] && kill -0 $pid 2>/dev/null; do if [[ -e {base}.kill ]]; then rm {base}.kill; \
         kill -9 $pid; wait $pid; echo killed >>{base}.killed; fi; sleep 0.05; done; done"
    );
    // The port mapper keeps its socket and lock in /run, which is private to this server.
    format!(
        "exec unshare --mount --pid --fork --kill-child bash -c \
         'mount -t tmpfs tmpfs /run; mkdir /run/rpcbind; rpcbind; {serving}'"
    )
}

fn run(part: &str, args: &[&str]) {
    let Some(guest) = find() else { return };
    let dir = scratch();
    let export = dir.path().join("export");
    std::fs::create_dir(&export).unwrap();
    weir();
    let args = [&[part, export.to_str().unwrap()], args].concat();
    let text = guest.run(&server(&export), &[], "locks.sh", &args);
    assert!(text.contains(&format!("locks {part}: ok")), "{text}");
}

#[test]
fn locks_over_v3_and_v4_conflict() {
    run("rules", &[]);
}

#[test]
fn locks_are_reclaimed_after_sigkill_of_the_server() {
    run("restart", &[]);
}

/// With `WEIR_LONG=1`, one minute for each pair.
#[test]
fn two_mounts_count_under_locks_without_loss() {
    let long = std::env::var_os("WEIR_LONG").is_some_and(|v| !v.is_empty());
    let seconds = if long { "60" } else { "6" };
    for (vers, other) in [("3", "4.2"), ("4.0", "4.1"), ("4.2", "4.0")] {
        run("stress", &[vers, other, seconds]);
    }
}

#[test]
fn waiters_are_woken_and_deadlocks_reported() {
    run("waits", &[]);
}
