//! Delayed calls: one thread for all of them.

use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

type Job = Box<dyn FnOnce() + Send>;

/// Jobs by due time. The thread ends with the timer, and runs the remaining jobs at once.
#[derive(Default)]
pub(super) struct Timer {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: BTreeMap<(Instant, u64), Job>,
    next: u64,
    running: bool,
    stopping: bool,
}

impl Timer {
    pub(super) fn after(&self, delay: Duration, job: impl FnOnce() + Send + 'static) {
        let mut state = self.shared.state.lock();
        let number = state.next;
        state.next += 1;
        state.waiting.insert((Instant::now() + delay, number), Box::new(job));
        if std::mem::replace(&mut state.running, true) {
            self.shared.changed.notify_one();
        } else {
            let shared = self.shared.clone();
            std::thread::spawn(move || shared.serve());
        }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.shared.state.lock().stopping = true;
        self.shared.changed.notify_one();
    }
}

impl Shared {
    fn serve(&self) {
        let mut state = self.state.lock();
        loop {
            let due = state.waiting.first_key_value().map(|(&(at, _), _)| at);
            match due {
                Some(at) if at <= Instant::now() || state.stopping => {
                    let job = state.waiting.pop_first();
                    drop(state);
                    if let Some((_, job)) = job {
                        job();
                    }
                    state = self.state.lock();
                }
                Some(at) => {
                    self.changed.wait_until(&mut state, at);
                }
                None if state.stopping => return,
                None => self.changed.wait(&mut state),
            }
        }
    }
}
