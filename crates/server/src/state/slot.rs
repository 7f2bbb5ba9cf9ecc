//! Exactly once: the slots of a session, and the replies kept in them (RFC 8881 section 2.10.6).
//!
//! 1. A request is executed at most once: a slot takes a sequence number one above its last, or
//!    its last again, which gets the reply that was kept, if it is the same request.
//! 2. A slot holds one reply at most. While a request is executed whose reply is to be kept, the slot counts as
//!    holding the largest one that its session keeps.
//!
//! ```text
//!             begin(last + 1)                finish
//!   idle(last) ------------> busy(last + 1) --------> idle(last + 1)
//!      | begin(last)            | begin(last + 1)
//!      v                        v
//!   the kept reply           Delay
//! ```

use bytes::Bytes;

/// What is to be done with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Begin {
    /// Execute it, then [`Slot::finish`].
    Execute,
    /// It was executed: send this again.
    Replay(Bytes),
}

/// A request that cannot have its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotError {
    /// Its sequence number is neither the last one nor the one after it.
    Misordered,
    /// It was executed, and its reply was not kept because it asked for that.
    Uncached,
    /// It is being executed.
    Busy,
    /// The request that was executed under this number was another one.
    FalseRetry,
}

/// One slot.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    last: u32,
    /// Tells the last request from others of its number; none before the first.
    digest: Option<u64>,
    busy: bool,
    kept: Option<Bytes>,
    /// What the reply of the request being executed may take.
    may_keep: u32,
}

impl Slot {
    /// A slot whose first request has sequence number `first`.
    pub(super) fn new(first: u32) -> Self {
        Self { last: first.wrapping_sub(1), digest: None, busy: false, kept: None, may_keep: 0 }
    }

    /// Whether a request with this number is to be executed.
    pub(super) fn is_next(&self, sequence: u32) -> bool {
        sequence == self.last.wrapping_add(1) && !self.busy
    }

    /// Bytes of the reply that is kept, or may be.
    pub(super) fn kept_bytes(&self) -> usize {
        self.kept.as_ref().map_or(self.may_keep as usize, Bytes::len)
    }

    /// Takes a request; `digest` tells it from others of the same number. Its reply may take `may_keep` bytes.
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

    /// Ends a request, keeping its reply if it is to be kept.
    pub(super) fn finish(&mut self, reply: Option<Bytes>) {
        self.busy = false;
        (self.kept, self.may_keep) = (reply, 0);
    }

    /// Drops the reply that is kept; how many bytes it had.
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
