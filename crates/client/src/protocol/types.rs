//! Arguments and results of operations, common to all versions.

use std::any::Any;
use std::sync::Arc;
use weir_base::stable_hash;
use weir_rpc::OpaqueAuth;
use weir_vfs::{Attr, FileId, LockOwner, SetAttr, SpecialFile};
use weir_xdr::{Bytes, Payload};

/// A filehandle: opaque bytes that name a file to its server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Handle(pub(crate) Bytes);

/// The id of the file with number `ino` and this handle.
pub(crate) fn file_id(ino: u64, fsid: u64, handle: &Handle) -> FileId {
    FileId { ino, generation: stable_hash(fsid.to_be_bytes().iter().chain(handle.0.iter())) }
}

/// A file's size as a server reports it, at most the largest offset: no request gets beyond that, and nothing that
/// counts from there overflows.
pub(crate) fn file_size(reported: u64) -> u64 {
    reported.min(i64::MAX as u64)
}

/// A file, and its attributes.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// The server's name for it.
    pub(crate) handle: Handle,
    /// Its attributes.
    pub(crate) attr: Attr,
}

/// An entry of a directory.
pub(crate) struct Entry {
    pub(crate) name: Vec<u8>,
    pub(crate) cookie: u64,
    pub(crate) ino: u64,
    /// Handle and attributes, if they were requested and the server returned them.
    pub(crate) node: Option<Node>,
}

/// How far to follow the path of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// To its end, which has to exist.
    End,
    /// To the last directory on it.
    LastDirectory,
}

/// The end of the path of a mount.
pub(crate) struct Root {
    pub(crate) node: Node,
    /// Number of components of the path that lead to it.
    pub(crate) depth: usize,
}

/// Some entries of a directory.
pub(crate) struct Page {
    pub(crate) entries: Vec<Entry>,
    pub(crate) eof: bool,
}

/// The place of a new name, and the initial attributes.
pub(crate) struct NewEntry<'a> {
    pub(crate) dir: &'a Handle,
    pub(crate) name: &'a [u8],
    pub(crate) set: &'a SetAttr,
}

/// The kind of a new file that is not a regular one.
pub(crate) enum Special<'a> {
    Directory,
    Symlink(&'a [u8]),
    File(SpecialFile),
}

/// The change attribute before and after a change, if the server reported them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChangeSpan {
    pub(crate) before: Option<u64>,
    pub(crate) after: Option<u64>,
}

/// Bytes for one WRITE call.
pub(crate) struct WriteRequest {
    /// Their offset in the file.
    pub(crate) offset: u64,
    pub(crate) data: Arc<dyn Payload>,
    /// Whether they have to be durable before the reply.
    pub(crate) durable: bool,
}

/// A server's reply to a write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    /// Bytes stored.
    pub(crate) count: usize,
    /// Whether they are durable.
    pub(crate) stable: bool,
    /// Changes when the server may have lost data that was not durable.
    pub(crate) verifier: [u8; 8],
    /// The change attribute around the write.
    pub(crate) span: ChangeSpan,
}

/// The largest transfers that both sides support, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) read: usize,
    pub(crate) write: usize,
}

/// A file that is open at the server, if the version has opens.
#[derive(Clone)]
pub(crate) struct OpenContext {
    /// The credential and the file.
    pub(crate) cred: Arc<OpaqueAuth>,
    pub(crate) handle: Handle,
    /// The version's state of an open, if it has opens; shared by all opens of the file.
    pub(crate) state: Option<Arc<dyn Any + Send + Sync>>,
}

/// An owner of locks: an owner within an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OpenLockOwner {
    /// The number of the open file, unique in this program.
    pub(crate) open: u64,
    pub(crate) owner: LockOwner,
    /// A number for both: unique among this program's lock owners, and almost certainly on this
    /// machine.
    pub(crate) number: u32,
}

impl OpenLockOwner {
    pub(crate) fn to_bytes(self) -> [u8; 20] {
        let mut bytes = [0; 20];
        bytes[..8].copy_from_slice(&self.open.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.owner.0.to_be_bytes());
        bytes[16..].copy_from_slice(&self.number.to_be_bytes());
        bytes
    }

    /// Undoes [`to_bytes`](Self::to_bytes).
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (open, rest) = bytes.split_first_chunk()?;
        let (owner, number) = rest.split_first_chunk()?;
        Some(Self {
            open: u64::from_be_bytes(*open),
            owner: LockOwner(u64::from_be_bytes(*owner)),
            number: u32::from_be_bytes(number.try_into().ok()?),
        })
    }
}
