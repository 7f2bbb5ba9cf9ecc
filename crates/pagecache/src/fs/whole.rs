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
        let attr = match file.replaced {
            None => self.store().put_whole(caller, dir, file).await?,
            Some(replaced) => self.replace_whole(caller, dir, (file, replaced)).await?,
        };
        Ok(attr.map(|attr| self.shared.overlaid(attr)))
    }

    /// [`put_whole`](Self::put_whole) over a file of which the cache may have pages, or that is opened meanwhile.
    async fn replace_whole(
        &self,
        caller: &Caller,
        dir: FileId,
        (file, replaced): (&WholeFile, FileId),
    ) -> Result<Option<Attr>> {
        let (shared, caller, file) = (self.shared.clone(), caller.clone(), file.clone());
        let work = async move {
            let attr = shared.store.put_whole(&caller, dir, &file).await?;
            // Looked for afterwards: it may have been opened meanwhile.
            if attr.is_some() && shared.live(replaced).is_some() {
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

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use crate::testing::{Rig, poll_once};
    use crate::{Cache, Config};
    use async_trait::async_trait;
    use std::sync::Arc;
    use std::thread::yield_now;
    use weir_stores::fault::{Call, Fault, What};
    use weir_stores::memory::MemoryFs;
    use weir_vfs::{
        Attr, Caller, CreateMode, FileId, FileSystem, FileSystemDecorator, IoFlags, RenameFlags,
        Result, SetAttr, WholeFile,
    };

    /// A store that writes files whole: empty ones, which it syncs before they get their names.
    struct Putting(Arc<Fault>);

    #[async_trait]
    impl FileSystemDecorator for Putting {
        fn below(&self) -> &dyn FileSystem {
            &*self.0
        }

        async fn put_whole(
            &self,
            caller: &Caller,
            dir: FileId,
            file: &WholeFile,
        ) -> Result<Option<Attr>> {
            let store = self.below();
            let (temporary, name) = (dir.entry(&file.temporary), dir.entry(&file.name));
            let new = SetAttr::default();
            let made = store.create(caller, temporary.with(&new), CreateMode::MustBeNew).await?;
            store.sync_node(made.attr.id).await?;
            store.rename(caller, temporary, name, RenameFlags::Replace).await?;
            Ok(Some(made.attr))
        }
    }

    #[test]
    fn a_file_that_is_opened_while_it_is_replaced_loses_its_pages_although_the_caller_goes_away() {
        let store = Fault::over(MemoryFs::new(), 1);
        let fs = Cache::new(Config::default()).unwrap().mount(Arc::new(Putting(store.clone())));
        let rig = Rig { store, fs };
        let id = rig.make("f");
        let new = WholeFile {
            temporary: b"new".to_vec(),
            name: b"f".to_vec(),
            replaced: Some(id),
            data: Vec::new(),
            size: 0,
            mode: 0o644,
            owner: None,
            times: None,
        };
        rig.always(Call::SyncNode, What::Hold);
        let mut put = Box::pin(rig.fs.put_whole(&Caller::Own, rig.fs.root(), &new));
        assert!(poll_once(&mut put).is_pending());
        let file = rig.open(id);
        file.write_at(&[1; 4096], 0, IoFlags::empty()).unwrap();
        drop(file);
        drop(put);
        rig.store.clear();
        rig.store.release();
        while rig.fs.residency(id).is_some() {
            yield_now();
        }
        rig.until_clean();
        assert!(pollster::block_on(rig.fs.getattr(id)).is_err(), "the store has replaced it");
    }
}
