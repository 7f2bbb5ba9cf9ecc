//! Files that were unlinked while they were open, for servers that keep no opens: such a file is
//! renamed instead, to a name that starts with `.nfs`, and removed when it is closed.
//!
//! 1. The hidden name is removed by the last close of the file in this mount; a client that dies
//!    before leaves it behind, as every NFS client does.

use crate::files::change_spans::Changes;
use crate::protocol::{Handle, Protocol};
use std::collections::HashMap;
use std::sync::Arc;
use weir_base::sync::Mutex;
use weir_rpc::OpaqueAuth;
use weir_vfs::{FileId, RenameFlags};

/// The open files of a mount.
#[derive(Default)]
pub(crate) struct OpenFiles(Mutex<HashMap<FileId, Uses>>);

#[derive(Default)]
struct Uses {
    count: usize,
    handle: Option<Handle>,
    hidden: Option<Hidden>,
    changes: Arc<Changes>,
}

/// A hidden name to be removed.
pub(crate) struct Hidden {
    cred: Arc<OpaqueAuth>,
    dir: Handle,
    name: Vec<u8>,
}

impl OpenFiles {
    /// Takes note of an open.
    pub(crate) fn opened(&self, id: FileId, handle: &Handle) -> Arc<Changes> {
        let mut files = self.0.lock();
        let uses = files.entry(id).or_default();
        uses.count += 1;
        uses.handle.get_or_insert_with(|| handle.clone());
        Arc::clone(&uses.changes)
    }

    /// The changes of an open file.
    pub(crate) fn changes(&self, id: FileId) -> Option<Arc<Changes>> {
        self.0.lock().get(&id).map(|uses| Arc::clone(&uses.changes))
    }

    /// The handle of an open file.
    pub(crate) fn handle(&self, id: FileId) -> Option<Handle> {
        self.0.lock().get(&id)?.handle.clone()
    }

    /// Takes note of a close; the last one may have a name to remove.
    pub(crate) fn closed(&self, id: FileId) -> Option<Hidden> {
        let mut files = self.0.lock();
        let uses = files.get_mut(&id)?;
        uses.count -= 1;
        if uses.count > 0 {
            return None;
        }
        files.remove(&id)?.hidden
    }

    /// Removes what is hidden, for the end of the mount.
    pub(crate) async fn remove_hidden(&self, protocol: &dyn Protocol) {
        let uses = |uses: &mut Uses| uses.hidden.take();
        let all: Vec<Hidden> = self.0.lock().values_mut().filter_map(uses).collect();
        for hidden in all {
            if let Err(error) = hidden.remove(protocol).await {
                tracing::warn!("an unlinked file stays behind: {error}");
            }
        }
    }

    /// Whether this mount has the file open.
    pub(crate) fn is_open(&self, id: FileId) -> bool {
        self.0.lock().contains_key(&id)
    }

    /// Whether the file was unlinked while it was open, and has a hidden name instead.
    pub(crate) fn is_hidden(&self, id: FileId) -> bool {
        self.0.lock().get(&id).is_some_and(|uses| uses.hidden.is_some())
    }

    fn hide(&self, id: FileId, hidden: Hidden) -> Result<(), Hidden> {
        match self.0.lock().get_mut(&id) {
            Some(uses) => {
                uses.hidden = Some(hidden);
                Ok(())
            }
            None => Err(hidden),
        }
    }

    /// Unlinks a name, or hides it while its file is open.
    pub(crate) async fn unlink(
        &self,
        protocol: &dyn Protocol,
        cred: Arc<OpaqueAuth>,
        dir: Handle,
        name: &[u8],
    ) -> crate::Result<()> {
        if protocol.keeps_unlinked() || self.0.lock().is_empty() {
            return protocol.remove(&cred, &dir, name, false).await;
        }
        let attr = protocol.lookup(&cred, &dir, name).await?.attr;
        if !self.is_open(attr.id) || attr.nlink > 1 {
            return protocol.remove(&cred, &dir, name, false).await;
        }
        let hidden_name = format!(".nfs{:016x}", getrandom::u64().unwrap_or(attr.id.ino));
        let to = (&dir, hidden_name.as_bytes());
        protocol.rename(&cred, (&dir, name), to, RenameFlags::Replace).await?;
        let hidden = Hidden { cred, dir: dir.clone(), name: hidden_name.into_bytes() };
        match self.hide(attr.id, hidden) {
            Ok(()) => Ok(()),
            // Closed in between.
            Err(hidden) => hidden.remove(protocol).await,
        }
    }
}

impl Hidden {
    /// Removes the name.
    pub(crate) async fn remove(self, protocol: &dyn Protocol) -> crate::Result<()> {
        protocol.remove(&self.cred, &self.dir, &self.name, false).await
    }
}
