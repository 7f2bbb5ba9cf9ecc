//! Exclusive creation (RFC 1813 section 3.3.8, RFC 8881 section 18.16.3): how the server recognizes
//! that an existing file was created by the same request, sent before.
//!
//! 1. The server stores a keyed hash of the verifier, the creator and the name in the file's times,
//!    until the client sets them. The hash hides the verifier: a user that sets a file's times
//!    cannot make the file look like the creation of another client or request.
//! 2. The server recognizes only a regular file that has its initial size and belongs to the
//!    caller. It opens the file with the caller's rights only.

use crate::handle::{Handles, Node};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use weir_pagecache::CachedFs;
use weir_vfs::{Attr, Caller, Error, FileKind, Result, SetAttr, SetTime};

/// Mode of an exclusively created file until its client sets it. The owner may open the file: a
/// server that does not run as root must do so to sync it.
pub(crate) const OWNERS_ALONE: u32 = 0o600;

/// An exclusive creation.
pub(crate) struct Exclusive<'a> {
    pub(crate) handles: &'a Handles,
    pub(crate) dir: Node,
    pub(crate) name: &'a [u8],
    pub(crate) caller: &'a Caller,
    pub(crate) verifier: [u8; 8],
}

impl Exclusive<'_> {
    /// Stores the hash in the times of a new file.
    pub(crate) fn store_in(&self, set: &mut SetAttr) {
        let [atime, mtime] = self.times();
        (set.atime, set.mtime) = (Some(SetTime::To(atime)), Some(SetTime::To(mtime)));
    }

    /// The file, if an earlier execution of this request created it with `size` bytes.
    ///
    /// # Errors
    /// [`Error::Exists`]: another request created it; errors of the store.
    pub(crate) async fn made_before(&self, fs: &CachedFs, size: u64) -> Result<Attr> {
        let attr = fs.lookup(self.caller, self.dir.id.entry(self.name)).await?;
        let is_ours = attr.kind == FileKind::Regular
            && attr.size == size
            && [attr.atime, attr.mtime] == self.times()
            && self.owns(&attr);
        if is_ours { Ok(attr) } else { Err(Error::Exists) }
    }

    /// Whether the file belongs to the caller, or to the server's own user, which owns new files
    /// where the server cannot act as others.
    fn owns(&self, attr: &Attr) -> bool {
        match self.caller {
            Caller::Own => true,
            Caller::As(cred) => attr.uid == cred.uid || attr.uid == uzers::get_effective_uid(),
        }
    }

    /// The hash as two times: 31 bits of seconds each, because every store keeps those.
    fn times(&self) -> [SystemTime; 2] {
        let uid = match self.caller {
            Caller::Own => u64::MAX,
            Caller::As(cred) => cred.uid.into(),
        };
        let Node { export, id } = self.dir;
        let mut input = Vec::with_capacity(40 + self.name.len());
        input.extend_from_slice(&self.verifier);
        input.extend_from_slice(&uid.to_be_bytes());
        input.extend_from_slice(&export.to_be_bytes());
        input.extend_from_slice(&id.ino.to_be_bytes());
        input.extend_from_slice(&id.generation.to_be_bytes());
        input.extend_from_slice(self.name);
        let [a, b, c, d, rest @ ..] = self.handles.seal_creation(&input);
        [[a, b, c, d], rest].map(|word| {
            let seconds = u32::from_be_bytes(word) & 0x7fff_ffff;
            UNIX_EPOCH + Duration::from_secs(seconds.into())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_vfs::{Cred, FileId};

    #[test]
    fn verifier_times_depend_on_key_caller_name_and_verifier() {
        let (key, other_key) = (Handles::new([1; 32]), Handles::new([2; 32]));
        let node = |ino| Node { export: 1, id: FileId { ino, generation: 0 } };
        let user = |uid| Caller::As(Cred { uid, gid: 0, groups: Vec::new() });
        let times = |handles, dir, name: &[u8], caller: &Caller, verifier| {
            Exclusive { handles, dir, name, caller, verifier }.times()
        };
        let first = times(&key, node(1), b"f", &user(1), [7; 8]);
        assert_eq!(times(&key, node(1), b"f", &user(1), [7; 8]), first);
        for other in [
            times(&other_key, node(1), b"f", &user(1), [7; 8]),
            times(&key, node(2), b"f", &user(1), [7; 8]),
            times(&key, node(1), b"g", &user(1), [7; 8]),
            times(&key, node(1), b"f", &user(2), [7; 8]),
            times(&key, node(1), b"f", &user(1), [8; 8]),
        ] {
            assert_ne!(other, first);
        }
    }
}
