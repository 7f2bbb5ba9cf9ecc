//! Transfers through io_uring: one thread owns the ring, takes queued transfers, submits them in
//! batches and calls back.
//!
//! Sound because an entry's memory (its vectors and what they point to) is kept in `in_flight`
//! until the kernel has answered it, and the ring is used by its own thread only.

use super::{Next, Progress};
use crate::local::credentials::write_unprivileged;
use io_uring::{IoUring, opcode, squeue, types};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

/// Entries submitted together, and half of the most in flight; more wait in the queue.
const ENTRIES: u32 = 256;
const MAX_IN_FLIGHT: usize = 2 * ENTRIES as usize;
/// Marks completion of the poll through which other threads wake the ring's thread.
const WAKE: u64 = u64::MAX;

/// A ring and its thread.
pub(super) struct Uring {
    shared: Arc<Shared>,
    thread: Option<std::thread::JoinHandle<()>>,
}

struct Shared {
    queue: Mutex<Queue>,
    wake: OwnedFd,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<Progress>,
    /// The ring's thread sleeps, or is about to, and needs a wake-up.
    asleep: bool,
    stopping: bool,
}

impl Uring {
    /// Starts a ring.
    ///
    /// # Errors
    /// The kernel refuses a ring, or the operations needed.
    pub(super) fn start() -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Arc::new(Shared { queue: Mutex::default(), wake });
        let (tx, rx) = std::sync::mpsc::channel();
        let ring_shared = shared.clone();
        // The thread that uses the ring creates it: the kernel then needs no locks around it.
        let thread = std::thread::Builder::new().name("weir-ring".into()).spawn(move || {
            // Before the ring is created, whose kernel threads inherit from this one.
            write_unprivileged();
            match new_ring() {
                Ok(ring) => {
                    // The starter waits for this answer.
                    let _ = tx.send(Ok(()));
                    Ring::new(ring, ring_shared).serve();
                }
                Err(error) => {
                    let _ = tx.send(Err(error));
                }
            }
        })?;
        rx.recv().map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))??;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Queues a transfer.
    pub(super) fn submit(&self, progress: Progress) {
        let mut queue = self.shared.queue.lock();
        queue.waiting.push(progress);
        if std::mem::take(&mut queue.asleep) {
            drop(queue);
            self.shared.wake();
        }
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        self.shared.queue.lock().stopping = true;
        self.shared.wake();
        // The last owner may be a callback on the ring's own thread.
        match self.thread.take() {
            Some(thread) if thread.thread().id() != std::thread::current().id() => {
                // It does not panic: callbacks end alone.
                let _ = thread.join();
            }
            _ => {}
        }
    }
}

impl Shared {
    fn wake(&self) {
        // Fails only if the counter is full, that is, if a wake-up is pending.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

fn new_ring() -> io::Result<IoUring> {
    let ring = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .build(ENTRIES)
        // Kernels before 6.1.
        .or_else(|_| IoUring::new(ENTRIES))?;
    let mut probe = io_uring::Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    let needed =
        [opcode::Readv::CODE, opcode::Writev::CODE, opcode::Read::CODE, opcode::Write::CODE];
    if needed.iter().all(|&code| probe.is_supported(code)) {
        Ok(ring)
    } else {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// The state of the ring's thread.
struct Ring {
    ring: IoUring,
    shared: Arc<Shared>,
    /// By `user_data`: transfers without the kernel's answer, with the flags of the attempt.
    in_flight: Vec<Option<(Progress, i32)>>,
    free: Vec<usize>,
    /// Taken from the queue, but not in flight yet.
    backlog: VecDeque<Progress>,
    wake_armed: bool,
}

impl Ring {
    fn new(ring: IoUring, shared: Arc<Shared>) -> Self {
        Self {
            ring,
            shared,
            in_flight: (0..MAX_IN_FLIGHT).map(|_| None).collect(),
            free: (0..MAX_IN_FLIGHT).rev().collect(),
            backlog: VecDeque::new(),
            wake_armed: false,
        }
    }

    fn serve(mut self) {
        loop {
            let stopping = self.take_queue();
            self.fill();
            let idle = self.free.len() == MAX_IN_FLIGHT && self.backlog.is_empty();
            if stopping && idle {
                return;
            }
            self.arm_wake();
            let sleep = self.may_sleep();
            self.enter(usize::from(sleep));
            self.reap();
        }
    }

    /// Takes the queued transfers; returns whether the ring is to stop.
    fn take_queue(&mut self) -> bool {
        let mut queue = self.shared.queue.lock();
        queue.asleep = false;
        self.backlog.extend(queue.waiting.drain(..));
        queue.stopping
    }

    /// Whether the queue is still empty; if so, the next `submit` wakes this thread.
    fn may_sleep(&self) -> bool {
        let mut queue = self.shared.queue.lock();
        queue.asleep = queue.waiting.is_empty() && !queue.stopping;
        queue.asleep || (queue.stopping && self.free.len() < MAX_IN_FLIGHT)
    }

    /// Submits as much of the backlog as there is room for.
    fn fill(&mut self) {
        while !self.free.is_empty()
            && let Some(progress) = self.backlog.pop_front()
            && let Some(slot) = self.free.pop()
        {
            let flags = progress.flags();
            let entry = entry(&progress, flags).user_data(slot as u64);
            self.in_flight[slot] = Some((progress, flags));
            self.push(&entry);
        }
    }

    fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: `in_flight` keeps what the entry points to until the kernel's answer.
        while unsafe { self.ring.submission().push(entry) }.is_err() {
            self.enter(0);
        }
    }

    /// Keeps a poll of the wake-up descriptor in flight; it writes to no memory.
    fn arm_wake(&mut self) {
        if !self.wake_armed {
            let wake = types::Fd(self.shared.wake.as_raw_fd());
            let entry = opcode::PollAdd::new(wake, libc::POLLIN as u32).build().user_data(WAKE);
            self.push(&entry);
            self.wake_armed = true;
        }
    }

    fn enter(&mut self, wait_for: usize) {
        if let Err(error) = self.ring.submit_and_wait(wait_for)
            && !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EBUSY | libc::EAGAIN))
        {
            // Transfers in flight write to memory that can no longer be freed.
            tracing::error!(%error, "io_uring fails");
            std::process::abort();
        }
    }

    /// Handles completions.
    fn reap(&mut self) {
        loop {
            // One by one: a callback must not run while the completion queue is borrowed.
            let Some(answer) = self.ring.completion().next() else { return };
            if answer.user_data() == WAKE {
                self.wake_armed = false;
                // Resets the counter; an empty one is fine.
                let _ = rustix::io::read(&self.shared.wake, &mut [0u8; 8]);
                continue;
            }
            let slot = answer.user_data() as usize;
            if let Some((progress, flags)) = self.in_flight.get_mut(slot).and_then(Option::take) {
                self.free.push(slot);
                if let Next::Again(progress) = progress.answered(answer.result(), flags) {
                    self.backlog.push_back(progress);
                }
            }
        }
    }
}

fn entry(progress: &Progress, flags: i32) -> squeue::Entry {
    let transfer = &progress.transfer;
    let (fd, offset) = (types::Fd(transfer.file.as_raw_fd()), transfer.offset);
    let vectors = transfer.vectors.as_slice();
    match (vectors, transfer.write) {
        ([one], false) => opcode::Read::new(fd, one.iov_base.cast(), one.iov_len as u32)
            .offset(offset)
            .rw_flags(flags)
            .build(),
        ([one], true) => opcode::Write::new(fd, one.iov_base.cast(), one.iov_len as u32)
            .offset(offset)
            .rw_flags(flags)
            .build(),
        (many, false) => opcode::Readv::new(fd, many.as_ptr(), many.len() as u32)
            .offset(offset)
            .rw_flags(flags)
            .build(),
        (many, true) => opcode::Writev::new(fd, many.as_ptr(), many.len() as u32)
            .offset(offset)
            .rw_flags(flags)
            .build(),
    }
}
