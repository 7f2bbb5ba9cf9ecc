//! Cookie verifiers: what a server wants back with the next READDIR of a directory, which the
//! neutral interface does not carry.
//!
//! 1. Those of the directories listed last are remembered, [`MAX`] at most; a forgotten one is
//!    sent as zeros, and a server that minds says so.

use crate::protocol::Handle;
use std::collections::{HashMap, VecDeque};
use weir_base::sync::Mutex;

const MAX: usize = 4096;

/// The verifiers of directories.
#[derive(Default)]
pub(crate) struct Verifiers(Mutex<Table>);

#[derive(Default)]
struct Table {
    by_dir: HashMap<Handle, [u8; 8]>,
    oldest_first: VecDeque<Handle>,
}

impl Verifiers {
    /// The verifier to go on with at `cookie`; zeros at the front.
    pub(crate) fn get(&self, dir: &Handle, cookie: u64) -> [u8; 8] {
        match cookie {
            0 => [0; 8],
            _ => self.0.lock().by_dir.get(dir).copied().unwrap_or_default(),
        }
    }

    /// Remembers what the server answered.
    pub(crate) fn set(&self, dir: &Handle, verifier: [u8; 8]) {
        let Table { by_dir, oldest_first } = &mut *self.0.lock();
        match (verifier, by_dir.get_mut(dir)) {
            (_, Some(known)) => *known = verifier,
            // Most servers send zeros: nothing to remember.
            ([0, 0, 0, 0, 0, 0, 0, 0], None) => {}
            (_, None) => {
                by_dir.insert(dir.clone(), verifier);
                oldest_first.push_back(dir.clone());
                if oldest_first.len() > MAX
                    && let Some(oldest) = oldest_first.pop_front()
                {
                    by_dir.remove(&oldest);
                }
            }
        }
    }
}
