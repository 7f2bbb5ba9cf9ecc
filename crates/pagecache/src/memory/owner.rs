//! Finds the file whose page a frame holds.

use crate::memory::frame_no::FrameNo;
use std::ops::{ControlFlow, Deref};
use std::sync::{Arc, Weak};
use weir_base::sync::RwLock;

/// A file, as memory management sees it. Each call takes the file's lock for a short step.
pub(crate) trait FrameOwner: Send + Sync {
    /// Evicts those of `pages` that are still in the given frame and for which `may_go` returns
    /// true, called with the entry's index and the page's key. Returns how many were evicted.
    fn evict(
        &self,
        pages: &mut dyn Iterator<Item = (u64, FrameNo)>,
        may_go: &mut dyn FnMut(usize, u64) -> bool,
    ) -> usize;

    /// Moves pages out of these frames into lower ones, except pages that are pinned or under writeback.
    fn move_pages(&self, from: &[FrameNo]);

    /// Forgets holes from `page` on, and decrements `looks` for each index entry that it visits. At
    /// zero, breaks with the page to continue at.
    fn forget_holes(&self, page: u64, looks: &mut usize) -> ControlFlow<u64>;

    /// Drops a reference. The last one closes the store's file, which may block, so the store's own
    /// thread drops it.
    fn release(self: Arc<Self>);
}

/// Files by number, so that a frame can name its file in four bytes.
#[derive(Default)]
pub(crate) struct Owners {
    table: RwLock<Table>,
}

#[derive(Default)]
struct Table {
    owners: Vec<Option<Weak<dyn FrameOwner>>>,
    vacant: Vec<u32>,
}

impl Owners {
    /// Assigns a number to a file.
    pub(crate) fn register(&self, owner: Weak<dyn FrameOwner>) -> u32 {
        let mut table = self.table.write();
        if let Some(number) = table.vacant.pop() {
            table.owners[number as usize] = Some(owner);
            return number;
        }
        table.owners.push(Some(owner));
        table.owners.len() as u32 - 1
    }

    /// Frees the number of a file that is being dropped.
    pub(crate) fn unregister(&self, number: u32) {
        let mut table = self.table.write();
        table.owners[number as usize] = None;
        table.vacant.push(number);
    }

    /// One more than the largest number.
    pub(crate) fn end(&self) -> u32 {
        self.table.read().owners.len() as u32
    }

    /// The file with this number, unless it is being dropped.
    pub(crate) fn get(&self, number: u32) -> Option<Visit> {
        let owner = self.table.read().owners.get(number as usize)?.as_ref()?.upgrade()?;
        Some(Visit(Some(owner)))
    }
}

/// A file that a thread shared by all stores works on.
pub(crate) struct Visit(Option<Arc<dyn FrameOwner>>);

impl Deref for Visit {
    type Target = Arc<dyn FrameOwner>;

    fn deref(&self) -> &Arc<dyn FrameOwner> {
        self.0.as_ref().expect("taken out when it is dropped")
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        if let Some(owner) = self.0.take() {
            owner.release();
        }
    }
}
