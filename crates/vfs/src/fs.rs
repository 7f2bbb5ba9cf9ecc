//! The traits that a store implements.

use crate::{
    Access, Acl, AclKind, Attr, Capabilities, Cred, Error, Extent, FileId, FileKind, FsStat, Lock,
    LockOwner, LockRange, Permissions, ReadOp, Result, SegmentKind, SetAttr, WriteOp,
};
use async_trait::async_trait;
use std::sync::Arc;

/// On whose behalf: a mapped identity, or the program itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Caller {
    /// The program itself: the store applies only the rights that its process has.
    Own,
    /// This identity: the store applies its rights, as far as the process may take them on.
    As(Cred),
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// The name; any bytes but NUL and slash.
    pub name: Vec<u8>,
    /// Where to go on after this entry; never 0, 1 or 2; stable while the directory lives.
    pub cookie: u64,
    /// Attributes, when the store had them at hand or was asked for them; `None` too when the
    /// entry vanished meanwhile.
    pub attr: Option<Attr>,
    /// Inode number.
    pub ino: u64,
}

/// A name in a directory, as a caller gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EntryName<'a> {
    /// The directory.
    pub dir: FileId,
    /// The name; any bytes but NUL and slash.
    pub name: &'a [u8],
}

impl FileId {
    /// The entry of this directory with the name `name`.
    pub fn entry(self, name: &[u8]) -> EntryName<'_> {
        EntryName { dir: self, name }
    }
}

/// A file that is neither a regular file nor a directory nor a link (mknod(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialFile {
    /// Block device, with its (major, minor) number.
    Block(u32, u32),
    /// Character device, with its (major, minor) number.
    Char(u32, u32),
    /// Named pipe.
    Fifo,
    /// Socket.
    Socket,
}

impl SpecialFile {
    /// What a file with these attributes is, if it is one.
    pub fn of(attr: &Attr) -> Option<Self> {
        match (attr.kind, attr.rdev) {
            (FileKind::Block, (major, minor)) => Some(Self::Block(major, minor)),
            (FileKind::Char, (major, minor)) => Some(Self::Char(major, minor)),
            (FileKind::Fifo, _) => Some(Self::Fifo),
            (FileKind::Socket, _) => Some(Self::Socket),
            (FileKind::Regular | FileKind::Directory | FileKind::Symlink, _) => None,
        }
    }

    /// Its type.
    pub fn kind(self) -> FileKind {
        match self {
            Self::Block(..) => FileKind::Block,
            Self::Char(..) => FileKind::Char,
            Self::Fifo => FileKind::Fifo,
            Self::Socket => FileKind::Socket,
        }
    }

    /// Its device number (major, minor); (0, 0) of what is no device.
    pub fn rdev(self) -> (u32, u32) {
        match self {
            Self::Block(major, minor) | Self::Char(major, minor) => (major, minor),
            Self::Fifo | Self::Socket => (0, 0),
        }
    }
}

/// Some of a directory's names, `.` and `..` left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirPage {
    /// Entries, in the directory's order.
    pub entries: Vec<DirEntry>,
    /// No more follow.
    pub eof: bool,
}

/// A file that [`FileSystem::create`] made or found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Created {
    /// Attributes after the call.
    pub attr: Attr,
    /// It did not exist before.
    pub created: bool,
}

/// A file that lost a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unnamed {
    /// Which file.
    pub id: FileId,
    /// Names that it has left, counted after it lost this one; 0 is for good.
    pub nlink: u32,
}

/// What a rename may do to the target (renameat2(2)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RenameFlags {
    /// Replace it.
    #[default]
    Replace,
    /// Fail with [`Error::Exists`].
    NoReplace,
    /// Swap the two.
    Exchange,
}

/// The extended attribute that marks a file whose data is not to be cached, when its value is
/// [`UNCACHED_MARK`].
pub const UNCACHED_XATTR: &[u8] = b"user.weir.uncached";
/// The value of [`UNCACHED_XATTR`] that is a mark.
pub const UNCACHED_MARK: &[u8] = b"1";

/// What setting an extended attribute may find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    /// Either.
    Either,
    /// It must not exist yet.
    Create,
    /// It must exist.
    Replace,
}

/// Names and attributes of a store. Names are single components: any bytes but NUL and slash,
/// and neither `.` nor `..`; an implementation refuses others with [`Error::Invalid`].
///
/// Metadata operations on a local store are done on the calling thread and are short; those on a
/// remote one wait. Symbolic links are never followed.
#[async_trait]
pub trait FileSystem: Send + Sync + 'static {
    /// What this store can do.
    fn capabilities(&self) -> Capabilities;

    /// The root directory.
    fn root(&self) -> FileId;

    /// Largest size of a file that the store takes, in bytes; a larger one fails with
    /// [`Error::TooBig`]. It does not change while the store is open.
    fn max_file_size(&self) -> u64 {
        i64::MAX as u64
    }

    /// Whether other programs may lock the store's files, too ([`OpenFile::program_lock`]).
    fn is_locked_by_programs(&self) -> bool {
        false
    }

    /// Space and file counts.
    async fn statfs(&self) -> Result<FsStat>;

    /// Attributes of a file.
    async fn getattr(&self, id: FileId) -> Result<Attr>;

    /// Sets attributes and returns them as they are afterwards.
    async fn setattr(&self, caller: &Caller, id: FileId, set: &SetAttr) -> Result<Attr>;

    /// Which of the permissions in `mask` the caller has.
    async fn access(&self, caller: &Caller, id: FileId, mask: Permissions) -> Result<Permissions>;

    /// Finds a name in a directory.
    async fn lookup(&self, caller: &Caller, dir: FileId, name: &[u8]) -> Result<Attr>;

    /// The directory that holds directory `dir`; the root's is the root.
    async fn parent(&self, dir: FileId) -> Result<Attr>;

    /// Reads names after `cookie` (0: from the front), at most `max_entries`, with attributes if
    /// `with_attr`.
    async fn readdir(
        &self,
        caller: &Caller,
        dir: FileId,
        cookie: u64,
        max_entries: usize,
        with_attr: bool,
    ) -> Result<DirPage>;

    /// The target of a symbolic link.
    async fn readlink(&self, caller: &Caller, id: FileId) -> Result<Vec<u8>>;

    /// Makes a regular file, or finds it unless `exclusive`; `set` applies to a new file only
    /// (the caller truncates a found one itself).
    async fn create(
        &self,
        caller: &Caller,
        dir: FileId,
        name: &[u8],
        set: &SetAttr,
        exclusive: bool,
    ) -> Result<Created>;

    /// As [`create`](Self::create); a new file is handed on as it was opened to be made, for reading
    /// and writing, by a store that has it open then.
    async fn create_open(
        &self,
        caller: &Caller,
        dir: FileId,
        name: &[u8],
        set: &SetAttr,
        exclusive: bool,
    ) -> Result<(Created, Option<Arc<dyn OpenFile>>)> {
        Ok((self.create(caller, dir, name, set, exclusive).await?, None))
    }

    /// Makes a directory.
    async fn mkdir(&self, caller: &Caller, dir: FileId, name: &[u8], set: &SetAttr)
    -> Result<Attr>;

    /// Makes a symbolic link.
    async fn symlink(
        &self,
        caller: &Caller,
        dir: FileId,
        name: &[u8],
        target: &[u8],
        set: &SetAttr,
    ) -> Result<Attr>;

    /// Makes a device, pipe or socket.
    async fn mknod(
        &self,
        caller: &Caller,
        dir: FileId,
        name: &[u8],
        node: SpecialFile,
        set: &SetAttr,
    ) -> Result<Attr>;

    /// Makes another name for a file.
    async fn link(&self, caller: &Caller, id: FileId, dir: FileId, name: &[u8]) -> Result<Attr>;

    /// Removes a name that is not a directory's; open files live on.
    async fn unlink(&self, caller: &Caller, dir: FileId, name: &[u8]) -> Result<()>;

    /// As [`unlink`](Self::unlink), and says which file lost the name and how many names that has
    /// left. The count is taken from the file itself after the name is gone: one from before misses
    /// links and renames that other threads make meanwhile. `None` if it is not known.
    async fn unlink_counted(
        &self,
        caller: &Caller,
        dir: FileId,
        name: &[u8],
    ) -> Result<Option<Unnamed>> {
        let victim = self.lookup(&Caller::Own, dir, name).await.ok();
        self.unlink(caller, dir, name).await?;
        Ok(match victim {
            Some(victim) => self.count_names(victim.id).await,
            None => None,
        })
    }

    /// How many names a file has now, for one that has just lost one.
    async fn count_names(&self, id: FileId) -> Option<Unnamed> {
        match self.getattr(id).await {
            Ok(attr) => Some(Unnamed { id, nlink: attr.nlink }),
            Err(Error::Stale | Error::NotFound) => Some(Unnamed { id, nlink: 0 }),
            Err(_) => None,
        }
    }

    /// Removes an empty directory.
    async fn rmdir(&self, caller: &Caller, dir: FileId, name: &[u8]) -> Result<()>;

    /// Renames, within the store.
    async fn rename(
        &self,
        caller: &Caller,
        from: EntryName<'_>,
        to: EntryName<'_>,
        flags: RenameFlags,
    ) -> Result<()>;

    /// As [`rename`](Self::rename), and says which file was replaced, as
    /// [`unlink_counted`](Self::unlink_counted) does.
    async fn rename_counted(
        &self,
        caller: &Caller,
        from: EntryName<'_>,
        to: EntryName<'_>,
        flags: RenameFlags,
    ) -> Result<Option<Unnamed>> {
        let victim = match flags {
            RenameFlags::Replace => self.lookup(&Caller::Own, to.dir, to.name).await.ok(),
            RenameFlags::NoReplace | RenameFlags::Exchange => None,
        };
        self.rename(caller, from, to, flags).await?;
        Ok(match victim {
            Some(victim) => self.count_names(victim.id).await,
            None => None,
        })
    }

    /// Whether directories change through this store alone, or, if not, every change is made on the
    /// machine on which this program runs. If false, the change attributes around a change of a
    /// directory may cover changes by others.
    fn names_change_here(&self) -> bool {
        true
    }

    /// Opens a regular file's data. The file stays usable through it after its last name is gone.
    async fn open(&self, caller: &Caller, id: FileId, access: Access) -> Result<Arc<dyn OpenFile>>;

    /// Makes everything done to directory or file `id` durable.
    async fn sync_node(&self, id: FileId) -> Result<()>;

    /// Ends the use of the store: gives back what a server holds for it. Operations fail from then
    /// on. What a cache holds that was not written back is lost.
    async fn unmount(&self) -> Result<()> {
        Ok(())
    }

    /// Reads an extended attribute, by its full name (`user.x`).
    async fn get_xattr(&self, _caller: &Caller, _id: FileId, _name: &[u8]) -> Result<Vec<u8>> {
        Err(Error::NotSupported)
    }

    /// Sets an extended attribute.
    async fn set_xattr(
        &self,
        _caller: &Caller,
        _id: FileId,
        _name: &[u8],
        _value: &[u8],
        _mode: XattrMode,
    ) -> Result<()> {
        Err(Error::NotSupported)
    }

    /// Full names of the extended attributes.
    async fn list_xattrs(&self, _caller: &Caller, _id: FileId) -> Result<Vec<Vec<u8>>> {
        Err(Error::NotSupported)
    }

    /// Removes an extended attribute.
    async fn remove_xattr(&self, _caller: &Caller, _id: FileId, _name: &[u8]) -> Result<()> {
        Err(Error::NotSupported)
    }

    /// An access control list; `None` where the file has none, its permission bits saying all.
    /// Who may see the file's attributes may see it.
    async fn get_acl(&self, _id: FileId, _kind: AclKind) -> Result<Option<Acl>> {
        Err(Error::NotSupported)
    }

    /// Sets an access control list, or takes it away. An access list sets the permission bits,
    /// too. Only directories have a default list: another file's fails with
    /// [`Error::AccessDenied`].
    async fn set_acl(
        &self,
        _caller: &Caller,
        _id: FileId,
        _kind: AclKind,
        _acl: Option<&Acl>,
    ) -> Result<()> {
        Err(Error::NotSupported)
    }
}

/// A regular file's data. Operations on overlapping ranges that are in flight together have no
/// order; the page cache sees to that.
#[async_trait]
pub trait OpenFile: Send + Sync + 'static {
    /// What it is open for.
    fn access(&self) -> Access;

    /// Attributes, also after the last name is gone.
    async fn getattr(&self) -> Result<Attr>;

    /// Whether the file is marked ([`UNCACHED_XATTR`]) as one whose data is not to be cached.
    fn is_marked_uncached(&self) -> bool {
        false
    }

    /// How many changes of the file's data the store has found that were not made through it, since
    /// it first opened the file; one that cannot be ruled out counts. To be asked after
    /// [`getattr`](Self::getattr). `None`: the store only has the change attribute to go by.
    fn changes_by_others(&self) -> Option<u64> {
        None
    }

    /// Starts a read. The layout is known before or with the data, never after it. Returns at
    /// once (it may complete the operation before it returns).
    fn submit_read(&self, op: ReadOp);

    /// Starts a write; extends the file when it goes past the end. Returns at once.
    fn submit_write(&self, op: WriteOp);

    /// Makes completed writes durable, with attributes unless `data_only`.
    async fn sync(&self, data_only: bool) -> Result<()>;

    /// Sets the size: truncates, or extends with a hole.
    async fn set_size(&self, size: u64) -> Result<()>;

    /// Turns a range into a hole; the size stays.
    async fn punch_hole(&self, _offset: u64, _len: u64) -> Result<()> {
        Err(Error::NotSupported)
    }

    /// Reserves space for a range, extending the file to its end if that is past the size.
    async fn allocate(&self, _offset: u64, _len: u64) -> Result<()> {
        Err(Error::NotSupported)
    }

    /// The extent that holds `offset`, beginning at `offset` and as long as the store knows.
    ///
    /// # Errors
    /// [`Error::NoSuchRange`] at or past the end of the file.
    async fn extent_at(&self, offset: u64) -> Result<Extent> {
        let size = self.getattr().await?.size;
        if offset >= size {
            return Err(Error::NoSuchRange);
        }
        Ok(Extent { kind: SegmentKind::Data, start: offset, end: size })
    }

    /// Shares `len` bytes (0: to the end) at `offset` of `from` at `to_offset` of this file.
    async fn clone_range(
        &self,
        _from: &dyn OpenFile,
        _offset: u64,
        _len: u64,
        _to_offset: u64,
    ) -> Result<()> {
        Err(Error::NotSupported)
    }

    /// Takes a lock, in the place of what `owner` held of its range; waits for it if `wait`. Locks
    /// are advisory, and go with the open file.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] when another owner holds a lock that is in the way.
    async fn lock(&self, _owner: LockOwner, _lock: Lock, _wait: bool) -> Result<()> {
        Err(Error::NotSupported)
    }

    /// A lock that is in the way of this one.
    async fn test_lock(&self, _owner: LockOwner, _lock: Lock) -> Result<Option<Lock>> {
        Err(Error::NotSupported)
    }

    /// Gives up all locks that `owner` holds in a range.
    async fn unlock(&self, _owner: LockOwner, _range: LockRange) -> Result<()> {
        Err(Error::NotSupported)
    }

    /// Takes a lock for the program as a whole, in the place of what it held of the range, against other
    /// programs that use the store's files; at once, or not at all. All of an open file's locks of this kind
    /// have one holder. Stores that no other program uses have nothing to do.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] when another program holds a lock that is in the way.
    fn program_lock(&self, _lock: Lock) -> Result<()> {
        Ok(())
    }

    /// Another program's lock that is in the way of this one.
    fn program_test_lock(&self, _lock: Lock) -> Result<Option<Lock>> {
        Ok(None)
    }

    /// Gives up what the program as a whole holds of a range.
    fn program_unlock(&self, _range: LockRange) -> Result<()> {
        Ok(())
    }

    /// The concrete type, for stores that look at a sibling in [`clone_range`](Self::clone_range).
    fn as_any(&self) -> &dyn std::any::Any;
}
