//! Directories as streams of entries.
//!
//! 1. Memory: one request's entries for a directory; of a walk, for each directory on the way from its
//!    root.
//! 2. A directory whose cookies go round fails soon after ([`MetCookies`]): a server would be asked forever.

use super::resolve::{Links, resolve};
use super::{Asked, Export, Metadata};
use futures_util::future::BoxFuture;
use futures_util::stream::Stream;
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use weir_vfs::{Caller, Error, FileId, FileKind, FileSystem, MetCookies, ReaddirRequest};

/// Entries asked for in one request; servers return as many as fit in a reply.
const ENTRIES: usize = 1024;

/// An entry of a directory, with its attributes.
#[derive(Clone, Debug)]
pub struct DirEntry {
    name: OsString,
    path: PathBuf,
    metadata: Metadata,
    depth: usize,
}

impl DirEntry {
    /// The name in the directory.
    pub fn file_name(&self) -> &OsStr {
        &self.name
    }

    /// The path of the listing, and below it that of the entry.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Attributes, of a symbolic link itself.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The number of directories between the entry and the one that was asked for: 0 for its own
    /// entries.
    pub fn depth(&self) -> usize {
        self.depth
    }
}

impl Export {
    /// The entries of a directory, without `.` and `..`, as the server orders them. Each has its
    /// attributes, which takes no further requests from most servers.
    pub async fn read_dir(&self, path: impl AsRef<Path>) -> io::Result<ReadDir> {
        Ok(ReadDir(Listing::of(self, path.as_ref()).await?))
    }

    /// Everything below a directory: a directory comes before its entries. Symbolic links are not
    /// followed. A directory that cannot be read is an error in the stream, which then goes on.
    pub async fn walk(&self, path: impl AsRef<Path>) -> io::Result<Walk> {
        Ok(Walk { way: vec![Listing::of(self, path.as_ref()).await?] })
    }
}

/// The entries of a directory: a [`Stream`].
///
/// ```no_run
/// # async fn example(export: weir_client::Export) -> std::io::Result<()> {
/// use futures_util::TryStreamExt;
///
/// let mut entries = export.read_dir("/").await?;
/// while let Some(entry) = entries.try_next().await? {
///     println!("{:>12} {:?}", entry.metadata().len(), entry.file_name());
/// }
/// # Ok(())
/// # }
/// ```
pub struct ReadDir(Listing);

impl Stream for ReadDir {
    type Item = io::Result<DirEntry>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let listing = &mut self.get_mut().0;
        let next = ready!(listing.poll_next(cx));
        if matches!(next, Some(Err(_))) {
            listing.end();
        }
        Poll::Ready(next)
    }
}

/// Everything below a directory: a [`Stream`].
pub struct Walk {
    /// The directories from the root to the current one.
    way: Vec<Listing>,
}

impl Stream for Walk {
    type Item = io::Result<DirEntry>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let way = &mut self.get_mut().way;
        while let Some(listing) = way.last_mut() {
            let entry = match ready!(listing.poll_next(cx)) {
                Some(Ok(entry)) => entry,
                Some(Err(error)) => {
                    way.pop();
                    return Poll::Ready(Some(Err(error)));
                }
                None => {
                    way.pop();
                    continue;
                }
            };
            if entry.metadata.is_dir() {
                let (export, dir) = (listing.export.clone(), entry.metadata.attr().id);
                way.push(Listing::new(export, dir, entry.path.clone(), entry.depth + 1));
            }
            return Poll::Ready(Some(Ok(entry)));
        }
        Poll::Ready(None)
    }
}

/// A directory being read.
struct Listing {
    export: Export,
    dir: FileId,
    path: PathBuf,
    depth: usize,
    entries: VecDeque<DirEntry>,
    /// Where to go on; `None` at the end.
    cookie: Option<u64>,
    met: MetCookies,
    asking: Option<BoxFuture<'static, io::Result<Asking>>>,
}

/// What a request returned: entries, and where to go on.
type Asking = (VecDeque<DirEntry>, Option<u64>);

impl Listing {
    async fn of(export: &Export, path: &Path) -> io::Result<Self> {
        let dir = export.call(Asked::new("list", path), async {
            let found = resolve(&export.nfs, path, Links::Follow).await?;
            let attr = found.existing(&export.nfs).await?;
            match attr.kind {
                FileKind::Directory => Ok(attr.id),
                _ => Err(Error::NotDirectory),
            }
        });
        Ok(Self::new(export.clone(), dir.await?, path.to_path_buf(), 0))
    }

    fn new(export: Export, dir: FileId, path: PathBuf, depth: usize) -> Self {
        let (entries, cookie, met, asking) =
            (VecDeque::new(), Some(0), MetCookies::default(), None);
        Self { export, dir, path, depth, entries, cookie, met, asking }
    }

    fn end(&mut self) {
        self.cookie = None;
        self.entries.clear();
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<DirEntry>>> {
        loop {
            if let Some(entry) = self.entries.pop_front() {
                return Poll::Ready(Some(Ok(entry)));
            }
            let Some(cookie) = self.cookie else { return Poll::Ready(None) };
            let mut asking = match self.asking.take() {
                Some(asking) => asking,
                None => Box::pin(ask(
                    self.export.clone(),
                    self.dir,
                    self.path.clone(),
                    self.depth,
                    cookie,
                )),
            };
            match asking.as_mut().poll(cx) {
                Poll::Pending => {
                    self.asking = Some(asking);
                    return Poll::Pending;
                }
                Poll::Ready(Ok((_, Some(cookie)))) if self.met.again(cookie) => {
                    self.asking = Some(Box::pin(endless(self.export.clone(), self.path.clone())));
                }
                Poll::Ready(Ok((entries, cookie))) => {
                    (self.entries, self.cookie) = (entries, cookie);
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Some(Err(error))),
            }
        }
    }
}

/// The failure of a listing that would not end.
async fn endless(export: Export, path: PathBuf) -> io::Result<Asking> {
    export.call(Asked::new("list", &path), async { Err(Error::Io) }).await
}

/// Reads entries after `cookie`.
async fn ask(
    export: Export,
    dir: FileId,
    path: PathBuf,
    depth: usize,
    cookie: u64,
) -> io::Result<Asking> {
    let read = async {
        let request = ReaddirRequest { dir, cookie, max_entries: ENTRIES, with_attr: true };
        let page = export.nfs.readdir(&Caller::Own, request).await?;
        let next = page.entries.last().map(|last| last.cookie).filter(|_| !page.eof);
        let mut entries = VecDeque::with_capacity(page.entries.len());
        for entry in page.entries {
            let attr = match entry.attr {
                Some(attr) => attr,
                None => match export.nfs.lookup(&Caller::Own, dir.entry(&entry.name)).await {
                    Ok(attr) => attr,
                    // It vanished since the directory was read.
                    Err(Error::NotFound) => continue,
                    Err(error) => return Err(error),
                },
            };
            let name = OsString::from_vec(entry.name);
            let path = path.join(&name);
            entries.push_back(DirEntry { name, path, metadata: Metadata(attr), depth });
        }
        Ok((entries, next))
    };
    export.call(Asked::new("list", &path), read).await
}
