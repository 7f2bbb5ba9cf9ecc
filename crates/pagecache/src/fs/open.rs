//! Opening files. All who open a file use the one open file of the store.

use crate::file::File;
use crate::fs::CachedFs;
use crate::mapping::{Mapping, Purpose};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weir_vfs::{Access, Caller, CreateMode, Created, Error, FileId, NewFile, Permissions, Result};

impl CachedFs {
    /// Opens a regular file through the cache. All opens of one file share its pages. Cheap if the
    /// file still has a mapping, as NFSv3 opens per call.
    ///
    /// # Errors
    /// [`AccessDenied`](weir_vfs::Error::AccessDenied) if `caller` may not;
    /// [`IsDirectory`](weir_vfs::Error::IsDirectory) or [`Invalid`](weir_vfs::Error::Invalid) if it is
    /// not a regular file; those of the store.
    pub async fn open(&self, caller: &Caller, id: FileId, access: Access) -> Result<File> {
        if *caller != Caller::Own {
            self.store().check_access(caller, id, access.into()).await?;
        }
        self.open_made(caller, id, access).await
    }

    /// Opens a regular file that `caller` has just created: with any access, also one that its mode
    /// denies, if the store lets the program itself do that.
    ///
    /// # Errors
    /// As of [`open`](Self::open).
    pub async fn open_made(&self, caller: &Caller, id: FileId, access: Access) -> Result<File> {
        self.open_for(caller, id, Purpose::Access(access)).await
    }

    /// Opens a regular file for reading, for a caller who executes it: the right to execute it suffices.
    ///
    /// # Errors
    /// As of [`open`](Self::open).
    pub async fn open_to_execute(&self, caller: &Caller, id: FileId) -> Result<File> {
        match self.open(caller, id, Access::READ).await {
            Err(Error::AccessDenied) => {}
            opened => return opened,
        }
        self.store().check_access(caller, id, Permissions::EXECUTE).await?;
        self.open_for(caller, id, Purpose::Execution).await
    }

    async fn open_for(&self, caller: &Caller, id: FileId, purpose: Purpose) -> Result<File> {
        let (mapping, is_known) = self.mapping(caller, id, purpose).await?;
        let file = File::new(self.shared.clone(), mapping, purpose.access());
        let mapping = &file.open.mapping;
        mapping.upgrade(caller, purpose).await?;
        if is_known {
            mapping.getattr().await?;
        }
        Ok(file)
    }

    /// The file's mapping, with one more open counted, and whether its last look at the store may be older
    /// than this call: it was idle before, or another caller has entered it meanwhile.
    async fn mapping(
        &self,
        caller: &Caller,
        id: FileId,
        purpose: Purpose,
    ) -> Result<(Arc<Mapping>, bool)> {
        if let Some(found) = self.shared.reopen(id) {
            found.0.forget_timed();
            return Ok(found);
        }
        let fs = &self.shared;
        fs.make_room().await;
        let lead = fs.lead.load(Ordering::Relaxed);
        let (memory, file) = (fs.cache.memory(), (id, purpose));
        let new = Mapping::open(memory, &fs.store, &fs.dirty, caller, file, lead).await?;
        let (mapping, is_new) = fs.enter(new);
        Ok((mapping, !is_new))
    }

    /// Like [`create`](Self::create); also opens a new file, with the creator's rights, if the
    /// store keeps it open after creation.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn create_open(
        &self,
        caller: &Caller,
        new: NewFile<'_>,
        mode: CreateMode,
        access: Access,
    ) -> Result<(Created, Option<File>)> {
        let fs = &self.shared;
        fs.make_room().await;
        let (Created { attr, created }, made) = self.store().create_open(caller, new, mode).await?;
        let created = Created { attr: fs.overlaid(attr), created };
        let Some(made) = made else { return Ok((created, None)) };
        let lead = fs.lead.load(Ordering::Relaxed);
        let id = created.attr.id;
        let mapping =
            Mapping::of_open(fs.cache.memory(), &fs.store, &fs.dirty, id, made, lead).await?;
        let file = File::new(fs.clone(), fs.enter(mapping).0, access);
        // Another caller may have opened it first.
        file.open.mapping.upgrade(caller, Purpose::Access(access)).await?;
        if !access.contains(Access::WRITE) {
            fs.table.lock().note_written(&file.open.mapping);
        }
        Ok((created, Some(file)))
    }
}
