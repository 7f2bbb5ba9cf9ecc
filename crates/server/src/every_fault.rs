//! Runs a test once for each call of a store that it makes, with an error at that call.

use std::cell::Cell;
use std::fmt;
use weir_stores::fault::{Call, Fault, Rule, What, When};
use weir_vfs::Error;

/// One run of a test, and the error in it.
pub(crate) struct Injection<'a> {
    fault: &'a Fault,
    error: Error,
    nth: u64,
    failed: Cell<bool>,
}

/// Runs a test with each kind of error at its first call of the store, at its second, and so on until it makes no more
/// calls. Returns how many it makes.
pub(crate) async fn at_every_call(fault: &Fault, mut test: impl AsyncFnMut(&Injection<'_>)) -> u64 {
    let mut most = 0;
    for error in [Error::Io, Error::NoSpace] {
        for nth in 0.. {
            assert!(nth < 200, "it makes calls without end");
            let injection = Injection { fault, error, nth, failed: Cell::new(false) };
            test(&injection).await;
            if !injection.failed() {
                most = most.max(nth);
                break;
            }
        }
    }
    most
}

impl Injection<'_> {
    /// A name that no other run of the same test has.
    pub(crate) fn name(&self, of: &str) -> String {
        format!("{of}-{:?}-{}", self.error, self.nth)
    }

    /// Executes what the error is for.
    pub(crate) async fn during<T>(&self, run: impl Future<Output = T>) -> T {
        let before = self.fault.injected();
        let what = What::Fail(self.error);
        self.fault.add(Rule { call: Call::Any, when: When::Nth(self.nth), what });
        let done = run.await;
        self.failed.set(self.fault.injected() > before);
        self.fault.clear();
        done
    }

    /// Whether the test made enough calls.
    pub(crate) fn failed(&self) -> bool {
        self.failed.get()
    }
}

impl fmt::Display for Injection<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at call {}", self.error, self.nth)
    }
}
