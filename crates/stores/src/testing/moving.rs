//! Entries that another program moves.

use crate::memory::MemoryFs;
use async_trait::async_trait;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use weir_vfs::{
    Caller, DirPage, EntryName, FileId, FileSystem, FileSystemDecorator, ReaddirRequest,
    RenameFlags, Result, SetAttr,
};

/// A store in which another program moves an entry right after a listing.
pub struct Moving {
    store: Arc<MemoryFs>,
    from: EntryName<'static>,
    to: EntryName<'static>,
    /// The directories whose listings count, and which of these listings it is.
    after: (Vec<FileId>, usize),
    replaces: bool,
    listings: AtomicUsize,
}

impl Moving {
    /// Moves `from` to `to` after the listing of number `after.1`, counted from 0, of the directories `after.0`.
    pub fn new(
        store: Arc<MemoryFs>,
        from: EntryName<'static>,
        to: EntryName<'static>,
        after: (Vec<FileId>, usize),
    ) -> Self {
        Self { store, from, to, after, replaces: false, listings: AtomicUsize::new(0) }
    }

    /// Whether the other program then makes a directory where the entry was.
    #[must_use]
    pub fn replacing(self, replaces: bool) -> Self {
        Self { replaces, ..self }
    }
}

#[async_trait]
impl FileSystemDecorator for Moving {
    fn below(&self) -> &dyn FileSystem {
        &*self.store
    }

    async fn readdir(&self, caller: &Caller, request: ReaddirRequest) -> Result<DirPage> {
        let page = self.store.readdir(caller, request).await?;
        let (dirs, number) = &self.after;
        if dirs.contains(&request.dir) && self.listings.fetch_add(1, Ordering::SeqCst) == *number {
            let (old, new) = (self.from, self.to);
            self.store.rename_counted(&Caller::Own, old, new, RenameFlags::Replace).await?;
            if self.replaces {
                let set = SetAttr { mode: Some(0o777), ..SetAttr::default() };
                self.store.mkdir(&Caller::Own, old.with(&set)).await?;
            }
        }
        Ok(page)
    }
}
