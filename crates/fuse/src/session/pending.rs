//! Requests that are not answered yet.
//!
//! 1. Each request is answered once: by its operation, or before that because its thread is killed.
//! 2. An operation whose request was answered without it runs to its end all the same: what it does
//!    may be half done, and a file system must not be left so. It undoes what only an answer would
//!    hand over (a use of a node, an open file, a lock). Waiting for a lock is the exception: any
//!    signal ends it, and then the operation answers.
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

/// How long a thread with a signal waits if the signal may or may not be deadly.
const UNKNOWN_THREAD_WAITS: Duration = Duration::from_millis(if cfg!(test) { 50 } else { 5000 });
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

    /// Answers the requests of threads that are killed: while all receiving threads wait for room, the kernel's
    /// interrupts are not received.
    pub(crate) fn end_killed(&self) {
        for shard in &self.shards {
            let pending: Vec<_> = shard.lock().values().cloned().collect();
            pending.iter().filter(|one| one.is_of_killed_thread()).for_each(|one| one.give_up());
        }
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
        self.device.reply(self.unique, error, parts).map_err(|_| Unwanted)
    }

    /// Its thread got a signal. Ends its wait for a lock. Otherwise answers only if the thread is
    /// killed: an operation on a file system is not interrupted by other signals.
    pub(crate) async fn interrupt(self: Arc<Self>) {
        if self.waits_for_lock {
            self.given_up.notify_one();
        }
        let since = Instant::now();
        let mut pause = SHORTEST_PAUSE;
        while !self.answered.load(Ordering::Acquire) {
            let is_killed = || match is_killed(self.from.pid) {
                Some(is_killed) => is_killed,
                None => since.elapsed() >= UNKNOWN_THREAD_WAITS,
            };
            if is_killed() {
                return self.give_up();
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Answers it when its thread exits by a signal.
    pub(crate) async fn end_with_thread(self: Arc<Self>) {
        let mut pause = SHORTEST_PAUSE;
        let mut exits_since = None;
        while !self.answered.load(Ordering::Acquire) {
            match Ending::of(self.from.pid) {
                Ending::BySignal => return self.give_up(),
                // An exiting thread gets no error any more; it waits for its data alone.
                Ending::Unknown => {
                    let since = *exits_since.get_or_insert_with(Instant::now);
                    if since.elapsed() >= UNKNOWN_THREAD_WAITS {
                        return self.give_up();
                    }
                }
                Ending::No | Ending::ByItself => {}
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Whether its thread is known to be killed.
    fn is_of_killed_thread(&self) -> bool {
        let pid = self.from.pid;
        pid != 0 && (is_killed(pid) == Some(true) || Ending::of(pid) == Ending::BySignal)
    }

    fn give_up(&self) {
        // The kernel interrupts no request that is answered.
        if self.waits_for_lock {
            self.given_up.notify_one();
        }
        let _ = self.answer(-libc::EINTR, &[]);
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
    ///
    /// # Errors
    /// The request was answered already.
    pub(crate) fn fail(self, errno: Errno) -> Result<(), Unwanted> {
        self.pending.answer(-errno.0, &[])
    }

    /// Waits until a signal ends the request's wait for a lock.
    pub(crate) async fn given_up(&self) {
        self.pending.given_up.notified().await;
    }

    /// Whether the request is answered without its operation.
    pub(crate) fn is_answered(&self) -> bool {
        self.pending.answered.load(Ordering::Acquire)
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

/// Whether and why a thread is ending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    No,
    ByItself,
    BySignal,
    /// It is another user's, and this process may not know why.
    Unknown,
}

impl Ending {
    fn of(pid: u32) -> Self {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The kernel checks the same right for both.
        let may_know = || {
            let looked = std::fs::read_link(format!("/proc/{pid}/cwd"));
            !looked.is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
        };
        Self::by(&stat, may_know)
    }

    /// Source: proc_pid_stat(5); PF_EXITING of Linux. Without the right to know the code, it reads 0.
    fn by(stat: &str, may_know_code: impl FnOnce() -> bool) -> Self {
        // Counted from the state, which is the first field after the name.
        const FLAGS: usize = 6;
        const EXIT_CODE: usize = 49;
        const EXITING: u64 = 4;
        const SIGNAL: u64 = 0x7f;
        let Some((_, fields)) = stat.rsplit_once(") ") else { return Self::No };
        let fields: Vec<_> = fields.split_whitespace().collect();
        let field = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok());
        if field(FLAGS).unwrap_or(0) & EXITING == 0 {
            return Self::No;
        }
        match field(EXIT_CODE).unwrap_or(0) {
            0 if !may_know_code() => Self::Unknown,
            code if code & SIGNAL != 0 => Self::BySignal,
            _ => Self::ByItself,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn only_an_end_by_a_signal_is_one() {
        assert_eq!(Ending::of(std::process::id()), Ending::No);
        let ways = [("exit 0", Ending::ByItself), ("exit 9", Ending::ByItself)];
        for (script, ending) in ways.into_iter().chain([("kill -9 $$", Ending::BySignal)]) {
            let mut child = Command::new("sh").args(["-c", script]).spawn().unwrap();
            // It stays in the table until it is waited for.
            let path = format!("/proc/{}/stat", child.id());
            let stat = || std::fs::read_to_string(&path).unwrap();
            while !stat().contains(") Z ") {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(Ending::of(child.id()), ending, "{script}");
            // As the kernel shows it to those who may not know the code.
            let mut fields: Vec<_> = stat().split(' ').map(str::to_owned).collect();
            fields[51] = "0".to_owned();
            assert_eq!(Ending::by(&fields.join(" "), || false), Ending::Unknown, "{script}");
            child.wait().unwrap();
        }
        assert_eq!(Ending::of(0), Ending::No);
    }
}
