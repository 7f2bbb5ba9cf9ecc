//! Attributes that may be used again for a while (`actimeo`, nfs(5)).
//!
//! 1. Nothing older than the mount's `actimeo` is given out, and an open looks at the server
//!    first (close-to-open).
//! 2. What this mount changes is forgotten before the change is asked for and when it is answered,
//!    and an answer that was under way meanwhile is not kept; so a mount sees its own changes.
//! 3. At most [`MOST`] files are remembered.

use crate::error::Result;
use std::collections::HashMap;
use std::time::{Duration, Instant};
use weir_base::sync::Mutex;
use weir_vfs::{Attr, FileId};

/// Most files remembered; some hundred bytes each.
const MOST: usize = 16 << 10;

/// The attributes of a mount's files.
pub(crate) struct Attributes {
    keep: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    files: HashMap<FileId, (Attr, Instant)>,
    /// Counts what was forgotten.
    changes: u64,
}

/// When a question was asked.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    at: Instant,
    changes: u64,
}

impl Attributes {
    /// Keeps attributes for `keep`; not at all if that is zero.
    pub(crate) fn new(keep: Duration) -> Self {
        Self { keep, state: Mutex::default() }
    }

    /// What is known of a file, if that is fresh.
    pub(crate) fn get(&self, id: FileId) -> Option<Attr> {
        if self.keep.is_zero() {
            return None;
        }
        let state = self.state.lock();
        let (attr, at) = state.files.get(&id)?;
        (at.elapsed() < self.keep).then(|| attr.clone())
    }

    /// What is known of a file, if that is fresh, else what `ask` finds.
    pub(crate) async fn get_or_ask(
        &self,
        id: FileId,
        ask: impl Future<Output = Result<Attr>>,
    ) -> Result<Attr> {
        if let Some(attr) = self.get(id) {
            return Ok(attr);
        }
        let asked = self.asking();
        let attr = ask.await?;
        self.remember(asked, &attr);
        Ok(attr)
    }

    /// A question is about to be asked, whose answer [`remember`](Self::remember) takes.
    pub(crate) fn asking(&self) -> Asked {
        Asked { at: Instant::now(), changes: self.state.lock().changes }
    }

    /// Takes an answer, unless something was changed since the question.
    pub(crate) fn remember(&self, asked: Asked, attr: &Attr) {
        if self.keep.is_zero() {
            return;
        }
        let mut state = self.state.lock();
        if state.changes != asked.changes {
            return;
        }
        if state.files.len() >= MOST && !state.files.contains_key(&attr.id) {
            state.files.retain(|_, (_, at)| at.elapsed() < self.keep);
            if state.files.len() >= MOST {
                state.files.clear();
            }
        }
        state.files.insert(attr.id, (attr.clone(), asked.at));
    }

    /// A file is being changed, was changed, or is to be looked at anew.
    pub(crate) fn forget(&self, id: FileId) {
        if !self.keep.is_zero() {
            let mut state = self.state.lock();
            state.changes += 1;
            state.files.remove(&id);
        }
    }

    /// Names are being changed, and with them what they name.
    pub(crate) fn forget_all(&self) {
        if !self.keep.is_zero() {
            let mut state = self.state.lock();
            state.changes += 1;
            state.files.clear();
        }
    }
}
