//! File systems as Weir sees them.
//!
//! A store (a directory, memory, an NFS server) is a [`FileSystem`]: names and attributes by
//! [`FileId`], and [`OpenFile`]s for data. The page cache uses this interface only.
//!
//! The main idea: **a read yields segments.** [`OpenFile::submit_read`] fills the caller's buffer
//! and reports which parts of the range are data and which are holes ([`Layout`]); a store without
//! support for holes returns one data segment.
//!
//! 1. Data moves by ownership: a [`ReadOp`] or [`WriteOp`] owns its buffer until it is completed,
//!    so dropping a future can never leave a device writing into memory that is in use again.
//! 2. An operation that is dropped before its completion completes with [`Error::Io`].
//! 3. Futures of a store may be polled on any thread, under any executor.

#![deny(unsafe_code)]

mod acl;
mod attr;
mod decorator;
mod error;
mod flags;
mod fs;
mod io;
mod lock;
mod met_cookies;
mod range_tree;
mod request;
mod segment;
mod whole;

pub use acl::{Acl, AclKind, AclRights, AclWho, acl_xattr, tag_of, who_of};
pub use attr::{
    Attr, Cred, FileId, FileKind, FsStat, KeptAttributes, SetAttr, SetTime, check_owners,
};
pub use decorator::{FileSystemDecorator, FileSystemMethod, OpenFileDecorator, OpenFileMethod};
pub use error::{Error, Result};
pub use flags::{Access, Advice, Capabilities, IoFlags, Permissions};
pub use fs::{Caller, Created, DirEntry, DirPage, FileSystem, OpenFile, SpecialFile, Unnamed};
pub use io::{Buffer, ReadOp, Source, WriteOp};
pub use lock::{Lock, LockConflict, LockOwner, LockRange, RangeLocks, TO_END};
pub use met_cookies::MetCookies;
pub use request::{
    AclName, CreateMode, EntryName, NewFile, ReaddirRequest, RenameFlags, UNCACHED_MARK,
    UNCACHED_XATTR, XattrMode, XattrName,
};
pub use segment::{Extent, Layout, SegmentKind};
pub use whole::{WholeFile, WholeRead, WholeRequest};
