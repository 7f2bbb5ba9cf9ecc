//! The locked ranges of a file, of all owners, ordered by their start.
//!
//! 1. A range is identified by its start and its owner's number: an owner's ranges do not overlap.
//! 2. The tree is balanced as an AVL tree: the heights of the two sides of a node differ by one at most. With n ranges,
//!    it is at most 1.44 log n nodes high.
//! 3. A node knows the last end of all ranges of its subtree, and that of the exclusive ones. A search for the ranges
//!    that overlap one visits only subtrees with an end after the start of that. Its first result, and adding and
//!    removing a range, take time in proportion to log n in the worst case, and each further result on average a
//!    constant time.

use crate::lock::{Lock, LockRange};
use std::cmp::Ordering;
use std::sync::Arc;

/// A locked range in the tree.
pub(crate) struct Locked<'a, O> {
    pub(crate) lock: Lock,
    pub(crate) owner: &'a O,
    /// The owner's number.
    pub(crate) number: u64,
}

/// The locked ranges of a file.
#[derive(Clone, Debug)]
pub(crate) struct RangeTree<O> {
    root: Link<O>,
}

type Link<O> = Option<Box<Node<O>>>;

/// A range. The fields are not grouped in structures, which would need more memory.
#[derive(Clone, Debug)]
struct Node<O> {
    start: u64,
    end: u64,
    exclusive: bool,
    height: u8,
    number: u64,
    owner: Arc<O>,
    /// The last end of the subtree's ranges, and of its exclusive ranges; 0 if there are none.
    last_end: u64,
    last_exclusive_end: u64,
    /// The subtrees of the ranges before and after this one.
    sides: [Link<O>; 2],
}

impl<O> Default for RangeTree<O> {
    fn default() -> Self {
        Self { root: None }
    }
}

impl<O> RangeTree<O> {
    /// Adds a range of the owner with a number, of whom no range in the tree overlaps it.
    pub(crate) fn insert(&mut self, owner: Arc<O>, number: u64, lock: Lock) {
        let Lock { range: LockRange { start, end }, exclusive } = lock;
        let (height, last_end, last_exclusive_end, sides) = (0, 0, 0, [None, None]);
        let new = Node {
            start,
            end,
            exclusive,
            height,
            number,
            owner,
            last_end,
            last_exclusive_end,
            sides,
        };
        self.root = Some(insert(self.root.take(), Box::new(new)));
    }

    /// Removes the range of an owner that begins at `start`.
    pub(crate) fn remove(&mut self, start: u64, number: u64) {
        self.root = remove(self.root.take(), (start, number));
    }

    /// All ranges, by their start.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Locked<'_, O>> {
        self.overlapping(LockRange::ALL, false)
    }

    /// The ranges that overlap one, by their start; with `exclusive`, only the exclusive ones.
    pub(crate) fn overlapping(&self, range: LockRange, exclusive: bool) -> Overlapping<'_, O> {
        let mut found = Overlapping { ahead: Vec::new(), range, exclusive };
        found.visit(&self.root);
        found
    }
}

/// The ranges that overlap one.
pub(crate) struct Overlapping<'a, O> {
    /// The nodes whose left side was visited, but not they themselves: those at the end are first in order.
    ahead: Vec<&'a Node<O>>,
    range: LockRange,
    exclusive: bool,
}

impl<'a, O> Overlapping<'a, O> {
    /// Goes down to the first range of a subtree that may overlap.
    fn visit(&mut self, mut link: &'a Link<O>) {
        while let Some(node) = link {
            let last = if self.exclusive { node.last_exclusive_end } else { node.last_end };
            if last <= self.range.start {
                return;
            }
            self.ahead.push(node);
            link = &node.sides[0];
        }
    }
}

impl<'a, O> Iterator for Overlapping<'a, O> {
    type Item = Locked<'a, O>;

    fn next(&mut self) -> Option<Self::Item> {
        while let Some(node) = self.ahead.pop() {
            if node.start >= self.range.end {
                // All others are behind it.
                self.ahead.clear();
                return None;
            }
            self.visit(&node.sides[1]);
            if node.end > self.range.start && (node.exclusive || !self.exclusive) {
                return Some(node.locked());
            }
        }
        None
    }
}

impl<O> Node<O> {
    fn key(&self) -> (u64, u64) {
        (self.start, self.number)
    }

    fn locked(&self) -> Locked<'_, O> {
        let range = LockRange { start: self.start, end: self.end };
        let lock = Lock { range, exclusive: self.exclusive };
        Locked { lock, owner: &self.owner, number: self.number }
    }

    /// Computes what it knows of its subtree.
    fn update(&mut self) {
        self.last_end = self.end;
        self.last_exclusive_end = if self.exclusive { self.end } else { 0 };
        self.height = 1;
        for side in self.sides.iter().flatten() {
            self.last_end = self.last_end.max(side.last_end);
            self.last_exclusive_end = self.last_exclusive_end.max(side.last_exclusive_end);
            self.height = self.height.max(side.height + 1);
        }
    }
}

fn height<O>(link: &Link<O>) -> u8 {
    link.as_ref().map_or(0, |node| node.height)
}

fn insert<O>(link: Link<O>, new: Box<Node<O>>) -> Box<Node<O>> {
    let Some(mut node) = link else { return balanced(new) };
    let side = &mut node.sides[usize::from(new.key() > node.key())];
    *side = Some(insert(side.take(), new));
    balanced(node)
}

fn remove<O>(link: Link<O>, key: (u64, u64)) -> Link<O> {
    let mut node = link?;
    let side = match key.cmp(&node.key()) {
        Ordering::Less => &mut node.sides[0],
        Ordering::Greater => &mut node.sides[1],
        Ordering::Equal => return joined(node.sides),
    };
    *side = remove(side.take(), key);
    Some(balanced(node))
}

/// A tree of the two sides of a node.
fn joined<O>(sides: [Link<O>; 2]) -> Link<O> {
    match sides {
        [left, Some(right)] if left.is_some() => {
            let (mut first, rest) = without_first(right);
            first.sides = [left, rest];
            Some(balanced(first))
        }
        [left, right] => left.or(right),
    }
}

/// The first node of a subtree, and the rest of the subtree.
fn without_first<O>(mut node: Box<Node<O>>) -> (Box<Node<O>>, Link<O>) {
    match node.sides[0].take() {
        None => {
            let rest = node.sides[1].take();
            (node, rest)
        }
        Some(left) => {
            let (first, rest) = without_first(left);
            node.sides[0] = rest;
            (first, Some(balanced(node)))
        }
    }
}

/// Restores balance at a node one side of which has changed by one in height.
fn balanced<O>(mut node: Box<Node<O>>) -> Box<Node<O>> {
    let [left, right] = node.sides.each_ref().map(height);
    let high = match left.cmp(&right) {
        Ordering::Greater if left - right > 1 => 0,
        Ordering::Less if right - left > 1 => 1,
        _ => {
            node.update();
            return node;
        }
    };
    if let Some(child) = node.sides[high].take() {
        let is_inner = height(&child.sides[1 - high]) > height(&child.sides[high]);
        node.sides[high] = Some(if is_inner { raised(child, 1 - high) } else { child });
    }
    raised(node, high)
}

/// Puts a node's child on `side` in its place, and the node below it.
fn raised<O>(mut node: Box<Node<O>>, side: usize) -> Box<Node<O>> {
    let Some(mut child) = node.sides[side].take() else { return node };
    node.sides[side] = child.sides[1 - side].take();
    node.update();
    child.sides[1 - side] = Some(node);
    child.update();
    child
}

#[cfg(test)]
impl<O> RangeTree<O> {
    /// Checks the order, the balance, and what nodes know of their subtrees.
    ///
    /// # Panics
    /// Something is wrong.
    pub(crate) fn check(&self) {
        check(&self.root);
        let keys: Vec<_> = self.iter().map(|of| (of.lock.range.start, of.number)).collect();
        assert!(keys.is_sorted_by(|a, b| a < b), "{keys:?}");
    }
}

#[cfg(test)]
fn check<O>(link: &Link<O>) -> (u8, u64, u64) {
    let Some(node) = link else { return (0, 0, 0) };
    let [left, right] = node.sides.each_ref().map(check);
    assert!(left.0.abs_diff(right.0) <= 1, "heights {} and {}", left.0, right.0);
    let exclusive_end = if node.exclusive { node.end } else { 0 };
    let known = (
        left.0.max(right.0) + 1,
        node.end.max(left.1).max(right.1),
        exclusive_end.max(left.2).max(right.2),
    );
    assert_eq!((node.height, node.last_end, node.last_exclusive_end), known);
    known
}
