//! Stand-ins for mount points of other file systems, which a local store does not enter: empty files
//! and directories, for something to be mounted on them again ([`namespace`](crate::namespace)).

use crate::mounted::file_system::{Answer, Answered, Mounted};
use crate::wire::reply::{Errno, attr_out};
use parking_lot::Mutex;
use rustix::fs::{AtFlags, StatxAttributes, StatxFlags, statx};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::SystemTime;
use weir_vfs::{Attr, Error, FileId, FileKind};

/// The generation of stand-ins, which no store gives its files.
const GENERATION: u64 = 0x7374_616e_642d_696e;

/// The stand-ins that the kernel knows.
#[derive(Default)]
pub(super) struct StandIns(Mutex<HashMap<FileId, Attr>>);

impl StandIns {
    pub(super) fn get(&self, id: FileId) -> Option<Attr> {
        if id.generation != GENERATION {
            return None;
        }
        self.0.lock().get(&id).cloned()
    }
}

impl Mounted {
    /// The stand-in for a name that the store refuses, if that is a mount point.
    pub(super) async fn stand_in(&self, dir: FileId, name: &[u8]) -> Answered {
        let denied = Errno::from(Error::AccessDenied);
        let path = self.fs.store().path_of(dir).await?.join(OsStr::from_bytes(name));
        // Its server may not answer.
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
        let found = statx(rustix::fs::CWD, &path, flags, StatxFlags::BASIC_STATS);
        let found = found.map_err(|_| denied)?;
        if !found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) {
            return Err(denied);
        }
        let is_dir = u32::from(found.stx_mode) & libc::S_IFMT == libc::S_IFDIR;
        let id = FileId { ino: stand_in_number(&path), generation: GENERATION };
        let now = SystemTime::now();
        let attr = Attr {
            id,
            kind: if is_dir { FileKind::Directory } else { FileKind::Regular },
            mode: if is_dir { 0o555 } else { 0o444 },
            nlink: if is_dir { 2 } else { 1 },
            uid: 0,
            gid: 0,
            size: 0,
            allocated: 0,
            rdev: (0, 0),
            fsid: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: None,
            change: 0,
        };
        self.stand_ins.0.lock().insert(id, attr.clone());
        Ok(self.entry(attr))
    }

    /// The attributes of a stand-in.
    pub(super) fn stand_in_attr(&self, id: FileId) -> Option<Answer> {
        Some(Answer::of(&attr_out(&self.stand_ins.get(id)?, self.settings.valid)))
    }
}

/// The inode number of a stand-in.
fn stand_in_number(path: &std::path::Path) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    path.hash(&mut hasher);
    hasher.finish() | 1 << 63
}
