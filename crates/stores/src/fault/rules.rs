//! Which calls fail, and how.

use crate::random::Random;
use std::ops::Range;
use std::time::Duration;
use weir_vfs::Error;

/// A method of a store or of an open file, or, for a rule, any of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "named as the methods are")]
pub enum Call {
    Statfs,
    Getattr,
    Setattr,
    Access,
    Lookup,
    Parent,
    Readdir,
    Readlink,
    Create,
    Mkdir,
    Symlink,
    Mknod,
    Link,
    Unlink,
    Rmdir,
    Rename,
    Open,
    SyncNode,
    Xattr,
    Acl,
    Read,
    Write,
    Sync,
    SetSize,
    PunchHole,
    Allocate,
    ExtentAt,
    CloneRange,
    CopyRange,
    Any,
}

/// Which of the calls a rule applies to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum When {
    /// All of them.
    Always,
    /// The call with this number, counted from 0 for each rule.
    Nth(u64),
    /// The first `n` calls.
    First(u64),
    /// One in `n` calls, by the seed.
    OneIn(u64),
    /// Reads and writes that touch these bytes.
    Touching(Range<u64>),
}

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// It starts later.
    Delay(Duration),
    /// It fails without an effect.
    Fail(Error),
    /// A read returns at most this many bytes; a write stores at most this many and then fails with
    /// [`Error::Io`]. No effect on other calls.
    Short(usize),
    /// It starts only after [`Fault::release`](super::Fault::release).
    Hold,
}

/// A rule; the first one that matches a call applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The call.
    pub call: Call,
    /// Which of these calls.
    pub when: When,
    /// What happens to them.
    pub what: What,
}

/// Rules, and how often each was consulted.
#[derive(Debug)]
pub(super) struct Rules {
    rules: Vec<(Rule, u64)>,
    random: Random,
    pub(super) injected: u64,
}

impl Rules {
    pub(super) fn new(seed: u64) -> Self {
        Self { rules: Vec::new(), random: Random::new(seed), injected: 0 }
    }

    pub(super) fn add(&mut self, rule: Rule) {
        self.rules.push((rule, 0));
    }

    pub(super) fn clear(&mut self) {
        self.rules.clear();
    }

    /// The fault for a call on `bytes` of a file.
    pub(super) fn decide(&mut self, call: Call, bytes: Range<u64>) -> Option<What> {
        for (rule, seen) in
            self.rules.iter_mut().filter(|(rule, _)| rule.call == call || rule.call == Call::Any)
        {
            let number = *seen;
            *seen += 1;
            let hit = match &rule.when {
                When::Always => true,
                When::Nth(nth) => number == *nth,
                When::First(count) => number < *count,
                When::OneIn(count) => self.random.one_in(*count),
                When::Touching(range) => bytes.start < range.end && range.start < bytes.end,
            };
            if hit {
                self.injected += 1;
                return Some(rule.what);
            }
        }
        None
    }
}
