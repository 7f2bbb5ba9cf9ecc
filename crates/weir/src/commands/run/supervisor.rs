//! The threads that look at opens before the kernel carries them out.
//!
//! ```text
//!   the command:  open ---------- waits ----------------------------> the kernel opens the file
//!   receiver:            Call --> calls                     ^
//!   lookers:                        look (Files::look) -----+ go on
//!   rounds:       every 100 ms: Files::round
//! ```
//!
//! 1. Each call is answered: by the looker that has looked, or by the receiver when a look takes too long (a
//!    file system may hang, or be served by the command itself).
//! 2. A call is answered once: by the thread that removes it from `waiting`.
//! 3. The listener is closed when the receiver ends, although a look may hang: if it ends too early, the command's
//!    opens fail rather than wait for ever.

use super::files::Files;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use weir_tools::opens::{Call, Event, Listener};

/// Threads that look at opens.
const LOOKERS: usize = 4;
/// Longest time that a command's open waits.
const MOST_WAIT: Duration = Duration::from_millis(500);
/// Time between rounds; longer if a round takes more than a tenth of it.
const ROUND: Duration = Duration::from_millis(100);
/// Most that a round's length delays the next one.
const MOST_ROUND: Duration = Duration::from_secs(2);

/// The running threads.
pub(super) struct Supervisor {
    receiver: JoinHandle<io::Result<()>>,
    rounds: JoinHandle<()>,
    lookers: Vec<JoinHandle<()>>,
    is_over: Arc<AtomicBool>,
}

struct Shared {
    /// Belongs to the receiver (3).
    listener: Weak<Listener>,
    files: Arc<Files>,
    /// The calls that are not answered, and since when.
    waiting: Mutex<HashMap<u64, Instant>>,
}

impl Supervisor {
    /// Starts to answer calls.
    pub(super) fn start(listener: Listener, files: &Arc<Files>) -> io::Result<Self> {
        let listener = Arc::new(listener);
        let shared = Arc::new(Shared::new(&listener, files));
        let (calls, queue) = channel();
        let queue = Arc::new(Mutex::new(queue));
        let looker = |_| {
            let (shared, queue) = (Arc::clone(&shared), Arc::clone(&queue));
            thread("weir-look", move || look(&shared, &queue))
        };
        let lookers = (0..LOOKERS).map(looker).collect::<io::Result<_>>()?;
        let is_over = Arc::new(AtomicBool::new(false));
        let (watched, over) = (Arc::clone(files), Arc::clone(&is_over));
        let rounds = thread("weir-rounds", move || make_rounds(&watched, &over))?;
        let receiver = thread("weir-opens", move || receive(listener, &shared, &calls))?;
        Ok(Self { receiver, rounds, lookers, is_over })
    }

    /// Waits until the last process of the command has ended.
    ///
    /// # Errors
    /// Opens are received no more, so later ones have failed.
    pub(super) fn wait(self) -> io::Result<()> {
        let panicked = |_| Err(io::Error::other("a thread panicked"));
        let received = self.receiver.join().unwrap_or_else(panicked);
        // The lookers end with the queue, but a look may hang.
        let since = Instant::now();
        while self.lookers.iter().any(|thread| !thread.is_finished()) && since.elapsed() < MOST_WAIT
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.is_over.store(true, Ordering::Release);
        self.rounds.thread().unpark();
        let _ = self.rounds.join();
        received
    }
}

fn thread<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    std::thread::Builder::new().name(name.into()).spawn(work)
}

/// Receives calls until no process is left that makes any.
///
/// # Errors
/// The listener is broken. The command's opens then fail with ENOSYS.
fn receive(listener: Arc<Listener>, shared: &Shared, calls: &Sender<Call>) -> io::Result<()> {
    loop {
        match listener.next(ROUND) {
            Ok(Event::Call(call)) => {
                shared.waiting.lock().insert(call.id, Instant::now());
                if calls.send(call).is_err() {
                    shared.answer(call.id);
                }
            }
            Ok(Event::Nothing) => {}
            Ok(Event::End) => return Ok(()),
            Err(error) => {
                tracing::error!(%error, "cannot receive opens");
                return Err(error);
            }
        }
        shared.answer_late();
    }
}

impl Shared {
    fn new(listener: &Arc<Listener>, files: &Arc<Files>) -> Self {
        let (listener, files) = (Arc::downgrade(listener), Arc::clone(files));
        Self { listener, files, waiting: Mutex::default() }
    }

    /// Whether a call still waits for its answer.
    fn is_valid(&self, id: u64) -> bool {
        self.listener.upgrade().is_some_and(|listener| listener.is_waiting(id))
    }

    /// Lets a call go on, unless that was done. Returns whether this did it.
    fn answer(&self, id: u64) -> bool {
        let is_waiting = self.waiting.lock().remove(&id).is_some();
        if is_waiting && let Some(listener) = self.listener.upgrade() {
            listener.go_on(id);
        }
        is_waiting
    }

    /// Lets calls go on whose look takes too long.
    fn answer_late(&self) {
        let is_late = |since: &Instant| since.elapsed() > MOST_WAIT;
        let late: Vec<u64> = {
            let waiting = self.waiting.lock();
            waiting.iter().filter(|(_, since)| is_late(since)).map(|(id, _)| *id).collect()
        };
        for id in late {
            if self.answer(id) {
                self.files.missed();
            }
        }
    }
}

fn look(shared: &Shared, queue: &Mutex<Receiver<Call>>) {
    loop {
        let next = queue.lock().recv();
        let Ok(call) = next else { return };
        if !shared.waiting.lock().contains_key(&call.id) {
            continue;
        }
        let created = shared.files.look(&call, || shared.is_valid(call.id));
        shared.answer(call.id);
        // The file appears when the call goes on.
        if let Some(created) = created {
            shared.files.look_for(created);
        }
    }
}

fn make_rounds(files: &Files, is_over: &AtomicBool) {
    let mut pause = ROUND;
    while !is_over.load(Ordering::Acquire) {
        std::thread::park_timeout(pause);
        let since = Instant::now();
        files.round();
        pause = (since.elapsed() * 10).clamp(ROUND, MOST_ROUND);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_listener_that_breaks_is_not_taken_for_the_end_of_the_command() {
        let files = Arc::new(Files::new(Vec::new(), 0, None));
        // It is always readable, and no call can be received from it.
        let listener = match Listener::new(std::fs::File::open("/dev/zero").unwrap().into()) {
            Ok(listener) => listener,
            Err(error) => return weir_skip::skip(format!("no seccomp listeners: {error}")),
        };
        let error = Supervisor::start(listener, &files).unwrap().wait().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::NOTTY.raw_os_error()));
    }

    #[test]
    fn a_listener_that_breaks_is_closed_although_a_look_hangs() {
        let (end, mut other) = UnixStream::pair().unwrap();
        other.write_all(b"no call").unwrap();
        let listener = match Listener::new(end.into()) {
            Ok(listener) => Arc::new(listener),
            Err(error) => return weir_skip::skip(format!("no seccomp listeners: {error}")),
        };
        let files = Arc::new(Files::new(Vec::new(), 0, None));
        // As a looker has it.
        let hanging = Arc::new(Shared::new(&listener, &files));
        let (calls, _queue) = channel();
        assert!(receive(listener, &hanging, &calls).is_err());
        // The bytes that were not read make it a reset.
        let read = other.read(&mut [0]);
        assert!(read.is_err() || matches!(read, Ok(0)), "{read:?}");
        assert!(!hanging.is_valid(1));
    }
}
