//! The attributes of a session's channels.

use crate::state::error::StateError;

/// Size of a request that consists of SEQUENCE: RPC header without credential (40), COMPOUND header
/// without tag (12), and the operation (36).
const LEAST_REQUEST_BYTES: u32 = 88;
/// Size of its reply: RPC header (24), COMPOUND header (12), and the result (44).
const LEAST_RESPONSE_BYTES: u32 = 80;

/// Attributes of one channel of a session (RFC 8881 section 18.36: `channel_attrs4`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Channel {
    /// Largest request, RPC header included, in bytes.
    pub(crate) max_request: u32,
    /// Largest reply, RPC header included, in bytes.
    pub(crate) max_response: u32,
    /// Largest reply that is cached, in bytes.
    pub(crate) max_cached: u32,
    /// Maximum number of operations in a request.
    pub(crate) max_operations: u32,
    /// Number of slots.
    pub(crate) slots: u32,
}

impl Channel {
    /// The attributes to grant: the lesser of what the client asks for and what `self` offers.
    ///
    /// # Errors
    /// [`StateError::TooSmall`] if the granted sizes fit no request or no reply.
    pub(crate) fn grant(self, asked: Self) -> Result<Self, StateError> {
        let granted = Self {
            max_request: self.max_request.min(asked.max_request),
            max_response: self.max_response.min(asked.max_response),
            max_cached: self.max_cached.min(asked.max_cached),
            max_operations: self.max_operations.min(asked.max_operations),
            slots: self.slots.min(asked.slots).max(1),
        };
        let useful = granted.max_request >= LEAST_REQUEST_BYTES
            && granted.max_response >= LEAST_RESPONSE_BYTES
            && granted.max_operations > 0;
        if useful { Ok(granted) } else { Err(StateError::TooSmall) }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A small channel for the tests of this folder.
    pub(in crate::state) const CHANNEL: Channel = Channel {
        max_request: 4096,
        max_response: 4096,
        max_cached: 1024,
        max_operations: 8,
        slots: 4,
    };

    #[test]
    fn session_sizes_are_the_minimum_and_too_small_ones_refused() {
        let asked = Channel { max_request: 1 << 30, slots: 0, ..CHANNEL };
        let granted = CHANNEL.grant(asked).unwrap();
        assert_eq!((granted.max_request, granted.slots), (4096, 1));
        let with = |max_response| CHANNEL.grant(Channel { max_response, ..CHANNEL });
        assert_eq!(with(LEAST_RESPONSE_BYTES - 1), Err(StateError::TooSmall));
        assert!(with(LEAST_RESPONSE_BYTES).is_ok());
    }
}
