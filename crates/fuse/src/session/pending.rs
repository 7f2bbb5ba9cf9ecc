//! Requests that are not answered yet.
//!
//! 1. Each request is answered once: by its operation, or before that because its thread is killed
//!    or stops waiting for a lock.
//! 2. An operation whose request was answered without it runs to its end all the same: what it does
//!    may be half done, and a file system must not be left so. It undoes what only an answer would
//!    hand over (a use of a node, an open file). Waiting for a lock is the exception: it ends.
//!    A killed process closes its files; the kernel does not interrupt the FLUSHes of these, so this
//!    side looks whether the thread exits by a signal ([`Pending::end_with_thread`]).
//! 3. A reply that is dropped unanswered, as after a panic, is an I/O error: no thread waits for ever.

use crate::session::device::Device;
use crate::wire::reply::Errno;
use crate::wire::request::Requester;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tracing::debug;

/// How long a thread with a signal waits if the signal may or may not be deadly.
const UNKNOWN_THREAD_WAITS: Duration = Duration::from_secs(5);
/// Between two looks at a thread.
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Parts of the table, each with its own lock.
const SHARDS: usize = 16;

/// The unanswered requests, by number.
#[derive(Debug, Default)]
pub(crate) struct Table {
    shards: [Mutex<HashMap<u64, Arc<Pending>>>; SHARDS],
}

/// A request that is not answered yet.
#[derive(Debug)]
pub(crate) struct Pending {
    unique: u64,
    device: Arc<Device>,
    from: Requester,
    waits_for_lock: bool,
    answered: AtomicBool,
    given_up: Notify,
}

/// The one reply to a request.
#[derive(Debug)]
pub(crate) struct Reply {
    pending: Arc<Pending>,
    table: Arc<Table>,
}

/// The request was answered already, or the kernel waits no more.
#[derive(Debug)]
pub(crate) struct Unwanted;

impl Table {
    fn shard(&self, unique: u64) -> &Mutex<HashMap<u64, Arc<Pending>>> {
        // Requests have even numbers.
        &self.shards[(unique >> 1) as usize % SHARDS]
    }

    /// Enters a request.
    pub(crate) fn enter(
        self: &Arc<Self>,
        device: &Arc<Device>,
        unique: u64,
        from: Requester,
        waits_for_lock: bool,
    ) -> Reply {
        let pending = Arc::new(Pending {
            unique,
            device: Arc::clone(device),
            from,
            waits_for_lock,
            answered: AtomicBool::new(false),
            given_up: Notify::new(),
        });
        self.shard(unique).lock().insert(unique, Arc::clone(&pending));
        Reply { pending, table: Arc::clone(self) }
    }

    /// The unanswered request with this number.
    pub(crate) fn find(&self, unique: u64) -> Option<Arc<Pending>> {
        self.shard(unique).lock().get(&unique).cloned()
    }
}

impl Pending {
    /// Answers it, unless it is answered.
    fn answer(&self, error: i32, parts: &[IoSlice<'_>]) -> Result<(), Unwanted> {
        if self.answered.swap(true, Ordering::AcqRel) {
            return Err(Unwanted);
        }
        self.device.send(self.unique, error, parts).map_err(|error| {
            debug!("the kernel does not take the reply to request {}: {error}", self.unique);
            Unwanted
        })
    }

    /// Its thread got a signal. Answers at once if it waits for a lock; otherwise only if the thread is
    /// killed: an operation on a file system is not interrupted by other signals.
    pub(crate) async fn interrupt(self: Arc<Self>) {
        let since = Instant::now();
        let mut pause = SHORTEST_PAUSE;
        while !self.answered.load(Ordering::Acquire) {
            let is_killed = || match is_killed(self.from.pid) {
                Some(is_killed) => is_killed,
                None => since.elapsed() >= UNKNOWN_THREAD_WAITS,
            };
            if self.waits_for_lock || is_killed() {
                return self.give_up();
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

impl Pending {
    /// Answers it when its thread exits by a signal.
    pub(crate) async fn end_with_thread(self: Arc<Self>) {
        let mut pause = SHORTEST_PAUSE;
        while !self.answered.load(Ordering::Acquire) {
            if exits_by_signal(self.from.pid) {
                return self.give_up();
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn give_up(&self) {
        let _ = self.answer(-libc::EINTR, &[]);
        self.given_up.notify_one();
    }
}

impl Reply {
    /// Success, with these bytes.
    ///
    /// # Errors
    /// Nothing was handed over.
    pub(crate) fn send(self, parts: &[IoSlice<'_>]) -> Result<(), Unwanted> {
        self.pending.answer(0, parts)
    }

    /// Failure.
    pub(crate) fn fail(self, errno: Errno) {
        let _ = self.pending.answer(-errno.0, &[]);
    }

    /// Waits until the request is answered without its operation.
    pub(crate) async fn given_up(&self) {
        self.pending.given_up.notified().await;
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.table.shard(self.pending.unique).lock().remove(&self.pending.unique);
        if !self.pending.answered.load(Ordering::Acquire) {
            let _ = self.pending.answer(-libc::EIO, &[]);
        }
    }
}

/// Whether SIGKILL is pending for thread `pid`: the kernel turns every deadly signal into it. `None` for a
/// thread that cannot be asked, as it is in another namespace.
fn is_killed(pid: u32) -> Option<bool> {
    const KILL: u64 = 1 << (libc::SIGKILL - 1);
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let pending = |line: &str| {
        let hex = line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"))?;
        u64::from_str_radix(hex.trim(), 16).ok()
    };
    Some(status.lines().filter_map(pending).any(|signals| signals & KILL != 0))
}

/// Whether thread `pid` is ending because of a signal. Source: proc_pid_stat(5); PF_EXITING of Linux.
fn exits_by_signal(pid: u32) -> bool {
    // Counted from the state, which is the first field after the name.
    const FLAGS: usize = 6;
    const EXIT_CODE: usize = 49;
    const EXITING: u64 = 4;
    const SIGNAL: u64 = 0x7f;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let Some((_, fields)) = stat.rsplit_once(") ") else { return false };
    let fields: Vec<_> = fields.split_whitespace().collect();
    let field = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    field(FLAGS) & EXITING != 0 && field(EXIT_CODE) & SIGNAL != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn only_an_end_by_a_signal_is_one() {
        assert!(!exits_by_signal(std::process::id()));
        for (script, by_signal) in [("exit 9", false), ("kill -9 $$", true)] {
            let mut child = Command::new("sh").args(["-c", script]).spawn().unwrap();
            // It stays in the table until it is waited for.
            let stat = format!("/proc/{}/stat", child.id());
            while !std::fs::read_to_string(&stat).unwrap().contains(") Z ") {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(exits_by_signal(child.id()), by_signal, "{script}");
            child.wait().unwrap();
        }
        assert!(!exits_by_signal(0));
    }
}
