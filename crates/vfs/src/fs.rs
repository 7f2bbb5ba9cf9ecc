//! The traits that a store implements.

use crate::{
    Access, Acl, AclName, Attr, Capabilities, CreateMode, Cred, EntryName, Error, Extent, FileId,
    FileKind, FsStat, KeptAttributes, Lock, LockOwner, LockRange, NewFile, Permissions, ReadOp,
    ReaddirRequest, RenameFlags, Result, SegmentKind, SetAttr, WholeFile, WholeRead, WholeRequest,
    WriteOp, XattrMode, XattrName,
};
use async_trait::async_trait;
use std::path::PathBuf;
use std::sync::Arc;

/// The caller of an operation: a mapped identity, or the program itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Caller {
    /// The program itself: only the rights of its process apply.
    Own,
    /// This identity: its rights apply, as far as the process can assume them.
    As(Cred),
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// The name; any bytes but NUL and slash.
    pub name: Vec<u8>,
    /// Position after this entry; never 0, 1 or 2; stable as long as the directory exists.
    pub cookie: u64,
    /// Attributes, if the store had them available or was asked for them. `None` also if it could not look the entry
    /// up: because the entry vanished meanwhile, is of another file system, or for another error. So who needs them
    /// has to look it up.
    pub attr: Option<Attr>,
    /// Inode number.
    pub ino: u64,
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
    /// The special file with these attributes, if it is one.
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

    /// Its device number (major, minor); (0, 0) if it is not a device.
    pub fn rdev(self) -> (u32, u32) {
        match self {
            Self::Block(major, minor) | Self::Char(major, minor) => (major, minor),
            Self::Fifo | Self::Socket => (0, 0),
        }
    }
}

/// Some of a directory's entries, without `.` and `..`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirPage {
    /// Entries, in the directory's order.
    pub entries: Vec<DirEntry>,
    /// Whether no more entries follow.
    pub eof: bool,
}

/// A file that [`FileSystem::create`] created or found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Created {
    /// Attributes after the call.
    pub attr: Attr,
    /// Whether it is new.
    pub created: bool,
}

/// A file that lost a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unnamed {
    /// Which file.
    pub id: FileId,
    /// Its remaining names, counted after the loss; 0 is final.
    pub nlink: u32,
}

/// Names and attributes of a store. Names are single components: any bytes but NUL and slash, and
/// neither `.` nor `..`; an implementation rejects others with [`Error::Invalid`].
///
/// Metadata operations of a local store run on the calling thread and are short; those of a remote
/// one wait. Symbolic links are never followed.
#[async_trait]
pub trait FileSystem: Send + Sync + 'static {
    /// The store's capabilities.
    fn capabilities(&self) -> Capabilities;

    /// The root directory.
    fn root(&self) -> FileId;

    /// Largest file size that the store supports, in bytes; more fails with [`Error::TooBig`]. It
    /// does not change while the store is open.
    fn max_file_size(&self) -> u64 {
        i64::MAX as u64
    }

    /// Whether other programs may lock the store's files, too ([`OpenFile::program_lock`]), and such a
    /// lock is taken without a wait.
    fn is_locked_by_programs(&self) -> bool {
        false
    }

    /// Space and file counts.
    async fn statfs(&self) -> Result<FsStat>;

    /// Attributes of a file.
    async fn getattr(&self, id: FileId) -> Result<Attr>;

    /// Has the next [`getattr`](Self::getattr) of a file ask the store rather than return attributes that were kept
    /// from an earlier call. No effect on stores that keep none.
    fn forget_attributes(&self, _id: FileId, _which: KeptAttributes) {}

    /// Sets attributes, and returns the resulting ones.
    async fn setattr(&self, caller: &Caller, id: FileId, set: &SetAttr) -> Result<Attr>;

    /// The permissions in `mask` that the caller has, each for itself.
    async fn access(&self, caller: &Caller, id: FileId, mask: Permissions) -> Result<Permissions>;

    /// Refuses a caller that does not have all permissions in `mask` together. An access control list may give one
    /// of the caller's groups the right to read and another one the right to write, but then neither both (acl(5)).
    ///
    /// # Errors
    /// [`Error::AccessDenied`].
    async fn check_access(&self, caller: &Caller, id: FileId, mask: Permissions) -> Result<()> {
        match self.access(caller, id, mask).await?.contains(mask) {
            true => Ok(()),
            false => Err(Error::AccessDenied),
        }
    }

    /// Finds a name in a directory.
    async fn lookup(&self, caller: &Caller, entry: EntryName<'_>) -> Result<Attr>;

    /// The directory that holds directory `dir`; the root's is the root.
    async fn parent(&self, dir: FileId) -> Result<Attr>;

    /// Reads entries of a directory.
    async fn readdir(&self, caller: &Caller, request: ReaddirRequest) -> Result<DirPage>;

    /// Where the file is in a local directory, for people: by the time it is read, the file may have
    /// another name.
    ///
    /// # Errors
    /// [`Error::NotSupported`] for stores that are not a local directory.
    async fn path_of(&self, _id: FileId) -> Result<PathBuf> {
        Err(Error::NotSupported)
    }

    /// The target of a symbolic link.
    async fn readlink(&self, caller: &Caller, id: FileId) -> Result<Vec<u8>>;

    /// Creates a regular file, or finds it; `new.set` applies to a new file only (the caller
    /// truncates an existing one itself).
    async fn create(&self, caller: &Caller, new: NewFile<'_>, mode: CreateMode) -> Result<Created>;

    /// Like [`create`](Self::create); if the store keeps a new file open, returns it, open for
    /// reading and writing.
    async fn create_open(
        &self,
        caller: &Caller,
        new: NewFile<'_>,
        mode: CreateMode,
    ) -> Result<(Created, Option<Arc<dyn OpenFile>>)> {
        Ok((self.create(caller, new, mode).await?, None))
    }

    /// Creates a directory.
    async fn mkdir(&self, caller: &Caller, new: NewFile<'_>) -> Result<Attr>;

    /// Creates a symbolic link.
    async fn symlink(&self, caller: &Caller, new: NewFile<'_>, target: &[u8]) -> Result<Attr>;

    /// Creates a device, pipe or socket.
    async fn mknod(&self, caller: &Caller, new: NewFile<'_>, node: SpecialFile) -> Result<Attr>;

    /// Adds a name for a file.
    async fn link(&self, caller: &Caller, id: FileId, entry: EntryName<'_>) -> Result<Attr>;

    /// Removes a name of anything but a directory; open files stay usable.
    async fn unlink(&self, caller: &Caller, entry: EntryName<'_>) -> Result<()>;

    /// Like [`unlink`](Self::unlink); also returns the file that lost the name, and the number of
    /// its remaining names. The file itself is asked for that number after the name is gone: an
    /// earlier count would miss concurrent links and renames. `None` if unknown.
    async fn unlink_counted(
        &self,
        caller: &Caller,
        entry: EntryName<'_>,
    ) -> Result<Option<Unnamed>> {
        let victim = self.lookup(&Caller::Own, entry).await.ok();
        self.unlink(caller, entry).await?;
        Ok(match victim {
            Some(victim) => self.count_names(victim.id).await,
            None => None,
        })
    }

    /// The number of names of a file that has just lost one.
    async fn count_names(&self, id: FileId) -> Option<Unnamed> {
        match self.getattr(id).await {
            Ok(attr) => Some(Unnamed { id, nlink: attr.nlink }),
            Err(Error::Stale | Error::NotFound) => Some(Unnamed { id, nlink: 0 }),
            Err(_) => None,
        }
    }

    /// Removes an empty directory.
    async fn rmdir(&self, caller: &Caller, entry: EntryName<'_>) -> Result<()>;

    /// Renames, within the store.
    async fn rename(
        &self,
        caller: &Caller,
        from: EntryName<'_>,
        to: EntryName<'_>,
        flags: RenameFlags,
    ) -> Result<()>;

    /// Like [`rename`](Self::rename); also returns the file that was replaced, as
    /// [`unlink_counted`](Self::unlink_counted) does.
    async fn rename_counted(
        &self,
        caller: &Caller,
        from: EntryName<'_>,
        to: EntryName<'_>,
        flags: RenameFlags,
    ) -> Result<Option<Unnamed>> {
        let victim = match flags {
            RenameFlags::Replace => self.lookup(&Caller::Own, to).await.ok(),
            RenameFlags::NoReplace | RenameFlags::Exchange => None,
        };
        self.rename(caller, from, to, flags).await?;
        Ok(match victim {
            Some(victim) => self.count_names(victim.id).await,
            None => None,
        })
    }

    /// Whether all changes of directories are made through this store, or at least by programs on
    /// this machine. If false, the change attributes around a change of a directory may cover
    /// changes by others.
    fn names_change_here(&self) -> bool {
        true
    }

    /// Stores of one process that return the same number here are of one file system: two files of them with one
    /// `fsid` and one identity are one file. Each mount of a server has a number of its own. Clones of a file system,
    /// or of a server, have files of the same identities, but another number.
    fn numbering(&self) -> u64 {
        std::ptr::from_ref(self).cast::<()>().addr() as u64
    }

    /// Opens a regular file's data. It stays usable after the file's last name is gone.
    async fn open(&self, caller: &Caller, id: FileId, access: Access) -> Result<Arc<dyn OpenFile>>;

    /// Opens a regular file for reading, for a caller who executes it: a server lets who may execute a program read it
    /// for that, also if `caller` may not open it to read.
    async fn open_to_execute(&self, caller: &Caller, id: FileId) -> Result<Arc<dyn OpenFile>> {
        self.open(caller, id, Access::READ).await
    }

    /// Creates a regular file with all of its data and attributes, durably, and gives it its final
    /// name only when it is complete; replaces a file that has that name, but no directory.
    ///
    /// `None`: the store has no shorter way than the single operations, or that way failed. Then no
    /// file has the temporary name. The final name is unchanged, or (if a server executed the last
    /// request again after its session was lost) it is that of this file.
    async fn put_whole(
        &self,
        _caller: &Caller,
        _dir: FileId,
        _file: &WholeFile,
    ) -> Result<Option<Attr>> {
        Ok(None)
    }

    /// Reads a regular file whole. `None`: the store has no shorter way than the single operations, or the file
    /// is not one that it can read this way.
    async fn get_whole(
        &self,
        _caller: &Caller,
        _request: WholeRequest,
    ) -> Result<Option<WholeRead>> {
        Ok(None)
    }

    /// Makes all changes of directory or file `id` durable.
    async fn sync_node(&self, id: FileId) -> Result<()>;

    /// Ends the use of the store: returns the state that a server holds for it. Operations fail
    /// from then on; dirty data in a cache above it is lost.
    async fn unmount(&self) -> Result<()> {
        Ok(())
    }

    /// Reads an extended attribute.
    async fn get_xattr(&self, _caller: &Caller, _xattr: XattrName<'_>) -> Result<Vec<u8>> {
        Err(Error::NotSupported)
    }

    /// Sets an extended attribute.
    async fn set_xattr(
        &self,
        _caller: &Caller,
        _xattr: XattrName<'_>,
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
    async fn remove_xattr(&self, _caller: &Caller, _xattr: XattrName<'_>) -> Result<()> {
        Err(Error::NotSupported)
    }

    /// An access control list; `None` if the file has none, and its permission bits express
    /// everything. Readable for every caller that can read the file's attributes.
    async fn get_acl(&self, _acl: AclName) -> Result<Option<Acl>> {
        Err(Error::NotSupported)
    }

    /// Sets or removes an access control list. An access list sets the permission bits, too. Only
    /// directories have a default list: for other files this fails with [`Error::AccessDenied`].
    async fn set_acl(&self, _caller: &Caller, _acl: AclName, _to: Option<&Acl>) -> Result<()> {
        Err(Error::NotSupported)
    }
}

/// A regular file's data. Concurrent operations on overlapping ranges have no order; the page cache
/// orders them.
#[async_trait]
pub trait OpenFile: Send + Sync + 'static {
    /// The access that it is open for.
    fn access(&self) -> Access;

    /// Attributes; works after the last name was removed, too.
    async fn getattr(&self) -> Result<Attr>;

    /// Has the next [`getattr`](Self::getattr) ask the store rather than return attributes that were kept from
    /// an earlier call. No effect on stores that keep none.
    fn forget_attributes(&self, _which: KeptAttributes) {}

    /// Whether the file is marked as uncached ([`UNCACHED_XATTR`](crate::UNCACHED_XATTR)).
    fn is_marked_uncached(&self) -> bool {
        false
    }

    /// The number of changes of the file's data that the store has detected, since it first opened
    /// the file, and that were not made through it; possible changes count. Call it after
    /// [`getattr`](Self::getattr). `None`: only the change attribute reveals changes.
    fn changes_by_others(&self) -> Option<u64> {
        None
    }

    /// Whether the data is still the same when `attr`, the file's current attributes, has the change attribute
    /// of before. Not if that is a time stamp: it is the same after two changes in one tick of the clock.
    fn change_is_exact(&self, _attr: &Attr) -> bool {
        true
    }

    /// Starts a read. The layout is determined before or with the data, never after it. Returns at
    /// once (the operation may already be complete then).
    fn submit_read(&self, op: ReadOp);

    /// Starts a write; extends the file when it goes past the end. Returns at once.
    fn submit_write(&self, op: WriteOp);

    /// Makes completed writes durable, with attributes unless `data_only`.
    async fn sync(&self, data_only: bool) -> Result<()>;

    /// Sets the size: truncates, or extends with a hole.
    async fn set_size(&self, size: u64) -> Result<()>;

    /// Turns a range into a hole; the size does not change.
    async fn punch_hole(&self, _offset: u64, _len: u64) -> Result<()> {
        Err(Error::NotSupported)
    }

    /// Reserves space for a range, and extends the file to its end if that is past the size.
    async fn allocate(&self, _offset: u64, _len: u64) -> Result<()> {
        Err(Error::NotSupported)
    }

    /// The extent that contains `offset`, beginning at `offset`, as far as the store knows it.
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

    /// Shares `len` bytes (0: to the end) at `offset` of `from` with this file at `to_offset`.
    async fn clone_range(
        &self,
        _from: &dyn OpenFile,
        _offset: u64,
        _len: u64,
        _to_offset: u64,
    ) -> Result<()> {
        Err(Error::NotSupported)
    }

    /// Copies at most `len` bytes at `offset` of `from` to this file at `to_offset`, without moving
    /// them through this program, and makes them durable. Returns how many: fewer than `len` if the
    /// store copies less at a time, 0 only at the end of `from`.
    async fn copy_range(
        &self,
        _from: &dyn OpenFile,
        _offset: u64,
        _len: u64,
        _to_offset: u64,
    ) -> Result<u64> {
        Err(Error::NotSupported)
    }

    /// Acquires a lock, which replaces the locks of `owner` in its range; waits for it if `wait`.
    /// Locks are advisory, and end with the open file. Dropping the future acquires nothing, and
    /// leaves `owner` the locks that it holds.
    ///
    /// # Errors [`Error::WouldBlock`] if another owner holds a conflicting lock;
    /// [`Error::Deadlock`] if that one waits for a lock of `owner`, where the store finds out.
    async fn lock(&self, _owner: LockOwner, _lock: Lock, _wait: bool) -> Result<()> {
        Err(Error::NotSupported)
    }

    /// A lock that conflicts with this one.
    async fn test_lock(&self, _owner: LockOwner, _lock: Lock) -> Result<Option<Lock>> {
        Err(Error::NotSupported)
    }

    /// Releases all locks of `owner` in a range.
    async fn unlock(&self, _owner: LockOwner, _range: LockRange) -> Result<()> {
        Err(Error::NotSupported)
    }

    /// Acquires a lock for the program as a whole, against other programs that use the store's
    /// files, without waiting; it replaces those that the program held in the range. All locks of
    /// this kind on an open file have one holder. No effect on stores that no other program uses.
    ///
    /// # Errors [`Error::WouldBlock`] if another program holds a conflicting lock.
    fn program_lock(&self, _lock: Lock) -> Result<()> {
        Ok(())
    }

    /// Another program's lock that conflicts with this one.
    fn program_test_lock(&self, _lock: Lock) -> Result<Option<Lock>> {
        Ok(None)
    }

    /// Releases the locks of the program as a whole in a range.
    fn program_unlock(&self, _range: LockRange) -> Result<()> {
        Ok(())
    }

    /// The concrete type, for stores that downcast `from` in [`clone_range`](Self::clone_range) and
    /// [`copy_range`](Self::copy_range).
    fn as_any(&self) -> &dyn std::any::Any;
}
