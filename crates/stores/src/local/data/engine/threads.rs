//! A small pool of threads for blocking system calls, and transfers through it.
//!
//! Sound because the vectors of a transfer point to memory that the transfer owns.

use super::{Next, Progress, alone};
use crate::local::credentials::write_unprivileged;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::sync::Arc;

/// Most threads of a pool: the number of calls that can wait for the device at once.
const MAX_THREADS: usize = 16;

type Job = Box<dyn FnOnce() + Send>;

/// Threads that start on demand and end with the pool.
#[derive(Default)]
pub(in crate::local) struct Pool {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    idle: usize,
    threads: usize,
    stopping: bool,
}

impl Pool {
    /// Runs a job on one of the threads.
    pub(in crate::local) fn run(&self, job: impl FnOnce() + Send + 'static) {
        let mut state = self.shared.state.lock();
        state.jobs.push_back(Box::new(job));
        if state.idle >= state.jobs.len() || state.threads == MAX_THREADS {
            self.shared.work.notify_one();
            return;
        }
        let shared = self.shared.clone();
        let spawned =
            std::thread::Builder::new().name("weir-io".into()).spawn(move || shared.serve());
        match spawned {
            Ok(_) => state.threads += 1,
            // The existing threads will run it; without any, the caller has to.
            Err(_) if state.threads > 0 => {
                self.shared.work.notify_one();
            }
            Err(error) => {
                tracing::warn!(%error, "cannot start a thread for I/O");
                let job = state.jobs.pop_back();
                drop(state);
                if let Some(job) = job {
                    alone("a call of the store", job);
                }
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.state.lock().stopping = true;
        self.shared.work.notify_all();
    }
}

impl Shared {
    fn serve(&self) {
        write_unprivileged();
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                alone("a call of the store", job);
                state = self.state.lock();
            } else if state.stopping {
                return;
            } else {
                state.idle += 1;
                self.work.wait(&mut state);
                state.idle -= 1;
            }
        }
    }
}

/// Transfers all bytes.
pub(super) fn transfer(mut progress: Progress) {
    loop {
        let flags = progress.flags();
        let result = try_once(&progress, flags);
        match progress.answered(result, flags) {
            Next::Again(again) => progress = again,
            Next::Done => return,
        }
    }
}

/// One system call: bytes transferred, or a negative errno.
fn try_once(progress: &Progress, flags: i32) -> i32 {
    let transfer = &progress.transfer;
    let vectors = transfer.vectors.as_slice();
    let (fd, count) = (transfer.file.as_raw_fd(), vectors.len() as i32);
    let offset = transfer.offset as libc::off_t;
    // SAFETY: the vectors point to memory that the transfer owns, writable when it reads.
    let moved = unsafe {
        if transfer.write {
            libc::pwritev2(fd, vectors.as_ptr(), count, offset, flags)
        } else {
            libc::preadv2(fd, vectors.as_ptr(), count, offset, flags)
        }
    };
    if moved >= 0 {
        // The kernel transfers at most 2 GiB - 4 KiB at once.
        return moved as i32;
    }
    -std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_job_that_panics_ends_alone() {
        let (tx, rx) = mpsc::channel();
        let pool = Pool::default();
        for i in 0..2 * MAX_THREADS {
            let tx = tx.clone();
            pool.run(move || panic!("as asked: {}", tx.send(i).is_ok()));
        }
        pool.run(move || tx.send(usize::MAX).unwrap());
        assert_eq!(rx.iter().count(), 2 * MAX_THREADS + 1);
    }

    #[test]
    fn every_job_runs_also_when_the_pool_ends() {
        let (tx, rx) = mpsc::channel();
        let pool = Pool::default();
        for i in 0..1000 {
            let tx = tx.clone();
            pool.run(move || tx.send(i).unwrap());
        }
        drop((pool, tx));
        let mut done: Vec<i32> = rx.iter().collect();
        done.sort_unstable();
        assert_eq!(done, (0..1000).collect::<Vec<_>>());
    }
}
