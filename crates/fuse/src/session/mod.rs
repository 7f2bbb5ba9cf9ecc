//! A session with the kernel: from the first request to the last.
//!
//! ```text
//!   kernel --request--> receive (one of a few threads) --> decode
//!                          |
//!                          |-- READ of resident pages: answered here, from the page frames
//!                          |-- FORGET, INTERRUPT: done here
//!                          `-- all else: begun here; what takes long goes on as a task
//! ```
//!
//! 1. A receiving thread waits for an operation, which saves the way through other threads, while
//!    another one waits for the kernel, and for `MOST_WAIT` at most. Then the operation goes on as a
//!    task of the runtime.
//! 2. The memory of requests is bounded: `MOST_REQUESTS` in progress, and `SPARE_BUFFERS` with large
//!    data. When there is no room, the receiving threads wait for it, and receive no interrupts: meanwhile they look
//!    for killed threads themselves.
//! 3. Waits for locks are bounded apart: an unlock must always be received.
//! 4. At most half of the requests in progress are searches for data or holes that wait for the kernel: it may have to
//!    write out what was stored through mappings, by other requests. The rest is answered without that.

pub(crate) mod buffers;
pub(crate) mod counters;
pub(crate) mod device;
pub(crate) mod notifier;
pub(crate) mod pending;
#[cfg(test)]
mod tests;

use crate::mounted::{Keeper, Mounted, Observer, Settings};
use crate::session::buffers::{Buffer, Buffers, PATIENCE, Payload};
use crate::session::counters::{Begun, Counters};
use crate::session::device::Device;
use crate::session::pending::Table;
use crate::wire::abi::{self, InitFlags};
use crate::wire::reply::Errno;
use crate::wire::request::{Op, Request, unique_of};
use std::future::Future;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tracing::{debug, error};
use weir_pagecache::CachedFs;
use weir_vfs::Capabilities;
use zerocopy::IntoBytes;

/// Most bytes of one READ or WRITE.
pub(crate) const MOST_BYTES: usize = 1 << 20;
/// Room for the arguments of a WRITE in front of its data.
const ARGUMENT_BYTES: usize = 4096;
/// Most bytes of a request.
pub(crate) const MOST_REQUEST_BYTES: usize = MOST_BYTES + ARGUMENT_BYTES;
/// Buffers for WRITEs that wait.
const SPARE_BUFFERS: usize = 32;
/// Requests in progress at a time.
pub(crate) const MOST_REQUESTS: usize = if cfg!(test) { 64 } else { 4096 };
/// Waits for locks at a time.
const MOST_LOCK_WAITS: usize = if cfg!(test) { 32 } else { 4096 };
/// Requests that the kernel makes ahead (read-ahead, asynchronous I/O) at a time.
const MOST_BACKGROUND: u16 = 64;
/// How long a receiving thread waits for one operation.
const MOST_WAIT: Duration = Duration::from_millis(10);

/// A file system that the kernel uses.
#[derive(Debug)]
pub struct Session {
    mounted: Arc<Mounted>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl Session {
    /// Answers the kernel's first request on `device`, a mounted device, and begins to serve `fs` to
    /// it with `threads` receiving threads. Operations that wait run on `runtime`.
    ///
    /// # Errors
    /// The kernel's version of the protocol is too old (Linux before 5.4), or the device fails.
    pub fn start(
        device: OwnedFd,
        fs: CachedFs,
        settings: Settings,
        threads: usize,
        runtime: Handle,
    ) -> io::Result<Self> {
        Self::observed(device, fs, settings, threads, runtime, None)
    }

    /// The same; `observer` is told what programs do.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn observed(
        device: OwnedFd,
        fs: CachedFs,
        settings: Settings,
        threads: usize,
        runtime: Handle,
        observer: Option<Arc<dyn Observer>>,
    ) -> io::Result<Self> {
        let device = Arc::new(Device::new(device));
        let threads = threads.max(2);
        let buffers = Buffers::new(MOST_REQUEST_BYTES, threads + SPARE_BUFFERS);
        negotiate(&device, &mut buffers.take(|| {}), &fs, &settings)?;
        let mounted = Arc::new(Mounted::new(fs, settings, Arc::clone(&device), observer)?);
        let receiver = Receiver {
            device,
            mounted: Arc::clone(&mounted),
            table: Arc::default(),
            permits: Arc::new(Semaphore::new(MOST_REQUESTS)),
            lock_waits: Arc::new(Semaphore::new(MOST_LOCK_WAITS)),
            receiving: Arc::default(),
            runtime,
        };
        let start = |number| {
            let (receiver, buffer) = (receiver.clone(), buffers.take(|| {}));
            let name = format!("weir-fuse-{number}");
            std::thread::Builder::new().name(name).spawn(move || receiver.run(buffer))
        };
        let threads = (0..threads).map(start).collect::<io::Result<_>>()?;
        Ok(Self { mounted, threads })
    }

    /// Waits until the file system is unmounted, and no program uses it. Returns what was moved.
    ///
    /// # Errors
    /// The file system is still mounted, but no thread receives its requests any more. Unless a guard answers them
    /// ([`crate::guard`]), programs wait until the last descriptor of the connection is closed.
    pub fn wait(self) -> io::Result<Moved> {
        let mut ended = Err(io::Error::other("a thread panicked"));
        for thread in self.threads {
            match thread.join() {
                Ok(Ok(())) => ended = Ok(()),
                Ok(Err(error)) if ended.is_err() => ended = Err(error),
                // Others have received until the end; or the thread has reported its panic.
                Ok(Err(_)) | Err(_) => {}
            }
        }
        let data = self.mounted.counters.data();
        ended.map(|()| Moved { read_bytes: data.read_bytes, written_bytes: data.written_bytes })
    }

    /// The names that hold files without a name.
    pub fn hidden_names(&self) -> HiddenNames {
        HiddenNames(Arc::clone(&self.mounted))
    }

    /// Counts what the kernel asks for.
    pub fn counters(&self) -> Counters {
        self.mounted.counters.clone()
    }
}

/// Names that a session has given, in the store, to files that programs have opened with O_TMPFILE. They are removed
/// when the file is closed.
#[derive(Debug)]
pub struct HiddenNames(Arc<Mounted>);

impl HiddenNames {
    /// Removes the names of the files that are still open, and from now on those of others as soon as they are open:
    /// for the end of a mount that programs still use, before [`CachedFs::unmount`]. What cannot be removed is logged.
    pub async fn remove(&self) {
        self.0.unhide_all().await;
    }
}

/// What programs moved through a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
}

/// Answers FUSE_INIT.
fn negotiate(
    device: &Device,
    buffer: &mut Buffer,
    fs: &CachedFs,
    settings: &Settings,
) -> io::Result<()> {
    let unsupported = |text: String| io::Error::new(io::ErrorKind::Unsupported, text);
    loop {
        let ended =
            || io::Error::new(io::ErrorKind::NotConnected, "unmounted before it was in use");
        let len = device.receive(buffer.bytes_mut())?.ok_or_else(ended)?;
        let request = Request::decode(&buffer.bytes()[..len])
            .map_err(|error| io::Error::other(format!("malformed first request: {error:?}")))?;
        let Op::Init(init) = request.op else {
            return Err(io::Error::other("the kernel's first request is not FUSE_INIT"));
        };
        let mut out = abi::InitOut { major: abi::MAJOR, minor: abi::MINOR, ..Default::default() };
        if init.major > abi::MAJOR {
            // The kernel sends the request again, in this version.
            device.send(request.unique, 0, &[IoSlice::new(out.as_bytes())])?;
            continue;
        }
        if init.major < abi::MAJOR || init.minor < abi::LEAST_MINOR {
            device.send(request.unique, -libc::EPROTO, &[])?;
            let text = format!("the kernel speaks FUSE {}.{}", init.major, init.minor);
            return Err(unsupported(format!("{text}; Linux 5.4 or later is needed")));
        }
        let offered =
            InitFlags::from_bits_truncate(u64::from(init.flags) | u64::from(init.flags2) << 32);
        let mut flags = abilities(fs.store().capabilities(), settings) & offered;
        if !offered.contains(InitFlags::INIT_EXT) {
            flags &= InitFlags::from_bits_truncate(u32::MAX.into());
        }
        debug!("FUSE {}.{}: {flags:?}", init.major, init.minor);
        out.minor = init.minor.min(abi::MINOR);
        out.max_readahead = init.max_readahead.max(MOST_BYTES as u32);
        out.flags = flags.bits() as u32;
        out.flags2 = (flags.bits() >> 32) as u32;
        out.max_background = MOST_BACKGROUND;
        out.congestion_threshold = MOST_BACKGROUND * 3 / 4;
        out.max_write = MOST_BYTES as u32;
        out.time_gran = 1;
        out.max_pages = (MOST_BYTES / 4096) as u16;
        return device.send(request.unique, 0, &[IoSlice::new(out.as_bytes())]);
    }
}

/// The abilities of this server.
fn abilities(store: Capabilities, settings: &Settings) -> InitFlags {
    let mut flags = InitFlags::ASYNC_READ
        | InitFlags::BIG_WRITES
        | InitFlags::DONT_MASK
        | InitFlags::DO_READDIRPLUS
        | InitFlags::READDIRPLUS_AUTO
        | InitFlags::ASYNC_DIO
        | InitFlags::PARALLEL_DIROPS
        | InitFlags::MAX_PAGES
        | InitFlags::CACHE_SYMLINKS
        | InitFlags::HANDLE_KILLPRIV_V2
        | InitFlags::INIT_EXT
        | InitFlags::DIRECT_IO_ALLOW_MMAP;
    // Without these, the kernel keeps the locks itself, for the programs on this mount.
    flags.set(InitFlags::POSIX_LOCKS | InitFlags::FLOCK_LOCKS, store.contains(Capabilities::LOCKS));
    // Changes by programs beside the mount show when the attributes are asked for again.
    flags.set(InitFlags::AUTO_INVAL_DATA, matches!(settings.keeper, Keeper::Window(_)));
    // The kernel checks permissions only for a mount that other users use.
    let checks_acls = settings.kernel_checks && store.contains(Capabilities::POSIX_ACL);
    flags.set(InitFlags::POSIX_ACL, checks_acls);
    flags
}

/// Receives requests.
#[derive(Clone)]
struct Receiver {
    device: Arc<Device>,
    mounted: Arc<Mounted>,
    table: Arc<Table>,
    permits: Arc<Semaphore>,
    lock_waits: Arc<Semaphore>,
    /// Threads that wait for the kernel.
    receiving: Arc<AtomicUsize>,
    runtime: Handle,
}

/// Wakes a receiving thread that waits for an operation.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl Receiver {
    /// Receives until the end of the connection.
    ///
    /// # Errors
    /// The device fails.
    fn run(self, mut buffer: Buffer) -> io::Result<()> {
        let _within = self.runtime.enter();
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        loop {
            self.receiving.fetch_add(1, Ordering::Relaxed);
            let received = self.device.receive(buffer.bytes_mut());
            self.receiving.fetch_sub(1, Ordering::Relaxed);
            match received {
                Ok(Some(len)) => self.handle(&waker, &mut buffer, len),
                Ok(None) => return Ok(()),
                Err(error) => {
                    error!("cannot receive from the FUSE device: {error}");
                    return Err(error);
                }
            }
        }
    }

    fn handle(&self, waker: &Waker, buffer: &mut Buffer, len: usize) {
        let at = Instant::now();
        let request = match Request::decode(&buffer.bytes()[..len]) {
            Ok(request) => request,
            Err(malformed) => {
                error!("the kernel sent a malformed request: {malformed:?}");
                if let Some(unique) = unique_of(&buffer.bytes()[..len]) {
                    let _ = self.device.send(unique, -libc::EIO, &[]);
                }
                return;
            }
        };
        let begun = Begun { opcode: request.opcode, received: len, at };
        match &request.op {
            Op::Forget(nodes) => self.mounted.forget(nodes),
            Op::Destroy => {}
            Op::Interrupt { unique } => self.interrupt(request.unique, *unique),
            Op::Read(args) => {
                match self.mounted.read_resident(&self.device, request.unique, args) {
                    Some(sent) => self.mounted.counters.done(&begun, sent),
                    None => self.begin(waker, request, buffer, begun),
                }
                return;
            }
            _ => return self.begin(waker, request, buffer, begun),
        }
        self.mounted.counters.done(&begun, 0);
    }

    fn begin(&self, waker: &Waker, request: Request, buffer: &mut Buffer, begun: Begun) {
        // The kernel sends a release by flock(2) or F_SETLKW as SETLKW, too.
        let waits_for_lock = matches!(&request.op, Op::Setlk { args, wait: true }
            if args.kind.cast_signed() != libc::F_UNLCK);
        let (is_flush, unique) = (matches!(request.op, Op::Flush { .. }), request.unique);
        let reply = self.table.enter(&self.device, request.unique, request.from, waits_for_lock);
        let data = match &request.op {
            Op::Write { data, .. } => {
                Some(Payload::take(buffer, data.clone(), || self.table.end_killed()))
            }
            _ => None,
        };
        let permit = match waits_for_lock {
            true => Arc::clone(&self.lock_waits).try_acquire_owned().ok(),
            false => self.permit(),
        };
        let Some(permit) = permit else {
            self.mounted.counters.failed(&begun);
            let _ = reply.fail(Errno(libc::ENOLCK));
            return;
        };
        let mounted = Arc::clone(&self.mounted);
        let goes_on = self.drive(waker, async move {
            mounted.serve(request, data, reply, begun).await;
            drop(permit);
        });
        if goes_on
            && is_flush
            && let Some(pending) = self.table.find(unique)
        {
            self.runtime.spawn(pending.end_with_thread());
        }
    }

    /// Room for a request; waits for it.
    fn permit(&self) -> Option<OwnedSemaphorePermit> {
        loop {
            if let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() {
                return Some(permit);
            }
            let permit = Arc::clone(&self.permits).acquire_owned();
            match self.runtime.block_on(async { timeout(PATIENCE, permit).await }) {
                Ok(permit) => return permit.ok(),
                Err(_) => self.table.end_killed(),
            }
        }
    }

    /// Does the work here while another thread receives, for [`MOST_WAIT`] at most, and leaves the
    /// rest to the runtime. Returns whether there is a rest. A panic ends the work alone, as it does
    /// there.
    fn drive(&self, waker: &Waker, work: impl Future<Output = ()> + Send + 'static) -> bool {
        let mut work: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(work);
        let mut until = None;
        loop {
            let mut poll = || work.as_mut().poll(&mut Context::from_waker(waker));
            match catch_unwind(AssertUnwindSafe(&mut poll)) {
                Ok(Poll::Ready(())) => return false,
                Ok(Poll::Pending) => {}
                Err(_) => {
                    error!("a request failed by a panic; its program gets an I/O error");
                    return false;
                }
            }
            let now = Instant::now();
            let left = until.get_or_insert(now + MOST_WAIT).saturating_duration_since(now);
            if left.is_zero() || self.receiving.load(Ordering::Relaxed) == 0 {
                drop(self.runtime.spawn(work));
                return true;
            }
            std::thread::park_timeout(left);
        }
    }

    fn interrupt(&self, own: u64, unique: u64) {
        match self.table.find(unique) {
            Some(pending) => drop(self.runtime.spawn(pending.interrupt())),
            // Not entered yet: the kernel sends the interrupt again. Answered: it ignores this.
            None => drop(self.device.send(own, -libc::EAGAIN, &[])),
        }
    }
}
