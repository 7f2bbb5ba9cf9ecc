//! Small files that go past the cache: the store writes or reads them whole.
//!
//! 1. A file of which the cache may have data is not read past it.
//! 2. A replaced file that lost its last name loses its pages, as after a rename, even if the caller has
//!    gone away meanwhile.

use super::CachedFs;
use weir_vfs::{Attr, Caller, FileId, Result, WholeFile, WholeRead, WholeRequest};

impl CachedFs {
    /// Creates a small file whole; see [`put_whole`](weir_vfs::FileSystem::put_whole). Its data is not cached.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn put_whole(
        &self,
        caller: &Caller,
        dir: FileId,
        file: &WholeFile,
    ) -> Result<Option<Attr>> {
        let attr = match file.replaced.filter(|&replaced| self.shared.live(replaced).is_some()) {
            None => {
                let attr = self.store().put_whole(caller, dir, file).await?;
                // It may have been opened meanwhile.
                if let (Some(replaced), Some(_)) = (file.replaced, &attr)
                    && self.shared.live(replaced).is_some()
                {
                    self.shared.lost_name(self.store().count_names(replaced).await);
                }
                attr
            }
            Some(replaced) => self.replace_whole(caller, dir, (file, replaced)).await?,
        };
        Ok(attr.map(|attr| self.shared.overlaid(attr)))
    }

    /// [`put_whole`](Self::put_whole) over a file of which the cache may have pages.
    async fn replace_whole(
        &self,
        caller: &Caller,
        dir: FileId,
        (file, replaced): (&WholeFile, FileId),
    ) -> Result<Option<Attr>> {
        let (shared, caller, file) = (self.shared.clone(), caller.clone(), file.clone());
        let work = async move {
            let attr = shared.store.put_whole(&caller, dir, &file).await?;
            if attr.is_some() {
                shared.lost_name(shared.store.count_names(replaced).await);
            }
            Ok(attr)
        };
        crate::tasks::finish(&self.shared.dirty.lane.tasks, work).await
    }

    /// Reads a small file whole; see [`get_whole`](weir_vfs::FileSystem::get_whole). `None` also
    /// for a file of which the cache may have data.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn get_whole(
        &self,
        caller: &Caller,
        request: WholeRequest,
    ) -> Result<Option<WholeRead>> {
        if self.shared.live(request.id).is_some() {
            return Ok(None);
        }
        self.store().get_whole(caller, request).await
    }
}
