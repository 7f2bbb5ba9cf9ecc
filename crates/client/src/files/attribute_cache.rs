//! Cached attributes (`actimeo`, nfs(5)).
//!
//! 1. An entry is used for at most the mount's `actimeo`, and an open drops it (close-to-open).
//! 2. A change by this mount drops the entry before the request is sent and again after the reply. A
//!    reply to a GETATTR sent before the change is not cached, so a mount sees its own changes.
//! 3. An entry that was fetched under a delegation is valid while that delegation, identified by its
//!    number, is held.
//! 4. At most [`MAX_FILES`] files are cached.

use crate::error::Result;
use crate::protocol::{Handle, Protocol};
use std::collections::HashMap;
use std::time::{Duration, Instant};
use weir_base::sync::Mutex;
use weir_vfs::{Attr, FileId, KeptAttributes};

/// Most files cached; a few hundred bytes each.
const MAX_FILES: usize = 16 << 10;

/// The attributes of a mount's files.
pub(crate) struct AttributeCache {
    keep: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    files: HashMap<FileId, CachedAttr>,
    /// Entries dropped so far.
    changes: u64,
}

struct CachedAttr {
    attr: Attr,
    /// When the request was sent.
    at: Instant,
    /// The delegation that covers it.
    grant: Option<u64>,
}

/// When a GETATTR was sent.
#[derive(Clone, Copy)]
pub(crate) struct AttrRequest {
    at: Instant,
    changes: u64,
    grant: Option<u64>,
}

impl AttributeCache {
    /// Entries are valid for `keep`, and for as long as a delegation covers them.
    pub(crate) fn new(keep: Duration) -> Self {
        Self { keep, state: Mutex::default() }
    }

    /// The cached attributes of a file, if they are still valid.
    fn get(&self, id: FileId, grant: Option<u64>) -> Option<Attr> {
        let state = self.state.lock();
        let known = state.files.get(&id)?;
        let held = grant.is_some() && known.grant == grant;
        (held || known.at.elapsed() < self.keep).then(|| known.attr.clone())
    }

    /// The cached attributes of a file if they are still valid, else those that `ask` fetches.
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
        let asked = AttrRequest { grant, ..self.asking() };
        let attr = ask.await?;
        self.remember(asked, &attr);
        Ok(attr)
    }

    /// Call before a request whose reply goes to [`remember`](Self::remember).
    pub(crate) fn asking(&self) -> AttrRequest {
        AttrRequest { at: Instant::now(), changes: self.state.lock().changes, grant: None }
    }

    /// Caches the attributes of a reply, unless an entry was dropped since the request was sent.
    pub(crate) fn remember(&self, asked: AttrRequest, attr: &Attr) {
        let mut state = self.state.lock();
        if state.changes != asked.changes {
            return;
        }
        let before = state.files.get(&attr.id);
        // The delegation that covers the older entry covers the newer one as well.
        let grant = asked.grant.or(before.filter(|b| b.at <= asked.at).and_then(|b| b.grant));
        if grant.is_none() && self.keep.is_zero() {
            return;
        }
        if state.files.len() >= MAX_FILES && !state.files.contains_key(&attr.id) {
            state.files.retain(|_, known| known.at.elapsed() < self.keep);
            if state.files.len() >= MAX_FILES {
                state.files.clear();
            }
        }
        state.files.insert(attr.id, CachedAttr { attr: attr.clone(), at: asked.at, grant });
    }

    /// Drops a file's entry: the file is being changed, was changed, or is opened.
    pub(crate) fn forget(&self, id: FileId) {
        let mut state = self.state.lock();
        state.changes += 1;
        state.files.remove(&id);
    }

    /// Drops a file's entry; one under a delegation stays, unless `which` is `All`: a change would have been told.
    pub(crate) fn forget_kept(
        &self,
        protocol: &dyn Protocol,
        (id, handle): (FileId, &Handle),
        which: KeptAttributes,
    ) {
        if which == KeptAttributes::All || protocol.grant(handle).is_none() {
            self.forget(id);
        }
    }

    /// Drops all entries: a change of names changes attributes of directories and files.
    pub(crate) fn forget_all(&self) {
        let mut state = self.state.lock();
        state.changes += 1;
        state.files.clear();
    }
}
