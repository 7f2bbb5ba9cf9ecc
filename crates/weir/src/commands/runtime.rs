//! The runtime of a command.
//!
//! A local store makes its metadata calls on the calling thread, and a slow or dead disk can hold each of them up. Two
//! things keep them from stopping what else the runtime does:
//!
//! 1. A quarter of the runtime's threads keep out of such calls. A thread that would be one too many hands its other
//!    work to a further thread first ([`in_place`]), which takes some ten microseconds.
//! 2. One thread of a tokio runtime waits for sockets and timers. When an event comes, the thread executes the task
//!    that the event wakes, and no other thread waits meanwhile, unless there is work for it, too. So one call could
//!    stop all connections. A thread of its own, `weir-attend`, looks at the runtime's threads, and when one has not
//!    slept for a while, it gives the runtime a task that does nothing. The thread that executes this task waits for
//!    sockets afterwards.
//!
//! One task may still wait for a thread that is held up: the last that this thread has woken, which tokio lets no other
//! thread execute.

use std::cell::Cell;
use std::convert::Infallible;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;
use tokio::runtime::{Builder, Handle, Runtime};
use weir_tools::failure::{Asked, Result};

/// How often `weir-attend` looks, while tasks are executed and while none are.
const LOOK: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(100));

/// Most threads besides the runtime's own: those that calls hold up, mostly.
const FURTHER_THREADS: usize = 8192;

/// A runtime with the default number of threads.
pub(crate) fn runtime() -> Result<Runtime> {
    runtime_with(None)
}

/// A runtime with `threads` threads, or the default number.
pub(crate) fn runtime_with(threads: Option<NonZeroUsize>) -> Result<Runtime> {
    // At least four: calls of a store block some of them.
    let usual = || std::thread::available_parallelism().map_or(4, |n| n.get().max(4));
    let threads = threads.map_or_else(usual, NonZeroUsize::get);
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(threads).max_blocking_threads(FURTHER_THREADS).enable_all();
    let runtime = builder.on_thread_start(move || THREADS.set(threads)).build();
    let runtime = runtime.asked(|| "start threads".into())?;
    if threads > 1 {
        let (alive, ended) = channel();
        runtime.spawn(async move {
            let _alive = alive;
            std::future::pending::<()>().await
        });
        let handle = runtime.handle().clone();
        let thread = std::thread::Builder::new().name("weir-attend".into());
        let attending = thread.spawn(move || attend(&handle, &ended));
        attending.asked(|| "start threads".into())?;
    }
    Ok(runtime)
}

thread_local! {
    /// How many threads the runtime has to which this thread belongs.
    static THREADS: Cell<usize> = const { Cell::new(0) };
}

/// Makes a call that may hold its thread up (see [`InPlace`](weir_stores::local::InPlace)).
pub(crate) fn in_place(call: &mut dyn FnMut()) {
    /// Threads of the runtime that are in calls and have not handed on their other work.
    static HELD: AtomicUsize = AtomicUsize::new(0);
    struct Held;
    impl Drop for Held {
        fn drop(&mut self) {
            HELD.fetch_sub(1, Ordering::AcqRel);
        }
    }
    let threads = THREADS.get();
    if threads == 0 {
        // No thread of a runtime.
        return call();
    }
    let before = HELD.fetch_add(1, Ordering::AcqRel);
    let held = Held;
    if before < threads - (threads / 4).max(1) {
        return call();
    }
    drop(held);
    tokio::task::block_in_place(call);
}

/// Keeps a thread at the sockets and timers, until the runtime has ended.
fn attend(runtime: &Handle, ended: &Receiver<Infallible>) {
    let metrics = runtime.metrics();
    let look = || (0..metrics.num_workers()).map(|worker| metrics.worker_park_unpark_count(worker));
    let mut before = Vec::new();
    let asked = Arc::new(AtomicBool::new(false));
    let mut wait = LOOK.1;
    while ended.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
        let now: Vec<u64> = look().collect();
        // The count of a thread that executes tasks is even.
        let executes = |count: &u64| count.is_multiple_of(2);
        let is_stuck = |(now, before): (&u64, &u64)| executes(now) && now == before;
        if now.iter().zip(&before).any(is_stuck) && !asked.swap(true, Ordering::AcqRel) {
            let asked = asked.clone();
            runtime.spawn(async move { asked.store(false, Ordering::Release) });
        }
        wait = if now.iter().any(executes) { LOOK.0 } else { LOOK.1 };
        before = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    /// Two connections: a task of the first blocks its thread when it has received a byte, one of the second answers.
    fn pair(runtime: &Runtime, blocks: Receiver<Infallible>) -> [TcpStream; 2] {
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let [mut blocked, answering] = [(); 2].map(|()| {
            let client = TcpStream::connect(address).unwrap();
            client.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            let (server, _) = runtime.block_on(listener.accept()).unwrap();
            (client, server)
        });
        runtime.spawn(async move {
            let byte = blocked.1.read_u8().await.unwrap();
            blocked.1.write_u8(byte).await.unwrap();
            _ = blocks.recv();
        });
        let (client, mut server) = answering;
        runtime.spawn(async move {
            let byte = server.read_u8().await.unwrap();
            server.write_u8(byte).await.unwrap();
        });
        [blocked.0, client]
    }

    fn echoes(mut connection: &TcpStream) -> bool {
        connection.write_all(&[7]).unwrap();
        connection.read_exact(&mut [0]).is_ok()
    }

    #[test]
    fn a_call_that_blocks_its_thread_does_not_stop_other_connections() {
        let runtime = runtime().unwrap();
        let (release, blocks) = channel();
        let [blocked, other] = pair(&runtime, blocks);
        // Until the tasks wait for their sockets, a thread may have work besides.
        let metrics = runtime.metrics();
        let idle = |worker| !metrics.worker_park_unpark_count(worker).is_multiple_of(2);
        while !(0..metrics.num_workers()).all(idle) {
            std::thread::yield_now();
        }
        assert!(echoes(&blocked), "and blocks its thread from now on");
        assert!(echoes(&other), "no thread waits for sockets");
        drop(release);
    }

    #[test]
    fn more_calls_than_there_are_threads_do_not_stop_other_tasks() {
        const CALLS: usize = 64;
        let runtime = runtime().unwrap();
        let (begins, begun) = channel();
        let mut releases = Vec::new();
        for _ in 0..CALLS {
            let (begins, (release, blocks)) = (begins.clone(), channel::<Infallible>());
            releases.push(release);
            runtime.spawn(async move {
                in_place(&mut || {
                    begins.send(()).unwrap();
                    _ = blocks.recv();
                });
            });
        }
        for made in 0..CALLS {
            let begins = begun.recv_timeout(Duration::from_secs(60));
            assert!(begins.is_ok(), "{made} calls hold all threads");
        }
        let (tx, other) = channel();
        runtime.spawn(async move { tx.send(()) });
        assert!(other.recv_timeout(Duration::from_secs(60)).is_ok());
        drop(releases);
    }
}
