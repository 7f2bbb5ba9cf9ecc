//! Reading a directory to its end.
//!
//! 1. The last cookie of a page is the start of the next one. A server whose cookies form a cycle
//!    would be asked forever, so a listing fails soon after it meets a cookie again ([`MetCookies`]).
//! 2. A store may have evicted the directory since it was found. Then it is looked up again by
//!    name.

use crate::mounts::Place;
use weir_pagecache::CachedFs;
use weir_vfs::{Caller, DirEntry, DirPage, Error, FileId, MetCookies, ReaddirRequest, Result};

/// Entries read at a time.
const ENTRIES: usize = 1000;

/// A directory that is being read.
pub(crate) struct Listing {
    from: From,
    dir: FileId,
    with_attr: bool,
    cookie: u64,
    met: MetCookies,
    ended: bool,
}

/// Where the directory is.
enum From {
    Place(Box<Place>),
    Store(CachedFs),
}

impl Listing {
    /// Lists the directory at `place`, whose identity is `id`, with attributes.
    pub(crate) fn at(place: &Place, id: FileId) -> Self {
        Self::new(From::Place(Box::new(place.clone())), id, true)
    }

    /// Lists nothing of it.
    pub(crate) fn nothing(place: &Place, id: FileId) -> Self {
        Self { ended: true, ..Self::at(place, id) }
    }

    /// Lists the names in a directory of a store.
    pub(crate) fn of_names(fs: &CachedFs, id: FileId) -> Self {
        Self::new(From::Store(fs.clone()), id, false)
    }

    fn new(from: From, dir: FileId, with_attr: bool) -> Self {
        Self { from, dir, with_attr, cookie: 0, met: MetCookies::default(), ended: false }
    }

    /// The next entries, or `None` at the end.
    ///
    /// # Errors
    /// The store's; [`Error::Io`] if the listing does not end.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<DirEntry>>> {
        if self.ended {
            return Ok(None);
        }
        let page = match &self.from {
            From::Place(place) => place.found_again(self.dir, || self.page(&place.fs)).await?,
            From::Store(fs) => self.page(fs).await?,
        };
        match page.entries.last() {
            Some(last) if !page.eof => {
                if self.met.again(last.cookie) {
                    return Err(Error::Io);
                }
                self.cookie = last.cookie;
            }
            _ => self.ended = true,
        }
        Ok(Some(page.entries))
    }

    async fn page(&self, fs: &CachedFs) -> Result<DirPage> {
        fs.readdir(
            &Caller::Own,
            ReaddirRequest {
                dir: self.dir,
                cookie: self.cookie,
                max_entries: ENTRIES,
                with_attr: self.with_attr,
            },
        )
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copy::{Copier, Options};
    use crate::origin::Origin;
    use async_trait::async_trait;
    use parking_lot::Mutex;
    use std::collections::VecDeque;
    use std::sync::Arc;
    use std::time::{Duration, SystemTime};
    use weir_pagecache::{Cache, Config};
    use weir_stores::memory::MemoryFs;
    use weir_stores::testing::Endless;
    use weir_vfs::{
        Attr, EntryName, FileKind, FileSystem, FileSystemDecorator, NewFile, SetAttr, SetTime,
        SpecialFile,
    };

    /// A store that evicts files, like the NFS client when it knows too many.
    struct Forgetful {
        below: Arc<dyn FileSystem>,
        /// Its number among file systems.
        fsid: u64,
        /// Whether it knows the links and special files that it made.
        knows_made: bool,
        known: Mutex<VecDeque<FileId>>,
    }

    impl Forgetful {
        /// More than a copy uses at a time, and fewer than a tree has.
        const MOST: usize = 512;

        fn over(below: Arc<dyn FileSystem>, fsid: u64) -> Arc<dyn FileSystem> {
            Arc::new(Self { below, fsid, knows_made: true, known: Mutex::default() })
        }

        /// A store that evicts links and special files as soon as it has made them.
        fn of_made(below: Arc<dyn FileSystem>, fsid: u64) -> Arc<dyn FileSystem> {
            Arc::new(Self { below, fsid, knows_made: false, known: Mutex::default() })
        }

        /// Marks a known file as used.
        fn knows(&self, id: FileId) -> Result<()> {
            let mut known = self.known.lock();
            match known.iter().position(|k| *k == id) {
                _ if id == self.below.root() => {}
                Some(at) => {
                    known.remove(at);
                    known.push_back(id);
                }
                None => return Err(Error::Stale),
            }
            Ok(())
        }

        /// Enters a file that was found or created.
        fn found(&self, attr: Attr) -> Attr {
            self.remember(attr.id);
            Attr { fsid: self.fsid, ..attr }
        }

        /// Enters a link or special file that was made, if the store is to know it.
        fn made(&self, attr: Attr) -> Attr {
            match self.knows_made {
                true => self.found(attr),
                false => Attr { fsid: self.fsid, ..attr },
            }
        }

        fn remember(&self, id: FileId) {
            let mut known = self.known.lock();
            known.retain(|k| *k != id);
            known.push_back(id);
            if known.len() > Self::MOST {
                known.pop_front();
            }
        }
    }

    #[async_trait]
    impl FileSystemDecorator for Forgetful {
        fn below(&self) -> &dyn FileSystem {
            &*self.below
        }

        async fn getattr(&self, id: FileId) -> Result<Attr> {
            self.knows(id)?;
            self.below.getattr(id).await.map(|attr| self.found(attr))
        }

        async fn setattr(&self, caller: &Caller, id: FileId, set: &SetAttr) -> Result<Attr> {
            self.knows(id)?;
            self.below.setattr(caller, id, set).await.map(|attr| self.found(attr))
        }

        async fn lookup(&self, caller: &Caller, entry: EntryName<'_>) -> Result<Attr> {
            self.knows(entry.dir)?;
            self.below.lookup(caller, entry).await.map(|attr| self.found(attr))
        }

        async fn mkdir(&self, caller: &Caller, new: NewFile<'_>) -> Result<Attr> {
            self.knows(new.at.dir)?;
            self.below.mkdir(caller, new).await.map(|attr| self.found(attr))
        }

        async fn readdir(&self, caller: &Caller, request: ReaddirRequest) -> Result<DirPage> {
            self.knows(request.dir)?;
            let request = ReaddirRequest { max_entries: 8, ..request };
            let mut page = self.below.readdir(caller, request).await?;
            for entry in &mut page.entries {
                entry.attr = entry.attr.take().map(|attr| self.found(attr));
            }
            // It was the one used last.
            self.remember(request.dir);
            Ok(page)
        }

        async fn symlink(&self, caller: &Caller, new: NewFile<'_>, target: &[u8]) -> Result<Attr> {
            self.knows(new.at.dir)?;
            self.below.symlink(caller, new, target).await.map(|attr| self.made(attr))
        }

        async fn mknod(
            &self,
            caller: &Caller,
            new: NewFile<'_>,
            node: SpecialFile,
        ) -> Result<Attr> {
            self.knows(new.at.dir)?;
            self.below.mknod(caller, new, node).await.map(|attr| self.made(attr))
        }

        async fn readlink(&self, caller: &Caller, id: FileId) -> Result<Vec<u8>> {
            self.knows(id)?;
            self.below.readlink(caller, id).await
        }
    }

    fn cache() -> Cache {
        Cache::new(Config { budget_bytes: 16 << 20, ..Config::default() }).unwrap()
    }

    /// The root of a store.
    async fn root(fs: &CachedFs) -> Place {
        let (dir, attr) = (fs.root(), Some(fs.getattr(fs.root()).await.unwrap()));
        Place {
            fs: fs.clone(),
            dir,
            name: None,
            attr,
            shown: "root".into(),
            origin: Origin::default(),
        }
    }

    const DIRECTORIES: usize = 400;

    /// A tree with more directories than [`Forgetful`] knows.
    async fn tree() -> Arc<dyn FileSystem> {
        let fs: Arc<dyn FileSystem> = MemoryFs::new();
        let set = SetAttr { mode: Some(0o755), ..SetAttr::default() };
        for n in 0..DIRECTORIES {
            let name = format!("directory {n}").into_bytes();
            let dir = fs.mkdir(&Caller::Own, fs.root().entry(&name).with(&set)).await.unwrap().id;
            fs.symlink(&Caller::Own, dir.entry(b"link").with(&set), b"target").await.unwrap();
            let name = format!("link {n}").into_bytes();
            fs.symlink(&Caller::Own, fs.root().entry(&name).with(&set), b"target").await.unwrap();
        }
        fs
    }

    /// A tree whose directories are visited again after many others: each of `LEVELS` has `BESIDE` of
    /// them in each directory on the way down.
    const LEVELS: usize = 5;
    const BESIDE: usize = 80;

    async fn deep_tree() -> Arc<dyn FileSystem> {
        let fs: Arc<dyn FileSystem> = MemoryFs::new();
        let set = SetAttr { mode: Some(0o755), ..SetAttr::default() };
        let mut at = fs.root();
        for _ in 0..LEVELS {
            let mut next = at;
            // The middle one leads on, so that others follow and precede it in any order.
            for n in 0..BESIDE {
                let name = format!("{n:02}").into_bytes();
                let dir = fs.mkdir(&Caller::Own, at.entry(&name).with(&set)).await.unwrap().id;
                let inner =
                    fs.mkdir(&Caller::Own, dir.entry(b"inner").with(&set)).await.unwrap().id;
                fs.symlink(&Caller::Own, inner.entry(b"link").with(&set), b"target").await.unwrap();
                if n == BESIDE / 2 {
                    next = dir;
                }
            }
            at = next;
        }
        fs
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn directories_far_above_are_looked_up_again() {
        let cache = cache();
        let from = cache.mount(Forgetful::over(deep_tree().await, 1));
        let target: Arc<dyn FileSystem> = MemoryFs::new();
        let to = cache.mount(Forgetful::over(Arc::clone(&target), 2));
        let options = Options { recursive: true, preserve: true, jobs: 4, ..Options::default() };
        let copier = Arc::new(Copier::new(options, cache.budget_bytes(), ()));
        copier.copy(vec![(root(&from).await, root(&to).await)]).await;
        assert_eq!(*copier.failures.lock(), []);
        let made = copier.summary(Duration::ZERO, 0);
        let expected = (LEVELS * BESIDE) as u64;
        assert_eq!((made.directories, made.symlinks), (2 * expected, expected));
    }

    #[tokio::test]
    async fn a_listing_with_cyclic_cookies_ends() {
        let fs = cache().mount(Arc::new(Endless(tree().await)));
        let place = root(&fs).await;
        let failure = place.children(fs.root()).await.err().unwrap();
        assert!(failure.to_string().contains("list root"), "{failure}");
        let mut names = Listing::of_names(&fs, fs.root());
        let error = loop {
            match names.next().await {
                Ok(page) => assert!(page.is_some()),
                Err(error) => break error,
            }
        };
        assert_eq!(error, Error::Io);
    }

    #[tokio::test]
    async fn forgotten_handles_are_looked_up_again_by_name() {
        let fs = cache().mount(Forgetful::over(tree().await, 1));
        let place = root(&fs).await;
        let children = place.children(fs.root()).await.unwrap();
        assert_eq!(children.len(), 2 * DIRECTORIES);
        let mut forgotten = 0;
        for (child, attr) in children {
            if attr.kind == FileKind::Directory {
                assert_eq!(child.children(attr.id).await.unwrap().len(), 1);
                continue;
            }
            let read = || fs.readlink(&Caller::Own, attr.id);
            forgotten += usize::from(read().await == Err(Error::Stale));
            assert_eq!(child.found_again(attr.id, read).await.unwrap(), b"target");
        }
        assert!(forgotten > 0);
    }

    #[tokio::test]
    async fn links_and_special_files_that_are_evicted_at_once_get_their_attributes() {
        let cache = cache();
        let source: Arc<dyn FileSystem> = MemoryFs::new();
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let mtime = Some(SetTime::To(time));
        let set = SetAttr { mode: Some(0o640), mtime, ..SetAttr::default() };
        let at = |name| source.root().entry(name).with(&set);
        source.symlink(&Caller::Own, at(b"link"), b"target").await.unwrap();
        source.mknod(&Caller::Own, at(b"pipe"), SpecialFile::Fifo).await.unwrap();
        let from = cache.mount(Forgetful::over(source, 1));
        let target: Arc<dyn FileSystem> = MemoryFs::new();
        let to = cache.mount(Forgetful::of_made(Arc::clone(&target), 2));
        let options = Options { recursive: true, preserve: true, ..Options::default() };
        let copier = Arc::new(Copier::new(options, cache.budget_bytes(), ()));
        copier.copy(vec![(root(&from).await, root(&to).await)]).await;
        assert_eq!(*copier.failures.lock(), []);
        for name in [&b"link"[..], b"pipe"] {
            let made = target.lookup(&Caller::Own, target.root().entry(name)).await.unwrap();
            assert_eq!(made.mtime, time);
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_tree_of_more_directories_than_stores_remember_is_copied() {
        let cache = cache();
        let from = cache.mount(Forgetful::over(tree().await, 1));
        let target: Arc<dyn FileSystem> = MemoryFs::new();
        let to = cache.mount(Forgetful::over(Arc::clone(&target), 2));
        let options = Options { recursive: true, preserve: true, ..Options::default() };
        let copier = Arc::new(Copier::new(options, cache.budget_bytes(), ()));
        copier.copy(vec![(root(&from).await, root(&to).await)]).await;
        assert_eq!(*copier.failures.lock(), []);
        for n in 0..DIRECTORIES {
            let name = format!("directory {n}").into_bytes();
            let dir = target.lookup(&Caller::Own, target.root().entry(&name)).await.unwrap().id;
            let link = target.lookup(&Caller::Own, dir.entry(b"link")).await.unwrap().id;
            assert_eq!(target.readlink(&Caller::Own, link).await.unwrap(), b"target");
        }
    }
}
