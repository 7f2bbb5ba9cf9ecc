//! The index of a file: from page number to slot, as a radix tree with lock-free readers.
//!
//! 1. Readers hold a guard of their cache's epochs and use atomic loads only; one writer at a time
//!    (the mapping's lock) changes the tree.
//! 2. A hole costs no memory for its length: an inner slot can mark all its pages as a hole, so 2
//!    TiB of hole are a handful of marks (I8).
//! 3. A node without entries is unlinked and handed to the caller as [`Garbage`], to be dropped
//!    when its epoch has passed; so are all nodes below a subtree that is replaced as a whole.
//!
//! A leaf has 64 slots (512 bytes, 256 KiB of file), so that small files cost little; inner nodes
//! have 512 (a page each: 128 MiB, 64 GiB, 32 TiB of file). The tree is as high as its last page
//! needs.
//!
//! Soundness: nodes are made by `Box`, reached only through tagged pointers in this tree, and freed
//! only as garbage whose epoch has passed or with the index itself.

use crate::memory::epoch::Guard;
use crate::memory::frame_no::FrameNo;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr;
use weir_base::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

const LEAF_BITS: u32 = 6;
const INNER_BITS: u32 = 9;
/// Slots in a leaf.
pub(crate) const LEAF_SLOTS: usize = 1 << LEAF_BITS;
const INNER_SLOTS: usize = 1 << INNER_BITS;
/// Low bits of the root pointer that hold the tree's height.
const HEIGHT_MASK: usize = 7;

/// The state of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// Unknown.
    Empty,
    /// The page is in this frame.
    Frame(FrameNo),
    /// The page is a hole: reads as zeros, has no frame.
    Hole,
    /// The fill with this number will publish it.
    InFlight(u64),
}

impl Slot {
    pub(crate) const fn encode(self) -> u64 {
        match self {
            Self::Empty => 0,
            Self::Frame(frame) => (frame.0 as u64) << 2 | 1,
            Self::Hole => 2,
            Self::InFlight(fill) => fill << 2 | 3,
        }
    }

    pub(crate) const fn decode(word: u64) -> Self {
        match word & 3 {
            1 => Self::Frame(FrameNo((word >> 2) as u32)),
            2 => Self::Hole,
            3 => Self::InFlight(word >> 2),
            _ => Self::Empty,
        }
    }
}

/// The lowest level: slots of consecutive pages.
pub(crate) struct Leaf {
    slots: [AtomicU64; LEAF_SLOTS],
    /// Number of slots that are not empty; written under the mapping's lock.
    used: AtomicU32,
}

impl Leaf {
    fn new(all: Slot) -> Self {
        let used = if all == Slot::Empty { 0 } else { LEAF_SLOTS as u32 };
        Self {
            slots: std::array::from_fn(|_| AtomicU64::new(all.encode())),
            used: AtomicU32::new(used),
        }
    }

    /// The slot at `index` from the leaf's first page.
    #[inline]
    pub(crate) fn slot(&self, index: usize) -> Slot {
        Slot::decode(self.slots[index & (LEAF_SLOTS - 1)].load(Ordering::Acquire))
    }

    /// The page after the leaf that contains `page`.
    pub(crate) fn end(&self, page: u64) -> u64 {
        (page | (LEAF_SLOTS as u64 - 1)) + 1
    }

    /// The first page from `page` on whose slot is not `wanted`, or the page after the leaf.
    pub(crate) fn skip(&self, page: u64, wanted: impl Fn(Slot) -> bool) -> u64 {
        let first = page as usize & (LEAF_SLOTS - 1);
        page + (first..LEAF_SLOTS).take_while(|&index| wanted(self.slot(index))).count() as u64
    }

    /// Whether the leaf has no page and no fill, at most holes.
    pub(crate) fn holds_no_page(&self) -> bool {
        (0..LEAF_SLOTS).all(|index| matches!(self.slot(index), Slot::Empty | Slot::Hole))
    }

    fn put(&self, index: usize, slot: Slot) -> Slot {
        let old = self.slots[index].load(Ordering::Relaxed);
        // Release: readers that find a frame see its bytes.
        self.slots[index].store(slot.encode(), Ordering::Release);
        let old = Slot::decode(old);
        let used = self.used.load(Ordering::Relaxed) + u32::from(slot != Slot::Empty)
            - u32::from(old != Slot::Empty);
        self.used.store(used, Ordering::Relaxed);
        old
    }
}

struct Inner {
    children: [AtomicPtr<()>; INNER_SLOTS],
    used: AtomicU32,
}

impl Inner {
    fn new(all: *mut ()) -> Self {
        let used = if all.is_null() { 0 } else { INNER_SLOTS as u32 };
        Self { children: std::array::from_fn(|_| AtomicPtr::new(all)), used: AtomicU32::new(used) }
    }

    /// Updates the counts for one child that was `old` and is now `new`.
    fn recount(&self, old: *mut (), new: *mut ()) {
        let used = self.used.load(Ordering::Relaxed) + u32::from(!new.is_null())
            - u32::from(!old.is_null());
        self.used.store(used, Ordering::Relaxed);
    }
}

#[repr(align(64))]
struct Sentinel(#[expect(dead_code, reason = "only its address is used")] u8);

static HOLE: Sentinel = Sentinel(0);

/// The pointer that marks a child as a hole throughout.
fn hole_sentinel() -> *mut () {
    ptr::from_ref(&HOLE).cast_mut().cast()
}

/// Pages that a child at `height` covers (0: a leaf).
const fn span(height: u32) -> u64 {
    1 << (LEAF_BITS + INNER_BITS * height)
}

/// An unlinked node, to be dropped when its epoch has passed.
pub(crate) struct Garbage {
    node: *mut (),
    height: u32,
}

// SAFETY: an unlinked node is owned by its garbage alone.
unsafe impl Send for Garbage {}

impl Drop for Garbage {
    fn drop(&mut self) {
        // SAFETY: made by `Box::into_raw` as the type that its height says, unlinked, and its epoch
        // has passed, so that no reader refers to it; its children were taken out before.
        unsafe {
            if self.height == 0 {
                drop(Box::from_raw(self.node.cast::<Leaf>()));
            } else {
                drop(Box::from_raw(self.node.cast::<Inner>()));
            }
        }
    }
}

/// Result of [`Index::lookup`].
pub(crate) enum Found<'g> {
    /// The leaf that holds the page's slot.
    Leaf(&'g Leaf),
    /// A hole, at least up to this page.
    Hole(u64),
    /// Nothing known, at least up to this page.
    Empty(u64),
}

/// The new content of a range for [`Index::replace`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Replacement {
    /// Empties all slots.
    Empty,
    /// Makes all pages a hole.
    Hole,
    /// Makes empty slots a hole, and leaves the others.
    HoleWhereEmpty,
}

/// The radix tree.
pub(crate) struct Index {
    /// Tagged with the tree's height.
    root: AtomicPtr<()>,
    /// Memory of all nodes; written under the mapping's lock.
    bytes: AtomicUsize,
    /// The root is the tree's only child of height [`Index::height`].
    _owns: PhantomData<Box<Leaf>>,
}

impl Default for Index {
    fn default() -> Self {
        Self {
            root: AtomicPtr::new(ptr::null_mut()),
            bytes: AtomicUsize::new(0),
            _owns: PhantomData,
        }
    }
}

impl Index {
    #[inline]
    fn untag(root: *mut ()) -> (*mut (), u32) {
        (root.map_addr(|a| a & !HEIGHT_MASK), (root.addr() & HEIGHT_MASK) as u32)
    }

    fn set_root(&self, node: *mut (), height: u32) {
        self.root.store(node.map_addr(|a| a | height as usize), Ordering::Release);
    }

    /// Finds the leaf of `page`, or the end of the hole or of the empty range around it.
    #[inline]
    pub(crate) fn lookup<'g>(&self, page: u64, _guard: &'g Guard) -> Found<'g> {
        // SAFETY: the guard keeps the leaf.
        unsafe { self.find(page) }
    }

    /// [`lookup`](Self::lookup) without a guard.
    ///
    /// # Safety
    /// No node is freed while the leaf is used: the caller is in an epoch, or holds the mapping's
    /// lock.
    #[inline]
    unsafe fn find<'a>(&self, page: u64) -> Found<'a> {
        let (mut node, mut height) = Self::untag(self.root.load(Ordering::Acquire));
        if page >= span(height) {
            return Found::Empty(u64::MAX);
        }
        loop {
            if node.is_null() {
                return Found::Empty((page | (span(height) - 1)) + 1);
            }
            if node == hole_sentinel() {
                return Found::Hole((page | (span(height) - 1)) + 1);
            }
            if height == 0 {
                // SAFETY: a non-null child at height 0 other than the mark is a leaf, and the
                // caller keeps it from being freed.
                return Found::Leaf(unsafe { &*node.cast::<Leaf>() });
            }
            height -= 1;
            // SAFETY: as above, and above height 0 it is an inner node.
            let inner = unsafe { &*node.cast::<Inner>() };
            node = inner.children[child_of(page, height)].load(Ordering::Acquire);
        }
    }

    /// The slot of `page`.
    #[inline]
    pub(crate) fn get(&self, page: u64, guard: &Guard) -> Slot {
        match self.lookup(page, guard) {
            Found::Leaf(leaf) => leaf.slot(page as usize & (LEAF_SLOTS - 1)),
            Found::Hole(_) => Slot::Hole,
            Found::Empty(_) => Slot::Empty,
        }
    }

    /// The end of the run of holes that begins at `page` (`page` itself if it is none), up to
    /// `end`.
    pub(crate) fn hole_end(&self, mut page: u64, end: u64, guard: &Guard) -> u64 {
        while page < end {
            match self.lookup(page, guard) {
                Found::Hole(until) => page = until,
                Found::Empty(_) => break,
                Found::Leaf(leaf) => {
                    let leaf_end = leaf.end(page);
                    page = leaf.skip(page, |slot| slot == Slot::Hole);
                    if page < leaf_end {
                        break;
                    }
                }
            }
        }
        page.min(end)
    }

    /// Calls `visit` with every page of `range` that has a frame or a fill in flight, in order.
    pub(crate) fn visit(&self, range: Range<u64>, guard: &Guard, visit: &mut dyn FnMut(u64, Slot)) {
        let mut page = range.start;
        while page < range.end {
            match self.lookup(page, guard) {
                Found::Hole(until) | Found::Empty(until) => page = until,
                Found::Leaf(leaf) => {
                    let leaf_end = leaf.end(page);
                    for p in page..leaf_end.min(range.end) {
                        let slot = leaf.slot(p as usize & (LEAF_SLOTS - 1));
                        if matches!(slot, Slot::Frame(_) | Slot::InFlight(_)) {
                            visit(p, slot);
                        }
                    }
                    page = leaf_end;
                }
            }
        }
    }

    /// Stores `slot` at `page` and returns the old one. The mapping's lock is held.
    pub(crate) fn set(&self, page: u64, slot: Slot, garbage: &mut Vec<Garbage>) -> Slot {
        // Most changes neither create nor empty a leaf, so the nodes above it stay the same.
        // SAFETY: no other thread unlinks nodes meanwhile.
        if let Found::Leaf(leaf) = unsafe { self.find(page) }
            && (slot != Slot::Empty || leaf.used.load(Ordering::Relaxed) > 1)
        {
            return leaf.put(page as usize & (LEAF_SLOTS - 1), slot);
        }
        if slot != Slot::Empty {
            self.grow(page);
        }
        let (node, height) = Self::untag(self.root.load(Ordering::Relaxed));
        if page >= span(height) {
            return Slot::Empty;
        }
        let root = AtomicPtr::new(node);
        let (mut made, before) = (0, garbage.len());
        let old = set_below(&root, height, page, slot, garbage, &mut made);
        self.account(made, &garbage[before..]);
        let new = root.into_inner_ptr();
        if new != node {
            self.set_root(new, height);
        }
        old
    }

    /// Replaces a whole range, and calls `removed` for every frame or fill taken out. The mapping's
    /// lock is held.
    pub(crate) fn replace(
        &self,
        range: Range<u64>,
        with: Replacement,
        removed: &mut dyn FnMut(u64, Slot),
        garbage: &mut Vec<Garbage>,
    ) {
        if range.is_empty() {
            return;
        }
        if with != Replacement::Empty {
            self.grow(range.end - 1);
        }
        let (node, height) = Self::untag(self.root.load(Ordering::Relaxed));
        let range = range.start..range.end.min(span(height));
        if range.is_empty() {
            return;
        }
        let root = AtomicPtr::new(node);
        let (mut made, before) = (0, garbage.len());
        replace_below(&root, height, 0, range, with, removed, garbage, &mut made);
        self.account(made, &garbage[before..]);
        let new = root.into_inner_ptr();
        if new != node {
            self.set_root(new, height);
        }
    }

    /// Memory of all nodes, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Counts nodes created and nodes unlinked.
    fn account(&self, made: usize, gone: &[Garbage]) {
        let gone: usize = gone.iter().map(|garbage| node_bytes(garbage.height)).sum();
        self.bytes.store(self.bytes() + made - gone, Ordering::Relaxed);
    }

    /// Makes the tree high enough for `page`.
    fn grow(&self, page: u64) {
        let (mut node, mut height) = Self::untag(self.root.load(Ordering::Relaxed));
        while page >= span(height) {
            if !node.is_null() {
                let inner = Inner::new(ptr::null_mut());
                inner.children[0].store(node, Ordering::Relaxed);
                inner.used.store(1, Ordering::Relaxed);
                node = Box::into_raw(Box::new(inner)).cast();
                self.account(size_of::<Inner>(), &[]);
            }
            height += 1;
            self.set_root(node, height);
        }
    }
}

/// The index of the child, in a node above `height`, that leads to `page`.
#[inline]
fn child_of(page: u64, height: u32) -> usize {
    (page >> (LEAF_BITS + INNER_BITS * height)) as usize & (INNER_SLOTS - 1)
}

/// The pointer's value, for a local stand-in of the root.
trait IntoInnerPtr {
    fn into_inner_ptr(self) -> *mut ();
}

impl IntoInnerPtr for AtomicPtr<()> {
    fn into_inner_ptr(self) -> *mut () {
        self.load(Ordering::Relaxed)
    }
}

/// Makes `child` a node if it is null or the hole mark. Without `create`, returns `None` for null.
fn node_at(child: &AtomicPtr<()>, height: u32, create: bool, made: &mut usize) -> Option<*mut ()> {
    let old = child.load(Ordering::Relaxed);
    let hole = old == hole_sentinel();
    if !old.is_null() && !hole {
        return Some(old);
    }
    if !create {
        return None;
    }
    let new: *mut () = if height == 0 {
        let leaf = Leaf::new(if hole { Slot::Hole } else { Slot::Empty });
        Box::into_raw(Box::new(leaf)).cast()
    } else {
        Box::into_raw(Box::new(Inner::new(if hole { old } else { ptr::null_mut() }))).cast()
    };
    *made += node_bytes(height);
    child.store(new, Ordering::Release);
    Some(new)
}

/// Memory of a node.
const fn node_bytes(height: u32) -> usize {
    if height == 0 { size_of::<Leaf>() } else { size_of::<Inner>() }
}

fn set_below(
    child: &AtomicPtr<()>,
    height: u32,
    page: u64,
    slot: Slot,
    garbage: &mut Vec<Garbage>,
    made: &mut usize,
) -> Slot {
    let before = child.load(Ordering::Relaxed);
    if before == hole_sentinel() && slot == Slot::Hole {
        return Slot::Hole;
    }
    let create = slot != Slot::Empty || before == hole_sentinel();
    let Some(node) = node_at(child, height, create, made) else { return Slot::Empty };
    let (old, used) = if height == 0 {
        // SAFETY: a node at height 0 is a leaf, alive because it is linked and we are the writer.
        let leaf = unsafe { &*node.cast::<Leaf>() };
        let old = leaf.put(page as usize & (LEAF_SLOTS - 1), slot);
        (old, leaf.used.load(Ordering::Relaxed))
    } else {
        // SAFETY: above height 0 it is an inner node, alive for the same reason.
        let inner = unsafe { &*node.cast::<Inner>() };
        let below = &inner.children[child_of(page, height - 1)];
        let was = below.load(Ordering::Relaxed);
        let old = set_below(below, height - 1, page, slot, garbage, made);
        inner.recount(was, below.load(Ordering::Relaxed));
        (old, inner.used.load(Ordering::Relaxed))
    };
    if used == 0 {
        child.store(ptr::null_mut(), Ordering::Release);
        garbage.push(Garbage { node, height });
    }
    old
}

/// Replaces `range` within the child whose first page is `base`.
#[expect(clippy::too_many_arguments, reason = "where, what, and three ways in which it is told")]
fn replace_below(
    child: &AtomicPtr<()>,
    height: u32,
    base: u64,
    range: Range<u64>,
    with: Replacement,
    removed: &mut dyn FnMut(u64, Slot),
    garbage: &mut Vec<Garbage>,
    made: &mut usize,
) {
    let before = child.load(Ordering::Relaxed);
    let empty = before.is_null();
    let hole = before == hole_sentinel();
    // Already in the wanted state.
    if (hole && with != Replacement::Empty) || (empty && with == Replacement::Empty) {
        return;
    }
    let whole = range.start <= base && range.end >= base + span(height);
    if whole && (empty || hole || with != Replacement::HoleWhereEmpty) {
        let new = if with == Replacement::Empty { ptr::null_mut() } else { hole_sentinel() };
        // Unlinked first, so that a reader that finds a child below is in an epoch that began
        // before.
        child.store(new, Ordering::Release);
        if !empty && !hole {
            take_down(before, height, base, removed, garbage);
        }
        return;
    }
    let Some(node) = node_at(child, height, true, made) else { return };
    let used = if height == 0 {
        // SAFETY: a node at height 0 is a leaf, alive because it is linked and we are the writer.
        let leaf = unsafe { &*node.cast::<Leaf>() };
        for page in range.start.max(base)..range.end.min(base + span(0)) {
            let index = (page - base) as usize;
            let old = leaf.slot(index);
            if with == Replacement::HoleWhereEmpty && old != Slot::Empty {
                continue;
            }
            leaf.put(index, if with == Replacement::Empty { Slot::Empty } else { Slot::Hole });
            if matches!(old, Slot::Frame(_) | Slot::InFlight(_)) {
                removed(page, old);
            }
        }
        leaf.used.load(Ordering::Relaxed)
    } else {
        // SAFETY: above height 0 it is an inner node, alive for the same reason.
        let inner = unsafe { &*node.cast::<Inner>() };
        let step = span(height - 1);
        let first = range.start.saturating_sub(base) / step;
        let last = (range.end - 1 - base) / step;
        for i in first..=last.min(INNER_SLOTS as u64 - 1) {
            let below = &inner.children[i as usize];
            let was = below.load(Ordering::Relaxed);
            let at = base + i * step;
            replace_below(below, height - 1, at, range.clone(), with, removed, garbage, made);
            inner.recount(was, below.load(Ordering::Relaxed));
        }
        inner.used.load(Ordering::Relaxed)
    };
    if used == 0 {
        child.store(ptr::null_mut(), Ordering::Release);
        garbage.push(Garbage { node, height });
    }
}

/// Passes an unlinked subtree's contents to `removed` and its nodes to `garbage`.
fn take_down(
    node: *mut (),
    height: u32,
    base: u64,
    removed: &mut dyn FnMut(u64, Slot),
    garbage: &mut Vec<Garbage>,
) {
    if height == 0 {
        // SAFETY: the caller unlinked this leaf; it is freed only as garbage.
        let leaf = unsafe { &*node.cast::<Leaf>() };
        for index in 0..LEAF_SLOTS {
            let slot = leaf.slot(index);
            if matches!(slot, Slot::Frame(_) | Slot::InFlight(_)) {
                removed(base + index as u64, slot);
            }
        }
    } else {
        // SAFETY: the caller unlinked this inner node; it is freed only as garbage.
        let inner = unsafe { &*node.cast::<Inner>() };
        for (i, child) in inner.children.iter().enumerate() {
            let below = child.load(Ordering::Relaxed);
            if !below.is_null() && below != hole_sentinel() {
                let at = base + i as u64 * span(height - 1);
                take_down(below, height - 1, at, removed, garbage);
            }
        }
    }
    garbage.push(Garbage { node, height });
}

impl Drop for Index {
    fn drop(&mut self) {
        let (node, height) = Self::untag(self.root.load(Ordering::Relaxed));
        if !node.is_null() && node != hole_sentinel() {
            let mut garbage = Vec::new();
            take_down(node, height, 0, &mut |_, _| {}, &mut garbage);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
