//! A runtime that a program's threads drive while they wait for calls.
//!
//! If the mount's own thread did the calls of a program without an executor, each call would wake that thread twice, to
//! send the call and to receive its reply, and then the caller. So a caller that finds nothing in progress sends the
//! call and receives the reply itself:
//!
//! 1. One thread drives the runtime at a time. When it leaves, the next caller that waits goes on.
//! 2. While no caller waits, the thread `weir-nfs` drives the runtime: at once if operations are in progress (reads
//!    ahead, or what a caller gave up) or threads wait that cannot drive; otherwise when no call has come for
//!    [`IDLE`], and at the latest after [`POSTPONED`] of these: a call that is served from memory drives nothing.
//!    Timers and calls of the server may be late by this time.
//! 3. A caller takes the runtime from that thread only if nothing is in progress. Otherwise the thread is about to
//!    receive what the caller waits for.

use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::Notify;
use weir_base::sync::{Condvar, Mutex};

/// How long the mount's thread waits for the next call before it drives the runtime again.
const IDLE: Duration = Duration::from_millis(2);
/// How often it does so, while calls come, before it drives the runtime for one turn.
const POSTPONED: u32 = 50;

/// A runtime, and the thread that drives it while no caller does.
pub(crate) struct Driven {
    /// `None` once the thread has been told to end: it is the last owner then, because a task of the runtime, which
    /// may be what drops this, cannot end the runtime.
    runtime: Option<Arc<Runtime>>,
    turns: Arc<Turns>,
}

/// Who drives the runtime.
#[derive(Default)]
struct Turns {
    state: Mutex<State>,
    /// Wakes the mount's thread while it does not drive.
    changed: Condvar,
    /// Asks the mount's thread for the runtime.
    wanted: Notify,
}

#[derive(Default)]
struct State {
    /// Callers that wait, and drive the runtime in turn.
    callers: usize,
    /// Threads that wait, and leave the runtime to others.
    beside: usize,
    /// Calls that have ended.
    calls: u64,
    /// The mount's thread drives, and was not asked for the runtime.
    is_attended: bool,
    /// The mount's thread sleeps until a caller leaves.
    is_asleep: bool,
    /// Operations are in progress that no caller drives.
    is_urgent: bool,
    end: Option<End>,
}

/// What the mount's thread does last.
type End = Box<dyn FnOnce(&Runtime) + Send>;

impl Driven {
    pub(crate) fn new() -> std::io::Result<Self> {
        let runtime = Arc::new(Builder::new_current_thread().enable_all().build()?);
        let state = Mutex::new(State { is_urgent: true, ..State::default() });
        let turns = Arc::new(Turns { state, ..Turns::default() });
        let (for_thread, of_thread) = (Arc::clone(&runtime), Arc::clone(&turns));
        let thread = std::thread::Builder::new().name("weir-nfs".into());
        thread.spawn(move || of_thread.attend(for_thread))?;
        Ok(Self { runtime: Some(runtime), turns })
    }

    pub(crate) fn handle(&self) -> Option<&Handle> {
        self.runtime.as_deref().map(Runtime::handle)
    }

    /// Waits for `call` on this thread. `is_busy` tells whether operations are in progress.
    pub(crate) fn block_on<F: Future>(&self, is_busy: impl Fn() -> bool, call: F) -> F::Output {
        match &self.runtime {
            // A thread of another runtime cannot drive this one, nor can one that ends.
            Some(runtime) if Handle::try_current().is_err_and(|e| e.is_missing_context()) => {
                let _turn = self.turns.take(is_busy);
                runtime.block_on(call)
            }
            _ => self.block_beside(call),
        }
    }

    /// Waits for `call` on this thread, and leaves the runtime to others.
    pub(crate) fn block_beside<F: Future>(&self, call: F) -> F::Output {
        let _beside = self.turns.stand_beside();
        crate::block_on(call)
    }

    /// Has the mount's thread execute at once what was given to the runtime, unless a caller does.
    pub(crate) fn hurry(&self) {
        self.turns.hurry(&mut self.turns.state.lock());
    }

    /// Ends the thread and the runtime after `last`, which no caller waits for.
    pub(crate) fn end(&mut self, last: impl Future<Output = ()> + Send + 'static) {
        let Some(runtime) = self.runtime.take() else { return };
        drop(runtime);
        self.turns.state.lock().end = Some(Box::new(move |runtime| runtime.block_on(last)));
        self.turns.changed.notify_one();
        self.turns.wanted.notify_one();
    }
}

impl Drop for Driven {
    fn drop(&mut self) {
        self.end(async {});
    }
}

impl Turns {
    /// What the mount's thread does.
    fn attend(&self, runtime: Arc<Runtime>) {
        let mut state = self.state.lock();
        let mut postponed = 0;
        let end = loop {
            if let Some(end) = state.end.take() {
                break end;
            }
            if state.callers == 0 && state.is_urgent {
                (state.is_urgent, state.is_attended) = (false, true);
                drop(state);
                runtime.block_on(self.wanted.notified());
                state = self.state.lock();
                state.is_attended = false;
                postponed = 0;
                continue;
            }
            let calls = state.calls;
            if !self.changed.wait_for(&mut state, IDLE).timed_out() || state.end.is_some() {
                continue;
            }
            postponed += 1;
            match (state.calls == calls, state.callers) {
                (true, 0) => state.is_urgent = true,
                (true, _) => {
                    state.is_asleep = true;
                    self.changed.wait(&mut state);
                    state.is_asleep = false;
                }
                (false, _) if postponed >= POSTPONED => {
                    drop(state);
                    runtime.block_on(one_turn());
                    state = self.state.lock();
                    postponed = 0;
                }
                (false, _) => {}
            }
        };
        drop(state);
        end(&runtime);
        if let Some(runtime) = Arc::into_inner(runtime) {
            runtime.shutdown_background();
        }
    }

    /// Begins a caller's turn, which lasts until the guard is dropped.
    fn take<B: Fn() -> bool>(&self, is_busy: B) -> Turn<'_, B> {
        let mut state = self.state.lock();
        state.callers += 1;
        if state.is_attended && state.beside == 0 && !is_busy() {
            state.is_attended = false;
            self.wanted.notify_one();
        }
        drop(state);
        Turn { turns: self, is_busy }
    }

    /// Counts a thread that waits and does not drive, until the guard is dropped.
    fn stand_beside(&self) -> Beside<'_> {
        let mut state = self.state.lock();
        state.beside += 1;
        self.hurry(&mut state);
        Beside(self)
    }

    /// Has the mount's thread drive the runtime if no caller does.
    fn hurry(&self, state: &mut State) {
        if state.callers == 0 && !state.is_attended {
            state.is_urgent = true;
            self.changed.notify_one();
        }
    }
}

/// Has the runtime look at its timers and sockets, and execute what they wake.
async fn one_turn() {
    for _ in 0..2 {
        tokio::task::yield_now().await;
    }
}

struct Beside<'a>(&'a Turns);

impl Drop for Beside<'_> {
    fn drop(&mut self) {
        self.0.state.lock().beside -= 1;
    }
}

struct Turn<'a, B: Fn() -> bool> {
    turns: &'a Turns,
    is_busy: B,
}

impl<B: Fn() -> bool> Drop for Turn<'_, B> {
    fn drop(&mut self) {
        let mut state = self.turns.state.lock();
        state.callers -= 1;
        state.calls = state.calls.wrapping_add(1);
        if state.callers == 0 && !state.is_attended {
            state.is_urgent = state.beside > 0 || (self.is_busy)();
            if state.is_urgent || state.is_asleep {
                self.turns.changed.notify_one();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
    use std::thread::{self, ThreadId};
    use std::time::Instant;
    use tokio::sync::oneshot;

    const LONG: Duration = Duration::from_secs(60);

    /// The thread that executes a task of the runtime while this one waits for it.
    fn executed_by(driven: &Driven, is_busy: bool) -> ThreadId {
        let handle = driven.handle().unwrap().clone();
        driven.block_on(|| is_busy, async {
            handle.spawn(async { thread::current().id() }).await.unwrap()
        })
    }

    fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !done() {
            assert!(begun.elapsed() < LONG, "{what}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn is_attended(driven: &Driven) -> bool {
        driven.turns.state.lock().is_attended
    }

    #[test]
    fn a_caller_that_finds_nothing_in_progress_drives() {
        let driven = Driven::new().unwrap();
        wait_until("idle", || is_attended(&driven));
        // The mount's thread may execute the task of a call while it gives the runtime away.
        wait_until("drives", || executed_by(&driven, false) == thread::current().id());
        wait_until("idle", || is_attended(&driven));
        assert_ne!(executed_by(&driven, true), thread::current().id());
    }

    #[test]
    fn tasks_make_progress_while_no_thread_waits() {
        let driven = Driven::new().unwrap();
        for is_busy in [false, true] {
            assert_eq!(driven.block_on(|| is_busy, async { 1 }), 1);
            let (done, ended) = std::sync::mpsc::channel();
            driven.handle().unwrap().spawn(async move {
                tokio::time::sleep(Duration::from_millis(5)).await;
                done.send(()).unwrap();
            });
            ended.recv_timeout(LONG).unwrap();
        }
        // After a call that lasted so long that the thread sleeps without a time limit.
        driven.block_on(|| false, async {
            wait_until("sleeps", || driven.turns.state.lock().is_asleep);
        });
        wait_until("idle", || is_attended(&driven));
    }

    #[test]
    fn calls_served_from_memory_do_not_stop_tasks() {
        let driven = Driven::new().unwrap();
        let (done, ended) = std::sync::mpsc::channel();
        // Until one call finds the runtime not attended, after which none of them drives.
        wait_until("left alone", || {
            driven.block_on(|| false, async {});
            !is_attended(&driven)
        });
        driven.handle().unwrap().spawn(async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            done.send(()).unwrap();
        });
        wait_until("ended", || {
            driven.block_on(|| false, async {});
            ended.try_recv().is_ok()
        });
    }

    #[test]
    fn a_thread_that_leaves_the_runtime_to_others_does_not_wait_for_their_calls() {
        let driven = Driven::new().unwrap();
        let handle = driven.handle().unwrap().clone();
        let (begun, began) = std::sync::mpsc::channel();
        thread::scope(|scope| {
            let beside = scope.spawn(|| {
                driven.block_beside(async {
                    begun.send(()).unwrap();
                    for _ in 0..3 {
                        let step = async { tokio::time::sleep(Duration::from_millis(1)).await };
                        handle.spawn(step).await.unwrap();
                    }
                });
            });
            began.recv().unwrap();
            let since = Instant::now();
            while !beside.is_finished() && since.elapsed() < LONG {
                driven.block_on(|| false, async {});
            }
            assert!(beside.is_finished());
        });
        assert_eq!(driven.turns.state.lock().beside, 0);
    }

    #[test]
    fn many_threads_wait_at_once() {
        let driven = Driven::new().unwrap();
        let in_progress = AtomicUsize::new(0);
        let handle = driven.handle().unwrap().clone();
        thread::scope(|scope| {
            for waiter in 0..8_u64 {
                let (driven, handle, in_progress) = (&driven, &handle, &in_progress);
                scope.spawn(move || {
                    for call in 0..500 {
                        let answer = driven.block_on(|| in_progress.load(SeqCst) > 0, async {
                            in_progress.fetch_add(1, SeqCst);
                            let (done, answer) = oneshot::channel();
                            handle.spawn(async move {
                                if (waiter + call) % 7 == 0 {
                                    tokio::time::sleep(Duration::from_micros(call)).await;
                                }
                                let _ = done.send(waiter + call);
                            });
                            let answer = answer.await;
                            in_progress.fetch_sub(1, SeqCst);
                            answer
                        });
                        assert_eq!(answer, Ok(waiter + call));
                    }
                });
            }
        });
        assert_eq!(driven.turns.state.lock().callers, 0);
        wait_until("idle", || is_attended(&driven));
    }

    #[test]
    fn threads_of_other_runtimes_wait_without_driving() {
        let driven = Driven::new().unwrap();
        let other = Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let other = other.handle().clone();
        let _context = other.enter();
        let by = executed_by(&driven, false);
        assert_ne!(by, thread::current().id());
    }

    #[test]
    fn what_comes_last_is_done_also_if_a_task_drops_the_runtime() {
        static ENDED: AtomicBool = AtomicBool::new(false);
        let mut driven = Driven::new().unwrap();
        let handle = driven.handle().unwrap().clone();
        handle.spawn(async move {
            driven.end(async { ENDED.store(true, SeqCst) });
            drop(driven);
        });
        wait_until("ended", || ENDED.load(SeqCst));
    }
}
