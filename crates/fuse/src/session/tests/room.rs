//! Requests without room, and replies that the kernel does not take.

use super::{Kernel, MOST_REPLY_BYTES};
use crate::session::{MOST_LOCK_WAITS, MOST_REQUESTS, SPARE_BUFFERS};
use crate::wire::abi::{self, opcode};
use std::process::{Child, Command};
use std::sync::Arc;
use weir_pagecache::{Cache, Config};
use weir_stores::fault::{Call, Fault, Rule, What, When};
use weir_stores::memory::MemoryFs;
use weir_vfs::{Access, Caller, CreateMode, IoFlags, SetAttr};
use zerocopy::IntoBytes;

/// A thread that was killed, and is not gone yet.
fn killed() -> Child {
    let child = Command::new("sh").args(["-c", "kill -9 $$"]).spawn().unwrap();
    let path = format!("/proc/{}/stat", child.id());
    while !std::fs::read_to_string(&path).unwrap().contains(") Z ") {
        std::thread::yield_now();
    }
    child
}

#[test]
fn waits_for_locks_leave_room_for_the_release() {
    let mut kernel = Kernel::start();
    let (node, fh) = kernel.create(b"f");
    let lock = |owner, kind: i32| {
        let (end, kind) = (i64::MAX as u64, kind.cast_unsigned());
        abi::LkIn { fh, owner, end, kind, ..Default::default() }
    };
    let held = lock(0, libc::F_WRLCK);
    assert_eq!(kernel.call(opcode::SETLK, node, &[held.as_bytes()]).0, 0);
    let asked = MOST_LOCK_WAITS.max(MOST_REQUESTS) as u64 + 2;
    for owner in 1..=asked {
        kernel.ask(opcode::SETLKW, node, &[lock(owner, libc::F_WRLCK).as_bytes()]);
    }
    for _ in 0..asked - MOST_LOCK_WAITS as u64 {
        assert_eq!(kernel.receive().1, -libc::ENOLCK);
    }
    let release = kernel.ask(opcode::SETLKW, node, &[lock(0, libc::F_UNLCK).as_bytes()]);
    // And a grant.
    let mut numbers = Vec::new();
    while numbers.len() < 2 {
        match kernel.receive() {
            (0, ..) => {}
            (number, error, _) => {
                assert_eq!(error, 0);
                numbers.push(number);
            }
        }
    }
    assert!(numbers.contains(&release));
}

#[test]
fn a_killed_thread_ends_although_no_more_requests_are_received() {
    let mut thread = killed();
    let store = Fault::over(MemoryFs::new(), 1);
    let mut kernel = Kernel::start_over(store.clone());
    store.add(Rule { call: Call::Lookup, when: When::Always, what: What::Hold });
    let first = kernel.ask_as(thread.id(), opcode::LOOKUP, abi::ROOT, &[b"f\0"]);
    let others: Vec<_> =
        (0..=MOST_REQUESTS).map(|_| kernel.ask(opcode::LOOKUP, abi::ROOT, &[b"f\0"])).collect();
    assert_eq!(kernel.reply(first).0, -libc::EINTR);
    while store.held() < MOST_REQUESTS {
        std::thread::yield_now();
    }
    store.clear();
    store.release();
    for _ in others {
        assert_eq!(kernel.receive().1, -libc::ENOENT);
    }
    thread.wait().unwrap();
}

#[test]
fn a_killed_thread_ends_although_there_are_no_more_buffers() {
    let mut thread = killed();
    let store = Fault::over(MemoryFs::new(), 1);
    let mut kernel = Kernel::start_over(store.clone());
    let (node, fh) = kernel.create(b"f");
    store.add(Rule { call: Call::Write, when: When::Always, what: What::Hold });
    let data = vec![1; 20 << 10];
    let mut write = |pid, number: usize| {
        let (offset, size) = ((number * data.len()) as u64, data.len() as u32);
        let flags = libc::O_SYNC.cast_unsigned();
        let args = abi::WriteIn { fh, offset, size, flags, ..Default::default() };
        kernel.ask_as(pid, opcode::WRITE, node, &[args.as_bytes(), &data])
    };
    let first = write(thread.id(), 0);
    let others: Vec<_> = (0..SPARE_BUFFERS + 2).map(|number| write(0, number + 1)).collect();
    assert_eq!(kernel.reply(first).0, -libc::EINTR);
    store.clear();
    // One that was about to be held may be so later.
    let holding = Arc::downgrade(&store);
    std::thread::spawn(move || {
        while let Some(store) = holding.upgrade() {
            store.release();
            std::thread::yield_now();
        }
    });
    let mut answered = 0;
    while answered < others.len() {
        match kernel.receive() {
            (0, ..) => {}
            (_, error, _) => {
                assert_eq!(error, 0);
                answered += 1;
            }
        }
    }
    thread.wait().unwrap();
}

#[test]
fn a_reply_that_the_kernel_does_not_take_becomes_an_error() {
    let store = MemoryFs::new();
    let len = 2 * MOST_REPLY_BYTES;
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let cache = Cache::new(Config { budget_bytes: 4 << 20, ..Config::default() }).unwrap();
        let (fs, set) = (cache.mount(store.clone()), SetAttr::default());
        let new = fs.root().entry(b"f").with(&set);
        let made = fs.create(&Caller::Own, new, CreateMode::MustBeNew).await.unwrap();
        let file = fs.open(&Caller::Own, made.attr.id, Access::WRITE).await.unwrap();
        file.write_at_async(&vec![7; len], 0, IoFlags::empty()).await.unwrap();
        file.sync_async(false).await.unwrap();
    });
    let mut kernel = Kernel::start_over(store);
    let entry: abi::EntryOut = kernel.ok(opcode::LOOKUP, abi::ROOT, &[b"f\0"]);
    let open = abi::OpenIn::default();
    let fh = kernel.ok::<abi::OpenOut>(opcode::OPEN, entry.nodeid, &[open.as_bytes()]).fh;
    // The second one is of resident pages.
    for _ in 0..2 {
        let args = abi::ReadIn { fh, size: len as u32, ..Default::default() };
        assert_eq!(kernel.call(opcode::READ, entry.nodeid, &[args.as_bytes()]).0, -libc::EIO);
    }
    assert_eq!(kernel.read(entry.nodeid, fh, 0, 4096), [7; 4096]);
}
