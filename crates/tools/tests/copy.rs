//! Copies between stores created by a test.

mod common;

use async_trait::async_trait;
use common::{make_empty, place, write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use weir_pagecache::{Cache, CachedFs, Config};
use weir_stores::memory::MemoryFs;
use weir_tools::copy::{Copier, Options, Overwrite, Reflink, Summary};
use weir_vfs::{
    Access, Acl, AclKind, AclName, AclWho, Attr, Caller, CreateMode, Created, EntryName, Error,
    FileId, FileKind, FileSystem, FileSystemDecorator, IoFlags, NewFile, OpenFile,
    OpenFileDecorator, Result, SetAttr, SpecialFile, Unnamed, XattrMode,
};

/// A store that lists the extended attributes of files and directories, and answers `for_others` for links and
/// special files.
struct ListsForFiles {
    store: Arc<MemoryFs>,
    for_others: Error,
}

#[async_trait]
impl FileSystemDecorator for ListsForFiles {
    fn below(&self) -> &dyn FileSystem {
        &*self.store
    }

    async fn list_xattrs(&self, caller: &Caller, id: FileId) -> Result<Vec<Vec<u8>>> {
        match self.store.getattr(id).await?.kind {
            FileKind::Regular | FileKind::Directory => self.store.list_xattrs(caller, id).await,
            _ => Err(self.for_others),
        }
    }
}

/// A store that sets no attributes, and records which directories are synced.
struct SetsNothing {
    store: Arc<MemoryFs>,
    synced: Mutex<Vec<FileId>>,
}

#[async_trait]
impl FileSystemDecorator for SetsNothing {
    fn below(&self) -> &dyn FileSystem {
        &*self.store
    }

    async fn setattr(&self, _: &Caller, _: FileId, _: &SetAttr) -> Result<Attr> {
        Err(Error::Io)
    }

    async fn sync_node(&self, id: FileId) -> Result<()> {
        self.synced.lock().unwrap().push(id);
        self.store.sync_node(id).await
    }
}

/// A server may answer LISTXATTRS with NFS4ERR_WRONG_TYPE or NFS4ERR_INVAL except for files and
/// directories.
#[tokio::test]
async fn links_are_copied_from_a_store_that_lists_no_attributes_of_links() {
    for (for_others, is_said, fails) in [
        (Error::Invalid, false, false),
        (Error::Loop, false, false),
        (Error::AccessDenied, true, false),
        (Error::Io, false, true),
    ] {
        let (own, set) = (Caller::Own, SetAttr::default());
        let store = MemoryFs::new();
        let tree = store.mkdir(&own, store.root().entry(b"tree").with(&set)).await.unwrap().id;
        let file = store
            .create(&own, tree.entry(b"file").with(&set), CreateMode::MustBeNew)
            .await
            .unwrap();
        let id = file.attr.id;
        store.set_xattr(&own, id.xattr(b"user.a"), b"1", XattrMode::Either).await.unwrap();
        store.symlink(&own, tree.entry(b"link").with(&set), b"file").await.unwrap();
        store.mknod(&own, tree.entry(b"pipe").with(&set), SpecialFile::Fifo).await.unwrap();

        let cache = Cache::new(Config::default()).unwrap();
        let from = cache.mount(Arc::new(ListsForFiles { store, for_others }));
        let to = cache.mount(MemoryFs::new());
        let options = Options { recursive: true, preserve: true, ..Options::default() };
        let copier = Arc::new(Copier::new(options, cache.budget_bytes(), ()));
        let pair = (place(&from, "tree").await, place(&to, "copy").await);
        copier.copy(vec![pair]).await;

        assert_eq!(copier.failed(), fails, "{for_others}");
        assert_eq!(copier.not_preserved().is_empty(), !is_said, "{for_others}");
        let copy = to.lookup(&own, to.root().entry(b"copy")).await.unwrap().id;
        let link = to.lookup(&own, copy.entry(b"link")).await.unwrap();
        assert_eq!(to.readlink(&own, link.id).await.unwrap(), b"file");
        assert_eq!(to.lookup(&own, copy.entry(b"pipe")).await.unwrap().kind, FileKind::Fifo);
        let file = to.lookup(&own, copy.entry(b"file")).await.unwrap();
        assert_eq!(to.get_xattr(&own, file.id.xattr(b"user.a")).await.unwrap(), b"1");
    }
}

#[tokio::test]
async fn a_directory_is_synced_also_if_a_new_entry_did_not_get_its_attributes() {
    let (own, set) = (Caller::Own, SetAttr::default());
    let from = MemoryFs::new();
    from.symlink(&own, from.root().entry(b"link").with(&set), b"file").await.unwrap();
    from.mknod(&own, from.root().entry(b"pipe").with(&set), SpecialFile::Fifo).await.unwrap();
    let cache = Cache::new(Config::default()).unwrap();
    let from = cache.mount(from);
    for name in ["link", "pipe"] {
        let store = Arc::new(SetsNothing { store: MemoryFs::new(), synced: Mutex::default() });
        let to = cache.mount(store.clone());
        let options = Options { recursive: true, preserve: true, ..Options::default() };
        let copier = Arc::new(Copier::new(options, cache.budget_bytes(), ()));
        let pair = (place(&from, name).await, place(&to, name).await);
        copier.copy(vec![pair]).await;
        assert!(copier.failed(), "{name}");
        assert_eq!(*store.synced.lock().unwrap(), [to.root()], "{name}");
    }
}

#[tokio::test]
async fn a_store_that_shares_data_is_not_read() {
    for (reflink, shared) in
        [(Reflink::Auto, true), (Reflink::Always, true), (Reflink::Never, false)]
    {
        let cache = Cache::new(Config::default()).unwrap();
        let fs = cache.mount(MemoryFs::new());
        let set = SetAttr::default();
        let made = fs
            .create(&Caller::Own, fs.root().entry(b"from").with(&set), CreateMode::MustBeNew)
            .await
            .unwrap();
        let file = fs.open(&Caller::Own, made.attr.id, Access::READ | Access::WRITE).await.unwrap();
        let bytes = vec![7; 300_000];
        assert_eq!(file.write_at_async(&bytes, 0, IoFlags::empty()).await.unwrap(), bytes.len());
        let options = Options { reflink, ..Options::default() };
        let copier = Arc::new(Copier::new(options, 64 << 20, ()));
        copier.copy(vec![(place(&fs, "from").await, place(&fs, "to").await)]).await;
        let summary = copier.summary(std::time::Duration::from_secs(1), 0);
        assert_eq!(summary.failures, [""; 0]);
        assert_eq!(summary.cloned_bytes == bytes.len() as u64, shared, "{reflink:?}");
        assert_eq!(summary.read_bytes == 0, shared, "{reflink:?}");
        let copy = place(&fs, "to").await.attr.unwrap();
        let copy = fs.open(&Caller::Own, copy.id, Access::READ).await.unwrap();
        let mut found = vec![0; bytes.len() + 1];
        assert_eq!(copy.read_at_async(&mut found, 0, IoFlags::empty()).await.unwrap(), bytes.len());
        assert!(found.starts_with(&bytes));
    }
}

/// A store in which no link and no special file can be made.
struct MakesNoNodes {
    store: Arc<MemoryFs>,
    error: Error,
}

#[async_trait]
impl FileSystemDecorator for MakesNoNodes {
    fn below(&self) -> &dyn FileSystem {
        &*self.store
    }

    async fn symlink(&self, _: &Caller, _: NewFile<'_>, _: &[u8]) -> Result<Attr> {
        Err(self.error)
    }

    async fn mknod(&self, _: &Caller, _: NewFile<'_>, _: SpecialFile) -> Result<Attr> {
        Err(self.error)
    }
}

/// A link and a pipe in a store.
async fn nodes() -> Arc<MemoryFs> {
    let (own, set, store) = (Caller::Own, SetAttr::default(), MemoryFs::new());
    store.symlink(&own, store.root().entry(b"link").with(&set), b"file").await.unwrap();
    store.mknod(&own, store.root().entry(b"pipe").with(&set), SpecialFile::Fifo).await.unwrap();
    store
}

/// Copies `name` to the same name in another store.
async fn copy(from: &CachedFs, to: &CachedFs, name: &str, options: Options) -> Summary {
    let copier = Arc::new(Copier::new(options, 32 << 20, ()));
    copier.copy(vec![(place(from, name).await, place(to, name).await)]).await;
    copier.summary(Duration::from_secs(1), 0)
}

#[tokio::test]
async fn a_file_stays_if_the_link_or_special_file_in_its_place_cannot_be_made() {
    let cache = Cache::new(Config::default()).unwrap();
    let from = cache.mount(nodes().await);
    for name in ["link", "pipe"] {
        let store = MemoryFs::new();
        let refusing = MakesNoNodes { store: store.clone(), error: Error::NoSpace };
        let to = cache.mount(Arc::new(refusing));
        let old = write(&to, name, b"old").await;
        let options = Options { recursive: true, ..Options::default() };
        let said = copy(&from, &to, name, options.clone()).await;
        assert_eq!(said.failures.len(), 1, "{said:?}");
        assert_eq!(place(&to, name).await.attr.unwrap().id, old, "{name}");
        // Another store takes them.
        let to = cache.mount(store);
        let said = copy(&from, &to, name, options).await;
        assert_eq!(said.failures, [""; 0]);
        assert_ne!(place(&to, name).await.attr.unwrap().kind, FileKind::Regular);
        let left = place(&to, name).await.children(to.root()).await.unwrap();
        assert_eq!(left.len(), 1, "{name}");
    }
}

/// A store that reports a failure for each link and special file, as if a reply was lost.
struct LosesReplies {
    store: Arc<MemoryFs>,
    /// Whether the link or special file is made.
    makes: bool,
    /// The first removals fail so.
    removals: Mutex<Vec<Error>>,
}

#[async_trait]
impl FileSystemDecorator for LosesReplies {
    fn below(&self) -> &dyn FileSystem {
        &*self.store
    }

    async fn symlink(&self, caller: &Caller, new: NewFile<'_>, target: &[u8]) -> Result<Attr> {
        if self.makes {
            self.store.symlink(caller, new, target).await?;
        }
        Err(Error::Io)
    }

    async fn mknod(&self, caller: &Caller, new: NewFile<'_>, node: SpecialFile) -> Result<Attr> {
        if self.makes {
            self.store.mknod(caller, new, node).await?;
        }
        Err(Error::Io)
    }

    async fn unlink_counted(
        &self,
        caller: &Caller,
        entry: EntryName<'_>,
    ) -> Result<Option<Unnamed>> {
        let failure = self.removals.lock().unwrap().pop();
        match failure {
            Some(error) => Err(error),
            None => self.store.unlink_counted(caller, entry).await,
        }
    }
}

#[tokio::test]
async fn a_link_or_special_file_that_may_have_been_made_is_removed() {
    let cache = Cache::new(Config::default()).unwrap();
    let from = cache.mount(nodes().await);
    let denied = [Error::AccessDenied; 2];
    for name in ["link", "pipe"] {
        for (makes, removals, failures, entries) in [
            (true, &[][..], 1, 1),
            (true, &[Error::Io], 1, 1),
            (true, &denied, 2, 2),
            (false, &denied, 1, 1),
        ] {
            let (store, removals) = (MemoryFs::new(), Mutex::new(removals.to_vec()));
            let to = cache.mount(Arc::new(LosesReplies { store, makes, removals }));
            let old = write(&to, name, b"old").await;
            let options = Options { recursive: true, ..Options::default() };
            let said = copy(&from, &to, name, options).await;
            assert_eq!(said.failures.len(), failures, "{said:?}");
            assert_eq!(place(&to, name).await.attr.unwrap().id, old, "{name}");
            let there = place(&to, name).await.children(to.root()).await.unwrap();
            assert_eq!(there.len(), entries, "{name}: {said:?}");
        }
    }
}

#[tokio::test]
async fn a_link_whose_name_appears_meanwhile_is_kept() {
    let cache = Cache::new(Config::default()).unwrap();
    let from = cache.mount(nodes().await);
    for name in ["link", "pipe"] {
        let appearing = MakesNoNodes { store: MemoryFs::new(), error: Error::Exists };
        let to = cache.mount(Arc::new(appearing));
        for (overwrite, kept) in [(Overwrite::Keep, 1), (Overwrite::Replace, 0)] {
            let options = Options { recursive: true, overwrite, ..Options::default() };
            let said = copy(&from, &to, name, options).await;
            assert_eq!((said.kept, said.failures.len()), (kept, 1 - kept as usize), "{said:?}");
        }
    }
}

/// A store that keeps no modes, and records the order of syncs and times.
struct Recording {
    store: Arc<MemoryFs>,
    calls: Arc<Mutex<Vec<&'static str>>>,
}

struct RecordingFile {
    file: Arc<dyn OpenFile>,
    calls: Arc<Mutex<Vec<&'static str>>>,
}

#[async_trait]
impl FileSystemDecorator for Recording {
    fn below(&self) -> &dyn FileSystem {
        &*self.store
    }

    async fn setattr(&self, caller: &Caller, id: FileId, set: &SetAttr) -> Result<Attr> {
        if set.mtime.is_some() {
            self.calls.lock().unwrap().push("times");
        }
        self.store.setattr(caller, id, &SetAttr { mode: None, ..set.clone() }).await
    }

    async fn open(&self, caller: &Caller, id: FileId, access: Access) -> Result<Arc<dyn OpenFile>> {
        let file = self.store.open(caller, id, access).await?;
        Ok(Arc::new(RecordingFile { file, calls: Arc::clone(&self.calls) }))
    }
}

#[async_trait]
impl OpenFileDecorator for RecordingFile {
    fn below(&self) -> &dyn OpenFile {
        &*self.file
    }

    async fn sync(&self, data_only: bool) -> Result<()> {
        self.calls.lock().unwrap().push("sync");
        self.file.sync(data_only).await
    }
}

#[tokio::test]
async fn modes_that_the_destination_does_not_keep_are_reported() {
    let cache = Cache::new(Config::default()).unwrap();
    let from = cache.mount(MemoryFs::new());
    write(&from, "file", b"data").await;
    let recording = Recording { store: MemoryFs::new(), calls: Arc::default() };
    let to = cache.mount(Arc::new(recording));
    // So that the copy has not the number of its source.
    write(&to, "other", b"").await;
    for (preserve, count) in [(false, 0), (true, 1)] {
        let said = copy(&from, &to, "file", Options { preserve, ..Options::default() }).await;
        assert_eq!(said.failures, [""; 0]);
        let told = said.not_preserved.iter().filter(|lost| lost.starts_with("mode of"));
        assert_eq!(told.count(), count, "{said:?}");
    }
}

/// A file with the size and the time of its source counts as complete for `sync`.
#[tokio::test]
async fn data_that_is_copied_in_place_is_durable_before_the_file_has_its_time() {
    let cache = Cache::new(Config::default()).unwrap();
    let from = cache.mount(MemoryFs::new());
    write(&from, "file", b"data").await;
    let calls = Arc::<Mutex<Vec<_>>>::default();
    let recording = Recording { store: MemoryFs::new(), calls: Arc::clone(&calls) };
    let to = cache.mount(Arc::new(recording));
    // With the number of the source, in a store of the same number, it would be the source.
    write(&to, "other", b"").await;
    write(&to, "file", b"old").await;
    calls.lock().unwrap().clear();
    let options = Options { preserve: true, in_place: true, ..Options::default() };
    let said = copy(&from, &to, "file", options).await;
    assert_eq!(said.failures, [""; 0]);
    let calls = calls.lock().unwrap();
    // The first times tell whether the two files are one.
    let last = calls.iter().rposition(|call| *call == "times").unwrap();
    let first = calls.iter().position(|call| *call == "times").unwrap();
    assert!(first < last && calls[first..last].contains(&"sync"), "{calls:?}");
    assert_eq!(calls.last(), Some(&"sync"), "{calls:?}");
}

/// A store whose files cannot be synced with their attributes, at first.
struct FailsAtTheEnd {
    store: Arc<MemoryFs>,
    fails: Arc<AtomicBool>,
}

struct FailsToSync {
    file: Arc<dyn OpenFile>,
    fails: Arc<AtomicBool>,
}

#[async_trait]
impl FileSystemDecorator for FailsAtTheEnd {
    fn below(&self) -> &dyn FileSystem {
        &*self.store
    }

    async fn open(&self, caller: &Caller, id: FileId, access: Access) -> Result<Arc<dyn OpenFile>> {
        let file = self.store.open(caller, id, access).await?;
        Ok(Arc::new(FailsToSync { file, fails: Arc::clone(&self.fails) }))
    }
}

#[async_trait]
impl OpenFileDecorator for FailsToSync {
    fn below(&self) -> &dyn OpenFile {
        &*self.file
    }

    async fn sync(&self, data_only: bool) -> Result<()> {
        match !data_only && self.fails.load(Ordering::SeqCst) {
            true => Err(Error::Io),
            false => self.file.sync(data_only).await,
        }
    }
}

/// By then it has the mode and the owner of its source.
#[tokio::test]
async fn a_copy_that_fails_at_its_end_can_be_continued() {
    let cache = Cache::new(Config::default()).unwrap();
    let from = cache.mount(MemoryFs::new());
    let id = write(&from, "file", &[7; 1_000_000]).await;
    let set = SetAttr { mode: Some(0o644), uid: Some(7), gid: Some(8), ..SetAttr::default() };
    from.setattr(&Caller::Own, id, &set).await.unwrap();
    let fails = Arc::new(AtomicBool::new(true));
    let store = FailsAtTheEnd { store: MemoryFs::new(), fails: Arc::clone(&fails) };
    let to = cache.mount(Arc::new(store));
    // So that the copy has not the number of its source.
    make_empty(&to, "other").await;
    let options = Options { preserve: true, resume_bytes: Some(100_000), ..Options::default() };
    let said = copy(&from, &to, "file", options.clone()).await;
    assert_eq!(said.failures.len(), 1, "{said:?}");
    let names = async || {
        let children = place(&to, "file").await.children(to.root()).await.unwrap();
        let names = children.into_iter().filter_map(|(place, _)| place.name);
        names.map(|name| String::from_utf8(name).unwrap()).collect::<Vec<_>>()
    };
    assert!(names().await[0].ends_with(".part"), "{:?}", names().await);
    fails.store(false, Ordering::SeqCst);
    let said = copy(&from, &to, "file", options).await;
    assert_eq!(said.failures, [""; 0]);
    assert!(said.resumed_bytes > 990_000, "{said:?}");
    assert_eq!(names().await, ["file", "other"]);
    let copy = place(&to, "file").await.attr.unwrap();
    assert_eq!((copy.uid, copy.gid, copy.mode, copy.size), (7, 8, 0o644, 1_000_000));
}

/// A store that sets no sizes, and says that it did.
struct KeepsSizes(Arc<MemoryFs>);

struct KeepsSize(Arc<dyn OpenFile>);

#[async_trait]
impl FileSystemDecorator for KeepsSizes {
    fn below(&self) -> &dyn FileSystem {
        &*self.0
    }

    async fn create_open(
        &self,
        caller: &Caller,
        new: NewFile<'_>,
        mode: CreateMode,
    ) -> Result<(Created, Option<Arc<dyn OpenFile>>)> {
        Ok((self.0.create(caller, new, mode).await?, None))
    }

    async fn open(&self, caller: &Caller, id: FileId, access: Access) -> Result<Arc<dyn OpenFile>> {
        Ok(Arc::new(KeepsSize(self.0.open(caller, id, access).await?)))
    }
}

#[async_trait]
impl OpenFileDecorator for KeepsSize {
    fn below(&self) -> &dyn OpenFile {
        &*self.0
    }

    async fn set_size(&self, _: u64) -> Result<()> {
        Ok(())
    }
}

/// The checksums of both are the same: zeros do not count.
#[tokio::test]
async fn a_checksum_notices_that_zeros_at_the_end_are_missing() {
    let cache = Cache::new(Config::default()).unwrap();
    let from = cache.mount(MemoryFs::new());
    let id = write(&from, "file", &[7; 4096]).await;
    let file = from.open(&Caller::Own, id, Access::READ | Access::WRITE).await.unwrap();
    file.truncate_async(1 << 20).await.unwrap();
    let to = cache.mount(Arc::new(KeepsSizes(MemoryFs::new())));
    let options = Options { checksum: true, ..Options::default() };
    let said = copy(&from, &to, "file", options).await;
    let missing = "4096 bytes are stored where 1048576 were written";
    assert!(said.failures.iter().any(|failure| failure.contains(missing)), "{said:?}");
    assert_eq!(said.verified_bytes, 0);
}

/// A store that changes neither owners nor access control lists.
struct KeepsRights(Arc<MemoryFs>);

#[async_trait]
impl FileSystemDecorator for KeepsRights {
    fn below(&self) -> &dyn FileSystem {
        &*self.0
    }

    async fn setattr(&self, caller: &Caller, id: FileId, set: &SetAttr) -> Result<Attr> {
        match set.uid.or(set.gid) {
            Some(_) => Err(Error::NotPermitted),
            None => self.0.setattr(caller, id, set).await,
        }
    }

    async fn set_acl(&self, _: &Caller, _: AclName, _: Option<&Acl>) -> Result<()> {
        Err(Error::NoSpace)
    }
}

/// Its group would get the rights of the mask, that is, of the user who is named.
#[tokio::test]
async fn a_copy_has_the_owner_and_the_access_list_of_the_file_that_it_replaces() {
    use AclWho::{Group, Mask, Other, Owner, User};
    let cache = Cache::new(Config::default()).unwrap();
    let from = cache.mount(MemoryFs::new());
    write(&from, "file", b"data").await;
    for keeps_rights in [false, true] {
        let store = MemoryFs::new();
        let to = cache.mount(match keeps_rights {
            false => store.clone(),
            true => Arc::new(KeepsRights(store.clone())) as Arc<dyn FileSystem>,
        });
        // So that the copy has not the number of its source.
        write(&to, "other", b"").await;
        let old = write(&to, "file", b"old").await;
        let list = [(Owner, 6), (User(12345), 6), (Group, 0), (Mask, 6), (Other, 0)];
        let list = Acl::new(list).unwrap();
        let own = SetAttr { uid: Some(7), gid: Some(8), ..SetAttr::default() };
        store.setattr(&Caller::Own, old, &own).await.unwrap();
        store.set_acl(&Caller::Own, old.acl(AclKind::Access), Some(&list)).await.unwrap();
        let said = copy(&from, &to, "file", Options::default()).await;
        assert_eq!(said.failures, [""; 0]);
        let copy = place(&to, "file").await.attr.unwrap();
        assert_ne!(copy.id, old);
        let has = to.get_acl(copy.id.acl(AclKind::Access)).await.unwrap();
        match keeps_rights {
            false => {
                assert_eq!((copy.uid, copy.gid, copy.mode), (7, 8, 0o660));
                assert_eq!((has, said.not_preserved), (Some(list), Vec::new()));
            }
            true => {
                assert_eq!((copy.mode, has), (0o600, None));
                let lost = said.not_preserved.join("; ");
                assert!(lost.contains("access control lists of"), "{lost}");
                assert!(lost.contains("owner and group of"), "{lost}");
            }
        }
    }
}

/// The mode of a file with a list has the rights of the mask, that is, of the users who are named.
#[tokio::test]
async fn without_its_list_a_copy_gives_the_group_no_rights_that_the_source_denies() {
    use AclWho::{Group, Mask, Other, Owner, User};
    for (group, mode) in [(0, 0o604), (5, 0o644)] {
        let cache = Cache::new(Config::default()).unwrap();
        let from = cache.mount(MemoryFs::new());
        let source = write(&from, "file", b"data").await;
        let list = [(Owner, 6), (User(12345), 6), (Group, group), (Mask, 6), (Other, 4)];
        let list = Acl::new(list).unwrap();
        from.set_acl(&Caller::Own, source.acl(AclKind::Access), Some(&list)).await.unwrap();
        assert_eq!(place(&from, "file").await.attr.unwrap().mode, 0o664);
        let to = cache.mount(Arc::new(KeepsRights(MemoryFs::new())));
        // So that the copy has not the number of its source.
        write(&to, "other", b"").await;
        let said = copy(&from, &to, "file", Options { preserve: true, ..Options::default() }).await;
        assert_eq!(said.failures, [""; 0]);
        assert_eq!(place(&to, "file").await.attr.unwrap().mode, mode);
        let lost = said.not_preserved.join("; ");
        assert!(lost.contains("access control lists of") && !lost.contains("mode"), "{lost}");
    }
}

/// A store that does not say which extended attributes a file has.
struct Unlisted(Arc<MemoryFs>);

#[async_trait]
impl FileSystemDecorator for Unlisted {
    fn below(&self) -> &dyn FileSystem {
        &*self.0
    }

    async fn list_xattrs(&self, _: &Caller, _: FileId) -> Result<Vec<Vec<u8>>> {
        Err(Error::AccessDenied)
    }
}

#[tokio::test]
async fn attributes_of_a_replaced_file_that_cannot_be_listed_are_reported() {
    let cache = Cache::new(Config::default()).unwrap();
    let from = cache.mount(MemoryFs::new());
    let to = cache.mount(Arc::new(Unlisted(MemoryFs::new())));
    write(&from, "file", b"data").await;
    write(&from, "new", b"data").await;
    // So that no two files have the same number.
    write(&to, "other", b"").await;
    write(&to, "file", b"old").await;
    let said = copy(&from, &to, "new", Options::default()).await;
    assert_eq!((said.failures, said.not_preserved), (Vec::new(), Vec::new()), "it replaces none");
    let said = copy(&from, &to, "file", Options::default()).await;
    assert!(said.failures.is_empty(), "{:?}", said.failures);
    assert_eq!(said.not_preserved.len(), 1, "{:?}", said.not_preserved);
    assert!(said.not_preserved[0].contains("extended attributes"), "{:?}", said.not_preserved);
}

/// As one has that is overwritten.
#[tokio::test]
async fn a_copy_has_the_users_attributes_of_the_file_that_it_replaces() {
    for preserve in [false, true] {
        let cache = Cache::new(Config::default()).unwrap();
        let (from, to) = (cache.mount(MemoryFs::new()), cache.mount(MemoryFs::new()));
        let set = async |fs: &CachedFs, id: FileId, name: &[u8]| {
            let mode = XattrMode::Either;
            fs.set_xattr(&Caller::Own, id.xattr(name), b"value", mode).await.unwrap();
        };
        let source = write(&from, "file", b"data").await;
        set(&from, source, b"user.of_source").await;
        // So that the copy has not the number of its source.
        write(&to, "other", b"").await;
        let old = write(&to, "file", b"old").await;
        set(&to, old, b"user.of_replaced").await;
        let said = copy(&from, &to, "file", Options { preserve, ..Options::default() }).await;
        assert_eq!((said.failures, said.not_preserved), (Vec::new(), Vec::new()));
        let copy = place(&to, "file").await.attr.unwrap();
        assert_ne!(copy.id, old);
        let names = to.list_xattrs(&Caller::Own, copy.id).await.unwrap();
        let expected =
            if preserve { b"user.of_source".to_vec() } else { b"user.of_replaced".to_vec() };
        assert_eq!(names, [expected]);
    }
}
