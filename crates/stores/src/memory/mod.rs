//! Files in memory: native holes, no waiting, no persistence.
//!
//! Permissions are checked as on a local file system: [`Caller::Own`] and user 0 may do everything,
//! others what mode bits allow.

mod content;
mod file;
mod locks;
mod node;
mod tree;

use crate::rules::{
    self, CHANGE_NAMES, DEFAULT_DIR_MODE, DEFAULT_FILE_MODE, MAX_FILE_BYTES, MAX_NAME_BYTES,
    check_name, is_member, is_owner, require, restricted,
};
use async_trait::async_trait;
use content::{Regular, Space};
use file::MemoryFile;
use locks::OpenId;
use node::{Body, Meta, Node, owner_of};
use parking_lot::RwLock;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tree::Tree;
use weir_base::PAGE_SIZE;
use weir_vfs::{
    Access, Acl, AclKind, AclName, Attr, Caller, Capabilities, CreateMode, Created, DirEntry,
    DirPage, EntryName, Error, FileId, FileSystem, FsStat, NewFile, OpenFile, Permissions,
    ReaddirRequest, RenameFlags, Result, SetAttr, SetTime, SpecialFile, XattrMode, XattrName,
};

/// Longest target of a symbolic link, in bytes.
const MAX_TARGET_BYTES: usize = 4095;
/// Longest value of an extended attribute, in bytes (Linux: XATTR_SIZE_MAX).
const MAX_XATTR_BYTES: usize = 65536;
/// Most hard links to a file.
const MAX_LINKS: u32 = 65000;
/// The inode number of the root, as in ext4.
const ROOT_INO: u64 = 2;

/// Bounds of a [`MemoryFs`].
#[derive(Clone, Debug)]
pub struct MemoryOptions {
    /// Most bytes of file data; more fails with [`Error::NoSpace`].
    pub capacity_bytes: u64,
    /// Most files; more fails with [`Error::NoSpace`].
    pub max_files: u64,
}

impl Default for MemoryOptions {
    /// Room for 1 TiB in 100 million files: in effect, all of the machine's memory.
    fn default() -> Self {
        Self { capacity_bytes: 1 << 40, max_files: 100_000_000 }
    }
}

/// A file system in memory.
#[derive(Debug)]
pub struct MemoryFs {
    // Lock order: `tree`, then a node's content, then its attributes.
    tree: RwLock<Tree>,
    space: Arc<Space>,
    options: MemoryOptions,
    next_ino: AtomicU64,
    root: FileId,
}

impl MemoryFs {
    /// An empty file system without bounds of its own; its root belongs to the process's user and
    /// has mode 0755.
    pub fn new() -> Arc<Self> {
        Self::with_options(MemoryOptions::default())
    }

    /// An empty file system with bounds.
    pub fn with_options(options: MemoryOptions) -> Arc<Self> {
        let root = FileId { ino: ROOT_INO, generation: 1 };
        let (uid, gid) = owner_of(&Caller::Own);
        let meta = Meta::new(DEFAULT_DIR_MODE, 2, uid, gid);
        let node = Node { id: root, body: Body::Directory, meta: meta.into() };
        Arc::new(Self {
            tree: RwLock::new(Tree::new(node)),
            space: Arc::new(Space::new(options.capacity_bytes)),
            options,
            next_ino: AtomicU64::new(ROOT_INO + 1),
            root,
        })
    }

    /// Creates a file under a name that must be free.
    fn make(&self, tree: &mut Tree, caller: &Caller, new: NewFile<'_>, body: Body) -> Result<Attr> {
        let NewFile { at: EntryName { dir, name }, set } = new;
        check_name(name)?;
        let parent = tree.node(dir)?.clone();
        if tree.dir(dir)?.get(name).is_some() {
            return Err(Error::Exists);
        }
        require(caller, &parent.ownership(), CHANGE_NAMES)?;
        if tree.len() >= self.options.max_files {
            return Err(Error::NoSpace);
        }
        let is_dir = matches!(body, Body::Directory);
        let is_link = matches!(body, Body::Symlink(_));
        let (uid, mut gid) = owner_of(caller);
        let default = if is_dir { DEFAULT_DIR_MODE } else { DEFAULT_FILE_MODE };
        let mut mode = set.mode.unwrap_or(default) & 0o7777;
        let above = parent.ownership();
        if above.mode & 0o2000 != 0 {
            gid = above.gid;
            if is_dir {
                mode |= 0o2000;
            }
        }
        let mut meta = Meta::new(mode, if is_dir { 2 } else { 1 }, uid, gid);
        match parent.meta.lock().acls.default.clone() {
            _ if is_link => meta.mode = 0o777,
            Some(acl) => meta.inherit(acl, is_dir),
            None => meta.mode &= !set.umask.unwrap_or(0),
        }
        let set = SetAttr { mode: None, mode_mask: None, umask: None, ..set.clone() };
        let id = FileId { ino: self.next_ino.fetch_add(1, Relaxed), generation: 1 };
        let node = Node { id, body, meta: meta.into() };
        may_set(caller, &node, &set)?;
        apply(&node, &set)?;
        Ok(tree.insert(dir, name, node).attr())
    }

    fn node(&self, id: FileId) -> Result<Arc<Node>> {
        self.tree.read().node(id).cloned()
    }

    fn remove(&self, caller: &Caller, entry: EntryName<'_>, want_dir: bool) -> Result<()> {
        let EntryName { dir, name } = entry;
        check_name(name)?;
        let mut tree = self.tree.write();
        let node = tree.child(dir, name)?.clone();
        may_remove(&tree, caller, dir, &node)?;
        check_gone(&tree, &node, want_dir)?;
        tree.remove(dir, name);
        Ok(())
    }
}

/// Fails unless the caller may set these attributes (chmod(2), chown(2), utimensat(2)).
fn may_set(caller: &Caller, node: &Node, set: &SetAttr) -> Result<()> {
    rules::check_owners(set)?;
    let file = &node.ownership();
    if let Some(cred) = restricted(caller) {
        let owner = is_owner(caller, file);
        if set.uid.is_some_and(|uid| !owner || uid != file.uid)
            || set.gid.is_some_and(|gid| !owner || !(gid == file.gid || is_member(cred, gid)))
            || (set.mode.is_some() && !owner)
        {
            return Err(Error::NotPermitted);
        }
        for time in [set.atime, set.mtime].into_iter().flatten().filter(|_| !owner) {
            match time {
                SetTime::Now => require(caller, file, Permissions::WRITE)?,
                SetTime::To(_) => return Err(Error::NotPermitted),
            }
        }
        if set.size.is_some() && !owner {
            require(caller, file, Permissions::WRITE)?;
        }
    }
    if set.size.is_some() { node.content().map(drop) } else { Ok(()) }
}

/// Sets attributes after the permission checks.
fn apply(node: &Node, set: &SetAttr) -> Result<()> {
    if let Some(size) = set.size {
        node.set_size(size)?;
    }
    if !set.is_empty() {
        node.meta.lock().apply(set);
    }
    Ok(())
}

/// Fails unless the caller may remove names of `node` from `dir`.
fn may_remove(tree: &Tree, caller: &Caller, dir: FileId, node: &Node) -> Result<()> {
    let parent = &tree.node(dir)?.ownership();
    require(caller, parent, CHANGE_NAMES)?;
    let sticky = parent.mode & 0o1000 != 0;
    if sticky && !is_owner(caller, parent) && !is_owner(caller, &node.ownership()) {
        return Err(Error::NotPermitted);
    }
    Ok(())
}

/// Fails unless `node` can be removed as a directory (`want_dir`), or as anything else.
fn check_gone(tree: &Tree, node: &Node, want_dir: bool) -> Result<()> {
    match (node.is_dir(), want_dir) {
        (true, false) => Err(Error::IsDirectory),
        (false, true) => Err(Error::NotDirectory),
        (true, true) if !tree.dir(node.id)?.is_empty() => Err(Error::NotEmpty),
        _ => Ok(()),
    }
}

#[async_trait]
impl FileSystem for MemoryFs {
    fn capabilities(&self) -> Capabilities {
        // The cache sets the times of writes, as with the local store; CLONE shares what COPY would copy.
        Capabilities::all() - Capabilities::WRITE_TIMES - Capabilities::COPY
    }

    fn root(&self) -> FileId {
        self.root
    }

    async fn statfs(&self) -> Result<FsStat> {
        let free_bytes = self.space.free_bytes();
        Ok(FsStat {
            total_bytes: self.options.capacity_bytes,
            free_bytes,
            available_bytes: free_bytes,
            total_files: self.options.max_files,
            free_files: self.options.max_files.saturating_sub(self.tree.read().len()),
            max_name: MAX_NAME_BYTES as u32,
            max_file_size: MAX_FILE_BYTES,
            max_links: MAX_LINKS,
            clone_bytes: PAGE_SIZE as u32,
        })
    }

    async fn getattr(&self, id: FileId) -> Result<Attr> {
        Ok(self.node(id)?.attr())
    }

    async fn setattr(&self, caller: &Caller, id: FileId, set: &SetAttr) -> Result<Attr> {
        let node = self.node(id)?;
        may_set(caller, &node, set)?;
        apply(&node, set)?;
        Ok(node.attr())
    }

    async fn access(&self, caller: &Caller, id: FileId, mask: Permissions) -> Result<Permissions> {
        Ok(rules::granted(caller, &self.node(id)?.ownership(), mask))
    }

    async fn check_access(&self, caller: &Caller, id: FileId, mask: Permissions) -> Result<()> {
        require(caller, &self.node(id)?.ownership(), mask)
    }

    async fn lookup(&self, caller: &Caller, entry: EntryName<'_>) -> Result<Attr> {
        check_name(entry.name)?;
        let tree = self.tree.read();
        tree.dir(entry.dir)?;
        require(caller, &tree.node(entry.dir)?.ownership(), Permissions::EXECUTE)?;
        Ok(tree.child(entry.dir, entry.name)?.attr())
    }

    async fn parent(&self, dir: FileId) -> Result<Attr> {
        let tree = self.tree.read();
        Ok(tree.node(tree.dir(dir)?.parent)?.attr())
    }

    async fn readdir(&self, caller: &Caller, request: ReaddirRequest) -> Result<DirPage> {
        let ReaddirRequest { dir, cookie, max_entries, with_attr } = request;
        let tree = self.tree.read();
        let entries = tree.dir(dir)?;
        require(caller, &tree.node(dir)?.ownership(), Permissions::READ)?;
        let mut page = DirPage { entries: Vec::new(), eof: true };
        for (cookie, name, id) in entries.after(cookie) {
            if page.entries.len() == max_entries {
                page.eof = false;
                break;
            }
            page.entries.push(DirEntry {
                name: name.to_vec(),
                cookie,
                attr: if with_attr { Some(tree.node(id)?.attr()) } else { None },
                ino: id.ino,
            });
        }
        Ok(page)
    }

    async fn readlink(&self, _caller: &Caller, id: FileId) -> Result<Vec<u8>> {
        match &self.node(id)?.body {
            Body::Symlink(target) => Ok(target.clone()),
            _ => Err(Error::Invalid),
        }
    }

    async fn create(&self, caller: &Caller, new: NewFile<'_>, mode: CreateMode) -> Result<Created> {
        let EntryName { dir, name } = new.at;
        check_name(name)?;
        let mut tree = self.tree.write();
        if let Some(id) = tree.dir(dir)?.get(name) {
            require(caller, &tree.node(dir)?.ownership(), Permissions::EXECUTE)?;
            return match mode {
                CreateMode::MayExist => Ok(Created { attr: tree.node(id)?.attr(), created: false }),
                CreateMode::MustBeNew => Err(Error::Exists),
            };
        }
        let body = Body::File(Regular::new(self.space.clone()));
        let attr = self.make(&mut tree, caller, new, body)?;
        Ok(Created { attr, created: true })
    }

    async fn mkdir(&self, caller: &Caller, new: NewFile<'_>) -> Result<Attr> {
        self.make(&mut self.tree.write(), caller, new, Body::Directory)
    }

    async fn symlink(&self, caller: &Caller, new: NewFile<'_>, target: &[u8]) -> Result<Attr> {
        if target.is_empty() || target.contains(&0) {
            return Err(Error::Invalid);
        }
        if target.len() > MAX_TARGET_BYTES {
            return Err(Error::NameTooLong);
        }
        self.make(&mut self.tree.write(), caller, new, Body::Symlink(target.to_vec()))
    }

    async fn mknod(&self, caller: &Caller, new: NewFile<'_>, node: SpecialFile) -> Result<Attr> {
        let device = matches!(node, SpecialFile::Block(..) | SpecialFile::Char(..));
        if device && restricted(caller).is_some() {
            return Err(Error::NotPermitted);
        }
        self.make(&mut self.tree.write(), caller, new, Body::Special(node))
    }

    async fn link(&self, caller: &Caller, id: FileId, entry: EntryName<'_>) -> Result<Attr> {
        let EntryName { dir, name } = entry;
        check_name(name)?;
        let mut tree = self.tree.write();
        let node = tree.node(id)?.clone();
        if node.is_dir() {
            return Err(Error::NotPermitted);
        }
        if tree.dir(dir)?.get(name).is_some() {
            return Err(Error::Exists);
        }
        require(caller, &tree.node(dir)?.ownership(), CHANGE_NAMES)?;
        if node.meta.lock().nlink >= MAX_LINKS {
            return Err(Error::TooManyLinks);
        }
        tree.link(dir, name, id);
        Ok(node.attr())
    }

    async fn unlink(&self, caller: &Caller, entry: EntryName<'_>) -> Result<()> {
        self.remove(caller, entry, false)
    }

    async fn rmdir(&self, caller: &Caller, entry: EntryName<'_>) -> Result<()> {
        self.remove(caller, entry, true)
    }

    async fn rename(
        &self,
        caller: &Caller,
        from: EntryName<'_>,
        to: EntryName<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        check_name(from.name)?;
        check_name(to.name)?;
        let mut tree = self.tree.write();
        tree.dir(to.dir)?;
        let node = tree.child(from.dir, from.name)?.clone();
        let target = match tree.child(to.dir, to.name) {
            Ok(target) => Some(target.clone()),
            Err(Error::NotFound) => None,
            Err(error) => return Err(error),
        };
        may_remove(&tree, caller, from.dir, &node)?;
        match &target {
            Some(target) => may_remove(&tree, caller, to.dir, target)?,
            None => require(caller, &tree.node(to.dir)?.ownership(), CHANGE_NAMES)?,
        }
        if node.is_dir() && tree.is_within(to.dir, node.id) {
            return Err(Error::Invalid);
        }
        match (target, flags) {
            (Some(_), RenameFlags::NoReplace) => return Err(Error::Exists),
            (None, RenameFlags::Exchange) => return Err(Error::NotFound),
            (Some(target), RenameFlags::Exchange) => {
                if target.is_dir() && tree.is_within(from.dir, target.id) {
                    return Err(Error::Invalid);
                }
                tree.exchange(from, to);
                return Ok(());
            }
            // Two names of one file: POSIX keeps both.
            (Some(target), RenameFlags::Replace) if target.id == node.id => return Ok(()),
            (Some(target), RenameFlags::Replace) => {
                check_gone(&tree, &target, node.is_dir())?;
            }
            (None, _) => {}
        }
        tree.rename(from, to);
        Ok(())
    }

    async fn open(&self, caller: &Caller, id: FileId, access: Access) -> Result<Arc<dyn OpenFile>> {
        let node = self.node(id)?;
        node.content()?;
        require(caller, &node.ownership(), access.into())?;
        Ok(Arc::new(MemoryFile { node, access, id: OpenId::new() }))
    }

    async fn sync_node(&self, id: FileId) -> Result<()> {
        self.node(id).map(drop)
    }

    async fn get_xattr(&self, caller: &Caller, xattr: XattrName<'_>) -> Result<Vec<u8>> {
        let node = self.node(xattr.id)?;
        require(caller, &node.ownership(), Permissions::READ)?;
        let meta = node.meta.lock();
        meta.xattrs.get(xattr.name).cloned().ok_or(Error::NoAttribute)
    }

    async fn set_xattr(
        &self,
        caller: &Caller,
        xattr: XattrName<'_>,
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        let XattrName { id, name } = xattr;
        if name.strip_prefix(b"user.").is_none_or(|rest| rest.is_empty()) {
            return Err(Error::NotSupported);
        }
        if name.len() > MAX_NAME_BYTES {
            return Err(Error::Range);
        }
        if value.len() > MAX_XATTR_BYTES {
            return Err(Error::TooLong);
        }
        let node = self.node(id)?;
        require(caller, &node.ownership(), Permissions::WRITE)?;
        let mut meta = node.meta.lock();
        match (mode, meta.xattrs.contains_key(name)) {
            (XattrMode::Create, true) => return Err(Error::Exists),
            (XattrMode::Replace, false) => return Err(Error::NoAttribute),
            _ => {}
        }
        let in_use: usize = meta.xattrs.iter().map(|(k, v)| k.len() + v.len()).sum();
        if in_use + name.len() + value.len() > 2 * MAX_XATTR_BYTES {
            return Err(Error::NoSpace);
        }
        meta.xattrs.insert(name.to_vec(), value.to_vec());
        meta.touch();
        Ok(())
    }

    async fn list_xattrs(&self, _caller: &Caller, id: FileId) -> Result<Vec<Vec<u8>>> {
        Ok(self.node(id)?.meta.lock().xattrs.keys().cloned().collect())
    }

    async fn remove_xattr(&self, caller: &Caller, xattr: XattrName<'_>) -> Result<()> {
        let node = self.node(xattr.id)?;
        require(caller, &node.ownership(), Permissions::WRITE)?;
        let mut meta = node.meta.lock();
        meta.xattrs.remove(xattr.name).ok_or(Error::NoAttribute)?;
        meta.touch();
        Ok(())
    }

    async fn get_acl(&self, acl: AclName) -> Result<Option<Acl>> {
        let node = self.node(acl.id)?;
        node.keeps_acls()?;
        let meta = node.meta.lock();
        Ok(meta.acls.get(acl.kind).clone())
    }

    async fn set_acl(&self, caller: &Caller, acl: AclName, to: Option<&Acl>) -> Result<()> {
        let AclName { id, kind } = acl;
        let node = self.node(id)?;
        node.keeps_acls()?;
        if kind == AclKind::Default && !node.is_dir() {
            return if to.is_some() { Err(Error::AccessDenied) } else { Ok(()) };
        }
        let file = node.ownership();
        if !is_owner(caller, &file) {
            return Err(Error::NotPermitted);
        }
        let of_group = restricted(caller).is_none_or(|cred| is_member(cred, file.gid));
        node.meta.lock().set_acl(kind, to, of_group);
        Ok(())
    }
}
