//! Cookie verifiers: a server expects the one of its last reply in the next READDIR of a directory,
//! but the neutral interface does not carry it.
//!
//! 1. The verifiers of the [`MAX`] most recently listed directories are kept; zeros are sent for
//!    the others, which a server that checks them rejects.

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
    /// The verifier for continuing at `cookie`; zeros at the start.
    pub(crate) fn get(&self, dir: &Handle, cookie: u64) -> [u8; 8] {
        match cookie {
            0 => [0; 8],
            _ => self.0.lock().by_dir.get(dir).copied().unwrap_or_default(),
        }
    }

    /// Stores the verifier of a reply.
    pub(crate) fn set(&self, dir: &Handle, verifier: [u8; 8]) {
        let Table { by_dir, oldest_first } = &mut *self.0.lock();
        match (verifier, by_dir.get_mut(dir)) {
            (_, Some(known)) => *known = verifier,
            // Most servers send zeros: nothing to store.
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
