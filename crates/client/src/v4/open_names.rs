//! Names that files were found under: minor version 0 opens by name only.
//!
//! 1. At most [`MAX_NAMES`] are kept. One that is forgotten, or not the file's any more, costs the
//!    file its open, nothing else.

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
