//! Names under which files were found: minor version 0 opens by name only.
//!
//! 1. At most [`MAX_NAMES`] are kept. Without a name, or with one that is outdated, a file only
//!    cannot be opened.

use crate::protocol::Handle;
use std::collections::HashMap;
use weir_base::sync::Mutex;

const MAX_NAMES: usize = 64 << 10;

#[derive(Default)]
pub(super) struct Names {
    by_handle: Mutex<HashMap<Handle, (Handle, Vec<u8>)>>,
}

impl Names {
    pub(super) fn get(&self, handle: &Handle) -> Option<(Handle, Vec<u8>)> {
        self.by_handle.lock().get(handle).cloned()
    }

    pub(super) fn found(&self, handle: &Handle, dir: &Handle, name: &[u8]) {
        let mut names = self.by_handle.lock();
        if names.len() >= MAX_NAMES {
            names.clear();
        }
        names.insert(handle.clone(), (dir.clone(), name.to_vec()));
    }
}
