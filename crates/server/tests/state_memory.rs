//! What the state of clients costs in memory: each kind is bounded in number (`state::Limits`), so
//! this bounds its bytes. Handles of files are not counted; the page cache has them.

mod common;

use common::in_use;
use weir_server::StateLoad;

/// Bytes that each of `count` takes.
fn each(what: &str, count: usize, mut make: impl FnMut(usize)) -> usize {
    let before = in_use();
    (0..count).for_each(&mut make);
    let bytes = (in_use() - before) / count;
    println!("{count} {what}: {bytes} bytes each");
    bytes
}

#[test]
fn ten_thousand_files_a_thousand_sessions_a_hundred_thousand_locks_fit_in_their_bounds() {
    let mut load = StateLoad::default();
    let session = each("sessions, a client each", 1000, |_| assert!(load.add_session()));
    let slots = each("sessions' 64 slots in use", 1000, |number| assert!(load.use_slots(number)));
    let file = each("open files", 10_000, |_| assert!(load.open_file()));
    let lock = each("locked ranges", 100_000, |number| assert!(load.lock_range(number)));
    assert!(session < 3 << 10, "{session} bytes for a session and its client");
    assert!(slots < 8 << 10, "{slots} bytes for 64 slots in use");
    assert!(file < 1500, "{file} bytes for an open file");
    assert!(lock < 250, "{lock} bytes for a locked range");
    assert!(load.purge(), "nothing is left");
}
