//! Lost data: each loss is reported to a program.

use super::{Kernel, Remote};
use crate::wire::abi::{self, opcode};
use std::sync::Arc;
use weir_stores::fault::{Call, Fault, Rule, What, When};
use weir_stores::memory::MemoryFs;
use weir_vfs::{Caller, Error, FileSystem};
use zerocopy::IntoBytes;

const FULL: i32 = -libc::ENOSPC;

/// A mount, and its store.
fn mounted() -> (Kernel, Arc<Fault>) {
    let store = Fault::over(MemoryFs::new(), 1);
    (Kernel::start_over(store.clone()), store)
}

fn fill_up(store: &Fault) {
    let what = What::Fail(Error::NoSpace);
    store.add(Rule { call: Call::Write, when: When::Always, what });
}

/// The kernel takes such pages for written, also after an error.
#[test]
fn an_earlier_loss_that_a_close_has_reported_loses_no_mapped_write() {
    let (mut kernel, store) = mounted();
    let (node, fh) = kernel.create(b"f");
    fill_up(&store);
    kernel.write(node, fh, 0, b"lost");
    assert_eq!(kernel.flush(node, fh, 1), FULL);
    store.clear();
    let args = abi::WriteIn { fh, size: 6, write_flags: abi::WRITE_CACHE, ..Default::default() };
    assert_eq!(kernel.call(opcode::WRITE, node, &[args.as_bytes(), b"mapped"]).0, 0);
    assert_eq!(kernel.flush(node, fh, 1), FULL, "another descriptor");
    assert_eq!(kernel.fsync(node, fh), FULL);
    assert_eq!(kernel.fsync(node, fh), 0);
    assert_eq!(kernel.flush(node, fh, 1), 0);
    assert_eq!(kernel.read(node, fh, 0, 10), b"mapped");
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let stored = runtime.block_on(store.lookup(&Caller::Own, store.root().entry(b"f")));
    assert_eq!(stored.unwrap().size, 6);
}

/// A sync that cannot be carried out now has failed: a second one would find that the loss was reported.
#[test]
fn a_sync_that_fails_for_now_fails() {
    let (mut kernel, store) = mounted();
    let (node, fh) = kernel.create(b"f");
    kernel.write(node, fh, 0, b"data");
    let what = What::Fail(Error::WouldBlock);
    store.add(Rule { call: Call::Sync, when: When::Nth(0), what });
    assert_ne!(kernel.fsync(node, fh), 0);
    assert_eq!(store.injected(), 1);
    assert_eq!(kernel.fsync(node, fh), 0);
}

#[test]
fn a_loss_that_a_copy_finds_is_reported() {
    let (mut kernel, store) = mounted();
    let (node, fh) = kernel.create(b"from");
    let (nodeid_out, fh_out) = kernel.create(b"to");
    kernel.write(node, fh, 0, &[1; 4096]);
    assert_eq!(kernel.fsync(node, fh), 0);
    fill_up(&store);
    kernel.write(node, fh, 0, &[2; 4096]);
    let copy =
        abi::CopyFileRangeIn { fh_in: fh, nodeid_out, fh_out, len: 4096, ..Default::default() };
    assert_eq!(kernel.call(opcode::COPY_FILE_RANGE, node, &[copy.as_bytes()]).0, FULL);
    store.clear();
    assert_eq!(kernel.call(opcode::COPY_FILE_RANGE, node, &[copy.as_bytes()]).0, 0);
    assert_eq!(kernel.read(nodeid_out, fh_out, 0, 8192), [1; 4096]);
}

/// No program has the file open any more.
#[test]
fn a_loss_when_locks_end_with_an_open_file_is_reported_to_the_next_one() {
    let (kernel, store) = mounted();
    is_reported_to_the_next(kernel, &store);
    let store = Fault::over(MemoryFs::new(), 1);
    is_reported_to_the_next(Kernel::start_over(Arc::new(Remote(store.clone()))), &store);
}

fn is_reported_to_the_next(mut kernel: Kernel, store: &Fault) {
    let (node, fh) = kernel.create(b"f");
    let kind = libc::F_WRLCK.cast_unsigned();
    let lock = abi::LkIn { fh, owner: 1, end: i64::MAX as u64, kind, ..Default::default() };
    assert_eq!(kernel.call(opcode::SETLK, node, &[lock.as_bytes()]).0, 0);
    kernel.write(node, fh, 0, b"lost");
    fill_up(store);
    let release = abi::ReleaseIn { fh, ..Default::default() };
    assert_eq!(kernel.call(opcode::RELEASE, node, &[release.as_bytes()]).0, 0);
    store.clear();
    let next = kernel.open(node);
    assert_eq!(kernel.fsync(node, next), FULL);
    assert_eq!(kernel.fsync(node, next), 0);
}
