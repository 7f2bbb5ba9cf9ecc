//! Reads of one task that are in flight while it does something else.
//!
//! A future makes progress only when its task polls it. A read that is first in a queue, for memory or
//! for a turn of a connection, and is not polled while the task awaits a write, keeps the write waiting
//! behind it. So a task with reads in flight awaits everything else through [`Pipeline::beside`].

use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

/// Futures that run at the same time, and whose outputs are taken in the order of their entry.
pub(crate) struct Pipeline<F: Future> {
    running: FuturesOrdered<F>,
    /// Outputs that were ready before they were asked for.
    ready: VecDeque<F::Output>,
}

impl<F: Future> Pipeline<F> {
    pub(crate) fn new() -> Self {
        Self { running: FuturesOrdered::new(), ready: VecDeque::new() }
    }

    /// Futures whose outputs are not taken yet.
    pub(crate) fn len(&self) -> usize {
        self.running.len() + self.ready.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a future; it runs from the next call of [`next`](Self::next) or [`beside`](Self::beside).
    pub(crate) fn push(&mut self, future: F) {
        self.running.push_back(future);
    }

    /// The output of the oldest future; `None` if there is none.
    pub(crate) async fn next(&mut self) -> Option<F::Output> {
        match self.ready.pop_front() {
            Some(output) => Some(output),
            None => self.running.next().await,
        }
    }

    /// Does some work while the futures run.
    pub(crate) async fn beside<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        poll_fn(|context| {
            if let Poll::Ready(done) = work.as_mut().poll(context) {
                return Poll::Ready(done);
            }
            while let Poll::Ready(Some(output)) = self.running.poll_next_unpin(context) {
                self.ready.push_back(output);
            }
            Poll::Pending
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::Semaphore;

    /// The write waits for the turn of the second read, and the first one is not ready either.
    #[tokio::test]
    async fn reads_take_their_turns_while_their_task_does_something_else() {
        let turn = Semaphore::new(0);
        let mut pipeline = Pipeline::new();
        for read in 0..3 {
            let turn = &turn;
            pipeline.push(async move {
                let _turn = turn.acquire().await.unwrap();
                read
            });
        }
        // Enters the queue of the turns.
        pipeline.beside(tokio::task::yield_now()).await;
        turn.add_permits(1);
        // First come, first served: the work gets its turn after the reads.
        pipeline.beside(async { drop(turn.acquire().await.unwrap()) }).await;
        assert_eq!(pipeline.len(), 3);
        let mut order = Vec::new();
        while let Some(read) = pipeline.next().await {
            order.push(read);
        }
        assert_eq!(order, [0, 1, 2]);
        assert!(pipeline.is_empty());
    }
}
