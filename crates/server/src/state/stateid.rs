//! Names of open and lock state.
//!
//! A stateid is a sequence number, which counts the changes of one state, and twelve bytes that
//! say which state: the server's run and a number that cannot be guessed ([`Ids`](super::Ids)). So a
//! stateid of an earlier run is known as such, and none of it has to be remembered.

use crate::state::error::StateError;

/// Which state: the part of a stateid that stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateKey {
    /// The server's run.
    pub run: u32,
    /// A number of its own, which cannot be guessed.
    pub number: u64,
}

impl StateKey {
    /// The twelve bytes on the wire.
    pub fn to_wire(self) -> [u8; 12] {
        let mut wire = [0; 12];
        wire[..4].copy_from_slice(&self.run.to_be_bytes());
        wire[4..].copy_from_slice(&self.number.to_be_bytes());
        wire
    }

    /// From the twelve bytes on the wire; any bytes are a key, if not one of a state.
    pub fn from_wire(wire: [u8; 12]) -> Self {
        let [a, b, c, d, number @ ..] = wire;
        Self { run: u32::from_be_bytes([a, b, c, d]), number: u64::from_be_bytes(number) }
    }
}

/// A stateid: which state, and after which of its changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StateId {
    /// Counts changes from 1; 0 asks for the newest (sessions only).
    pub seq: u32,
    /// Which state.
    pub key: StateKey,
}

/// What a client put where a stateid goes (RFC 8881 section 8.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateRef {
    /// All zeros: no open; share reservations of others hold.
    Anonymous,
    /// All ones: no open; a READ may pass over mandatory locks.
    Bypass,
    /// The compound's current stateid.
    Current,
    /// A state.
    Of(StateId),
}

impl StateRef {
    /// Reads a stateid. Zeros and ones in other combinations are no stateid.
    pub fn from_wire(seq: u32, other: [u8; 12]) -> Result<Self, StateError> {
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

/// Compares a client's idea of a state's sequence number with the server's
/// (RFC 8881 section 8.2.2). Numbers wrap around past 0.
pub fn check_seq(theirs: u32, ours: u32, zero_is_newest: bool) -> Result<(), StateError> {
    match ours.wrapping_sub(theirs).cast_signed() {
        _ if theirs == 0 && zero_is_newest => Ok(()),
        0 => Ok(()),
        1.. => Err(StateError::OldStateId),
        _ => Err(StateError::BadStateId),
    }
}

/// The sequence number after `seq`; 0 is left out.
pub fn next_seq(seq: u32) -> u32 {
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
