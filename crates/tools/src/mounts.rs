//! Finds files by location: opens the stores needed, each once, all under one page cache, and looks
//! up places in them.
//!
//! 1. All reads and writes go through the page cache.
//! 2. The kernel resolves a local path (symbolic links, `..`, mount points), so that it means the
//!    same as in every other program; a server's path is resolved here.
//! 3. A server's relative symbolic link leads where it does for programs there that see the same
//!    tree: `..` continues above the mounted directory, as far as the server permits mounting that.
//!    An absolute one is refused: its meaning differs between the machines that mount it. As for
//!    path_resolution(7), a link with a slash behind it is followed, and has to lead to a directory.

use crate::failure::{Asked, Failure, Result, usual_advice};
use crate::listing::Listing;
use crate::location::Location;
use crate::memory::{READAHEAD_BYTES, budget_bytes, check_budget};
use crate::origin::Origin;
use crate::size::Size;
use crate::text::shown;
use std::collections::HashMap;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use weir_client::{MountOptions, Nearest, NfsFs, NfsUrl};
use weir_pagecache::{Cache, CachedFs, Config};
use weir_stores::local::{LocalFs, LocalOptions};
use weir_vfs::{Attr, Caller, Error, FileId, FileKind};

/// Most symbolic links followed to one file, as in Linux.
const MOST_LINKS: usize = 40;

/// Whether a symbolic link at the end of a path is followed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// Go where it points.
    Follow,
    /// Stay at the link itself.
    Stay,
}

/// The stores in use.
pub struct Mounts {
    cache: Cache,
    options: MountOptions,
    local: HashMap<PathBuf, CachedFs>,
    remote: Vec<Remote>,
}

/// A mounted directory of a server.
struct Remote {
    host: String,
    options: MountOptions,
    path: Vec<Vec<u8>>,
    fs: CachedFs,
    nfs: Arc<NfsFs>,
}

/// A name in a directory of a store, and the file that it refers to, if any.
#[derive(Clone)]
pub struct Place {
    /// The store, through the page cache.
    pub fs: CachedFs,
    /// The directory; for the store's root, the root itself.
    pub dir: FileId,
    /// The name in it; `None` for the store's root.
    pub name: Option<Vec<u8>>,
    /// What is there.
    pub attr: Option<Attr>,
    /// As people wrote it.
    pub shown: String,
    /// How its directory was found.
    pub origin: Origin,
}

impl Place {
    /// What is there.
    ///
    /// # Errors
    /// A failure to `verb` ("read") it if it does not exist.
    pub fn existing(&self, verb: &str) -> Result<&Attr> {
        match &self.attr {
            Some(attr) => Ok(attr),
            None => Err(Error::NotFound).asked(|| format!("{verb} {}", self.shown)),
        }
    }

    /// The name of an entry of the directory here, for messages.
    pub(crate) fn shown_below(&self, name: &[u8]) -> String {
        shown_below(&self.shown, name)
    }

    /// The entries of the directory at this place, whose identity is `id`, sorted by name.
    pub async fn children(&self, id: FileId) -> Result<Vec<(Self, Attr)>> {
        let mut children = Vec::new();
        for (child, attr) in self.entries(id).await? {
            let attr = attr.asked(|| format!("list {}", self.shown))?;
            children.push((child, attr));
        }
        Ok(children)
    }

    /// The same; an entry that cannot be looked up has an error.
    pub(crate) async fn entries(&self, id: FileId) -> Result<Vec<(Self, weir_vfs::Result<Attr>)>> {
        let asked = || format!("list {}", self.shown);
        let inside = self.inside(id);
        let mut children = Vec::new();
        let mut listing = Listing::at(self, id);
        while let Some(entries) = listing.next().await.asked(asked)? {
            for entry in entries {
                let mut child = inside.child(&entry.name, entry.attr);
                let attr = match child.attr.clone() {
                    Some(attr) => Ok(Some(attr)),
                    None => found(self.fs.lookup(&Caller::Own, id.entry(&entry.name)).await),
                };
                // Skip entries that vanished since the directory was read.
                if let Some(attr) = attr.transpose() {
                    child.attr = attr.as_ref().ok().cloned();
                    children.push((child, attr));
                }
            }
        }
        children.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
        Ok(children)
    }
}

impl Mounts {
    /// No stores yet, with a page cache of `budget`, or of a quarter of memory and at most 512 MiB;
    /// servers are mounted with `options` and those of the location's URL.
    ///
    /// # Errors
    /// The budget exceeds memory, or is too small to be intended.
    pub fn new(budget: Option<Size>, options: MountOptions) -> Result<Self> {
        check_budget(budget)?;
        let budget_bytes = budget_bytes(budget, 512 << 20);
        let config = Config {
            budget_bytes,
            fast_read: true,
            readahead_bytes: READAHEAD_BYTES,
            ..Config::default()
        };
        let cache =
            Cache::new(config).asked(|| format!("set up a page cache of {budget_bytes} bytes"))?;
        Ok(Self { cache, options, local: HashMap::new(), remote: Vec::new() })
    }

    /// For locations found later, asks servers to leave their caches unchanged, too.
    pub fn uncached(&mut self) {
        self.options.uncached = true;
    }

    /// The size of the page cache in bytes.
    pub fn budget_bytes(&self) -> u64 {
        self.cache.budget_bytes()
    }

    /// Bytes sent and received on connections to servers so far.
    pub fn wire_bytes(&self) -> u64 {
        let stats = self.remote.iter().map(|remote| remote.nfs.wire_stats());
        stats.map(|wire| wire.sent_bytes + wire.received_bytes).sum()
    }

    /// Releases the state that servers hold for this process, without waiting for unresponsive
    /// ones.
    pub async fn unmount(&self) -> Result<()> {
        for remote in &self.remote {
            remote.nfs.unmount().await;
        }
        Ok(())
    }

    /// The same, after all dirty data was written to the servers.
    pub async fn flush_and_unmount(&self) -> Result<()> {
        let flushed = self.cache.flush().await.asked(|| "write dirty data to the server".into());
        self.unmount().await?;
        flushed
    }

    /// Finds a location. The last component need not exist, those above it must.
    pub async fn place(&mut self, location: &Location, links: Links) -> Result<Place> {
        let place = match location {
            Location::Local(path) => self.local_place(path, links).await,
            Location::Nfs(url) => self.remote_place(url, links).await,
        };
        place.map(|place| Place { origin: Origin::to(location), ..place })
    }

    /// Mounts a directory above several locations of a server, so that the places found there later are
    /// in one store. Where that fails, they are in several.
    pub async fn share(&mut self, locations: &[&Location]) {
        let mut shared: Vec<NfsUrl> = Vec::new();
        let mut counts: Vec<usize> = Vec::new();
        for location in locations {
            let Location::Nfs(url) = location else { continue };
            let above = url.path.len().saturating_sub(1);
            let whose = |url: &NfsUrl| (url.host.clone(), url.port, url.query.clone());
            match shared.iter().position(|other| whose(other) == whose(url)) {
                Some(at) => {
                    let pairs = shared[at].path.iter().zip(&url.path[..above]);
                    let common = pairs.take_while(|(a, b)| a == b).count();
                    shared[at].path.truncate(common);
                    counts[at] += 1;
                }
                None => {
                    let path = url.path[..above].to_vec();
                    shared.push(NfsUrl { path, ends_in_slash: false, ..url.clone() });
                    counts.push(1);
                }
            }
        }
        for (url, count) in shared.iter().zip(counts) {
            if count > 1 {
                // The locations are mounted one by one then, and the failure of one says more.
                let _ = self.remote_fs(url).await;
            }
        }
    }

    async fn local_place(&mut self, path: &Path, links: Links) -> Result<Place> {
        let asked = || format!("find {}", shown(path.as_os_str().as_bytes()));
        let is_link = path.symlink_metadata().is_ok_and(|m| m.is_symlink());
        // A link that is not followed is not read either, which would change its access time.
        let real = if is_link && links == Links::Stay {
            None
        } else {
            match path.canonicalize() {
                Err(error) if error.kind() == io::ErrorKind::NotFound && !is_link => None,
                result => Some(result.asked(asked)?),
            }
        };
        let (root, name) = match real {
            Some(real) if real.is_dir() => (real, None),
            real => {
                let path = real.as_deref().unwrap_or(path);
                let name = path.file_name().ok_or(Error::NotFound).asked(asked)?;
                let parent = match path.parent() {
                    Some(parent) if !parent.as_os_str().is_empty() => parent,
                    _ => Path::new("."),
                };
                let parent = parent.canonicalize().asked(asked)?;
                (parent, Some(name.to_os_string().into_vec()))
            }
        };
        let fs = self.local_fs(root).asked(asked)?;
        let shown = shown(path.as_os_str().as_bytes());
        let dir = fs.root();
        let attr = match &name {
            None => Some(fs.getattr(dir).await.asked(asked)?),
            Some(name) => found(fs.lookup(&Caller::Own, dir.entry(name)).await).asked(asked)?,
        };
        Ok(Place { fs, dir, name, attr, shown, origin: Origin::default() })
    }

    /// The store of a directory of this machine, at an absolute path without links.
    fn local_fs(&mut self, root: PathBuf) -> weir_vfs::Result<CachedFs> {
        if let Some(fs) = self.local.get(&root) {
            return Ok(fs.clone());
        }
        let options = LocalOptions { for_command: true, ..LocalOptions::default() };
        let fs = self.cache.mount(LocalFs::open(&root, options)?);
        self.local.insert(root, fs.clone());
        Ok(fs)
    }

    /// Whether a directory of this machine has a store.
    pub(crate) fn has_local(&self, root: &Path) -> bool {
        self.local.contains_key(root)
    }

    /// A directory of this machine, at an absolute path without links, as the root of its store.
    pub(crate) async fn local_root(&mut self, root: &Path) -> weir_vfs::Result<Place> {
        let fs = self.local_fs(root.to_path_buf())?;
        let (dir, shown) = (fs.root(), shown(root.as_os_str().as_bytes()));
        let attr = Some(fs.getattr(dir).await?);
        Ok(Place { fs, dir, name: None, attr, shown, origin: Origin::default() })
    }

    async fn remote_place(&mut self, url: &NfsUrl, links: Links) -> Result<Place> {
        let asked = || format!("find {url}");
        let links = if url.ends_in_slash { Links::Follow } else { links };
        let mut way = Way { base: url.path.clone(), rest: Vec::new() };
        let (mut followed, mut climbed) = (0, 0);
        loop {
            let to = NfsUrl { path: way.base, ..url.clone() };
            let Mounted { fs, root, path, rest: mut inside } = match self.remote_fs(&to).await {
                Err(failure) if climbed > 0 => {
                    let failed = format!("a symbolic link leads to {to} and beyond: {failure}");
                    return Err(Failure::new(asked(), failed));
                }
                found => found?,
            };
            inside.append(&mut way.rest);
            let root = match root {
                Some(root) => root,
                None => fs.getattr(fs.root()).await.asked(asked)?,
            };
            let (attr, shown, origin) = (Some(root.clone()), String::new(), Origin::default());
            let start = Place { dir: root.id, fs, name: None, attr, shown, origin };
            match walk(start, &path, inside, links, &mut followed, asked).await? {
                Walked::Here(place) => {
                    let is_directory = |attr: &Attr| attr.kind == FileKind::Directory;
                    if url.ends_in_slash && !place.attr.as_ref().is_none_or(is_directory) {
                        return Err(Error::NotDirectory).asked(asked);
                    }
                    return Ok(Place { shown: url.to_string(), ..*place });
                }
                Walked::Above(_) if climbed >= MOST_LINKS => return Err(Error::Loop).asked(asked),
                Walked::Above(above) => {
                    climbed += 1;
                    way = above;
                }
            }
        }
    }

    /// A mounted directory on the path to `url`.
    async fn remote_fs(&mut self, url: &NfsUrl) -> Result<Mounted> {
        let options = url.options(&self.options).map_err(|error| mount_failure(url, &error))?;
        // Checks whether a file has changed must reach the server, so attributes are not cached
        // here: a server may notice only seconds later that a local program changes a delegated
        // file.
        let options = MountOptions { actimeo: Duration::ZERO, delegations: false, ..options };
        for remote in &self.remote {
            if let Some(rest) = url.path.strip_prefix(&remote.path[..])
                && (&remote.host, &remote.options) == (&url.host, &options)
            {
                let (fs, path, rest) = (remote.fs.clone(), remote.path.clone(), rest.to_vec());
                return Ok(Mounted { fs, root: None, path, rest });
            }
        }
        // The URL's options are in `options`.
        let bare = NfsUrl { query: String::new(), ..url.clone() };
        let mounted = NfsFs::mount_nearest(&bare, &options).await;
        let Nearest { fs: nfs, root, depth } =
            mounted.map_err(|error| mount_failure(url, &error))?;
        let (path, rest) = url.path.split_at(depth);
        let (path, rest) = (path.to_vec(), rest.to_vec());
        let fs = self.cache.mount(nfs.clone());
        let (host, fs_of_host) = (url.host.clone(), fs.clone());
        self.remote.push(Remote { host, options, path: path.clone(), fs: fs_of_host, nfs });
        Ok(Mounted { fs, root: Some(root), path, rest })
    }
}

/// Why a server cannot be mounted, and what to do.
pub fn mount_failure(url: &NfsUrl, error: &weir_client::Error) -> Failure {
    // A component that cannot be looked up is no failure of the mount.
    if let weir_client::Error::Status { operation, error: neutral, .. } = error
        && matches!(&operation.to_ascii_uppercase()[..], "LOOKUP" | "GETATTR")
    {
        let failure = Failure::new(format!("find {url}"), format!("{neutral} ({error})"));
        return match usual_advice(*neutral) {
            Some(advice) => failure.advice(advice),
            None => failure,
        };
    }
    let failure = Failure::new(format!("mount {url}"), error.to_string());
    match error {
        weir_client::Error::Connect { .. } | weir_client::Error::TimedOut { .. } => {
            failure.advice("check that the server runs and that its port can be reached")
        }
        weir_client::Error::NoAnswer { .. } => failure.advice(
            "check the port: nfs://HOST:PORT/PATH, or -o mountport= for MOUNT of version 3",
        ),
        weir_client::Error::Version { .. } => failure.advice("try another one, such as -o vers=3"),
        weir_client::Error::Status { error: Error::NotFound, .. } => {
            failure.advice("check the path; `showmount -e` lists what a server exports")
        }
        weir_client::Error::Status { error: Error::AccessDenied, .. } => {
            failure.advice("the server has to export it to this machine")
        }
        _ => failure,
    }
}

/// A mounted directory on a path.
struct Mounted {
    fs: CachedFs,
    /// The attributes of the directory, if it was mounted just now.
    root: Option<Attr>,
    /// Its path.
    path: Vec<Vec<u8>>,
    /// The rest of the path.
    rest: Vec<Vec<u8>>,
}

/// A path from the server's root, the first part of it without `..`.
struct Way {
    base: Vec<Vec<u8>>,
    rest: Vec<Vec<u8>>,
}

/// The end of a walk within a mounted directory.
enum Walked {
    Here(Box<Place>),
    /// Above that directory, through a symbolic link: the target has to be mounted.
    Above(Way),
}

/// Walks from the mounted directory `start`, whose path is `root`, along the components of a path.
/// `followed` counts symbolic links.
async fn walk(
    start: Place,
    root: &[Vec<u8>],
    path: Vec<Vec<u8>>,
    links: Links,
    followed: &mut usize,
    asked: impl Fn() -> String,
) -> Result<Walked> {
    let mut ahead: Vec<Vec<u8>> = path;
    ahead.reverse();
    // The components of `at` below the mounted directory.
    let mut below: Vec<Vec<u8>> = Vec::new();
    let mut at = start;
    while let Some(name) = ahead.pop() {
        let dir = at.existing("find")?.id;
        if name == b".." {
            if below.pop().is_some() {
                let parent = at.fs.parent(dir).await.asked(&asked)?;
                at = Place { dir: parent.id, name: None, attr: Some(parent), ..at };
            } else if let Some((last, above)) = root.split_last() {
                // Enter the mounted directory again from above: a server of version 3 may have
                // resolved a symbolic link there.
                ahead.extend([name, last.clone()]);
                ahead.reverse();
                return Ok(Walked::Above(Way { base: above.to_vec(), rest: ahead }));
            } else {
                // On the server's machine it leads to a file that no client can access.
                let failed = "a symbolic link leads above the root of what the server exports";
                return Err(Failure::new(asked(), failed).advice("name the file that is meant"));
            }
            continue;
        }
        let attr = found(at.fs.lookup(&Caller::Own, dir.entry(&name)).await).asked(&asked)?;
        let is_link = attr.as_ref().is_some_and(|a| a.kind == FileKind::Symlink);
        match attr {
            Some(link) if is_link && (links == Links::Follow || !ahead.is_empty()) => {
                *followed += 1;
                if *followed > MOST_LINKS {
                    return Err(Error::Loop).asked(&asked);
                }
                let target = at.fs.readlink(&Caller::Own, link.id).await.asked(&asked)?;
                if target.starts_with(b"/") {
                    return Err(Failure::new(
                        asked(),
                        format!(
                            "{} is a symbolic link to {}, which only means something on a machine \
                             that mounts it",
                            shown(&name),
                            shown(&target)
                        ),
                    )
                    .advice("name the file that it points to"));
                }
                let parts = target.split(|&b| b == b'/').filter(|p| !p.is_empty() && *p != b".");
                ahead.extend(parts.map(<[u8]>::to_vec).collect::<Vec<_>>().into_iter().rev());
            }
            None if !ahead.is_empty() => return Err(Error::NotFound).asked(&asked),
            attr => {
                below.push(name.clone());
                at = Place { dir, name: Some(name), attr, ..at };
            }
        }
    }
    Ok(Walked::Here(Box::new(at)))
}

/// A name in a directory, for messages; a server's is a URL as well, with its options at the end.
fn shown_below(dir: &str, name: &[u8]) -> String {
    let name = shown(name);
    let (path, query, name) = match dir.starts_with("nfs://") {
        true => {
            let (path, query) = dir.split_at(dir.find('?').unwrap_or(dir.len()));
            (path, query, name.replace('%', "%25").replace('?', "%3F"))
        }
        false => (dir, "", name),
    };
    let slash = if path.ends_with('/') { "" } else { "/" };
    format!("{path}{slash}{name}{query}")
}

/// `None` if it does not exist.
fn found(result: weir_vfs::Result<Attr>) -> weir_vfs::Result<Option<Attr>> {
    match result {
        Ok(attr) => Ok(Some(attr)),
        Err(Error::NotFound) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_below_a_url_are_shown_as_urls() {
        for (dir, shown) in [
            ("nfs://h/dir?vers=3", "nfs://h/dir/100%25 sure%3F?vers=3"),
            ("nfs://h/", "nfs://h/100%25 sure%3F"),
            ("why?/", "why?/100% sure?"),
        ] {
            assert_eq!(shown_below(dir, b"100% sure?"), shown);
        }
    }
}
