//! Detects in a fill that another program has truncated the file in the store.
//!
//! 1. If a read of the store meets the end of file before the file's known end, the rest is no
//!    hole: no program wrote those zeros. The fill asks the store for the file's size, which may differ
//!    from what the store has kept, even if it has been promised to hear of changes.
//! 2. If the file is shorter now, the mapping shrinks, and readers see the new end. Dirty pages
//!    stay, and extend the file again when they are written. All else that is known of the file,
//!    its holes too, is of the old one.
//! 3. If it is not, the fill asks again: the file may have been emptied and rewritten in between.
//!    After a few answers that contradict the size, the read fails.

use crate::mapping::Mapping;
use crate::mapping::fill::Fill;
use crate::memory::arena::Frames;
use crate::stats::Count;
use std::sync::Arc;
use std::time::SystemTime;
use weir_base::sync::atomic::Ordering;
use weir_vfs::{Attr, Error, KeptAttributes, Layout, Result};

/// How often to ask the store for bytes that it does not return.
const ASKED_AT_MOST: u32 = 4;
/// How often to ask it for the size while changes of ours are in progress.
const LOOKS: u32 = 8;

/// A fill whose early end is being checked; on drop, it fails.
struct Doubted {
    mapping: Arc<Mapping>,
    fill: Arc<Fill>,
    frames: Option<Frames>,
}

impl Doubted {
    fn end(&mut self, result: Result<Layout>) {
        if let Some(frames) = self.frames.take() {
            self.mapping.end_fill(&self.fill, frames, result);
        }
    }

    fn ask_again(&mut self) {
        if let Some(frames) = self.frames.take() {
            self.mapping.ask_store(&self.fill, frames);
        }
    }
}

impl Drop for Doubted {
    fn drop(&mut self) {
        self.end(Err(Error::Io));
    }
}

impl Mapping {
    /// Looks at the size of the store's file after a read of it ended early.
    pub(crate) fn look_at_size(self: &Arc<Self>, fill: Arc<Fill>, frames: Frames) {
        let mapping = self.clone();
        let mut doubted = Doubted { mapping: self.clone(), fill, frames: Some(frames) };
        self.lane().tasks.spawn(async move {
            let attr = mapping.attr_between_changes().await;
            let fill = doubted.fill.clone();
            match attr {
                Err(error) => doubted.end(Err(error)),
                Ok(_) if fill.is_disowned() => doubted.end(Ok(Layout::default())),
                Ok(attr) if attr.size < fill.stored_size => {
                    mapping.cut_off(&attr, &fill);
                    doubted.end(Ok(Layout::default()));
                }
                Ok(_) if fill.asked.load(Ordering::Relaxed) < ASKED_AT_MOST => doubted.ask_again(),
                Ok(attr) => {
                    tracing::error!(
                        "the store reports {1} bytes for file {0}, but its reads end before",
                        mapping.id.ino,
                        attr.size,
                    );
                    doubted.end(Err(Error::Io));
                }
            }
        });
    }

    /// The store's attributes at a time when no change of ours was in progress, if there is one.
    async fn attr_between_changes(&self) -> Result<Attr> {
        let mut looks = 0;
        loop {
            let seen = self.state.lock().overlay.generation();
            self.file().forget_attributes(KeptAttributes::All);
            let (attr, _) = self.stored_attr().await?;
            looks += 1;
            if looks == LOOKS || self.state.lock().overlay.generation() == seen {
                return Ok(attr);
            }
        }
    }

    /// The store's file is shorter than when `fill` began: shrinks the mapping.
    fn cut_off(self: &Arc<Self>, attr: &Attr, fill: &Fill) {
        // The fill may have read the old file, so it publishes nothing.
        let mut state = self.state.lock();
        fill.disown();
        if state.invalidating || attr.size >= state.stored_size {
            return;
        }
        self.count(Count::OutsideChanges, 1);
        if !state.overlay.changed_outside(attr, true, true) {
            state.overlay.modified(SystemTime::now());
        }
        if state.is_clean() {
            self.invalidate(&mut state, attr.size);
            return;
        }
        state.stored_size = attr.size;
        state.overlay.resizing();
        self.drop_unproven(&mut state, 0..u64::MAX);
        let size = self.size_without(&state);
        let edit = self.edit(&mut state);
        let seqcount = self.write_seqcount(&edit);
        seqcount.set_size(size);
        drop(seqcount);
        edit.finish();
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use crate::testing::Rig;
    use weir_stores::fault::{Call, What};
    use weir_stores::memory::MemoryFs;
    use weir_vfs::{Advice, IoFlags};

    #[test]
    fn holes_of_the_old_file_do_not_hide_data_of_the_new_one() {
        const PAGE: usize = 4096;
        const NONE: IoFlags = IoFlags::empty();
        let store = MemoryFs::new();
        let (ours, theirs) = (Rig::over(store.clone()), Rig::over(store));
        let file = ours.create("f");
        // A hole of one page.
        file.write_at(&[1; 3 * PAGE], 0, NONE).unwrap();
        file.write_at(&[1; 12 * PAGE], 4 * PAGE as u64, NONE).unwrap();
        file.sync(true).unwrap();
        file.advise(0, 0, Advice::DontNeed).unwrap();
        let their_file = theirs.open(file.id());
        // Ours stays dirty: the flusher writes what is old.
        ours.always(Call::Write, What::Hold);
        file.write_at(&[2; PAGE], 15 * PAGE as u64, NONE).unwrap();
        their_file.truncate(0).unwrap();
        their_file.write_at(&[5; 5 * PAGE], 0, NONE).unwrap();
        their_file.sync(true).unwrap();
        let read = |page: usize| {
            let mut bytes = [9; PAGE];
            assert_eq!(file.read_at(&mut bytes, (page * PAGE) as u64, NONE), Ok(PAGE));
            bytes
        };
        assert!(read(7) == [0; PAGE], "a hole before our page");
        assert!(read(3) == [5; PAGE], "their data");
        assert!(read(15) == [2; PAGE]);
        assert_eq!(file.size(), 16 * PAGE as u64);
        ours.store.clear();
        ours.store.release();
    }
}
