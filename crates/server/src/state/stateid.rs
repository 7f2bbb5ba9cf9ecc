//! Stateids of opens, locks and delegations.
//!
//! A stateid is a sequence number, which counts the changes of one state, and twelve bytes that
//! identify the state: the server's run and a number that cannot be guessed ([`Ids`](super::Ids)).
//! The server thus recognizes stateids of earlier runs without remembering them.

use crate::state::error::StateError;

/// Identifies a state: the part of a stateid that does not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct StateKey {
    /// The server's run.
    pub(crate) run: u32,
    /// Unique within the run, and hard to guess.
    pub(crate) number: u64,
}

impl StateKey {
    /// The twelve bytes on the wire.
    pub(crate) fn to_wire(self) -> [u8; 12] {
        let mut wire = [0; 12];
        wire[..4].copy_from_slice(&self.run.to_be_bytes());
        wire[4..].copy_from_slice(&self.number.to_be_bytes());
        wire
    }

    /// Decodes the twelve bytes on the wire. Any bytes are a key, though perhaps of no state.
    pub(crate) fn from_wire(wire: [u8; 12]) -> Self {
        let [a, b, c, d, number @ ..] = wire;
        Self { run: u32::from_be_bytes([a, b, c, d]), number: u64::from_be_bytes(number) }
    }
}

/// A stateid: a state, and the number of its last change that the client knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StateId {
    /// Counts changes from 1; 0 means the current one (sessions only).
    pub(crate) seq: u32,
    /// Which state.
    pub(crate) key: StateKey,
}

/// A decoded stateid argument (RFC 8881 section 8.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StateRef {
    /// All zeros: I/O without an open; share reservations apply.
    Anonymous,
    /// All ones: I/O without an open; a READ ignores share reservations.
    Bypass,
    /// The compound's current stateid.
    Current,
    /// The stateid of a state.
    Of(StateId),
}

impl StateRef {
    /// Decodes a stateid. Other combinations of all zeros or all ones are invalid.
    pub(crate) fn from_wire(seq: u32, other: [u8; 12]) -> Result<Self, StateError> {
        match (seq, other) {
            (0, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]) => Ok(Self::Anonymous),
            (u32::MAX, [255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255]) => {
                Ok(Self::Bypass)
            }
            (1, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]) => Ok(Self::Current),
            (
                _,
                [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
                | [255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255],
            ) => Err(StateError::BadStateId),
            _ => Ok(Self::Of(StateId { seq, key: StateKey::from_wire(other) })),
        }
    }
}

/// Compares a client's sequence number of a state with the server's (RFC 8881 section 8.2.2).
/// Numbers wrap around and skip 0.
pub(crate) fn check_seq(theirs: u32, ours: u32, zero_is_newest: bool) -> Result<(), StateError> {
    match ours.wrapping_sub(theirs).cast_signed() {
        _ if theirs == 0 && zero_is_newest => Ok(()),
        0 => Ok(()),
        1.. => Err(StateError::OldStateId),
        _ => Err(StateError::BadStateId),
    }
}

/// The sequence number after `seq`; skips 0.
pub(crate) fn next_seq(seq: u32) -> u32 {
    seq.checked_add(1).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_form_and_special_values() {
        let key = StateKey { run: 7, number: 9 };
        assert_eq!(StateKey::from_wire(key.to_wire()), key);
        assert_eq!(StateRef::from_wire(0, [0; 12]), Ok(StateRef::Anonymous));
        assert_eq!(StateRef::from_wire(1, [0; 12]), Ok(StateRef::Current));
        assert_eq!(StateRef::from_wire(2, [0; 12]), Err(StateError::BadStateId));
        assert_eq!(StateRef::from_wire(u32::MAX, [255; 12]), Ok(StateRef::Bypass));
        assert_eq!(StateRef::from_wire(3, [255; 12]), Err(StateError::BadStateId));
    }

    #[test]
    fn sequence_numbers_wrap() {
        assert_eq!(check_seq(0, 5, true), Ok(()));
        assert_eq!(check_seq(0, 5, false), Err(StateError::OldStateId));
        assert_eq!(check_seq(u32::MAX, 1, true), Err(StateError::OldStateId));
        assert_eq!(check_seq(2, 1, true), Err(StateError::BadStateId));
        assert_eq!(next_seq(u32::MAX), 1);
    }
}
