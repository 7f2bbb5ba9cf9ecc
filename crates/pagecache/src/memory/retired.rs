//! Frames and index nodes that readers without a lock may still see. They are free once the epoch
//! in which they were unlinked has passed.

use crate::memory::epoch::Domain;
use crate::memory::frame_no::FrameNo;
use std::collections::VecDeque;
use weir_base::sync::Mutex;
use weir_base::sync::atomic::{AtomicUsize, Ordering};

/// Unlinked frames and nodes that are not free yet, oldest first.
#[derive(Default)]
pub(crate) struct RetireList {
    list: Mutex<VecDeque<Retired>>,
    frames: AtomicUsize,
}

/// The frames and nodes that one change of a file's index unlinked.
pub(crate) struct Retired {
    tag: u64,
    pub(crate) frames: Vec<FrameNo>,
    /// Nodes of the index; dropping them frees them.
    nodes: Option<Box<dyn Send>>,
}

impl RetireList {
    /// Adds frames and nodes that were unlinked before `tag` was taken.
    pub(crate) fn push(&self, tag: u64, frames: Vec<FrameNo>, nodes: Option<Box<dyn Send>>) {
        let mut list = self.list.lock();
        self.frames.fetch_add(frames.len(), Ordering::SeqCst);
        list.push_back(Retired { tag, frames, nodes });
    }

    /// Whether the list is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.list.lock().is_empty()
    }

    /// Frames in the list.
    pub(crate) fn frames(&self) -> usize {
        self.frames.load(Ordering::SeqCst)
    }

    /// Takes out what no reader can see any more. [`frames`](Self::frames) still counts its frames
    /// until [`freed`](Self::freed).
    pub(crate) fn take_passed(&self, epoch: &Domain) -> Vec<Retired> {
        let mut passed = Vec::new();
        let mut list = self.list.lock();
        while list.front().is_some_and(|retired| epoch.passed(retired.tag)) {
            passed.extend(list.pop_front());
        }
        passed
    }

    /// The references to the frames of `passed` were dropped; frees the nodes.
    pub(crate) fn freed(&self, passed: Vec<Retired>) {
        let frames = passed.iter().map(|retired| retired.frames.len()).sum();
        self.frames.fetch_sub(frames, Ordering::SeqCst);
        drop(passed.into_iter().filter_map(|retired| retired.nodes).collect::<Vec<_>>());
    }
}
