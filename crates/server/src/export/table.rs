//! All exports of a server.
//!
//! 1. A request uses one [`ExportTable`] throughout, even if the table is replaced meanwhile.
//! 2. The exports are the leaves of the tree that clients see: none lies within another. The
//!    directories above them are an export of their own, the pseudo file system, which no client
//!    can change. It is absent if the only export is at `/`.
//! 3. An export that is in both the old and the new table keeps its number and its counters. If
//!    nothing of it changed, it also keeps its tracked streams.

use super::directory_change::Changes;
use super::ids::{ExportIds, PSEUDO};
use super::options::{Export, ExportOptions, Squash};
use super::pseudo::{self, PseudoFs};
use super::rights::RightsCache;
use super::served::Served;
use crate::admission::Identity;
use crate::handle::{HANDLE_BYTES, Handles, Node};
use crate::program::{Call, Refusal};
use parking_lot::{Mutex, RwLock};
use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tracing::warn;
use weir_rpc::AuthStatus;
use weir_vfs::FileId;

/// Longest path of an export, in bytes: the limit of the MOUNT protocol.
const MAX_PATH_BYTES: usize = 1024;
const MAX_NAME_BYTES: usize = 255;

/// Why a path is not valid for an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// The path does not begin with a slash.
    #[error("it has to begin with a slash")]
    Relative,
    /// The path ends with a slash, has two in a row, or has a part that is `.` or `..`.
    #[error("it may have no empty parts, no `.` and no `..`, and no slash at its end")]
    Unclean,
    /// The path or a part of it is too long, or it contains a byte that no name can have.
    #[error("each part may have at most 255 bytes, the whole path 1,024, and no NUL")]
    TooLong,
}

/// Checks that a path is valid for an export.
///
/// # Errors
/// The reason why the path is not valid.
pub fn check_path(path: &str) -> Result<(), PathError> {
    let Some(below) = path.strip_prefix('/') else { return Err(PathError::Relative) };
    if below.is_empty() {
        return Ok(());
    }
    if below.split('/').any(|name| matches!(name, "" | "." | "..")) {
        return Err(PathError::Unclean);
    }
    let long = |name: &str| name.len() > MAX_NAME_BYTES;
    if path.len() > MAX_PATH_BYTES || path.contains('\0') || below.split('/').any(long) {
        return Err(PathError::TooLong);
    }
    Ok(())
}

/// The indices of two paths of which the second is equal to the first or lies within it.
pub fn clash(paths: &[&str]) -> Option<(usize, usize)> {
    let mut order: Vec<usize> = (0..paths.len()).collect();
    // With a trailing slash, a path sorts directly before those that lie within it.
    order.sort_by_cached_key(|&at| format!("{}/", paths[at].trim_end_matches('/')));
    let within = |pair: &&[usize]| match pair {
        [outer, inner] => {
            let rest = paths[*inner].strip_prefix(paths[*outer].trim_end_matches('/'));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        }
        _ => false,
    };
    order.windows(2).find(within).map(|pair| (pair[0], pair[1]))
}

/// Why exports cannot be served together.
#[derive(Debug, thiserror::Error)]
pub enum ExportsError {
    /// There are no exports.
    #[error("nothing to export")]
    None,
    /// A path is not valid for an export.
    #[error("cannot export {path}: {source}")]
    Path {
        /// The path.
        path: String,
        /// Why.
        source: PathError,
    },
    /// One export lies within another.
    #[error("{inner} lies within {outer}; choose paths that do not contain each other")]
    Clash {
        /// The outer path.
        outer: String,
        /// The inner path.
        inner: String,
    },
    /// The export numbers cannot be read or stored.
    #[error("cannot keep the list of exports in {}: {source}", path.display())]
    Ids {
        /// The state directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Why a filehandle refers to no file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandleError {
    /// This server did not make it.
    Bad,
    /// Its export was removed.
    Stale,
}

/// All exports of a server, and their filehandles.
#[derive(Debug)]
pub struct Exports {
    table: RwLock<Arc<ExportTable>>,
    ids: Mutex<ExportIds>,
    state_dir: PathBuf,
    handles: Handles,
    changes: Changes,
    rights: RightsCache,
}

impl Exports {
    /// Creates the exports, with their numbers stored in `state_dir`.
    ///
    /// # Errors
    /// They cannot be served together, or their numbers cannot be kept.
    pub fn open(
        exports: Vec<Export>,
        handles: Handles,
        state_dir: &Path,
    ) -> Result<Self, ExportsError> {
        let in_dir = |source| ExportsError::Ids { path: state_dir.to_owned(), source };
        let mut ids = ExportIds::open(state_dir).map_err(in_dir)?;
        let table = ExportTable::new(exports, &mut ids, None, state_dir)?;
        Ok(Self {
            table: RwLock::new(Arc::new(table)),
            ids: Mutex::new(ids),
            state_dir: state_dir.to_owned(),
            handles,
            changes: Changes::default(),
            rights: RightsCache::default(),
        })
    }

    /// The current table.
    pub fn table(&self) -> Arc<ExportTable> {
        self.table.read().clone()
    }

    /// Serves these exports from the next request on. Returns the numbers of removed exports.
    ///
    /// # Errors
    /// They cannot be served together, or their numbers cannot be stored. The previous exports are
    /// then still served.
    pub fn replace(&self, exports: Vec<Export>) -> Result<Vec<u16>, ExportsError> {
        // Held throughout, so that of two concurrent replacements the second sees the result of the
        // first.
        let mut ids = self.ids.lock();
        let before = self.table();
        let table = ExportTable::new(exports, &mut ids, Some(&before), &self.state_dir)?;
        let gone = before.served.keys().filter(|id| !table.served.contains_key(id)).copied();
        let gone = gone.collect();
        *self.table.write() = Arc::new(table);
        Ok(gone)
    }

    /// The caller of a call.
    ///
    /// # Errors
    /// [`Call::identify`]; [`AuthStatus::TooWeak`] if no export is for the caller's machine: such a machine leaves no
    /// state here, and takes none from others by their names.
    pub(crate) async fn identify(&self, call: &Call) -> Result<Identity, Refusal> {
        let peer = &call.peer;
        if !self.table.read().is_for(peer.addr().ip()) {
            if peer.is_first_refusal() {
                warn!(
                    "{}: no export is for this machine: refused (see the option `clients`)",
                    peer.addr()
                );
            }
            return Err(Refusal::Auth(AuthStatus::TooWeak));
        }
        call.identify().await
    }

    /// The locks that serialize changes of directories.
    pub(crate) fn changes(&self) -> &Changes {
        &self.changes
    }

    /// The cached rights of callers.
    pub(crate) fn rights(&self) -> &RightsCache {
        &self.rights
    }

    pub(crate) fn handles(&self) -> &Handles {
        &self.handles
    }

    /// The filehandle of a file.
    pub fn seal(&self, node: Node) -> [u8; HANDLE_BYTES] {
        self.handles.seal(node)
    }

    /// The file that a filehandle refers to. The file, or its export, may be gone.
    ///
    /// # Errors
    /// [`HandleError::Bad`].
    pub fn unseal(&self, handle: &[u8]) -> Result<Node, HandleError> {
        self.handles.unseal(handle).ok_or(HandleError::Bad)
    }
}

/// A snapshot of the exports.
#[derive(Debug)]
pub struct ExportTable {
    served: HashMap<u16, Arc<Served>>,
    /// The export numbers, sorted by path.
    order: Vec<u16>,
    /// The exports some of whose files are in another export, too.
    overlapping: HashSet<u16>,
    pseudo: Option<Pseudo>,
    root: Node,
}

/// The pseudo file system.
#[derive(Debug)]
struct Pseudo {
    fs: Arc<PseudoFs>,
    served: Served,
    /// The directories on which exports are mounted.
    junctions: HashMap<FileId, u16>,
}

impl ExportTable {
    fn new(
        exports: Vec<Export>,
        ids: &mut ExportIds,
        before: Option<&Self>,
        state_dir: &Path,
    ) -> Result<Self, ExportsError> {
        check(&exports)?;
        let numbers = ids
            .of(exports.iter().map(|export| (&*export.path, &*export.source)))
            .map_err(|source| ExportsError::Ids { path: state_dir.to_owned(), source })?;
        let served: Vec<Arc<Served>> = std::iter::zip(numbers, exports)
            .map(|(id, export)| match before.and_then(|before| before.served.get(&id)) {
                Some(same) if same.is(&export) => same.clone(),
                Some(changed) => Arc::new(Served::with_counts(id, export, changed.counts.clone())),
                None => Arc::new(Served::new(id, export)),
            })
            .collect();
        let overlapping = overlapping(&served);
        let pseudo = match &served[..] {
            [only] if only.export.path == "/" => None,
            several => Some(Pseudo::above(several, before.and_then(|b| b.pseudo.as_ref()))),
        };
        let mut order: Vec<&Arc<Served>> = served.iter().collect();
        order.sort_by(|a, b| a.export.path.cmp(&b.export.path));
        let order = order.into_iter().map(|served| served.id).collect();
        let root = pseudo.as_ref().map_or_else(|| served[0].root(), |pseudo| pseudo.served.root());
        let served = served.into_iter().map(|served| (served.id, served)).collect();
        Ok(Self { served, order, overlapping, pseudo, root })
    }

    /// The export with this number, or the pseudo file system.
    pub(crate) fn get(&self, export: u16) -> Result<&Served, HandleError> {
        match &self.pseudo {
            Some(pseudo) if export == PSEUDO => Ok(&pseudo.served),
            _ => self.mountable(export),
        }
    }

    /// The export with this number, except the pseudo file system: the exports that MOUNT serves.
    pub(crate) fn mountable(&self, export: u16) -> Result<&Served, HandleError> {
        self.served.get(&export).map(|served| &**served).ok_or(HandleError::Stale)
    }

    /// As [`mountable`](Self::mountable), for work that may outlive the table.
    pub(crate) fn share(&self, export: u16) -> Result<Arc<Served>, HandleError> {
        self.served.get(&export).cloned().ok_or(HandleError::Stale)
    }

    /// The exports, sorted by path.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Served> {
        self.order.iter().filter_map(|id| self.mountable(*id).ok())
    }

    /// Whether no file of this export is in another export, too. Clients' state and the locks of directories belong to
    /// a file of one export: an access by the other name recalls no delegation, and changes a directory at any time.
    pub(crate) fn is_disjoint(&self, export: u16) -> bool {
        !self.overlapping.contains(&export)
    }

    /// Whether no file is in two exports.
    pub(crate) fn are_disjoint(&self) -> bool {
        self.overlapping.is_empty()
    }

    /// Whether any export is for the machine at `peer`.
    fn is_for(&self, peer: IpAddr) -> bool {
        self.served.values().any(|export| export.is_for(peer))
    }

    /// The root of the tree that clients see.
    pub(crate) fn root(&self) -> Node {
        self.root
    }

    /// The root of the export that is mounted on `node`, or `node` itself.
    pub(crate) fn enter(&self, node: Node) -> Node {
        let Some(pseudo) = self.pseudo.as_ref().filter(|_| node.export == PSEUDO) else {
            return node;
        };
        let export = pseudo.junctions.get(&node.id).and_then(|id| self.served.get(id));
        export.map_or(node, |export| export.root())
    }

    /// The directory that an export is mounted on if `node` is the export's root, or `node` itself.
    pub(crate) fn leave(&self, node: Node) -> Node {
        match (&self.pseudo, self.served.get(&node.export)) {
            (Some(_), Some(export)) if export.root() == node => {
                Node { export: PSEUDO, id: pseudo::id_of(&export.export.path) }
            }
            _ => node,
        }
    }
}

/// The exports that have files in common: they have one store, or are of one file system, and one directory or one
/// within the other. (A store does not go beyond its file system.)
fn overlapping(exports: &[Arc<Served>]) -> HashSet<u16> {
    let have_common = |a: &Export, b: &Export| {
        let within = |a: &Path, b: &Path| !b.as_os_str().is_empty() && a.starts_with(b);
        let (one, other) = (a.fs.store(), b.fs.store());
        let is_nested = || within(&a.source, &b.source) || within(&b.source, &a.source);
        Arc::ptr_eq(one, other)
            || one.numbering() == other.numbering() && (one.root() == other.root() || is_nested())
    };
    let is_other =
        |a: &Arc<Served>, b: &Arc<Served>| a.id != b.id && have_common(&a.export, &b.export);
    let overlap = |a: &&Arc<Served>| exports.iter().any(|b| is_other(a, b));
    exports.iter().filter(overlap).map(|export| export.id).collect()
}

impl Served {
    fn is(&self, export: &Export) -> bool {
        let same_fs = Arc::ptr_eq(self.export.fs.store(), export.fs.store());
        same_fs && self.export.path == export.path && self.export.options == export.options
    }
}

impl Pseudo {
    fn above(exports: &[Arc<Served>], before: Option<&Self>) -> Self {
        let paths = exports.iter().map(|served| {
            // Which clients may see an export is part of its parent's contents.
            let mut hasher = DefaultHasher::new();
            (served.id, &served.export.options.clients).hash(&mut hasher);
            (&*served.export.path, hasher.finish())
        });
        let fs = Arc::new(PseudoFs::new(paths, before.map(|before| &*before.fs)));
        let options =
            ExportOptions { read_only: true, squash: Squash::Nobody, ..ExportOptions::default() };
        let export = Export {
            path: "/".into(),
            source: PathBuf::new(),
            fs: exports[0].fs().cache().mount(fs.clone()),
            options,
        };
        let junctions =
            exports.iter().map(|served| (pseudo::id_of(&served.export.path), served.id)).collect();
        Self { fs, served: Served::new(PSEUDO, export), junctions }
    }
}

fn check(exports: &[Export]) -> Result<(), ExportsError> {
    if exports.is_empty() {
        return Err(ExportsError::None);
    }
    for export in exports {
        check_path(&export.path)
            .map_err(|source| ExportsError::Path { path: export.path.clone(), source })?;
    }
    let paths: Vec<&str> = exports.iter().map(|export| &*export.path).collect();
    match clash(&paths) {
        Some((outer, inner)) => {
            Err(ExportsError::Clash { outer: paths[outer].into(), inner: paths[inner].into() })
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_exports() {
        for path in ["/", "/a", "/srv/my files/ä"] {
            assert_eq!(check_path(path), Ok(()), "{path}");
        }
        assert_eq!(check_path("a"), Err(PathError::Relative));
        for path in ["//", "/a/", "/a//b", "/./a", "/a/.."] {
            assert_eq!(check_path(path), Err(PathError::Unclean), "{path}");
        }
        assert_eq!(check_path(&format!("/{}", "x".repeat(256))), Err(PathError::TooLong));
    }

    #[test]
    fn nested_or_equal_export_paths_clash() {
        assert_eq!(clash(&["/b", "/a", "/a-b", "/ab"]), None);
        assert_eq!(clash(&["/b", "/a/c", "/a-b", "/a"]), Some((3, 1)));
        assert_eq!(clash(&["/a", "/"]), Some((1, 0)));
        assert_eq!(clash(&["/x", "/x"]), Some((0, 1)));
        assert_eq!(clash(&["/"]), None);
    }
}
