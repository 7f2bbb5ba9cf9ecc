//! Stores over stores: a decorator names the store below it, and overrides the methods that it
//! changes.
//!
//! One row of a table below forwards one method, for every decorator. A test compares the tables with
//! the traits, so that a new method cannot be forgotten.

use crate::{
    Access, Acl, AclName, Attr, Caller, Capabilities, CreateMode, Created, DirPage, EntryName,
    Extent, FileId, FileSystem, FsStat, KeptAttributes, Lock, LockOwner, LockRange, NewFile,
    OpenFile, Permissions, ReadOp, ReaddirRequest, RenameFlags, Result, SetAttr, SpecialFile,
    Unnamed, WholeFile, WholeRead, WholeRequest, WriteOp, XattrMode, XattrName,
};
use async_trait::async_trait;
use std::path::PathBuf;
use std::sync::Arc;

/// Declares a decorator of a trait, and implements the trait for all of them.
macro_rules! decorator {
    (
        $(#[$doc:meta])* trait $decorator:ident of $trait:ident;
        $(#[$method_doc:meta])* enum $method:ident;
        plain { $(fn $plain:ident($($parg:ident: $pty:ty),*) $(-> $pret:ty)?;)* }
        asynchronous { $($variant:ident: fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty;)* }
        own { $($own:item)* }
    ) => {
        $(#[$method_doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $method {
            $(#[doc = concat!("[`", stringify!($trait), "::", stringify!($name), "`]")] $variant,)*
        }

        $(#[$doc])*
        #[async_trait]
        pub trait $decorator: Send + Sync + 'static {
            /// The object that calls are forwarded to.
            fn below(&self) -> &dyn $trait;

            /// Runs before each forwarded asynchronous call; if it fails, the call fails with its
            /// error.
            async fn before(&self, _method: $method) -> Result<()> {
                Ok(())
            }

            $(
                #[doc = concat!("Forwards [`", stringify!($trait), "::", stringify!($plain), "`].")]
                fn $plain(&self, $($parg: $pty),*) $(-> $pret)? {
                    self.below().$plain($($parg),*)
                }
            )*

            $(
                #[doc = concat!("Forwards [`", stringify!($trait), "::", stringify!($name), "`].")]
                async fn $name(&self, $($arg: $ty),*) -> Result<$ret> {
                    self.before($method::$variant).await?;
                    self.below().$name($($arg),*).await
                }
            )*
        }

        #[async_trait]
        impl<D: $decorator> $trait for D {
            $(
                fn $plain(&self, $($parg: $pty),*) $(-> $pret)? {
                    $decorator::$plain(self, $($parg),*)
                }
            )*

            $(
                async fn $name(&self, $($arg: $ty),*) -> Result<$ret> {
                    $decorator::$name(self, $($arg),*).await
                }
            )*

            $($own)*
        }

        #[cfg(test)]
        impl $method {
            const FORWARDED: &'static [&'static str] =
                &[$(stringify!($plain),)* $(stringify!($name),)*];
        }
    };
}

decorator! {
    /// A [`FileSystem`] over another, which forwards every call that it does not override.
    ///
    /// [`FileSystem::count_names`] calls the decorator's own `getattr`.
    trait FileSystemDecorator of FileSystem;
    /// An asynchronous method of [`FileSystem`].
    enum FileSystemMethod;
    plain {
        fn capabilities() -> Capabilities;
        fn root() -> FileId;
        fn max_file_size() -> u64;
        fn is_locked_by_programs() -> bool;
        fn names_change_here() -> bool;
        fn numbering() -> u64;
        fn forget_attributes(id: FileId, which: KeptAttributes);
    }
    asynchronous {
        Statfs: fn statfs() -> FsStat;
        Getattr: fn getattr(id: FileId) -> Attr;
        Setattr: fn setattr(caller: &Caller, id: FileId, set: &SetAttr) -> Attr;
        Access: fn access(caller: &Caller, id: FileId, mask: Permissions) -> Permissions;
        CheckAccess: fn check_access(caller: &Caller, id: FileId, mask: Permissions) -> ();
        Lookup: fn lookup(caller: &Caller, entry: EntryName<'_>) -> Attr;
        Parent: fn parent(dir: FileId) -> Attr;
        Readdir: fn readdir(caller: &Caller, request: ReaddirRequest) -> DirPage;
        PathOf: fn path_of(id: FileId) -> PathBuf;
        Readlink: fn readlink(caller: &Caller, id: FileId) -> Vec<u8>;
        Create: fn create(caller: &Caller, new: NewFile<'_>, mode: CreateMode) -> Created;
        CreateOpen: fn create_open(
            caller: &Caller, new: NewFile<'_>, mode: CreateMode
        ) -> (Created, Option<Arc<dyn OpenFile>>);
        Mkdir: fn mkdir(caller: &Caller, new: NewFile<'_>) -> Attr;
        Symlink: fn symlink(caller: &Caller, new: NewFile<'_>, target: &[u8]) -> Attr;
        Mknod: fn mknod(caller: &Caller, new: NewFile<'_>, node: SpecialFile) -> Attr;
        Link: fn link(caller: &Caller, id: FileId, entry: EntryName<'_>) -> Attr;
        Unlink: fn unlink(caller: &Caller, entry: EntryName<'_>) -> ();
        UnlinkCounted: fn unlink_counted(caller: &Caller, entry: EntryName<'_>) -> Option<Unnamed>;
        Rmdir: fn rmdir(caller: &Caller, entry: EntryName<'_>) -> ();
        Rename: fn rename(
            caller: &Caller, from: EntryName<'_>, to: EntryName<'_>, flags: RenameFlags
        ) -> ();
        RenameCounted: fn rename_counted(
            caller: &Caller, from: EntryName<'_>, to: EntryName<'_>, flags: RenameFlags
        ) -> Option<Unnamed>;
        Open: fn open(caller: &Caller, id: FileId, access: Access) -> Arc<dyn OpenFile>;
        OpenToExecute: fn open_to_execute(caller: &Caller, id: FileId) -> Arc<dyn OpenFile>;
        PutWhole: fn put_whole(caller: &Caller, dir: FileId, file: &WholeFile) -> Option<Attr>;
        GetWhole: fn get_whole(caller: &Caller, request: WholeRequest) -> Option<WholeRead>;
        SyncNode: fn sync_node(id: FileId) -> ();
        Unmount: fn unmount() -> ();
        GetXattr: fn get_xattr(caller: &Caller, xattr: XattrName<'_>) -> Vec<u8>;
        SetXattr: fn set_xattr(
            caller: &Caller, xattr: XattrName<'_>, value: &[u8], mode: XattrMode
        ) -> ();
        ListXattrs: fn list_xattrs(caller: &Caller, id: FileId) -> Vec<Vec<u8>>;
        RemoveXattr: fn remove_xattr(caller: &Caller, xattr: XattrName<'_>) -> ();
        GetAcl: fn get_acl(acl: AclName) -> Option<Acl>;
        SetAcl: fn set_acl(caller: &Caller, acl: AclName, to: Option<&Acl>) -> ();
    }
    own {}
}

decorator! {
    /// An [`OpenFile`] over another, which forwards every call that it does not override.
    ///
    /// A decorator overrides [`OpenFile::clone_range`] and [`OpenFile::copy_range`] to pass the file
    /// below `from`: a store does not know decorated files.
    trait OpenFileDecorator of OpenFile;
    /// An asynchronous method of [`OpenFile`].
    enum OpenFileMethod;
    plain {
        fn access() -> Access;
        fn forget_attributes(which: KeptAttributes);
        fn is_marked_uncached() -> bool;
        fn changes_by_others() -> Option<u64>;
        fn change_is_exact(attr: &Attr) -> bool;
        fn submit_read(op: ReadOp);
        fn submit_write(op: WriteOp);
        fn program_lock(lock: Lock) -> Result<()>;
        fn program_test_lock(lock: Lock) -> Result<Option<Lock>>;
        fn program_unlock(range: LockRange) -> Result<()>;
    }
    asynchronous {
        Getattr: fn getattr() -> Attr;
        Sync: fn sync(data_only: bool) -> ();
        SetSize: fn set_size(size: u64) -> ();
        PunchHole: fn punch_hole(offset: u64, len: u64) -> ();
        Allocate: fn allocate(offset: u64, len: u64) -> ();
        ExtentAt: fn extent_at(offset: u64) -> Extent;
        CloneRange: fn clone_range(
            from: &dyn OpenFile, offset: u64, len: u64, to_offset: u64
        ) -> ();
        CopyRange: fn copy_range(
            from: &dyn OpenFile, offset: u64, len: u64, to_offset: u64
        ) -> u64;
        Lock: fn lock(owner: LockOwner, lock: Lock, wait: bool) -> ();
        TestLock: fn test_lock(owner: LockOwner, lock: Lock) -> Option<Lock>;
        Unlock: fn unlock(owner: LockOwner, range: LockRange) -> ();
    }
    own {
        fn as_any(&self) -> &dyn std::any::Any {
            self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Names of the methods that a trait of `fs.rs` declares.
    fn declared(name: &str) -> BTreeSet<&'static str> {
        let source = include_str!("fs.rs");
        let (_, body) = source.split_once(&format!("pub trait {name}:")).unwrap();
        let (body, _) = body.split_once("\n}\n").unwrap();
        let names = body.lines().filter_map(|line| {
            let line = line.strip_prefix("    ")?;
            let line = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ")?;
            line.split_once('(').map(|(name, _)| name)
        });
        names.collect()
    }

    #[test]
    fn decorators_forward_every_method() {
        for (name, forwarded, own) in [
            ("FileSystem", FileSystemMethod::FORWARDED, "count_names"),
            ("OpenFile", OpenFileMethod::FORWARDED, "as_any"),
        ] {
            let known: BTreeSet<_> = forwarded.iter().copied().chain([own]).collect();
            assert_eq!(declared(name), known, "{name}");
        }
    }
}
