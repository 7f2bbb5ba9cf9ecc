//! A change of attributes in the store.
//!
//! 1. It excludes changes of the whole file, and writes.
//! 2. Its end is noted also if the store panics: as long as a change of ours counts as being in progress, no
//!    change by others is detected.
//! 3. The end and its outcome are noted under one hold of the state's lock: no look at the store comes in between.

use crate::mapping::State;
use crate::mapping::invalidate_lock::InvalidateLock;
use weir_base::sync::MutexGuard;

/// A change that was noted as begun. Its drop notes the end, unless [`end`](Self::end) did. (Changes of the size and of
/// holes: `Noted` in `truncate.rs`.)
pub(crate) struct AttributeChange {
    exclusive: InvalidateLock,
    /// That of the overlay when the change has begun.
    pub(crate) generation: u64,
    has_ended: bool,
}

impl InvalidateLock {
    /// Notes the begin of a change of attributes.
    pub(crate) fn begin_change(self) -> AttributeChange {
        let generation = {
            let mut state = self.mapping.state.lock();
            state.overlay.begin();
            state.overlay.generation()
        };
        AttributeChange { exclusive: self, generation, has_ended: false }
    }
}

impl AttributeChange {
    /// Notes the end. The caller notes the outcome in the state.
    pub(crate) fn end(&mut self) -> MutexGuard<'_, State> {
        self.has_ended = true;
        let mut state = self.exclusive.mapping.state.lock();
        state.overlay.end();
        state
    }
}

impl Drop for AttributeChange {
    fn drop(&mut self) {
        if !self.has_ended {
            drop(self.end());
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use crate::File;
    use crate::testing::{Panicking, Rig};
    use pollster::block_on;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use weir_stores::memory::MemoryFs;
    use weir_vfs::{AclKind, Caller, FileSystemMethod, IoFlags, SetAttr, XattrMode};

    const OWN: &Caller = &Caller::Own;
    const NONE: IoFlags = IoFlags::empty();

    #[test]
    fn a_change_by_others_is_seen_although_the_store_has_panicked_in_one_of_ours() {
        type Change = (FileSystemMethod, fn(&Rig, &File));
        let changes: [Change; 5] = [
            (FileSystemMethod::Setattr, |rig, file| {
                let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
                _ = block_on(rig.fs.setattr(OWN, file.id(), &set));
            }),
            (FileSystemMethod::SetXattr, |rig, file| {
                let name = file.id().xattr(b"user.a");
                _ = block_on(rig.fs.set_xattr(OWN, name, b"1", XattrMode::Either));
            }),
            (FileSystemMethod::RemoveXattr, |rig, file| {
                _ = block_on(rig.fs.remove_xattr(OWN, file.id().xattr(b"user.a")));
            }),
            (FileSystemMethod::SetAcl, |rig, file| {
                _ = block_on(rig.fs.set_acl(OWN, file.id().acl(AclKind::Access), None));
            }),
            // Sets the time of the write.
            (FileSystemMethod::Setattr, |_, file| _ = file.sync(false)),
        ];
        for (n, (method, change)) in changes.into_iter().enumerate() {
            let memory = MemoryFs::new();
            let store = Panicking::over(memory.clone());
            let ours = Rig::without_threads_over(store.clone());
            let theirs = Rig::without_threads_over(memory);
            let file = ours.create("f");
            file.write_at(&[1; 4096], 0, NONE).unwrap();
            block_on(file.write_back_async()).unwrap();
            store.panic_at(method);
            let changed = catch_unwind(AssertUnwindSafe(|| change(&ours, &file)));
            assert!(changed.is_err(), "change {n}");
            // The first look after a change of ours takes the attributes for ours.
            block_on(file.getattr()).unwrap();
            let their_file = theirs.open(file.id());
            their_file.write_at(&[2; 4096], 0, NONE).unwrap();
            their_file.sync(false).unwrap();
            // An open of a file that is open already asks nothing.
            let id = file.id();
            drop(file);
            let again = ours.open(id);
            let mut bytes = [0; 4096];
            assert_eq!(again.read_at(&mut bytes, 0, NONE), Ok(4096));
            assert!(bytes == [2; 4096], "old data after change {n}");
        }
    }
}
