//! Which calls go wrong, and how.

use crate::random::Random;
use std::ops::Range;
use std::time::Duration;
use weir_vfs::Error;

/// A method of a store or of an open file.
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
}

/// Which of the calls a rule is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum When {
    /// All of them.
    Always,
    /// The one with this number, counted from 0 by rule.
    Nth(u64),
    /// The first so many.
    First(u64),
    /// One in so many, by the seed.
    OneIn(u64),
    /// Reads and writes that touch these bytes.
    Touching(Range<u64>),
}

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// It begins later.
    Delay(Duration),
    /// It fails, and nothing is done.
    Fail(Error),
    /// A read finds at most so many bytes; a write stores at most so many and then fails with
    /// [`Error::Io`]. Other calls are not touched.
    Short(usize),
    /// It does not begin before [`Fault::release`](super::Fault::release).
    Hold,
}

/// One rule; the first one that matches a call decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The method.
    pub call: Call,
    /// Which calls of it.
    pub when: When,
    /// What happens to them.
    pub what: What,
}

/// Rules, and how often they were looked at.
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

    /// What happens to a call on `bytes` of a file.
    pub(super) fn decide(&mut self, call: Call, bytes: Range<u64>) -> Option<What> {
        for (rule, seen) in self.rules.iter_mut().filter(|(rule, _)| rule.call == call) {
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
