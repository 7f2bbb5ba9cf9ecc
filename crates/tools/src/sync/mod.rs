//! Mirrors of trees: a copy that skips what is up to date, and then a removal of what the source lacks.
//!
//! ```text
//!   copy --(no failure)--> compare --(same source)--> remove what it lacks --(a directory was in the way)--> copy
//!     ^------(it changed)-----|
//! ```
//!
//! 1. Nothing is removed unless everything before succeeded: a source that cannot be listed, or is not
//!    there, removes nothing. Nor does one that has a name which was not there when it was copied, or whose directories
//!    change while they are compared: what seems to be gone may have been moved. Then the copy is repeated, at most
//!    three times in all.
//! 2. A removal follows no link, and stays in the destination.
//! 3. Names that the filter leaves out are protected, with the directories above them.

use crate::copy::{Copier, Mirror};
use crate::failure::{Asked, Failure, Result};
use crate::mounts::Place;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weir_vfs::{Caller, Error, FileKind};

mod delete;

/// How often a source that changes is copied before a mirror gives up removing.
const COPIES: usize = 3;

/// Makes `to` the mirror of `from`, as the options of the copier and its `mirror` require. With
/// `deletes_excluded`, the filter protects nothing.
pub async fn sync(copier: &Arc<Copier>, from: &Place, to: &Place, deletes_excluded: bool) {
    let Some(mirror) = copier.options.mirror.clone() else { return };
    copier.copy(vec![(from.clone(), to.clone())]).await;
    let is_tree = from.attr.as_ref().is_some_and(|attr| attr.kind == FileKind::Directory);
    let mut from = from.clone();
    let mut copies = 1;
    loop {
        if !mirror.deletes || !is_tree || copier.is_interrupted() {
            return;
        }
        if copier.failed() {
            return copier.fail(delete::nothing_removed(to));
        }
        let delete = async {
            look_again(&mut from).await?;
            delete_from(copier, &mirror, &from, to, deletes_excluded).await
        };
        let deleted = tokio::select! {
            deleted = delete => deleted,
            () = copier.interrupted() => return,
        };
        match deleted {
            Err(failure) => return copier.fail(failure),
            Ok(changed) if changed.is_empty() => break,
            Ok(_) if copies < COPIES => {
                copies += 1;
                copier.copy_again(from.clone(), to.clone()).await;
            }
            Ok(changed) => {
                changed.into_iter().for_each(|failure| copier.fail(failure));
                return copier.fail(delete::kept_changing(to));
            }
        }
    }
    if mirror.is_blocked.swap(false, Ordering::Relaxed) && !copier.options.dry_run {
        // What was in the way is gone, unless the filter protects something in it.
        mirror.is_removed.store(true, Ordering::Relaxed);
        copier.copy_again(from.clone(), to.clone()).await;
    }
}

/// Gets the attributes of the source's top as they are now.
async fn look_again(from: &mut Place) -> Result<()> {
    let id = from.existing("read")?.id;
    let now = from.found_again(id, || from.fs.getattr(id)).await;
    from.attr = Some(now.asked(|| format!("read {}", from.shown))?);
    Ok(())
}

async fn delete_from(
    copier: &Copier,
    mirror: &Mirror,
    from: &Place,
    to: &Place,
    deletes_excluded: bool,
) -> Result<Vec<Failure>> {
    // It may have been made by the copy.
    let to = match (&to.attr, &to.name) {
        (None, Some(name)) => match to.fs.lookup(&Caller::Own, to.dir.entry(name)).await {
            Ok(attr) => Place { attr: Some(attr), ..to.clone() },
            Err(Error::NotFound) if copier.options.dry_run => return Ok(Vec::new()),
            Err(error) => return Err(Failure::of(format!("find {}", to.shown), error)),
        },
        _ => to.clone(),
    };
    delete::extraneous(copier, mirror, from, &to, deletes_excluded).await
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::copy::{Filter, Options};
    use crate::origin::Origin;
    use async_trait::async_trait;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;
    use weir_pagecache::{Cache, CachedFs, Config};
    use weir_stores::memory::MemoryFs;
    use weir_vfs::{Attr, DirPage, FileId, FileSystem, FileSystemDecorator, ReaddirRequest};

    /// A source that does not say what its top is like once it has been listed.
    struct Silent {
        store: Arc<MemoryFs>,
        is_listed: AtomicBool,
    }

    #[async_trait]
    impl FileSystemDecorator for Silent {
        fn below(&self) -> &dyn FileSystem {
            &*self.store
        }

        async fn getattr(&self, id: FileId) -> weir_vfs::Result<Attr> {
            if self.is_listed.load(Ordering::SeqCst) {
                std::future::pending::<()>().await;
            }
            self.store.getattr(id).await
        }

        async fn readdir(
            &self,
            caller: &Caller,
            request: ReaddirRequest,
        ) -> weir_vfs::Result<DirPage> {
            let page = self.store.readdir(caller, request).await;
            self.is_listed.store(true, Ordering::SeqCst);
            page
        }
    }

    /// The root of a store, as a place.
    pub(crate) async fn root(fs: &CachedFs) -> Place {
        let (dir, attr) = (fs.root(), Some(fs.getattr(fs.root()).await.unwrap()));
        let (shown, origin) = ("root".to_owned(), Origin::default());
        Place { fs: fs.clone(), dir, name: None, attr, shown, origin }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_mirror_is_interrupted_while_its_source_does_not_answer() {
        let cache = Cache::new(Config { budget_bytes: 32 << 20, ..Config::default() }).unwrap();
        let silent = Silent { store: MemoryFs::new(), is_listed: AtomicBool::new(false) };
        let (from, to) = (cache.mount(Arc::new(silent)), cache.mount(MemoryFs::new()));
        let mirror = Some(Arc::new(Mirror::new(Filter::new([], []).unwrap(), true)));
        let options = Options { recursive: true, mirror, ..Options::default() };
        let copier = Arc::new(Copier::new(options, 32 << 20, ()));
        let (from, to) = (root(&from).await, root(&to).await);
        let (running, interrupt) = (Arc::clone(&copier), async move {
            tokio::time::sleep(Duration::from_millis(200)).await;
            copier.interrupt();
        });
        let both = async { tokio::join!(sync(&running, &from, &to, false), interrupt) };
        tokio::time::timeout(Duration::from_secs(60), both).await.expect("it waits for the source");
        assert!(running.is_interrupted());
    }
}
