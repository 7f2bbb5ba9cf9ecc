//! All exports of a server.
//!
//! 1. A request sees one [`Table`] from its beginning to its end, also if the table is replaced meanwhile.
//! 2. The exports are leaves of the tree that clients see: none lies within another. Unless there
//!    is just one, at `/`, the directories above them are an export of their own, that no client can
//!    change.
//! 3. An export that is in both of two tables keeps its number, and if nothing of it changed also
//!    what is known of its streams.

use super::directory_change::Changes;
use super::ids::{ExportIds, PSEUDO};
use super::options::{Export, ExportOptions, Squash};
use super::pseudo::{self, PseudoFs};
use super::rights::Rights;
use super::served::Served;
use crate::handle::{HANDLE_BYTES, Handles, Node};
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weir_vfs::FileId;

/// Longest path of an export, in bytes: what the MOUNT protocol carries.
const MAX_PATH_BYTES: usize = 1024;
const MAX_NAME_BYTES: usize = 255;

/// Why a path cannot be an export's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// It does not begin with a slash.
    #[error("it has to begin with a slash")]
    Relative,
    /// It ends with a slash, or has two in a row, or a part that is `.` or `..`.
    #[error("it may have no empty parts, no `.` and no `..`, and no slash at its end")]
    Unclean,
    /// It, or a part of it, is too long, or holds a byte that no name can have.
    #[error("a part may be 255 bytes long, all together 1,024, without NUL")]
    TooLong,
}

/// Whether a path can be an export's.
///
/// # Errors
/// Why it cannot.
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

/// Two of these paths of which one is, or lies within, the other, by their places: the outer one
/// first.
pub fn clash(paths: &[&str]) -> Option<(usize, usize)> {
    let mut order: Vec<usize> = (0..paths.len()).collect();
    // With a slash behind each, what lies within a path follows it at once.
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
    /// There are none.
    #[error("nothing to export")]
    None,
    /// A path cannot be an export's.
    #[error("cannot export {path}: {source}")]
    Path {
        /// Which.
        path: String,
        /// Why.
        source: PathError,
    },
    /// One lies within another.
    #[error("{inner} lies within {outer}; exports need paths of their own")]
    Clash {
        /// The one.
        outer: String,
        /// The other.
        inner: String,
    },
    /// The numbers of exports cannot be kept.
    #[error("cannot keep the list of exports in {}: {source}", path.display())]
    Ids {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Why a handle names no file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandleError {
    /// This server never made it.
    Bad,
    /// What it named is not exported any more.
    Stale,
}

/// All exports of a server, and their handles.
#[derive(Debug)]
pub struct Exports {
    table: RwLock<Arc<Table>>,
    ids: Mutex<ExportIds>,
    state_dir: PathBuf,
    handles: Handles,
    changes: Changes,
    rights: Rights,
}

impl Exports {
    /// These exports, their numbers kept in `state_dir`.
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
        let table = Table::new(exports, &mut ids, None, state_dir)?;
        Ok(Self {
            table: RwLock::new(Arc::new(table)),
            ids: Mutex::new(ids),
            state_dir: state_dir.to_owned(),
            handles,
            changes: Changes::default(),
            rights: Rights::default(),
        })
    }

    /// The exports as they are now.
    pub fn table(&self) -> Arc<Table> {
        self.table.read().clone()
    }

    /// Serves these exports from the next request on; the numbers of those that are gone.
    ///
    /// # Errors
    /// They cannot be served together, or their numbers cannot be kept; those of before are still
    /// served.
    pub fn replace(&self, exports: Vec<Export>) -> Result<Vec<u16>, ExportsError> {
        // Held all the while, so that of two that replace the second sees what the first did.
        let mut ids = self.ids.lock();
        let before = self.table();
        let table = Table::new(exports, &mut ids, Some(&before), &self.state_dir)?;
        let gone = before.served.keys().filter(|id| !table.served.contains_key(id)).copied();
        let gone = gone.collect();
        *self.table.write() = Arc::new(table);
        Ok(gone)
    }

    /// The locks under which directories are changed.
    pub(crate) fn changes(&self) -> &Changes {
        &self.changes
    }

    /// Who may read and write which file.
    pub(crate) fn rights(&self) -> &Rights {
        &self.rights
    }

    pub(crate) fn handles(&self) -> &Handles {
        &self.handles
    }

    /// The handle of a file.
    pub fn seal(&self, node: Node) -> [u8; HANDLE_BYTES] {
        self.handles.seal(node)
    }

    /// What a handle names. The file itself, or its export, may be gone.
    ///
    /// # Errors
    /// [`HandleError::Bad`].
    pub fn unseal(&self, handle: &[u8]) -> Result<Node, HandleError> {
        self.handles.unseal(handle).ok_or(HandleError::Bad)
    }
}

/// The exports, at one time.
#[derive(Debug)]
pub struct Table {
    served: HashMap<u16, Arc<Served>>,
    /// Their numbers, by path.
    order: Vec<u16>,
    pseudo: Option<Pseudo>,
    root: Node,
}

/// The directories above the exports.
#[derive(Debug)]
struct Pseudo {
    fs: Arc<PseudoFs>,
    served: Served,
    /// Which of them are exports' own.
    junctions: HashMap<FileId, u16>,
}

impl Table {
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
        let pseudo = match &served[..] {
            [only] if only.export.path == "/" => None,
            several => Some(Pseudo::above(several, before.and_then(|b| b.pseudo.as_ref()))),
        };
        let mut order: Vec<&Arc<Served>> = served.iter().collect();
        order.sort_by(|a, b| a.export.path.cmp(&b.export.path));
        let order = order.into_iter().map(|served| served.id).collect();
        let root = pseudo.as_ref().map_or_else(|| served[0].root(), |pseudo| pseudo.served.root());
        let served = served.into_iter().map(|served| (served.id, served)).collect();
        Ok(Self { served, order, pseudo, root })
    }

    /// The export of this number.
    pub(crate) fn get(&self, export: u16) -> Result<&Served, HandleError> {
        match &self.pseudo {
            Some(pseudo) if export == PSEUDO => Ok(&pseudo.served),
            _ => self.mountable(export),
        }
    }

    /// The export of this number, the directories above exports excepted: what MOUNT hands out.
    pub(crate) fn mountable(&self, export: u16) -> Result<&Served, HandleError> {
        self.served.get(&export).map(|served| &**served).ok_or(HandleError::Stale)
    }

    /// The same, for work that goes on when the table is replaced.
    pub(crate) fn share(&self, export: u16) -> Result<Arc<Served>, HandleError> {
        self.served.get(&export).cloned().ok_or(HandleError::Stale)
    }

    /// The exports, by path.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Served> {
        self.order.iter().filter_map(|id| self.mountable(*id).ok())
    }

    /// The root of the tree that clients see.
    pub(crate) fn root(&self) -> Node {
        self.root
    }

    /// The root of the export that is mounted on a directory, or the file itself.
    pub(crate) fn enter(&self, node: Node) -> Node {
        let Some(pseudo) = self.pseudo.as_ref().filter(|_| node.export == PSEUDO) else {
            return node;
        };
        let export = pseudo.junctions.get(&node.id).and_then(|id| self.served.get(id));
        export.map_or(node, |export| export.root())
    }

    /// The directory that an export is mounted on, given the export's root, or the file itself.
    pub(crate) fn leave(&self, node: Node) -> Node {
        match (&self.pseudo, self.served.get(&node.export)) {
            (Some(_), Some(export)) if export.root() == node => {
                Node { export: PSEUDO, id: pseudo::id_of(&export.export.path) }
            }
            _ => node,
        }
    }
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
            // Who may see an export is of what its parent shows.
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
    fn exports_lie_beside_each_other() {
        assert_eq!(clash(&["/b", "/a", "/a-b", "/ab"]), None);
        assert_eq!(clash(&["/b", "/a/c", "/a-b", "/a"]), Some((3, 1)));
        assert_eq!(clash(&["/a", "/"]), Some((1, 0)));
        assert_eq!(clash(&["/x", "/x"]), Some((0, 1)));
        assert_eq!(clash(&["/"]), None);
    }
}
