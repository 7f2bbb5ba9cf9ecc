//! The runtime of a command.
//!
//! One thread of a tokio runtime waits for sockets and timers. When an event comes, the thread executes the task
//! that the event wakes, and no other thread waits meanwhile, unless there is work for it, too. A local store makes its
//! metadata calls on the calling thread. So a single call that a slow or dead disk holds up could stop all
//! connections. A thread of its own, `weir-attend`, prevents that: it looks at the runtime's threads, and when one has
//! not slept for a while, it gives the runtime a task that does nothing. The thread that executes this task waits for
//! sockets afterwards. One task may still wait for a thread that is held up: the last that this thread has woken, which
//! tokio lets no other thread execute.

use std::convert::Infallible;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;
use tokio::runtime::{Builder, Handle, Runtime};
use weir_tools::failure::{Asked, Result};

/// How often `weir-attend` looks, while tasks are executed and while none are.
const LOOK: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(100));

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
    let runtime = builder.worker_threads(threads).enable_all().build();
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
}
