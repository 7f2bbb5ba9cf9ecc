//! Cached data and locks. A caller locks a file in the store itself; the cache keeps the promise that
//! comes with a lock.
//!
//! 1. The holder of a new lock sees what others wrote under theirs: the caller has the file
//!    [revalidated](CachedFs::revalidate) after the grant, and before it tells of the grant.
//! 2. What was written under a lock is in the store before the next holder looks for it: the caller has it
//!    [written back](CachedFs::write_back) before the lock is released, or becomes a shared one.
//! 3. Pages are written whole: ranges that share a page are not protected from each other.

use super::CachedFs;
use weir_vfs::FileId;

impl CachedFs {
    /// Writes a file's dirty data back to its store, and waits until all of it is written or lost: nothing that was
    /// dirty reaches the store after this. Open files get the error of what is lost.
    pub async fn write_back(&self, id: FileId) {
        if let Some(mapping) = self.shared.live(id) {
            let _ = mapping.write_or_lose(0..u64::MAX).await;
        }
    }

    /// Makes later reads return what other programs had written to a file's store before this call. This
    /// writes back dirty data, looks at the store, and drops pages that this does not prove to be current. Returns
    /// whether an equal change attribute proves that the file is the same: not if it is a time stamp.
    pub async fn revalidate(&self, id: FileId) -> bool {
        match self.shared.live(id) {
            Some(mapping) => mapping.revalidate().await,
            None => false,
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use crate::File;
    use crate::testing::{Rig, poll_once};
    use pollster::block_on;
    use weir_stores::fault::{Call, What};
    use weir_stores::memory::MemoryFs;
    use weir_vfs::{Error, IoFlags};

    const NONE: IoFlags = IoFlags::empty();

    /// A file of two machines.
    struct Shared {
        ours: Rig,
        theirs: Rig,
        our_file: File,
        their_file: File,
    }

    impl Shared {
        fn new() -> Self {
            let store = MemoryFs::new();
            let (ours, theirs) = (Rig::over(store.clone()), Rig::over(store));
            let our_file = ours.create("f");
            let their_file = theirs.open(our_file.id());
            Self { ours, theirs, our_file, their_file }
        }
    }

    /// What a program does between the grant of a lock and its release.
    fn locked<T>(rig: &Rig, file: &File, work: impl FnOnce(&File) -> T) -> T {
        block_on(rig.fs.revalidate(file.id()));
        let done = work(file);
        block_on(rig.fs.write_back(file.id()));
        // Sets the times as well, which the flusher would do at some later time.
        block_on(file.sync_async(true)).unwrap();
        done
    }

    /// Waits until the flusher has looked at the file: a task of it that sets the times would be a change of
    /// the whole file, which waits for writes.
    fn until_settled(rig: &Rig, file: &File) {
        let lane = &rig.fs.shared.dirty.lane;
        let is_queued = || {
            let state = file.open.mapping.state.lock();
            state.listed.is_some() || state.settle_queued
        };
        while is_queued() || lane.tasks.alive() > 0 {
            lane.kick();
            std::thread::yield_now();
        }
    }

    fn read(file: &File, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let n = file.read_at(&mut bytes, offset, NONE).unwrap();
        bytes.truncate(n);
        bytes
    }

    #[test]
    fn two_machines_count_under_a_lock_without_loss() {
        let shared = Shared::new();
        let count = |file: &File| {
            let counter = read(file, 100, 1).first().copied().unwrap_or(0);
            file.write_at(&[counter + 1], 100, NONE).unwrap();
        };
        for _ in 0..20 {
            locked(&shared.ours, &shared.our_file, count);
            locked(&shared.theirs, &shared.their_file, count);
        }
        let counter = locked(&shared.ours, &shared.our_file, |file| read(file, 100, 1));
        assert_eq!(counter, [40]);
    }

    #[test]
    fn a_change_that_looked_like_ours_is_seen_under_a_lock() {
        let Shared { ours, theirs, our_file, their_file } = Shared::new();
        // The flusher does not set the times, which would be a look.
        let go_on = ours.hang_tasks();
        our_file.write_at(&[1; 4096], 0, NONE).unwrap();
        block_on(our_file.write_back_async()).unwrap();
        locked(&theirs, &their_file, |file| file.write_at(&[2; 10], 100, NONE).unwrap());
        // The first look after our write: all of the change may be ours.
        block_on(our_file.getattr()).unwrap();
        drop(go_on);
        let seen = locked(&ours, &our_file, |file| {
            file.write_at(&[3], 0, NONE).unwrap();
            read(file, 99, 3)
        });
        assert_eq!(seen, [1, 2, 2]);
        let stored = locked(&theirs, &their_file, |file| (read(file, 0, 2), read(file, 100, 10)));
        assert_eq!(stored, (vec![3, 1], vec![2; 10]), "no old bytes were written back");
        // Without a change, pages stay.
        let fills = theirs.fs.cache().stats().fills;
        locked(&theirs, &their_file, |file| assert_eq!(read(file, 100, 1), [2]));
        assert_eq!(theirs.fs.cache().stats().fills, fills);
    }

    #[test]
    fn nothing_is_written_after_a_release_although_other_data_was_lost() {
        let Shared { ours, our_file, .. } = Shared::new();
        locked(&ours, &our_file, |file| file.write_at(&[1; 12_288], 0, NONE).unwrap());
        ours.always(Call::Write, What::Hold);
        our_file.write_at(&[2; 10], 0, NONE).unwrap();
        our_file.write_at(&[2; 10], 8192, NONE).unwrap();
        let mut release = Box::pin(ours.fs.write_back(our_file.id()));
        while ours.store.held() < 2 {
            assert!(poll_once(&mut release).is_pending());
            std::thread::yield_now();
        }
        // What is lost of one page says nothing of the other.
        our_file.open.mapping.note_error(&mut our_file.open.mapping.state.lock(), Error::NoSpace);
        assert!(poll_once(&mut release).is_pending());
        ours.store.clear();
        ours.store.release();
        block_on(release);
        assert!(our_file.open.mapping.state.lock().is_clean());
    }

    #[test]
    fn a_store_that_does_not_answer_proves_no_page() {
        let Shared { ours, theirs, our_file, their_file } = Shared::new();
        locked(&ours, &our_file, |file| file.write_at(&[1; 4096], 0, NONE).unwrap());
        locked(&theirs, &their_file, |file| file.write_at(&[2; 10], 100, NONE).unwrap());
        ours.always(Call::Getattr, What::Fail(Error::Io));
        block_on(ours.fs.revalidate(our_file.id()));
        assert_eq!(read(&our_file, 100, 1), [2]);
    }

    #[test]
    fn a_file_that_others_made_longer_is_longer_while_data_of_ours_is_written() {
        // With the end on a page's border, and within a page.
        for cut in [0, 10] {
            let Shared { ours, theirs, our_file, their_file } = Shared::new();
            let end = 8192 + cut;
            locked(&ours, &our_file, |file| file.write_at(&vec![1; end], 0, NONE).unwrap());
            until_settled(&ours, &our_file);
            ours.always(Call::Write, What::Hold);
            our_file.write_at(&[2; 4096], 0, NONE).unwrap();
            let mut sync = Box::pin(our_file.sync_async(true));
            assert!(poll_once(&mut sync).is_pending());
            locked(&theirs, &their_file, |file| file.write_at(b"more", end as u64, NONE).unwrap());
            assert_eq!(block_on(our_file.getattr()).unwrap().size, end as u64 + 4, "{cut}");
            our_file.write_at(b"!", 0, IoFlags::APPEND).unwrap();
            ours.store.clear();
            ours.store.release();
            block_on(sync).unwrap();
            our_file.sync(true).unwrap();
            let stored = locked(&theirs, &their_file, |file| read(file, end as u64, 100));
            assert_eq!(stored, b"more!");
        }
    }

    #[test]
    fn a_look_from_before_a_truncation_does_not_extend_the_file() {
        let Shared { ours, our_file, .. } = Shared::new();
        locked(&ours, &our_file, |file| file.write_at(&[1; 8192], 0, NONE).unwrap());
        let mapping = &our_file.open.mapping;
        let look = mapping.state.lock().overlay.look();
        let (mut attr, _) = block_on(mapping.stored_attr()).unwrap();
        our_file.truncate(100).unwrap();
        mapping.overlay(&mut attr, Some(look), None);
        assert_eq!((attr.size, our_file.size()), (100, 100));
    }
}
