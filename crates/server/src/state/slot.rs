//! Exactly-once semantics: the slots of a session, and the replies cached in them (RFC 8881 section
//! 2.10.6).
//!
//! 1. A request is executed at most once. A slot accepts the next sequence number, or the last one
//!    again; a retransmission of the last request gets the cached reply.
//! 2. A slot holds at most one reply. While a request executes whose reply is to be cached, the
//!    slot is charged the largest reply that its session caches.
//!
//! ```text
//!             begin(last + 1)                finish
//!   idle(last) ------------> busy(last + 1) --------> idle(last + 1)
//!      | begin(last)            | begin(last + 1)
//!      v                        v
//!   the kept reply           Delay
//! ```

use bytes::Bytes;

/// How to handle a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Begin {
    /// Execute it, then [`Slot::finish`].
    Execute,
    /// The request was executed before: send this reply again.
    Replay(Bytes),
}

/// Why a slot rejects a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotError {
    /// Its sequence number is neither the last one nor the one after it.
    Misordered,
    /// It was executed, but its reply is not cached.
    Uncached,
    /// It is being executed.
    Busy,
    /// Another request was executed under this sequence number.
    FalseRetry,
}

/// One slot.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    last: u32,
    /// Distinguishes requests with the same number; `None` before the first request.
    digest: Option<u64>,
    busy: bool,
    kept: Option<Bytes>,
    /// Size limit of the reply to the request in progress, in bytes.
    may_keep: u32,
}

impl Slot {
    /// A slot whose first request has sequence number `first`.
    pub(super) fn new(first: u32) -> Self {
        Self { last: first.wrapping_sub(1), digest: None, busy: false, kept: None, may_keep: 0 }
    }

    /// Whether a request with this number would be executed.
    pub(super) fn is_next(&self, sequence: u32) -> bool {
        sequence == self.last.wrapping_add(1) && !self.busy
    }

    /// The number of the last request.
    #[cfg(test)]
    pub(super) fn last(&self) -> u32 {
        self.last
    }

    /// Bytes of the cached reply, or reserved for it.
    pub(super) fn kept_bytes(&self) -> usize {
        self.kept.as_ref().map_or(self.may_keep as usize, Bytes::len)
    }

    /// Begins a request. `digest` distinguishes requests with the same number. The reply may take
    /// `may_keep` bytes.
    pub(super) fn begin(
        &mut self,
        sequence: u32,
        digest: u64,
        may_keep: usize,
    ) -> Result<Begin, SlotError> {
        if self.is_next(sequence) {
            self.last = sequence;
            self.digest = Some(digest);
            self.busy = true;
            (self.kept, self.may_keep) = (None, may_keep as u32);
            return Ok(Begin::Execute);
        }
        if sequence != self.last {
            return Err(SlotError::Misordered);
        }
        if self.digest.is_some_and(|executed| executed != digest) {
            return Err(SlotError::FalseRetry);
        }
        match &self.kept {
            _ if self.busy => Err(SlotError::Busy),
            Some(reply) => Ok(Begin::Replay(reply.clone())),
            None => Err(SlotError::Uncached),
        }
    }

    /// Ends a request, and caches its reply if there is one to cache.
    pub(super) fn finish(&mut self, reply: Option<Bytes>) {
        self.busy = false;
        (self.kept, self.may_keep) = (reply, 0);
    }

    /// Drops the cached reply. Returns its size in bytes.
    pub(super) fn forget_reply(&mut self) -> usize {
        self.kept.take().map_or(0, |reply| reply.len())
    }

    /// Whether a request is being executed.
    pub(super) fn is_busy(&self) -> bool {
        self.busy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_executed_once() {
        let mut slot = Slot::new(1);
        assert_eq!(slot.begin(0, 7, 100), Err(SlotError::Uncached));
        assert_eq!(slot.begin(1, 7, 100), Ok(Begin::Execute));
        assert_eq!(slot.begin(1, 7, 100), Err(SlotError::Busy));
        assert_eq!(slot.begin(2, 7, 100), Err(SlotError::Misordered));
        let reply = Bytes::from_static(b"done");
        slot.finish(Some(reply.clone()));
        assert_eq!(slot.begin(1, 7, 100), Ok(Begin::Replay(reply)));
        assert_eq!(slot.begin(1, 8, 100), Err(SlotError::FalseRetry));
        assert_eq!(slot.begin(3, 7, 100), Err(SlotError::Misordered));
        assert_eq!(slot.begin(2, 7, 100), Ok(Begin::Execute));
        slot.finish(None);
        assert_eq!(slot.begin(2, 7, 100), Err(SlotError::Uncached));
    }

    #[test]
    fn sequence_numbers_wrap_to_zero() {
        let mut slot = Slot::new(u32::MAX);
        assert_eq!(slot.begin(u32::MAX, 7, 100), Ok(Begin::Execute));
        slot.finish(None);
        assert_eq!(slot.begin(0, 7, 100), Ok(Begin::Execute));
    }
}
