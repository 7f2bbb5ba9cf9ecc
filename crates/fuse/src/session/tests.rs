//! A session whose kernel is this test: a socket in place of the device.

mod listings;
mod locks;
mod losses;
mod mapped;
mod numbers;
mod room;

use crate::mounted::{Keeper, Settings};
use crate::session::Session;
use crate::wire::abi::{self, InHeader, OutHeader, opcode};
use rustix::net::sockopt::{Timeout, set_socket_send_buffer_size, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use weir_pagecache::{Cache, CachedFs, Config};
use weir_stores::fault::{Call, Fault, Rule, What, When};
use weir_stores::memory::MemoryFs;
use weir_vfs::{Caller, Error, FileSystem, ReaddirRequest};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Longer replies are not taken.
const MOST_REPLY_BYTES: usize = 200 << 10;

/// Time that the threads of a busy machine may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// Whether something comes true.
fn eventually(mut is_true: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    while !is_true() {
        if begun.elapsed() > PATIENCE {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// A store of another machine.
struct Remote(Arc<Fault>);

impl weir_vfs::FileSystemDecorator for Remote {
    fn below(&self) -> &dyn FileSystem {
        &*self.0
    }

    fn names_change_here(&self) -> bool {
        false
    }
}

/// The kernel's side.
struct Kernel {
    socket: OwnedFd,
    next: u64,
    fs: CachedFs,
    session: Option<Session>,
    _runtime: Runtime,
}

impl Kernel {
    fn start() -> Self {
        Self::start_over(MemoryFs::new())
    }

    fn start_over(store: Arc<dyn FileSystem>) -> Self {
        Self::start_with(store, Settings::default())
    }

    fn start_with(store: Arc<dyn FileSystem>, settings: Settings) -> Self {
        let pair =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (socket, device) = pair.unwrap();
        // A reply that does not come fails the test.
        set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE)).unwrap();
        // Of which the system makes twice as much.
        set_socket_send_buffer_size(&device, MOST_REPLY_BYTES / 2).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let cache = Cache::new(Config { budget_bytes: 16 << 20, ..Config::default() }).unwrap();
        let fs = cache.mount(store);
        let mut kernel = Self { socket, next: 2, fs: fs.clone(), session: None, _runtime: runtime };
        let init = abi::InitIn { major: 7, minor: 40, flags: u32::MAX, ..Default::default() };
        let number = kernel.ask(opcode::INIT, 0, &[init.as_bytes()]);
        let handle = kernel._runtime.handle().clone();
        kernel.session = Some(Session::start(device, fs, settings, 2, handle).unwrap());
        let (error, reply) = kernel.reply(number);
        assert_eq!(error, 0);
        let out = abi::InitOut::read_from_bytes(&reply).unwrap();
        assert_eq!((out.major, out.minor, out.max_write), (7, 40, 1 << 20));
        kernel
    }

    /// Sends a request; returns its number.
    fn ask(&mut self, opcode: u32, nodeid: u64, arguments: &[&[u8]]) -> u64 {
        self.ask_as(0, opcode, nodeid, arguments)
    }

    /// Sends a request of a thread; returns its number.
    fn ask_as(&mut self, pid: u32, opcode: u32, nodeid: u64, arguments: &[&[u8]]) -> u64 {
        let unique = self.next;
        self.next += 2;
        let arguments = arguments.concat();
        let len = (size_of::<InHeader>() + arguments.len()) as u32;
        let header = InHeader { len, opcode, unique, nodeid, pid, ..Default::default() };
        let bytes = [header.as_bytes(), &arguments].concat();
        assert_eq!(send(&self.socket, &bytes, SendFlags::empty()).unwrap(), bytes.len());
        unique
    }

    /// The next reply or notification: its number, error and content.
    fn receive(&self) -> (u64, i32, Vec<u8>) {
        let mut buffer = vec![0; 2 << 20];
        let (len, _) = recv(&self.socket, &mut buffer[..], RecvFlags::empty()).unwrap();
        let (header, rest) = OutHeader::read_from_prefix(&buffer[..len]).unwrap();
        assert_eq!(header.len as usize, len);
        (header.unique, header.error, rest.to_vec())
    }

    /// The reply to a request; notifications are skipped.
    fn reply(&self, number: u64) -> (i32, Vec<u8>) {
        loop {
            match self.receive() {
                (0, ..) => {}
                (unique, error, content) => {
                    assert_eq!(unique, number);
                    return (error, content);
                }
            }
        }
    }

    fn call(&mut self, opcode: u32, nodeid: u64, arguments: &[&[u8]]) -> (i32, Vec<u8>) {
        let number = self.ask(opcode, nodeid, arguments);
        self.reply(number)
    }

    fn ok<T: FromBytes + Immutable>(&mut self, opcode: u32, nodeid: u64, arguments: &[&[u8]]) -> T {
        let (error, reply) = self.call(opcode, nodeid, arguments);
        assert_eq!(error, 0, "request {opcode}");
        T::read_from_prefix(&reply).unwrap().0
    }

    /// Creates a file; returns its node and the open file.
    fn create(&mut self, name: &[u8]) -> (u64, u64) {
        let args = abi::CreateIn {
            flags: (libc::O_RDWR | libc::O_CREAT).cast_unsigned(),
            mode: libc::S_IFREG | 0o644,
            ..Default::default()
        };
        let (error, reply) = self.call(opcode::CREATE, abi::ROOT, &[args.as_bytes(), name, b"\0"]);
        assert_eq!(error, 0);
        let (entry, rest) = abi::EntryOut::read_from_prefix(&reply).unwrap();
        (entry.nodeid, abi::OpenOut::read_from_bytes(rest).unwrap().fh)
    }

    fn open(&mut self, node: u64) -> u64 {
        let args = abi::OpenIn { flags: libc::O_RDWR.cast_unsigned(), ..Default::default() };
        self.ok::<abi::OpenOut>(opcode::OPEN, node, &[args.as_bytes()]).fh
    }

    fn flush(&mut self, node: u64, fh: u64, lock_owner: u64) -> i32 {
        let args = abi::FlushIn { fh, lock_owner, ..Default::default() };
        self.call(opcode::FLUSH, node, &[args.as_bytes()]).0
    }

    fn write(&mut self, node: u64, fh: u64, offset: u64, data: &[u8]) -> u32 {
        let args = abi::WriteIn { fh, offset, size: data.len() as u32, ..Default::default() };
        self.ok::<abi::WriteOut>(opcode::WRITE, node, &[args.as_bytes(), data]).size
    }

    fn fsync(&mut self, node: u64, fh: u64) -> i32 {
        self.call(opcode::FSYNC, node, &[abi::FsyncIn { fh, ..Default::default() }.as_bytes()]).0
    }

    fn read(&mut self, node: u64, fh: u64, offset: u64, size: u32) -> Vec<u8> {
        let args = abi::ReadIn { fh, offset, size, ..Default::default() };
        let (error, data) = self.call(opcode::READ, node, &[args.as_bytes()]);
        assert_eq!(error, 0);
        data
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // The end of the connection ends the session's threads.
        rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both).unwrap();
        self.session.take().unwrap().wait().unwrap();
    }
}

#[test]
fn data_of_any_size_is_written_and_read() {
    let mut kernel = Kernel::start();
    let (node, fh) = kernel.create(b"f");
    // Small ones are copied out of the buffer, large ones take it along.
    let large: Vec<u8> = (0..128 << 10).map(|at| (at % 251) as u8).collect();
    assert_eq!(kernel.write(node, fh, 0, b"small"), 5);
    assert_eq!(kernel.write(node, fh, 1 << 30, &large), large.len() as u32);
    assert_eq!(kernel.read(node, fh, 0, 5), b"small");
    assert_eq!(kernel.read(node, fh, 1 << 30, large.len() as u32), large);
    // Past the end there is nothing; a hole is zeros.
    assert!(kernel.read(node, fh, (1 << 30) + (1 << 20), 4096).is_empty());
    assert_eq!(kernel.read(node, fh, 1 << 20, 100_000), vec![0; 100_000]);
    // Across the end of a hole, and of the file.
    let read = kernel.read(node, fh, (1 << 30) - 10, 1 << 20);
    assert_eq!(read.len(), 10 + large.len());
    assert_eq!((&read[..10], &read[10..]), (&[0; 10][..], &large[..]));
}

#[test]
fn a_node_lives_until_the_kernel_has_forgotten_all_uses() {
    let mut kernel = Kernel::start();
    let (node, fh) = kernel.create(b"f");
    let release = abi::ReleaseIn { fh, ..Default::default() };
    assert_eq!(kernel.call(opcode::RELEASE, node, &[release.as_bytes()]).0, 0);
    let again: abi::EntryOut = kernel.ok(opcode::LOOKUP, abi::ROOT, &[b"f\0"]);
    assert_eq!(again.nodeid, node);
    let forget = |kernel: &mut Kernel, nlookup| {
        kernel.ask(opcode::FORGET, node, &[abi::ForgetIn { nlookup }.as_bytes()]);
    };
    let get = [abi::GetattrIn::default()];
    forget(&mut kernel, 1);
    assert_eq!(kernel.call(opcode::GETATTR, node, &[get.as_bytes()]).0, 0);
    forget(&mut kernel, 1);
    // FORGET has no reply, and another thread may be quicker.
    let forgotten = |kernel: &mut Kernel| {
        kernel.call(opcode::GETATTR, node, &[get.as_bytes()]).0 == -libc::ESTALE
    };
    assert!(eventually(|| forgotten(&mut kernel)));
    let new: abi::EntryOut = kernel.ok(opcode::LOOKUP, abi::ROOT, &[b"f\0"]);
    assert_ne!(new.nodeid, node, "a number is not used again");
    // More uses than there are do no harm.
    forget(&mut kernel, u64::MAX);
    kernel.ask(opcode::FORGET, abi::ROOT, &[abi::ForgetIn { nlookup: u64::MAX }.as_bytes()]);
    assert_eq!(kernel.call(opcode::GETATTR, abi::ROOT, &[get.as_bytes()]).0, 0);
}

/// At a server, a rename that must not replace is two requests. coreutils asks for one with each mv, and looks first
/// if it is refused like this.
#[test]
fn a_rename_with_flags_is_refused_where_it_is_not_atomic() {
    let rename = |kernel: &mut Kernel, flags| {
        let args = abi::Rename2In { newdir: abi::ROOT, flags, padding: 0 };
        kernel.call(opcode::RENAME2, abi::ROOT, &[args.as_bytes(), b"f\0g\0"]).0
    };
    let mut kernel = Kernel::start_over(Arc::new(Remote(Fault::over(MemoryFs::new(), 1))));
    kernel.create(b"f");
    assert_eq!(rename(&mut kernel, libc::RENAME_NOREPLACE), -libc::EINVAL);
    assert_eq!(rename(&mut kernel, libc::RENAME_EXCHANGE), -libc::EINVAL);
    assert_eq!(rename(&mut kernel, 0), 0);
    let mut kernel = Kernel::start();
    kernel.create(b"f");
    assert_eq!(rename(&mut kernel, libc::RENAME_NOREPLACE), 0);
    kernel.create(b"f");
    assert_eq!(rename(&mut kernel, libc::RENAME_NOREPLACE), -libc::EEXIST);
    assert_eq!(rename(&mut kernel, libc::RENAME_EXCHANGE), 0);
}

#[test]
fn a_file_that_is_truncated_by_its_creation_loses_its_set_id_bits() {
    let mut kernel = Kernel::start();
    let (node, _) = kernel.create(b"f");
    let mode =
        abi::SetattrIn { valid: abi::Fattr::MODE.bits(), mode: 0o4755, ..Default::default() };
    assert_eq!(kernel.call(opcode::SETATTR, node, &[mode.as_bytes()]).0, 0);
    for (open_flags, mode) in [(0, 0o4755), (abi::OPEN_KILL_SUIDGID, 0o755)] {
        let flags = (libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC).cast_unsigned();
        let args = abi::CreateIn { flags, open_flags, ..Default::default() };
        let entry: abi::EntryOut = kernel.ok(opcode::CREATE, abi::ROOT, &[args.as_bytes(), b"f\0"]);
        assert_eq!((entry.nodeid, entry.attr.mode & 0o7777), (node, mode));
    }
}

#[test]
fn a_file_without_a_name_that_is_opened_while_the_mount_ends_leaves_none() {
    let mut kernel = Kernel::start();
    let names = kernel.session.as_ref().unwrap().hidden_names();
    let runtime = kernel._runtime.handle().clone();
    let flags = (libc::O_RDWR | libc::O_TMPFILE).cast_unsigned();
    let args = abi::CreateIn { flags, mode: libc::S_IFREG | 0o600, ..Default::default() };
    for ends in [false, true] {
        let (error, reply) = kernel.call(opcode::TMPFILE, abi::ROOT, &[args.as_bytes()]);
        assert_eq!(error, 0);
        let (entry, rest) = abi::EntryOut::read_from_prefix(&reply).unwrap();
        assert_eq!(entry.attr.nlink, 0);
        let fh = abi::OpenOut::read_from_bytes(rest).unwrap().fh;
        let left = |kernel: &Kernel| {
            let dir = kernel.fs.root();
            let all = ReaddirRequest { dir, cookie: 0, max_entries: 10, with_attr: false };
            let listed = kernel.fs.store().readdir(&Caller::Own, all);
            runtime.block_on(listed).unwrap().entries.len()
        };
        assert_eq!(left(&kernel), usize::from(!ends));
        runtime.block_on(names.remove());
        assert_eq!(left(&kernel), 0);
        assert_eq!(kernel.write(entry.nodeid, fh, 0, b"data"), 4);
        assert_eq!(kernel.read(entry.nodeid, fh, 0, 4), b"data");
    }
}

impl Kernel {
    /// Sets a file's mode.
    fn chmod(&mut self, node: u64, mode: u32) {
        let args = abi::SetattrIn { valid: abi::Fattr::MODE.bits(), mode, ..Default::default() };
        assert_eq!(self.call(opcode::SETATTR, node, &[args.as_bytes()]).0, 0);
    }

    fn mode(&mut self, node: u64) -> u32 {
        let args = abi::GetattrIn::default();
        self.ok::<abi::AttrOut>(opcode::GETATTR, node, &[args.as_bytes()]).attr.mode & 0o7777
    }
}

/// The kernel leaves it to the server, and its request has no flag for it.
#[test]
fn a_file_that_is_overwritten_by_a_copy_loses_its_set_id_bits() {
    let mut kernel = Kernel::start();
    let (node, fh_in) = kernel.create(b"from");
    let (nodeid_out, fh_out) = kernel.create(b"to");
    kernel.write(node, fh_in, 0, &[1; 4096]);
    kernel.chmod(nodeid_out, 0o6755);
    let args = abi::CopyFileRangeIn { fh_in, nodeid_out, fh_out, len: 4096, ..Default::default() };
    assert_eq!(kernel.call(opcode::COPY_FILE_RANGE, node, &[args.as_bytes()]).0, 0);
    assert_eq!(kernel.mode(nodeid_out), 0o755);
}

#[test]
fn a_change_of_owner_removes_set_id_bits_unless_it_is_refused() {
    let store = Fault::over(MemoryFs::new(), 1);
    let mut kernel = Kernel::start_over(store.clone());
    let (node, _) = kernel.create(b"f");
    kernel.chmod(node, 0o6755);
    let valid = (abi::Fattr::UID | abi::Fattr::KILL_SUIDGID).bits();
    let args = abi::SetattrIn { valid, uid: 7, ..Default::default() };
    let what = What::Fail(Error::NotPermitted);
    store.add(Rule { call: Call::Setattr, when: When::Nth(0), what });
    assert_eq!(kernel.call(opcode::SETATTR, node, &[args.as_bytes()]).0, -libc::EPERM);
    assert_eq!(kernel.mode(node), 0o6755);
    assert_eq!(kernel.call(opcode::SETATTR, node, &[args.as_bytes()]).0, 0);
    assert_eq!(kernel.mode(node), 0o755);
}

/// A store that does not let this process change the mode, because the file is another user's, removes the bits itself.
#[test]
fn a_program_writes_a_file_with_set_id_bits_that_it_does_not_own() {
    let store = Fault::over(MemoryFs::new(), 1);
    let mut kernel = Kernel::start_over(Arc::new(Remote(store.clone())));
    let (node, fh) = kernel.create(b"f");
    kernel.chmod(node, 0o2775);
    let what = What::Fail(Error::NotPermitted);
    store.add(Rule { call: Call::Setattr, when: When::Always, what });
    let write_flags = abi::WRITE_KILL_SUIDGID;
    let args = abi::WriteIn { fh, size: 4, write_flags, ..Default::default() };
    let out: abi::WriteOut = kernel.ok(opcode::WRITE, node, &[args.as_bytes(), b"data"]);
    assert_eq!((out.size, store.injected()), (4, 1));
}

/// The kernel names the end as it knows it; programs beside the mount may have moved it.
#[test]
fn what_is_appended_goes_to_the_end_whichever_cache_keeps_the_file() {
    for keeper in [Keeper::Weir, Keeper::Kernel, Keeper::Auto, Keeper::Window(1 << 20)] {
        let settings = Settings { keeper, ..Settings::default() };
        let mut kernel = Kernel::start_with(MemoryFs::new(), settings);
        let (node, fh) = kernel.create(b"f");
        assert_eq!(kernel.write(node, fh, 0, b"before"), 6);
        let flags = (libc::O_WRONLY | libc::O_APPEND).cast_unsigned();
        let open = abi::OpenIn { flags, ..Default::default() };
        let appending = kernel.ok::<abi::OpenOut>(opcode::OPEN, node, &[open.as_bytes()]).fh;
        let args = abi::WriteIn { fh: appending, size: 5, flags, ..Default::default() };
        let out: abi::WriteOut = kernel.ok(opcode::WRITE, node, &[args.as_bytes(), b"after"]);
        assert_eq!(out.size, 5);
        assert_eq!(kernel.read(node, fh, 0, 100), b"beforeafter", "{keeper:?}");
    }
}

/// Linux before 6.6 keeps its pages beside a write that goes past them.
#[test]
fn the_kernel_drops_its_pages_of_what_was_written_past_them() {
    let settings = Settings { keeper: Keeper::Kernel, ..Settings::default() };
    let mut kernel = Kernel::start_with(MemoryFs::new(), settings);
    let (node, fh) = kernel.create(b"f");
    assert_eq!(kernel.write(node, fh, 0, &[1; 5000]), 5000);
    assert_eq!(kernel.read(node, fh, 0, 8192), [1; 5000]);
    for (flag, offset, dropped_from) in [(libc::O_APPEND, 5000, 4096), (libc::O_DIRECT, 100, 0)] {
        let flags = (libc::O_WRONLY | flag).cast_unsigned();
        let open = abi::OpenIn { flags, ..Default::default() };
        let past = kernel.ok::<abi::OpenOut>(opcode::OPEN, node, &[open.as_bytes()]).fh;
        let args = abi::WriteIn { fh: past, offset, size: 5, flags, ..Default::default() };
        let written = kernel.ask(opcode::WRITE, node, &[args.as_bytes(), b"after"]);
        let (mut dropped, mut is_answered) = (None, false);
        while dropped.is_none() || !is_answered {
            match kernel.receive() {
                (0, code, content) if code == abi::NOTIFY_INVAL_INODE => {
                    let out = abi::InvalInodeOut::read_from_bytes(&content).unwrap();
                    // A negative offset means the attributes alone.
                    dropped = (out.off >= 0).then_some((out.ino, out.off, out.len)).or(dropped);
                }
                (0, ..) => {}
                (number, error, _) => {
                    assert_eq!((number, error), (written, 0));
                    is_answered = true;
                }
            }
        }
        assert_eq!(dropped, Some((node, dropped_from, 0)));
    }
}

/// fcntl(2) changes O_APPEND of an open file.
#[test]
fn a_write_appends_if_its_file_is_set_to_append_by_then() {
    let (plain, append) = (libc::O_WRONLY, libc::O_WRONLY | libc::O_APPEND);
    let cases = [(append, plain, &b"aftereX"[..]), (plain, append, b"beforeXafter")];
    for (opened, set, expected) in cases {
        let mut kernel = Kernel::start();
        let (node, fh) = kernel.create(b"f");
        assert_eq!(kernel.write(node, fh, 0, b"beforeX"), 7);
        let open = abi::OpenIn { flags: opened.cast_unsigned(), ..Default::default() };
        let writing = kernel.ok::<abi::OpenOut>(opcode::OPEN, node, &[open.as_bytes()]).fh;
        let flags = set.cast_unsigned();
        let args = abi::WriteIn { fh: writing, size: 5, flags, ..Default::default() };
        let out: abi::WriteOut = kernel.ok(opcode::WRITE, node, &[args.as_bytes(), b"after"]);
        assert_eq!(out.size, 5);
        assert_eq!(kernel.read(node, fh, 0, 100), expected);
    }
}

#[test]
fn a_name_that_cannot_be_found_now_is_asked_for_again() {
    let store = Fault::over(MemoryFs::new(), 1);
    let mut kernel = Kernel::start_over(store.clone());
    let (node, _) = kernel.create(b"f");
    let moving = What::Fail(Error::WouldBlock);
    for call in [Call::Lookup, Call::Rename, Call::Unlink] {
        store.add(Rule { call, when: When::First(3), what: moving });
    }
    let found: abi::EntryOut = kernel.ok(opcode::LOOKUP, abi::ROOT, &[b"f\0"]);
    assert_eq!(found.nodeid, node);
    let rename = abi::RenameIn { newdir: abi::ROOT };
    let renamed = kernel.call(opcode::RENAME, abi::ROOT, &[rename.as_bytes(), b"f\0", b"g\0"]);
    assert_eq!(renamed.0, 0);
    assert_eq!(kernel.call(opcode::UNLINK, abi::ROOT, &[b"g\0"]).0, 0);
    assert_eq!(store.injected(), 9);
}

#[test]
fn the_kernel_drops_what_an_operation_changes_after_it_was_given_up() {
    let store = Fault::over(MemoryFs::new(), 1);
    let mut kernel = Kernel::start_over(store.clone());
    let (node, _) = kernel.create(b"f");
    store.add(Rule { call: Call::Rename, when: When::Always, what: What::Hold });
    store.add(Rule { call: Call::Setattr, when: When::Always, what: What::Hold });
    let rename = abi::RenameIn { newdir: abi::ROOT };
    let mode = abi::SetattrIn { valid: abi::Fattr::MODE.bits(), mode: 0o600, ..Default::default() };
    let cases: [(u32, u64, Vec<u8>, &[i32]); 2] = [
        (opcode::SETATTR, node, mode.as_bytes().to_vec(), &[abi::NOTIFY_INVAL_INODE]),
        (
            opcode::RENAME,
            abi::ROOT,
            [rename.as_bytes(), b"f\0g\0"].concat(),
            &[abi::NOTIFY_INVAL_INODE, abi::NOTIFY_INVAL_INODE, abi::NOTIFY_INC_EPOCH],
        ),
    ];
    for (opcode, nodeid, arguments, notifications) in cases {
        let number = kernel.ask(opcode, nodeid, &[&arguments]);
        while store.held() == 0 {
            std::thread::yield_now();
        }
        // Of a thread that cannot be asked whether the signal kills it.
        kernel.ask(opcode::INTERRUPT, 0, &[abi::InterruptIn { unique: number }.as_bytes()]);
        assert_eq!(kernel.reply(number).0, -libc::EINTR);
        store.release();
        let told: Vec<_> = notifications.iter().map(|_| kernel.receive()).collect();
        let codes: Vec<_> = told.iter().map(|&(unique, code, _)| (unique, code)).collect();
        let expected: Vec<_> = notifications.iter().map(|&code| (0, code)).collect();
        assert_eq!(codes, expected);
    }
    assert_eq!(kernel.call(opcode::LOOKUP, abi::ROOT, &[b"f\0"]).0, -libc::ENOENT);
}

impl Kernel {
    /// Opens a file for reading; returns the open file, and whether the kernel keeps its pages.
    fn open_to_read(&mut self, node: u64) -> (u64, bool) {
        let args = abi::OpenIn { flags: libc::O_RDONLY.cast_unsigned(), ..Default::default() };
        let out: abi::OpenOut = self.ok(opcode::OPEN, node, &[args.as_bytes()]);
        let flags = abi::OpenFlags::from_bits_retain(out.open_flags);
        (out.fh, flags.contains(abi::OpenFlags::KEEP_CACHE))
    }

    /// Asks for something that takes long, and gives it up; returns when its operation goes on.
    fn give_up(&mut self, store: &Fault, opcode: u32, node: u64, arguments: &[u8]) {
        store.add(Rule { call: Call::Getattr, when: When::Always, what: What::Hold });
        let number = self.ask(opcode, node, &[arguments]);
        assert!(eventually(|| store.held() > 0));
        // Of a thread that cannot be asked whether the signal kills it.
        self.ask(opcode::INTERRUPT, 0, &[abi::InterruptIn { unique: number }.as_bytes()]);
        assert_eq!(self.reply(number).0, -libc::EINTR);
        store.clear();
        store.release();
    }
}

#[test]
fn the_kernel_keeps_its_pages_only_after_an_open_that_it_knows_of() {
    let store = Fault::over(MemoryFs::new(), 1);
    let settings = Settings { keeper: Keeper::Kernel, ..Settings::default() };
    let mut kernel = Kernel::start_with(store.clone(), settings);
    let (node, fh) = kernel.create(b"f");
    let change = |kernel: &mut Kernel| {
        kernel.write(node, fh, 0, b"data");
        assert_eq!(kernel.fsync(node, fh), 0);
    };
    change(&mut kernel);
    let (first, keeps) = kernel.open_to_read(node);
    assert!(!keeps);
    assert!(!kernel.open_to_read(node).1, "the first reply may be on its way");
    kernel.read(node, first, 0, 4);
    assert!(kernel.open_to_read(node).1);
    // The kernel gets no reply that makes it drop its pages.
    change(&mut kernel);
    let args = abi::OpenIn { flags: libc::O_RDONLY.cast_unsigned(), ..Default::default() };
    kernel.give_up(&store, opcode::OPEN, node, args.as_bytes());
    let (unique, code, _) = kernel.receive();
    assert_eq!((unique, code), (0, abi::NOTIFY_INVAL_INODE));
    let (third, keeps) = kernel.open_to_read(node);
    assert!(!keeps);
    assert_eq!(kernel.flush(node, third, 1), 0);
    assert!(kernel.open_to_read(node).1);
}

#[test]
fn an_open_drops_attributes_that_a_killed_thread_did_not_get() {
    let store = Fault::over(MemoryFs::new(), 1);
    let mut kernel = Kernel::start_over(store.clone());
    let counters = kernel.session.as_ref().unwrap().counters();
    let (node, fh) = kernel.create(b"f");
    kernel.write(node, fh, 0, b"data");
    assert_eq!(kernel.fsync(node, fh), 0);
    kernel.give_up(&store, opcode::GETATTR, node, abi::GetattrIn::default().as_bytes());
    let is_done = || counters.requests().iter().any(|one| one.name == "getattr");
    assert!(eventually(is_done));
    let args = abi::OpenIn { flags: libc::O_RDONLY.cast_unsigned(), ..Default::default() };
    kernel.ask(opcode::OPEN, node, &[args.as_bytes()]);
    let (unique, code, _) = kernel.receive();
    assert_eq!((unique, code), (0, abi::NOTIFY_INVAL_INODE));
}

#[test]
fn what_a_kernel_would_not_send_is_refused() {
    let mut kernel = Kernel::start();
    let read = abi::ReadIn { fh: 77, size: 4096, ..Default::default() };
    assert_eq!(kernel.call(opcode::READ, abi::ROOT, &[read.as_bytes()]).0, -libc::EBADF);
    assert_eq!(kernel.call(opcode::GETATTR, 99, &[&[0; 16]]).0, -libc::ESTALE);
    assert_eq!(kernel.call(opcode::LOOKUP, abi::ROOT, &[b"no end"]).0, -libc::EIO);
    assert_eq!(kernel.call(4000, abi::ROOT, &[]).0, -libc::ENOSYS);
    let (node, fh) = kernel.create(b"f");
    let beyond = abi::FallocateIn { fh, offset: u64::MAX, length: 2, ..Default::default() };
    assert_eq!(kernel.call(opcode::FALLOCATE, node, &[beyond.as_bytes()]).0, -libc::EFBIG);
    let read = abi::ReadIn { fh, offset: u64::MAX, size: 4096, ..Default::default() };
    let (error, data) = kernel.call(opcode::READ, node, &[read.as_bytes()]);
    assert!(data.is_empty() && error <= 0);
    // It serves on.
    assert_eq!(kernel.fs.root(), kernel.fs.root());
    assert_eq!(kernel.write(node, fh, 0, b"x"), 1);
}

#[test]
fn requests_and_their_data_are_counted() {
    let mut kernel = Kernel::start();
    let counters = kernel.session.as_ref().unwrap().counters();
    let (node, fh) = kernel.create(b"f");
    let bytes = [7; 5000];
    assert_eq!(kernel.write(node, fh, 0, &bytes), 5000);
    assert_eq!(kernel.read(node, fh, 0, 8192), bytes);
    assert_eq!(kernel.read(node, fh, 4096, 4096), bytes[4096..]);
    let read = abi::ReadIn { fh: 77, size: 4096, ..Default::default() };
    assert_eq!(kernel.call(opcode::READ, node, &[read.as_bytes()]).0, -libc::EBADF);
    let data = counters.data();
    assert_eq!((data.writes, data.written_bytes), (1, 5000));
    assert_eq!((data.reads, data.read_bytes), (2, 5904));
    // A request is counted after its reply was sent.
    let of = |name| counters.requests().into_iter().find(|one| one.name == name);
    let all =
        eventually(|| of("read").is_some_and(|read| read.count == 3) && of("write").is_some());
    assert!(all, "{:?}", counters.requests());
    let (read, write) = (of("read").unwrap(), of("write").unwrap());
    assert_eq!((read.failed, read.sent_bytes), (1, 5904));
    assert!(write.received_bytes > 5000 && write.nanos > 0, "{write:?}");
    assert_eq!(read.by_duration.iter().sum::<u64>(), 3);
    assert_eq!(read.by_duration.len(), super::counters::Counters::bounds_us().len() + 1);
}
