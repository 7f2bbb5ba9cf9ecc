//! The slots of a session: each has one call at a time (RFC 8881 section 2.10.6.1). So a call takes its
//! number from the slot's guard, and holds that until it has the reply.

use weir_nfs::v4::types::SessionId;

/// A slot of whichever session is the client's.
#[derive(Default)]
pub(super) struct Slot {
    /// Of its last call.
    session: SessionId,
    sequence: u32,
}

impl Slot {
    /// The number of the next call, which is in `session`.
    pub(super) fn begin(&mut self, session: SessionId) -> u32 {
        if self.session != session {
            *self = Self { session, sequence: 0 };
        }
        self.sequence += 1;
        self.sequence
    }

    /// The server has not counted the last call.
    pub(super) fn take_back(&mut self) {
        self.sequence -= 1;
    }
}
