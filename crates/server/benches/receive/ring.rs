//! io_uring: a multishot ACCEPT, for each connection a multishot RECV into buffers that all connections share, and
//! replies by SENDMSG, one at a time for each connection.
//!
//! Sound because what the kernel accesses outlives its access: the buffers are leaked; the message header, the slices
//! and the replies of a connection are kept and unchanged from its SENDMSG to the last answer to it.

use crate::{Calls, RECEIVE_BYTES, Replies};
use io_uring::types::{BufRingEntry, Fd};
use io_uring::{IoUring, cqueue, opcode, squeue};
use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;
use weir_xdr::Bytes;

#[derive(Clone, Copy)]
pub(crate) struct Options {
    is_deferred: bool,
    copies: bool,
}

pub(crate) const DEFAULT: Options = Options { is_deferred: false, copies: true };
pub(crate) const DEFERRED: Options = Options { is_deferred: true, copies: true };
pub(crate) const ZERO_COPY: Options = Options { is_deferred: true, copies: false };

const ENTRIES: u32 = 256;
const BUFFERS: usize = 64;
const GROUP: u16 = 0;
const LISTENER: u64 = 0;
/// In the number of an entry, beside the connection's.
const SEND: u64 = 1;

pub(crate) fn serve(listener: TcpListener, file: Bytes, options: Options) {
    thread::spawn(move || Ring::new(listener, file, options).run());
}

/// Buffers that the kernel takes.
struct Buffers {
    entries: &'static mut Entries,
    bytes: *mut [u8; RECEIVE_BYTES],
    tail: u16,
}

#[repr(C, align(4096))]
struct Entries([MaybeUninit<BufRingEntry>; BUFFERS]);

impl Buffers {
    fn new(ring: &IoUring) -> Self {
        let entries = Box::leak(Box::new(Entries([const { MaybeUninit::zeroed() }; BUFFERS])));
        let bytes = vec![[0; RECEIVE_BYTES]; BUFFERS].leak().as_mut_ptr();
        let at = std::ptr::from_mut(entries) as u64;
        // SAFETY: the entries are leaked.
        unsafe {
            ring.submitter().register_buf_ring_with_flags(at, BUFFERS as u16, GROUP, 0).unwrap()
        };
        let mut buffers = Self { entries, bytes, tail: 0 };
        (0..BUFFERS as u16).for_each(|number| buffers.give(number));
        buffers
    }

    /// The first bytes of a buffer that the kernel has filled.
    fn filled(&self, number: u16, len: usize) -> &[u8] {
        // SAFETY: the number is the kernel's answer, and it does not write to the buffer before `give`.
        unsafe { &(&*self.bytes.add(usize::from(number)))[..len] }
    }

    /// Gives a buffer to the kernel.
    fn give(&mut self, number: u16) {
        let slot = usize::from(self.tail) % BUFFERS;
        let entry = self.entries.0[slot].as_mut_ptr();
        // SAFETY: the entry was zeroed, and the kernel does not read it before the tail passes it. The tail lies in
        // the first entry, in a field that the setters leave alone.
        unsafe {
            (*entry).set_addr(self.bytes.add(usize::from(number)) as u64);
            (*entry).set_len(RECEIVE_BYTES as u32);
            (*entry).set_bid(number);
            self.tail = self.tail.wrapping_add(1);
            let tail = BufRingEntry::tail(self.entries.0.as_ptr().cast()).cast_mut();
            AtomicU16::from_ptr(tail).store(self.tail, Ordering::Release);
        }
    }
}

struct Connection {
    stream: TcpStream,
    calls: Calls,
    replies: Replies,
    sending: Replies,
    header: Box<libc::msghdr>,
    slices: Vec<libc::iovec>,
    is_open: bool,
}

struct Ring {
    ring: IoUring,
    options: Options,
    listener: TcpListener,
    file: Bytes,
    buffers: Buffers,
    connections: HashMap<u64, Connection>,
}

impl Ring {
    fn new(listener: TcpListener, file: Bytes, options: Options) -> Self {
        let mut builder = IoUring::builder();
        if options.is_deferred {
            builder.setup_single_issuer().setup_defer_taskrun();
        }
        let ring = builder.build(ENTRIES).unwrap();
        let buffers = Buffers::new(&ring);
        Self { ring, options, listener, file, buffers, connections: HashMap::new() }
    }

    fn run(mut self) {
        let accept = opcode::AcceptMulti::new(Fd(self.listener.as_raw_fd())).build();
        self.push(accept.user_data(LISTENER));
        let mut answers = Vec::new();
        loop {
            self.ring.submit_and_wait(1).unwrap();
            answers.extend(self.ring.completion().map(|a| (a.user_data(), a.result(), a.flags())));
            for &(number, result, flags) in &answers {
                match number {
                    LISTENER => self.accepted(result),
                    number if number & SEND == SEND => self.sent(number - SEND, result, flags),
                    number => self.received(number, result, flags),
                }
            }
            for (number, ..) in answers.drain(..) {
                self.send(number & !SEND);
            }
        }
    }

    fn push(&mut self, entry: squeue::Entry) {
        // SAFETY: see the module.
        unsafe { self.ring.submission().push(&entry).expect("room for an entry") };
    }

    fn accepted(&mut self, result: i32) {
        assert!(result >= 0, "accept: {result}");
        // SAFETY: the kernel's answer is a new socket.
        let stream = unsafe { TcpStream::from_raw_fd(result) };
        stream.set_nodelay(true).unwrap();
        let number = (result as u64 + 1) << 1;
        let connection = Connection {
            stream,
            calls: Calls::new(&self.file),
            replies: Replies::default(),
            sending: Replies::default(),
            // SAFETY: null pointers and zeros are an empty header.
            header: Box::new(unsafe { std::mem::zeroed() }),
            slices: Vec::new(),
            is_open: true,
        };
        self.connections.insert(number, connection);
        self.receive(number);
    }

    fn receive(&mut self, number: u64) {
        let fd = Fd(self.connections[&number].stream.as_raw_fd());
        self.push(opcode::RecvMulti::new(fd, GROUP).build().user_data(number));
    }

    fn received(&mut self, number: u64, result: i32, flags: u32) {
        let connection = self.connections.get_mut(&number).expect("a connection that receives");
        if let Some(buffer) = cqueue::buffer_select(flags) {
            let received = self.buffers.filled(buffer, result.max(0) as usize);
            connection.calls.input.extend_from_slice(received);
            self.buffers.give(buffer);
            connection.calls.answer(&mut connection.replies);
        }
        connection.is_open = result > 0 || result == -libc::ENOBUFS;
        if connection.is_open && !cqueue::more(flags) {
            self.receive(number);
        }
    }

    fn sent(&mut self, number: u64, result: i32, flags: u32) {
        let connection = self.connections.get_mut(&number).expect("a connection that sends");
        if !cqueue::notif(flags) {
            connection.sending.sent += usize::try_from(result).expect("a client that reads");
        }
        // The kernel may read what it does not copy until a second answer.
        if !cqueue::more(flags) {
            connection.slices.clear();
            connection.sending.advance(0);
        }
    }

    /// Sends the replies of a connection, unless the previous ones are being sent; removes it if it has ended.
    fn send(&mut self, number: u64) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        if !connection.slices.is_empty() {
            return;
        }
        if connection.sending.waiting.is_empty() {
            std::mem::swap(&mut connection.sending, &mut connection.replies);
        }
        let slices = connection.sending.slices().into_iter();
        connection.slices.extend(slices.map(|slice| libc::iovec {
            iov_base: slice.as_ptr().cast_mut().cast(),
            iov_len: slice.len(),
        }));
        if connection.slices.is_empty() {
            if !connection.is_open {
                self.connections.remove(&number);
            }
            return;
        }
        connection.header.msg_iov = connection.slices.as_mut_ptr();
        connection.header.msg_iovlen = connection.slices.len();
        let (fd, header) = (Fd(connection.stream.as_raw_fd()), &raw const *connection.header);
        let entry = match self.options.copies {
            true => opcode::SendMsg::new(fd, header).build(),
            false => opcode::SendMsgZc::new(fd, header).build(),
        };
        self.push(entry.user_data(number | SEND));
    }
}
