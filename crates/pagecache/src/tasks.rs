//! Work that has to complete even if the caller goes away. Each store has its own queue and thread
//! for it (`writeback/lane.rs`).
//!
//! 1. An operation that changes a store and then the cache must not stop in between. The caller
//!    polls it like any future; if the caller drops it, its store's thread polls it to completion
//!    ([`finish`]).
//! 2. If the thread cannot be started, a caller that drops its work polls it once more, so that the
//!    work wakes the queue. The queue tries again with each task that is added or woken, and with each
//!    call that waits for a sync.
//! 3. A call that would add work without bound waits for room ([`Tasks::room_below`]); it waits at most
//!    for the tasks that it finds, so it gets its turn even if others take the room.
//! 4. A panic ends only the task: unwinding drops what it held, its waiters look again, and the
//!    thread continues with the others.

use crate::thread::Background;
use crate::wait::WaitQueue;
use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
#[cfg(all(test, not(any(loom, shuttle))))]
use weir_base::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use weir_base::sync::{Condvar, Mutex};

/// How long the thread waits for more work.
const LINGER: Duration = Duration::from_secs(2);
/// In a model time stands still: the thread ends at once.
const IS_MODEL: bool = cfg!(any(loom, shuttle));

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A queue of futures, and the thread that runs them.
#[derive(Default)]
pub(crate) struct Tasks {
    background: Background,
    queue: Mutex<Queue>,
    ready: Condvar,
    /// A task has ended.
    ended: WaitQueue,
    /// Number of starts of the thread that fail.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) refused_starts: AtomicUsize,
}

#[derive(Default)]
struct Queue {
    ready: VecDeque<Arc<Task>>,
    running: bool,
    alive: usize,
    /// Number of tasks that have ended.
    ended: u64,
}

struct Task {
    tasks: Arc<Tasks>,
    work: Mutex<Option<Work>>,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        let tasks = self.tasks.clone();
        let mut queue = tasks.queue.lock();
        queue.ready.push_back(self);
        tasks.start(&mut queue);
        drop(queue);
        tasks.ready.notify_one();
    }
}

impl Tasks {
    pub(crate) fn new(background: Background) -> Self {
        Self { background, ..Self::default() }
    }

    /// Runs `work` to completion on the store's task thread, which ends when there was no
    /// task for two seconds.
    pub(crate) fn spawn(self: &Arc<Self>, work: impl Future<Output = ()> + Send + 'static) {
        let task = Arc::new(Task { tasks: self.clone(), work: Mutex::new(Some(Box::pin(work))) });
        let mut queue = self.queue.lock();
        queue.ready.push_back(task);
        queue.alive += 1;
        self.start(&mut queue);
        drop(queue);
        self.ready.notify_one();
    }

    /// For a call that waits for a task: starts the thread if that failed before.
    pub(crate) fn retry(self: &Arc<Self>) {
        self.start(&mut self.queue.lock());
    }

    /// Starts the thread, unless it runs or there are no tasks.
    fn start(self: &Arc<Self>, queue: &mut Queue) {
        if queue.running || queue.alive == 0 || self.background != Background::Threads {
            return;
        }
        let tasks = self.clone();
        match self.try_spawn(move || tasks.run()) {
            Ok(()) => queue.running = true,
            Err(error) => tracing::error!("cannot start thread weir-tasks: {error}"),
        }
    }

    fn try_spawn(&self, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        #[cfg(all(test, not(any(loom, shuttle))))]
        if self.refused_starts.fetch_update(SeqCst, SeqCst, |n| n.checked_sub(1)).is_ok() {
            return Err(std::io::ErrorKind::WouldBlock.into());
        }
        crate::thread::try_spawn("weir-tasks", run)
    }

    /// Number of unfinished tasks.
    pub(crate) fn alive(&self) -> usize {
        self.queue.lock().alive
    }

    /// Waits until fewer than `most` tasks are unfinished, or as many have ended as there are now.
    pub(crate) async fn room_below(self: &Arc<Self>, most: usize) {
        let enough = {
            let queue = self.queue.lock();
            queue.ended + queue.alive as u64
        };
        loop {
            let ticket = self.ended.ticket();
            {
                let mut queue = self.queue.lock();
                if queue.alive < most || queue.ended >= enough {
                    return;
                }
                // Starting the thread may have failed before.
                self.start(&mut queue);
            }
            self.ended.wait(ticket).await;
        }
    }

    fn run(&self) {
        loop {
            let task = {
                let mut queue = self.queue.lock();
                loop {
                    if let Some(task) = queue.ready.pop_front() {
                        break task;
                    }
                    if queue.alive > 0 {
                        self.ready.wait(&mut queue);
                        continue;
                    }
                    // Work comes in series, and starting a thread for each piece costs more than it.
                    if !IS_MODEL {
                        let _ = self.ready.wait_for(&mut queue, LINGER);
                    }
                    if queue.alive == 0 {
                        queue.running = false;
                        return;
                    }
                }
            };
            self.poll(&task);
        }
    }

    /// Polls the tasks that can go on, if there is no thread for them.
    fn poll_stranded(&self) {
        if self.background == Background::Threads {
            self.run_ready();
        }
    }

    /// Polls the tasks that can go on, with [`Background::Rounds`].
    pub(crate) fn run_ready(&self) {
        let ready = std::mem::take(&mut self.queue.lock().ready);
        ready.iter().for_each(|task| self.poll(task));
    }

    fn poll(&self, task: &Arc<Task>) {
        let waker = Waker::from(task.clone());
        let mut work = task.work.lock();
        let done = match work.as_mut() {
            Some(w) => {
                let mut poll = || w.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
                catch_unwind(AssertUnwindSafe(&mut poll)).unwrap_or_else(|_| {
                    tracing::error!("a background task of the page cache panicked: a bug");
                    true
                })
            }
            None => false,
        };
        if done {
            // Its destructor may panic, too.
            let ended = work.take();
            let _ = catch_unwind(AssertUnwindSafe(|| drop(ended)));
            let mut queue = self.queue.lock();
            queue.alive -= 1;
            queue.ended += 1;
            drop(queue);
            self.ended.notify();
        }
    }
}

/// `work`, which the caller polls; `tasks` takes over if the caller drops it early.
pub(crate) fn finish<T: Send + 'static>(
    tasks: &Arc<Tasks>,
    work: impl Future<Output = T> + Send + 'static,
) -> Finish<T> {
    Finish { tasks: tasks.clone(), work: Some(Box::pin(work)) }
}

/// The future of [`finish`].
pub(crate) struct Finish<T: Send + 'static> {
    tasks: Arc<Tasks>,
    work: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
}

impl<T: Send + 'static> Future for Finish<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let Some(work) = self.work.as_mut() else { return Poll::Pending };
        let polled = work.as_mut().poll(cx);
        if polled.is_ready() {
            self.work = None;
        }
        polled
    }
}

impl<T: Send + 'static> Drop for Finish<T> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            self.tasks.spawn(async move {
                work.await;
            });
            if !self.tasks.queue.lock().running {
                // So far, what the work waits for wakes the caller; from here on, the task.
                self.tasks.poll_stranded();
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn work_of_a_dropped_caller_is_finished() {
        let tasks = Arc::new(Tasks::default());
        let (tx, rx) = mpsc::channel();
        let mut yielded = false;
        let mut work = Box::pin(finish(&tasks, async move {
            std::future::poll_fn(|cx| {
                if yielded {
                    return Poll::Ready(());
                }
                yielded = true;
                cx.waker().wake_by_ref();
                Poll::Pending
            })
            .await;
            tx.send(()).unwrap();
        }));
        assert!(work.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(work);
        rx.recv().unwrap();
    }

    #[test]
    fn work_whose_thread_cannot_start_is_finished_when_it_can_go_on() {
        const BOUND: std::time::Duration = std::time::Duration::from_secs(30);
        let tasks = Arc::new(Tasks::default());
        tasks.refused_starts.store(2, SeqCst);
        let (done, ended) = mpsc::channel();
        let call: Arc<Mutex<(bool, Option<Waker>)>> = Arc::default();
        let reply = call.clone();
        let mut work = Box::pin(finish(&tasks, async move {
            std::future::poll_fn(|cx| {
                let (replied, waker) = &mut *reply.lock();
                *waker = Some(cx.waker().clone());
                if *replied { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            done.send(()).unwrap();
        }));
        assert!(work.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(work);
        // A call that waits for the work has no more success.
        tasks.retry();
        assert_eq!(tasks.refused_starts.load(SeqCst), 0);
        let waker = {
            let (replied, waker) = &mut *call.lock();
            *replied = true;
            waker.take().unwrap()
        };
        waker.wake();
        assert_eq!(ended.recv_timeout(BOUND), Ok(()));
    }

    #[test]
    fn a_call_that_waits_starts_the_thread_again() {
        let tasks = Arc::new(Tasks::default());
        tasks.refused_starts.store(1, SeqCst);
        let (hold, held) = mpsc::channel::<()>();
        tasks.spawn(async move { _ = held.recv() });
        assert!(!tasks.queue.lock().running);
        tasks.retry();
        assert!(tasks.queue.lock().running);
        drop(hold);
    }

    #[test]
    fn a_call_waits_for_room_at_most_for_the_tasks_that_it_finds() {
        let tasks = Arc::new(Tasks::new(Background::Rounds));
        let add = |n| (0..n).for_each(|_| tasks.spawn(async {}));
        add(2);
        let mut wait = Box::pin(tasks.room_below(2));
        let mut poll = || wait.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll().is_pending());
        add(1);
        assert!(poll().is_pending(), "no task has ended");
        tasks.run_ready();
        // Others take the room before the call looks again.
        add(5);
        assert!(poll().is_ready());
        let mut next = Box::pin(tasks.room_below(2));
        assert!(next.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        tasks.run_ready();
        assert!(next.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
        assert_eq!(tasks.alive(), 0);
    }

    #[test]
    fn a_task_that_panics_ends_alone() {
        let tasks = Arc::new(Tasks::default());
        let (tx, rx) = mpsc::channel();
        let (go, gone) = mpsc::channel::<()>();
        for n in 0..3 {
            let tx = tx.clone();
            let wait = (n == 0).then(|| tx.clone());
            tasks.spawn(async move {
                assert!(n != 1, "the second one, on purpose");
                tx.send(n).unwrap();
                drop(wait);
            });
        }
        // While the thread exists, and after it is restarted.
        assert_eq!((rx.recv(), rx.recv()), (Ok(0), Ok(2)));
        let ended = go.clone();
        tasks.spawn(async move { drop(ended) });
        drop(go);
        assert!(gone.recv().is_err());
    }
}
