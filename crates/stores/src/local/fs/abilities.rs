//! What the local store can use of the kernel and the file system, on this machine. Where something is missing, the
//! store goes other ways, and its tests pass without the usual one: so a missing ability is a skip.

use super::LocalFs;
use crate::local::options::LocalOptions;
use crate::local::sys;
use rustix::fs::{Mode, OFlags, StatxFlags};
use std::os::fd::AsFd;

#[test]
fn the_abilities_that_the_store_uses_are_here() {
    let exe = std::env::current_exe().unwrap();
    let dir = tempfile::tempdir_in(exe.parent().unwrap()).unwrap();
    let fs = LocalFs::open(dir.path(), LocalOptions::default()).unwrap();
    let root = fs.tree.root();
    let need = |has: bool, ability: &str| {
        if !has {
            weir_skip::skip(format!("the store goes without {ability}"));
        }
    };
    need(fs.io.engine.name() == "io_uring", "io_uring");
    need(fs.identity.can_switch(), "acting as its callers");
    need(fs.io.watch.is_some(), "fanotify");
    need(fs.io.stamps.fine, "multigrain time stamps");
    need(fs.io.stamps.clock_is_ours, "time stamps by this machine's clock");
    need(fs.tree.opens_by_handle(), "open_by_handle_at");
    let has = sys::stat_fd(root, StatxFlags::BTIME).unwrap().stx_mask;
    need(has & StatxFlags::BTIME.bits() != 0, "statx times of creation");
    let open = |flags| {
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::openat(root, c".", flags | OFlags::TMPFILE | OFlags::RDWR, mode)
    };
    let Ok(file) = open(OFlags::CLOEXEC) else { return need(false, "O_TMPFILE") };
    need(open(OFlags::CLOEXEC | OFlags::DIRECT).is_ok(), "O_DIRECT");
    need(sys::gaps(file.as_fd(), 0..4096, 8).is_ok(), "FIEMAP");
}
