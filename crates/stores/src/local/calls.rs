//! Calls that the store makes on the thread of its caller: those of metadata, and those with which a transfer of data
//! begins.
//!
//! Such a call takes less time than a switch to another thread, as long as the disk answers. On a slow or dead disk it
//! holds its thread up.
//!
//! 1. At most [`MOST`] calls of one [`Calls`] that can wait hold threads at any time. The others wait without a thread,
//!    and none of them is given a place that it has not asked for: its future may not be polled.
//! 2. They wait in a queue. A place that is given back wakes the first of those that have not been woken since they
//!    last looked. A new call may be faster: the one that was woken then keeps its rank. A call that is dropped after
//!    it was woken wakes the next. When all places are free, all are woken: those that were woken before may not be
//!    polled.
//! 3. The program says, by [`InPlace`], how a thread that may be held up hands on what else it had to do.

use super::options::InPlace;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, Waker};
use weir_vfs::Result;

/// Most threads that calls hold, without those that cannot wait.
pub(in crate::local) const MOST: usize = 256;

/// The calls of a store on its callers' threads.
pub(in crate::local) struct Calls {
    most: usize,
    taken: AtomicUsize,
    /// The length of the queue. A call that gives a place back looks at it after that, and a call looks for a place
    /// after it has entered the queue; so one of them sees the other.
    waiting: AtomicUsize,
    queue: Mutex<Queue>,
    in_place: InPlace,
}

/// The calls that wait for a place, in the order in which they came.
struct Queue {
    came: u64,
    waiting: BTreeMap<u64, Waiting>,
}

struct Waiting {
    waker: Waker,
    /// It has been woken, and has not looked for a place since.
    is_woken: bool,
}

/// A call's place; free again when dropped.
pub(in crate::local) struct Place<'a>(&'a Calls);

/// A call that may wait for a place. Leaves the queue when dropped.
struct Turn<'a> {
    calls: &'a Calls,
    /// Its number in the queue, while it waits.
    number: Option<u64>,
}

impl Calls {
    pub(in crate::local) const fn new(in_place: InPlace) -> Self {
        Self::of(MOST, in_place)
    }

    const fn of(most: usize, in_place: InPlace) -> Self {
        let queue = Mutex::new(Queue { came: 0, waiting: BTreeMap::new() });
        Self { most, taken: AtomicUsize::new(0), waiting: AtomicUsize::new(0), queue, in_place }
    }

    /// Makes a call on the thread that polls the future, once there is a place for it.
    pub(in crate::local) async fn make<T>(
        &self,
        call: impl FnOnce() -> Result<T> + Send,
    ) -> Result<T> {
        let _place = match self.place() {
            Some(place) => place,
            None => {
                let mut turn = Turn { calls: self, number: None };
                poll_fn(|cx| turn.poll(cx)).await
            }
        };
        self.run(call)
    }

    /// A place, if one is free now.
    pub(in crate::local) fn place(&self) -> Option<Place<'_>> {
        let more = |taken| (taken < self.most).then_some(taken + 1);
        self.taken.fetch_update(SeqCst, SeqCst, more).ok().map(|_| Place(self))
    }

    /// Makes a call that has a place, or must not wait for one.
    pub(in crate::local) fn run<T>(&self, call: impl FnOnce() -> T) -> T {
        let (mut call, mut result) = (Some(call), None);
        (self.in_place)(&mut || result = call.take().map(|call| call()));
        result.expect("`InPlace` makes the call once")
    }

    /// Wakes the first `most` of the calls that have not been woken since they last looked.
    fn wake(&self, most: usize) {
        let mut queue = self.queue.lock();
        let asleep = queue.waiting.values_mut().filter(|waiting| !waiting.is_woken);
        let wake = |waiting: &mut Waiting| {
            waiting.is_woken = true;
            waiting.waker.clone()
        };
        let woken: Vec<Waker> = asleep.take(most).map(wake).collect();
        drop(queue);
        woken.into_iter().for_each(Waker::wake);
    }
}

impl<'a> Turn<'a> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Place<'a>> {
        let calls = self.calls;
        {
            let mut queue = calls.queue.lock();
            queue.came += u64::from(self.number.is_none());
            let number = *self.number.get_or_insert(queue.came);
            queue.waiting.insert(number, Waiting { waker: cx.waker().clone(), is_woken: false });
            calls.waiting.store(queue.waiting.len(), SeqCst);
        }
        let Some(place) = calls.place() else { return Poll::Pending };
        self.leave();
        Poll::Ready(place)
    }

    /// Leaves the queue. Wakes the next if it has been woken and has not looked since.
    fn leave(&mut self) {
        let Some(number) = self.number.take() else { return };
        let left = {
            let mut queue = self.calls.queue.lock();
            let left = queue.waiting.remove(&number);
            self.calls.waiting.store(queue.waiting.len(), SeqCst);
            left
        };
        if left.is_some_and(|left| left.is_woken) {
            self.calls.wake(1);
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let Self(calls) = self;
        let is_last = calls.taken.fetch_sub(1, SeqCst) == 1;
        if calls.waiting.load(SeqCst) > 0 {
            calls.wake(if is_last { usize::MAX } else { 1 });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::Pin;
    use std::sync::Arc;
    use std::task::Wake;

    /// Counts how often a call is woken.
    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, SeqCst);
        }
    }

    /// A call that is made by hand.
    struct Call<'a> {
        future: Pin<Box<dyn Future<Output = Result<()>> + 'a>>,
        count: Arc<Count>,
    }

    impl<'a> Call<'a> {
        /// A call that has been polled once, for which there is no place.
        fn waiting(calls: &'a Calls) -> Self {
            let mut call = Self { future: Box::pin(calls.make(|| Ok(()))), count: Arc::default() };
            assert!(!call.is_made(), "there is no place");
            call
        }

        fn is_made(&mut self) -> bool {
            let waker = Waker::from(self.count.clone());
            self.future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready()
        }

        /// How often it has been woken since the last look.
        fn woken(&self) -> usize {
            self.count.0.swap(0, SeqCst)
        }
    }

    const fn calls(most: usize) -> Calls {
        Calls::of(most, |call| call())
    }

    /// Takes all places.
    fn fill(calls: &Calls) -> Vec<Place<'_>> {
        std::iter::from_fn(|| calls.place()).collect()
    }

    #[test]
    fn calls_beyond_the_most_wait_in_a_queue() {
        let calls = calls(2);
        let mut held = fill(&calls);
        let mut waiting = [(); 3].map(|()| Call::waiting(&calls));
        drop(held.pop());
        assert_eq!(waiting.each_ref().map(Call::woken), [1, 0, 0]);
        assert!(waiting[0].is_made());
        assert_eq!(waiting.each_ref().map(Call::woken), [0, 1, 0], "its place is free again");
        assert!(waiting[1].is_made() && waiting[2].is_made());
        drop(held);
        assert_eq!((calls.taken.load(SeqCst), calls.waiting.load(SeqCst)), (0, 0));
    }

    #[test]
    fn a_call_that_finds_no_place_keeps_its_rank() {
        let calls = calls(2);
        let mut held = fill(&calls);
        let mut waiting = [(); 2].map(|()| Call::waiting(&calls));
        for _ in 0..3 {
            drop(held.pop());
            assert_eq!(waiting.each_ref().map(Call::woken), [1, 0]);
            held.push(calls.place().expect("a new call is faster"));
            assert!(!waiting[0].is_made());
        }
    }

    #[test]
    fn a_call_that_is_not_polled_has_no_place_and_stops_no_other() {
        let calls = calls(2);
        let mut held = fill(&calls);
        let idle = [(); 2].map(|()| Call::waiting(&calls));
        let mut waiting = Call::waiting(&calls);
        drop(held.pop());
        drop(calls.place().expect("the call that was woken does not look"));
        drop(held);
        assert_eq!(idle.each_ref().map(Call::woken), [1, 1]);
        assert_eq!(waiting.woken(), 1, "all places are free");
        assert!(waiting.is_made());
        assert_eq!(calls.taken.load(SeqCst), 0);
    }

    #[test]
    fn a_call_that_is_dropped_after_it_was_woken_wakes_the_next() {
        let calls = calls(2);
        let mut held = fill(&calls);
        let dropped = Call::waiting(&calls);
        let mut waiting = Call::waiting(&calls);
        drop(held.pop());
        assert_eq!((dropped.woken(), waiting.woken()), (1, 0));
        drop(dropped);
        assert_eq!(waiting.woken(), 1);
        assert!(waiting.is_made());
    }

    /// Every sequence of steps: a call waits, is polled or dropped, a new one takes a place, and a
    /// place is given back.
    #[test]
    fn no_place_stays_free_without_a_woken_call_that_will_look() {
        const STEPS: usize = 6;
        /// Takes the steps that the digits of `number` say. Returns false if one is not possible.
        fn walk(most: usize, mut number: usize) -> bool {
            let calls = calls(most);
            let (mut held, mut waiting) = (fill(&calls), Vec::<(Call<'_>, bool)>::new());
            for _ in 0..STEPS {
                let step = number % 7;
                number /= 7;
                match step {
                    0 if calls.taken.load(SeqCst) == most => {
                        waiting.push((Call::waiting(&calls), false));
                    }
                    1 => match calls.place() {
                        Some(place) => held.push(place),
                        None => return false,
                    },
                    2 if !held.is_empty() => drop(held.pop()),
                    // The first and the last that waits is polled.
                    3 | 4 if waiting.len() > step - 3 => {
                        let at = if step == 3 { 0 } else { waiting.len() - 1 };
                        waiting[at].1 = false;
                        if waiting[at].0.is_made() {
                            waiting.remove(at);
                        }
                    }
                    5 | 6 if waiting.len() > step - 5 => {
                        let at = if step == 5 { 0 } else { waiting.len() - 1 };
                        drop(waiting.remove(at));
                    }
                    _ => return false,
                }
                for (call, is_woken) in &mut waiting {
                    *is_woken |= call.woken() > 0;
                }
                let free = most - calls.taken.load(SeqCst);
                let woken = waiting.iter().filter(|(_, is_woken)| *is_woken).count();
                assert!(woken >= free.min(waiting.len()), "{free} free, {woken} woken");
            }
            true
        }
        for most in [1, 2] {
            let walked = (0..7usize.pow(STEPS as u32)).filter(|&number| walk(most, number)).count();
            assert!(walked > 1000, "{walked}");
        }
    }

    #[test]
    fn the_program_decides_how_a_call_is_made() {
        thread_local!(static WITHIN: std::cell::Cell<bool> = const { std::cell::Cell::new(false) });
        let calls = Calls::new(|call| {
            WITHIN.set(true);
            call();
            WITHIN.set(false);
        });
        assert!(calls.run(|| WITHIN.get()));
        assert!(!WITHIN.get());
    }
}
