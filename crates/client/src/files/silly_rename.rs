//! Silly rename: a file that is removed while this mount has it open is renamed to `.nfs...` instead,
//! and that name is removed at the last close. One that is replaced by a rename gets the name as a
//! further one, so that its own never refers to nothing. For versions whose servers keep no opens.
//!
//! 1. The last close of the file in this mount removes the name. A client that dies before leaves it
//!    behind, as every NFS client does.
//! 2. A close may be in progress when a program removes the directory: while silly-renamed names are
//!    in it, the removal is tried again for [`PATIENCE`]. An attempt counts as [`MOST_OF_AN_ATTEMPT`] at most: in
//!    a process that was suspended, the close has had no time.

use crate::files::change_spans::OwnChanges;
use crate::protocol::{Handle, Node, Protocol};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use weir_base::sync::Mutex;
use weir_rpc::OpaqueAuth;
use weir_vfs::{FileId, RenameFlags};

/// How long the removal of a directory waits for silly-renamed names in it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);
/// The most of it that one attempt uses up.
pub(crate) const MOST_OF_AN_ATTEMPT: Duration = Duration::from_millis(100);
/// The pause between two attempts.
pub(crate) const REMOVAL_PAUSE: Duration = Duration::from_millis(20);

/// The open files of a mount.
#[derive(Default)]
pub(crate) struct OpenFiles(Mutex<HashMap<FileId, Entry>>, Directories);

/// How many silly-renamed names are in each directory.
type Directories = Arc<Mutex<HashMap<Handle, usize>>>;

/// Counts a silly-renamed name in its directory until it is dropped.
struct Counted {
    dir: Handle,
    directories: Directories,
}

impl Counted {
    fn new(dir: &Handle, directories: &Directories) -> Self {
        *directories.lock().entry(dir.clone()).or_default() += 1;
        Self { dir: dir.clone(), directories: Arc::clone(directories) }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut directories = self.directories.lock();
        if let Some(count) = directories.get_mut(&self.dir) {
            *count -= 1;
            if *count == 0 {
                directories.remove(&self.dir);
            }
        }
    }
}

#[derive(Default)]
struct Entry {
    opens: usize,
    handle: Option<Handle>,
    silly_renamed: Option<SillyRenamed>,
    changes: Arc<OwnChanges>,
}

/// The name that a removed file has until it is closed.
pub(crate) struct SillyRenamed {
    cred: Arc<OpaqueAuth>,
    dir: Handle,
    name: Vec<u8>,
    _counted: Counted,
}

impl OpenFiles {
    /// Counts an open.
    pub(crate) fn opened(&self, id: FileId, handle: &Handle) -> Arc<OwnChanges> {
        let mut files = self.0.lock();
        let entry = files.entry(id).or_default();
        entry.opens += 1;
        entry.handle.get_or_insert_with(|| handle.clone());
        Arc::clone(&entry.changes)
    }

    /// The changes that this mount makes of an open file.
    pub(crate) fn changes(&self, id: FileId) -> Option<Arc<OwnChanges>> {
        self.0.lock().get(&id).map(|entry| Arc::clone(&entry.changes))
    }

    /// The handle of an open file.
    pub(crate) fn handle(&self, id: FileId) -> Option<Handle> {
        self.0.lock().get(&id)?.handle.clone()
    }

    /// Counts a close. Returns the name to remove after the last one.
    pub(crate) fn closed(&self, id: FileId) -> Option<SillyRenamed> {
        let mut files = self.0.lock();
        let entry = files.get_mut(&id)?;
        entry.opens -= 1;
        if entry.opens > 0 {
            return None;
        }
        files.remove(&id)?.silly_renamed
    }

    /// Removes the names of all silly-renamed files, for the end of the mount.
    pub(crate) async fn remove_silly_renamed(&self, protocol: &dyn Protocol) {
        let take = |entry: &mut Entry| entry.silly_renamed.take();
        let all: Vec<SillyRenamed> = self.0.lock().values_mut().filter_map(take).collect();
        for silly_renamed in all {
            silly_renamed.remove(protocol).await;
        }
    }

    /// Whether this mount has no file open.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Whether this mount has the file open.
    pub(crate) fn is_open(&self, id: FileId) -> bool {
        self.0.lock().contains_key(&id)
    }

    /// Whether there are no silly-renamed names.
    pub(crate) fn are_none_silly_renamed(&self) -> bool {
        self.1.lock().is_empty()
    }

    /// Whether there are silly-renamed names in a directory.
    pub(crate) fn are_silly_renamed_in(&self, dir: &Handle) -> bool {
        self.1.lock().contains_key(dir)
    }

    /// Whether the file was removed while open.
    pub(crate) fn is_silly_renamed(&self, id: FileId) -> bool {
        self.0.lock().get(&id).is_some_and(|entry| entry.silly_renamed.is_some())
    }

    /// Records the name for the last close; gives back the name to remove: an earlier one of the file, or this one if
    /// the file is closed already.
    fn set_silly_renamed(&self, id: FileId, renamed: SillyRenamed) -> Result<(), SillyRenamed> {
        match self.0.lock().get_mut(&id) {
            Some(entry) => entry.silly_renamed.replace(renamed).map_or(Ok(()), Err),
            None => Err(renamed),
        }
    }

    /// Removes a name, or silly-renames it while its file is open.
    pub(crate) async fn unlink(
        &self,
        protocol: &dyn Protocol,
        cred: Arc<OpaqueAuth>,
        dir: Handle,
        name: &[u8],
    ) -> crate::Result<()> {
        if protocol.keeps_unlinked() || self.is_empty() {
            return protocol.remove(&cred, &dir, name, false).await;
        }
        let attr = protocol.lookup(&cred, &dir, name).await?.attr;
        if !self.is_open(attr.id) || attr.nlink > 1 {
            return protocol.remove(&cred, &dir, name, false).await;
        }
        let renamed = self.silly_name(cred, &dir, attr.id);
        let to = (&dir, &renamed.name[..]);
        protocol.rename(&renamed.cred, (&dir, name), to, RenameFlags::Replace).await?;
        if let Err(unused) = self.set_silly_renamed(attr.id, renamed) {
            // Closed in between, or it is the name that was removed here.
            unused.remove(protocol).await;
        }
        Ok(())
    }

    /// Renames an entry. A file that it replaces stays while this mount has it open.
    pub(crate) async fn rename(
        &self,
        protocol: &dyn Protocol,
        cred: Arc<OpaqueAuth>,
        from: (&Handle, &[u8]),
        to: (&Handle, &[u8]),
        flags: RenameFlags,
    ) -> crate::Result<()> {
        let replaced = match flags {
            RenameFlags::Replace => self.replaced(protocol, &cred, from, to).await,
            RenameFlags::NoReplace | RenameFlags::Exchange => None,
        };
        let Some(replaced) = replaced else {
            return protocol.rename(&cred, from, to, flags).await;
        };
        let kept = self.silly_name(Arc::clone(&cred), to.0, replaced.attr.id);
        if let Err(error) = protocol.link(&cred, &replaced.handle, to.0, &kept.name).await {
            tracing::warn!("an open file is lost with its last name: {error}");
            return protocol.rename(&cred, from, to, flags).await;
        }
        if let Err(error) = protocol.rename(&cred, from, to, flags).await {
            kept.remove(protocol).await;
            return Err(error);
        }
        if let Err(unused) = self.set_silly_renamed(replaced.attr.id, kept) {
            // Closed in between, or an earlier name.
            unused.remove(protocol).await;
        }
        Ok(())
    }

    /// The file whose last name a rename takes, if this mount has it open and the server does not keep it
    /// for that.
    async fn replaced(
        &self,
        protocol: &dyn Protocol,
        cred: &OpaqueAuth,
        from: (&Handle, &[u8]),
        to: (&Handle, &[u8]),
    ) -> Option<Node> {
        if protocol.keeps_unlinked() || self.is_empty() {
            return None;
        }
        let there = protocol.lookup(cred, to.0, to.1).await.ok()?;
        if !self.is_open(there.attr.id) || there.attr.nlink != 1 {
            return None;
        }
        // A file that is renamed to its own name, or to one that the server takes for it, stays.
        let source = protocol.lookup(cred, from.0, from.1).await.ok()?;
        (source.attr.id != there.attr.id).then_some(there)
    }

    /// A name for a file in a directory until it is closed.
    fn silly_name(&self, cred: Arc<OpaqueAuth>, dir: &Handle, id: FileId) -> SillyRenamed {
        let name = format!(".nfs{:016x}", getrandom::u64().unwrap_or(id.ino)).into_bytes();
        SillyRenamed { cred, dir: dir.clone(), name, _counted: Counted::new(dir, &self.1) }
    }
}

impl SillyRenamed {
    /// Removes the name, or logs why it stays.
    pub(crate) async fn remove(self, protocol: &dyn Protocol) {
        let name = String::from_utf8_lossy(&self.name).into_owned();
        if let Err(error) = self.try_remove(protocol).await {
            tracing::warn!("cannot remove {name}, a file that was removed while open: {error}");
        }
    }

    async fn try_remove(self, protocol: &dyn Protocol) -> crate::Result<()> {
        protocol.remove(&self.cred, &self.dir, &self.name, false).await
    }
}
