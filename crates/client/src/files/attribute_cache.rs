//! AttributeCache that may be used again for a while (`actimeo`, nfs(5)).
//!
//! 1. Nothing older than the mount's `actimeo` is given out, and an open looks at the server
//!    first (close-to-open).
//! 2. What this mount changes is forgotten before the change is asked for and when it is answered,
//!    and an answer that was under way meanwhile is not kept; so a mount sees its own changes.
//! 3. What was asked under a delegation is good for as long as that is held, and known by its
//!    number.
//! 4. At most [`MOST`] files are remembered.

use crate::error::Result;
use crate::protocol::{Handle, Protocol};
use std::collections::HashMap;
use std::time::{Duration, Instant};
use weir_base::sync::Mutex;
use weir_vfs::{Attr, FileId};

/// Most files remembered; some hundred bytes each.
const MOST: usize = 16 << 10;

/// The attributes of a mount's files.
pub(crate) struct AttributeCache {
    keep: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    files: HashMap<FileId, Known>,
    /// Counts what was forgotten.
    changes: u64,
}

struct Known {
    attr: Attr,
    /// When it was asked for.
    at: Instant,
    /// Under which delegation.
    grant: Option<u64>,
}

/// When a question was asked.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    at: Instant,
    changes: u64,
    grant: Option<u64>,
}

impl AttributeCache {
    /// Keeps attributes for `keep`, and as long as they are under a delegation.
    pub(crate) fn new(keep: Duration) -> Self {
        Self { keep, state: Mutex::default() }
    }

    /// What is known of a file, if that is fresh.
    fn get(&self, id: FileId, grant: Option<u64>) -> Option<Attr> {
        let state = self.state.lock();
        let known = state.files.get(&id)?;
        let held = grant.is_some() && known.grant == grant;
        (held || known.at.elapsed() < self.keep).then(|| known.attr.clone())
    }

    /// What is known of a file, if that is fresh, else what `ask` finds.
    pub(crate) async fn get_or_ask(
        &self,
        protocol: &dyn Protocol,
        (id, handle): (FileId, &Handle),
        ask: impl Future<Output = Result<Attr>>,
    ) -> Result<Attr> {
        let grant = protocol.grant(handle);
        if let Some(attr) = self.get(id, grant) {
            return Ok(attr);
        }
        let asked = Asked { grant, ..self.asking() };
        let attr = ask.await?;
        self.remember(asked, &attr);
        Ok(attr)
    }

    /// A question is about to be asked, whose answer [`remember`](Self::remember) takes.
    pub(crate) fn asking(&self) -> Asked {
        Asked { at: Instant::now(), changes: self.state.lock().changes, grant: None }
    }

    /// Takes an answer, unless something was changed since the question.
    pub(crate) fn remember(&self, asked: Asked, attr: &Attr) {
        let mut state = self.state.lock();
        if state.changes != asked.changes {
            return;
        }
        let before = state.files.get(&attr.id);
        // What was asked after something that a delegation covers is covered as well.
        let grant = asked.grant.or(before.filter(|b| b.at <= asked.at).and_then(|b| b.grant));
        if grant.is_none() && self.keep.is_zero() {
            return;
        }
        if state.files.len() >= MOST && !state.files.contains_key(&attr.id) {
            state.files.retain(|_, known| known.at.elapsed() < self.keep);
            if state.files.len() >= MOST {
                state.files.clear();
            }
        }
        state.files.insert(attr.id, Known { attr: attr.clone(), at: asked.at, grant });
    }

    /// A file is being changed, was changed, or is to be looked at anew.
    pub(crate) fn forget(&self, id: FileId) {
        let mut state = self.state.lock();
        state.changes += 1;
        state.files.remove(&id);
    }

    /// Names are being changed, and with them what they name.
    pub(crate) fn forget_all(&self) {
        let mut state = self.state.lock();
        state.changes += 1;
        state.files.clear();
    }
}
