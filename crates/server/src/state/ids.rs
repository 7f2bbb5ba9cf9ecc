//! Identifiers of clients, sessions and states that cannot be guessed: a peer knows only those that
//! it was told.
//!
//! 1. An identifier is a keyed hash (BLAKE3) of its kind and a counter. The key is used in this run
//!    only, so identifiers of an earlier run or of another kind reveal nothing about future ones.
//! 2. A stateid contains the number of the run that made it, so the server recognizes stateids of
//!    earlier runs.

use crate::state::client::ClientId;
use crate::state::stateid::StateKey;

/// Bytes of the key.
const KEY_BYTES: usize = blake3::KEY_LEN;

/// The kind of an identifier.
#[derive(Clone, Copy)]
#[repr(u8)]
enum Kind {
    Client = 1,
    Confirmation = 2,
    Session = 3,
    State = 4,
    Holder = 5,
}

/// A session ID; it cannot be guessed ([`Ids`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SessionId(pub [u8; 16]);

/// Generates identifiers.
#[derive(Clone, Copy)]
pub(crate) struct Ids {
    run: u32,
    key: [u8; KEY_BYTES],
}

impl std::fmt::Debug for Ids {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ids(run {}, secret key)", self.run)
    }
}

impl Ids {
    /// Identifiers for the server's run number `run`, under a `key` that no other run has used.
    pub(crate) fn new(run: u32, key: [u8; KEY_BYTES]) -> Self {
        Self { run, key }
    }

    /// Like [`new`](Self::new), with a random key.
    ///
    /// # Errors
    /// The system cannot provide random bytes.
    pub(crate) fn random(run: u32) -> std::io::Result<Self> {
        let mut key = [0; KEY_BYTES];
        getrandom::fill(&mut key).map_err(std::io::Error::other)?;
        Ok(Self::new(run, key))
    }

    /// The server's run number.
    pub(crate) fn run(&self) -> u32 {
        self.run
    }

    /// The ID of the `made`th client.
    pub(super) fn client(&self, made: u64) -> ClientId {
        ClientId(u64::from_be_bytes(self.half(Kind::Client, made)))
    }

    /// The verifier that confirms the `made`th SETCLIENTID.
    pub(super) fn confirmation(&self, made: u64) -> [u8; 8] {
        self.half(Kind::Confirmation, made)
    }

    /// The ID under which other clients see a client: its client ID stays secret.
    pub(super) fn holder(&self, client: ClientId) -> u64 {
        u64::from_be_bytes(self.half(Kind::Holder, client.0))
    }

    /// The ID of the `made`th session.
    pub(super) fn session(&self, made: u64) -> SessionId {
        SessionId(self.name(Kind::Session, made))
    }

    /// The key of the `made`th state.
    pub(super) fn state(&self, made: u64) -> StateKey {
        let number = u64::from_be_bytes(self.half(Kind::State, made));
        StateKey { run: self.run, number }
    }

    fn half(&self, kind: Kind, count: u64) -> [u8; 8] {
        let [half @ .., _, _, _, _, _, _, _, _] = self.name(kind, count);
        half
    }

    fn name(&self, kind: Kind, count: u64) -> [u8; 16] {
        let mut named = [kind as u8; 9];
        named[1..].copy_from_slice(&count.to_be_bytes());
        let hash = blake3::keyed_hash(&self.key, &named);
        let mut name = [0; 16];
        name.copy_from_slice(&hash.as_bytes()[..16]);
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn ids_of_one_run_or_kind_do_not_predict_others() {
        let (ids, other) = (Ids::random(7).unwrap(), Ids::random(7).unwrap());
        let numbers = |ids: &Ids| -> Vec<u64> { (1..1000).map(|n| ids.state(n).number).collect() };
        let mine: HashSet<u64> = numbers(&ids).into_iter().collect();
        assert_eq!(mine.len(), 999);
        assert!(numbers(&other).iter().all(|number| !mine.contains(number)));
        assert!((1..1000).all(|n| !mine.contains(&ids.client(n).0)));
        // Neighbours differ in about half of their bits, and never in a few.
        let near = |a: u64, b: u64| (a ^ b).count_ones() < 8;
        assert!(!numbers(&ids).windows(2).any(|pair| near(pair[0], pair[1])));
        assert_eq!(ids.state(1), ids.state(1));
        assert_ne!(ids.confirmation(1), ids.client(1).0.to_be_bytes());
        assert!(!format!("{ids:?}").contains('['), "the key is not for logs");
    }
}
