//! Small files that go past the cache: the store writes or reads them whole.
//!
//! 1. A file of which the cache may have data is not read past it.
//! 2. A replaced file that lost its last name loses its pages, as after a rename.

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
        let Some(attr) = self.store().put_whole(caller, dir, file).await? else { return Ok(None) };
        if let Some(replaced) = file.replaced
            && self.shared.live(replaced).is_some()
        {
            self.shared.lost_name(self.store().count_names(replaced).await);
        }
        Ok(Some(self.shared.overlaid(attr)))
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
