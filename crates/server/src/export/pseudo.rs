//! The pseudo file system (RFC 8881 section 7.3): the directories above the exports, as a read-only
//! store made from the exports' paths.
//!
//! 1. A directory's identity is computed from its path, and its change attribute from its entries.
//!    Both stay the same over a restart, and over a reload that does not affect the directory.
//! 2. It contains only directories, and refuses every change with [`Error::ReadOnly`].

use async_trait::async_trait;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;
use weir_vfs::{
    Access, Attr, Caller, Capabilities, CreateMode, Created, DirEntry, DirPage, EntryName, Error,
    FileId, FileKind, FileSystem, FsStat, NewFile, OpenFile, Permissions, ReaddirRequest,
    RenameFlags, Result, SetAttr, SpecialFile,
};

const READ_AND_SEARCH: Permissions = Permissions::READ.union(Permissions::EXECUTE);
/// A cookie is an entry's position plus this, because 0, 1 and 2 have special meanings.
const COOKIE_SHIFT: u64 = 3;

/// The pseudo file system.
#[derive(Debug)]
pub(crate) struct PseudoFs {
    dirs: BTreeMap<FileId, Dir>,
}

#[derive(Debug)]
struct Dir {
    parent: FileId,
    entries: BTreeMap<Vec<u8>, FileId>,
    change: u64,
    /// The time of its last change, as far as this run of the server knows.
    since: SystemTime,
}

impl PseudoFs {
    /// The directories of these paths and all above them. Each path has a version; a new version
    /// (after a change of the clients that may see the export) changes the parent's change
    /// attribute. Directories that are unchanged since `before` keep their times.
    pub(crate) fn new<'a>(
        paths: impl IntoIterator<Item = (&'a str, u64)>,
        before: Option<&Self>,
    ) -> Self {
        let now = SystemTime::now();
        let root = id_of("");
        let empty = |parent| Dir { parent, entries: BTreeMap::new(), change: 0, since: now };
        let mut dirs = BTreeMap::from([(root, empty(root))]);
        for (path, version) in paths {
            let (mut at, mut walked) = (root, String::new());
            for name in path.split('/').filter(|name| !name.is_empty()) {
                walked.push('/');
                walked.push_str(name);
                let id = id_of(&walked);
                if let Some(dir) = dirs.get_mut(&at) {
                    dir.entries.insert(name.as_bytes().to_vec(), id);
                    dir.change = dir.change.wrapping_add(hash(&walked)).wrapping_add(version);
                }
                dirs.entry(id).or_insert_with(|| empty(at));
                at = id;
            }
        }
        for (id, dir) in &mut dirs {
            if let Some(was) = before.and_then(|before| before.dirs.get(id))
                && was.change == dir.change
            {
                dir.since = was.since;
            }
        }
        Self { dirs }
    }

    fn dir(&self, id: FileId) -> Result<&Dir> {
        self.dirs.get(&id).ok_or(Error::Stale)
    }

    fn attr(&self, id: FileId) -> Result<Attr> {
        let dir = self.dir(id)?;
        Ok(Attr {
            id,
            kind: FileKind::Directory,
            mode: 0o755,
            nlink: u32::try_from(dir.entries.len()).unwrap_or(u32::MAX).saturating_add(2),
            uid: 0,
            gid: 0,
            size: 4096,
            allocated: 0,
            rdev: (0, 0),
            fsid: 0,
            atime: dir.since,
            mtime: dir.since,
            ctime: dir.since,
            btime: None,
            change: dir.change,
        })
    }
}

/// The identity of the directory at `path`. The root has the empty path.
pub(crate) fn id_of(path: &str) -> FileId {
    // Positive as a signed number, and not one of the small numbers with special meanings.
    let ino = (hash(path) >> 1).max(2);
    FileId { ino, generation: 0 }
}

fn hash(text: &str) -> u64 {
    let hash = blake3::hash(text.as_bytes());
    hash.as_bytes().iter().take(8).fold(0, |word, &byte| word << 8 | u64::from(byte))
}

#[async_trait]
impl FileSystem for PseudoFs {
    fn capabilities(&self) -> Capabilities {
        Capabilities::empty()
    }

    fn root(&self) -> FileId {
        id_of("")
    }

    async fn statfs(&self) -> Result<FsStat> {
        Ok(FsStat {
            total_bytes: 0,
            free_bytes: 0,
            available_bytes: 0,
            total_files: self.dirs.len() as u64,
            free_files: 0,
            max_name: 255,
            max_file_size: i64::MAX as u64,
            max_links: 65_000,
            clone_bytes: 0,
        })
    }

    async fn getattr(&self, id: FileId) -> Result<Attr> {
        self.attr(id)
    }

    async fn setattr(&self, _: &Caller, _: FileId, _: &SetAttr) -> Result<Attr> {
        Err(Error::ReadOnly)
    }

    async fn access(&self, _: &Caller, id: FileId, mask: Permissions) -> Result<Permissions> {
        self.dir(id)?;
        Ok(mask & READ_AND_SEARCH)
    }

    async fn lookup(&self, _: &Caller, entry: EntryName<'_>) -> Result<Attr> {
        self.attr(*self.dir(entry.dir)?.entries.get(entry.name).ok_or(Error::NotFound)?)
    }

    async fn parent(&self, dir: FileId) -> Result<Attr> {
        self.attr(self.dir(dir)?.parent)
    }

    async fn readdir(&self, _: &Caller, request: ReaddirRequest) -> Result<DirPage> {
        let names = &self.dir(request.dir)?.entries;
        let skip =
            usize::try_from(request.cookie.saturating_sub(COOKIE_SHIFT - 1)).unwrap_or(usize::MAX);
        let entries: Vec<DirEntry> = (COOKIE_SHIFT..)
            .zip(names)
            .skip(skip)
            .take(request.max_entries)
            .map(|(cookie, (name, &id))| DirEntry {
                name: name.clone(),
                cookie,
                attr: self.attr(id).ok(),
                ino: id.ino,
            })
            .collect();
        let eof = skip.saturating_add(entries.len()) >= names.len();
        Ok(DirPage { entries, eof })
    }

    async fn readlink(&self, _: &Caller, _: FileId) -> Result<Vec<u8>> {
        Err(Error::Invalid)
    }

    async fn create(&self, _: &Caller, _: NewFile<'_>, _: CreateMode) -> Result<Created> {
        Err(Error::ReadOnly)
    }

    async fn mkdir(&self, _: &Caller, _: NewFile<'_>) -> Result<Attr> {
        Err(Error::ReadOnly)
    }

    async fn symlink(&self, _: &Caller, _: NewFile<'_>, _: &[u8]) -> Result<Attr> {
        Err(Error::ReadOnly)
    }

    async fn mknod(&self, _: &Caller, _: NewFile<'_>, _: SpecialFile) -> Result<Attr> {
        Err(Error::ReadOnly)
    }

    async fn link(&self, _: &Caller, _: FileId, _: EntryName<'_>) -> Result<Attr> {
        Err(Error::ReadOnly)
    }

    async fn unlink(&self, _: &Caller, _: EntryName<'_>) -> Result<()> {
        Err(Error::ReadOnly)
    }

    async fn rmdir(&self, _: &Caller, _: EntryName<'_>) -> Result<()> {
        Err(Error::ReadOnly)
    }

    async fn rename(
        &self,
        _: &Caller,
        _: EntryName<'_>,
        _: EntryName<'_>,
        _: RenameFlags,
    ) -> Result<()> {
        Err(Error::ReadOnly)
    }

    async fn open(&self, _: &Caller, id: FileId, _: Access) -> Result<Arc<dyn OpenFile>> {
        self.dir(id)?;
        Err(Error::IsDirectory)
    }

    async fn sync_node(&self, id: FileId) -> Result<()> {
        self.dir(id).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn names(fs: &PseudoFs, path: &str) -> Vec<String> {
        let page = fs
            .readdir(
                &Caller::Own,
                ReaddirRequest { dir: id_of(path), cookie: 0, max_entries: 100, with_attr: true },
            )
            .await
            .unwrap();
        assert!(page.eof);
        page.entries.into_iter().map(|e| String::from_utf8(e.name).unwrap()).collect()
    }

    #[tokio::test]
    async fn the_pseudo_tree_has_the_directories_above_the_exports() {
        let fs = PseudoFs::new([("/srv/a", 0), ("/srv/b/c", 0), ("/home", 0)], None);
        assert_eq!(names(&fs, "").await, ["home", "srv"]);
        assert_eq!(names(&fs, "/srv").await, ["a", "b"]);
        let b = fs.lookup(&Caller::Own, id_of("/srv").entry(b"b")).await.unwrap();
        assert_eq!((b.id, b.nlink), (id_of("/srv/b"), 3));
        assert_eq!(fs.parent(b.id).await.unwrap().id, id_of("/srv"));
        assert_eq!(fs.parent(fs.root()).await.unwrap().id, fs.root());
        assert_eq!(fs.lookup(&Caller::Own, b.id.entry(b"x")).await, Err(Error::NotFound));
        assert_eq!(fs.access(&Caller::Own, b.id, Permissions::all()).await, Ok(READ_AND_SEARCH));
    }

    #[tokio::test]
    async fn a_pseudo_directory_is_readable_from_any_entry_on() {
        let fs = PseudoFs::new([("/a", 0), ("/b", 0), ("/c", 0)], None);
        let (mut cookie, mut seen) = (0, Vec::new());
        loop {
            let page = fs
                .readdir(
                    &Caller::Own,
                    ReaddirRequest { dir: fs.root(), cookie, max_entries: 1, with_attr: false },
                )
                .await
                .unwrap();
            seen.extend(page.entries.iter().map(|e| e.name.clone()));
            if page.eof {
                break;
            }
            cookie = page.entries[0].cookie;
        }
        assert_eq!(seen, [b"a", b"b", b"c"]);
    }

    #[tokio::test]
    async fn an_update_changes_only_directories_that_differ() {
        let before = PseudoFs::new([("/a/x", 0), ("/b/y", 1)], None);
        let after = PseudoFs::new([("/b/y", 1), ("/a/x", 0), ("/a/z", 0)], Some(&before));
        let hidden = PseudoFs::new([("/a/x", 0), ("/b/y", 2)], Some(&before));
        let look = async |fs: &PseudoFs, path| {
            let attr = fs.getattr(id_of(path)).await.unwrap();
            (attr.change, attr.mtime)
        };
        assert_eq!(look(&before, "/b").await, look(&after, "/b").await);
        assert_ne!(look(&before, "/a").await.0, look(&after, "/a").await.0);
        assert_ne!(look(&before, "/a").await.1, look(&after, "/a").await.1);
        assert_ne!(look(&before, "/b").await.0, look(&hidden, "/b").await.0);
        assert_eq!(look(&before, "/a").await, look(&hidden, "/a").await);
    }
}
