//! The locked ranges of a file, of all owners, ordered by their start.
//!
//! 1. A range is identified by its start and its owner's number: an owner's ranges do not overlap.
//! 2. The tree is balanced as an AVL tree: the heights of the two sides of a node differ by one at most. With n ranges,
//!    it is at most 1.44 log n nodes high.
//! 3. A node knows the last end of the ranges of its subtree, whose range that is, and the last end of all other
//!    owners' ranges; the same of the exclusive ranges alone. A search for the ranges that overlap one, perhaps without
//!    those of one owner, visits only subtrees in which such a range ends after the start of that. Each result, and
//!    adding and removing a range, take time in proportion to log n in the worst case.

use crate::lock::{Lock, LockRange};
use std::cmp::Ordering;
use std::sync::Arc;

/// A locked range in the tree.
pub(crate) struct Locked<'a, O> {
    pub(crate) lock: Lock,
    pub(crate) owner: &'a O,
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
    number: u32,
    owner: Arc<O>,
    /// The [`Reach`] of the subtree's ranges, and of its exclusive ranges.
    last_ends: [u64; 2],
    other_ends: [u64; 2],
    last_owners: [u32; 2],
    /// The subtrees of the ranges before and after this one.
    sides: [Link<O>; 2],
}

/// How far some ranges reach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Reach {
    /// The last end; 0 if there are no ranges.
    last_end: u64,
    /// The number of the owner of a range with that end.
    owner: u32,
    /// The last end of the ranges of all other owners; 0 if there are none.
    other_end: u64,
}

impl Reach {
    /// The reach of two sets of ranges together.
    fn and(self, with: Self) -> Self {
        let (far, near) = if self.last_end < with.last_end { (with, self) } else { (self, with) };
        let others = if near.owner == far.owner { near.other_end } else { near.last_end };
        Self { other_end: far.other_end.max(others), ..far }
    }

    /// The last end of the ranges without those of one owner.
    fn without(self, owner: Option<u32>) -> u64 {
        if owner == Some(self.owner) { self.other_end } else { self.last_end }
    }
}

impl<O> Default for RangeTree<O> {
    fn default() -> Self {
        Self { root: None }
    }
}

impl<O> RangeTree<O> {
    /// Adds a range of the owner with a number, of whom no range in the tree overlaps it.
    pub(crate) fn insert(&mut self, owner: Arc<O>, number: u32, lock: Lock) {
        let Lock { range: LockRange { start, end }, exclusive } = lock;
        let new = Node {
            start,
            end,
            exclusive,
            height: 0,
            number,
            owner,
            last_ends: [0; 2],
            other_ends: [0; 2],
            last_owners: [0; 2],
            sides: [None, None],
        };
        self.root = Some(insert(self.root.take(), Box::new(new)));
    }

    /// Removes the range of an owner that begins at `start`.
    pub(crate) fn remove(&mut self, start: u64, number: u32) {
        self.root = remove(self.root.take(), (start, number));
    }

    /// All ranges, by their start.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Locked<'_, O>> {
        self.overlapping(LockRange::ALL, false, None)
    }

    /// The ranges that overlap one, by their start; with `exclusive`, only the exclusive ones. Without those of the
    /// owner with the number `except`.
    pub(crate) fn overlapping(
        &self,
        range: LockRange,
        exclusive: bool,
        except: Option<u32>,
    ) -> Overlapping<'_, O> {
        let mut found = Overlapping {
            ahead: Vec::new(),
            range,
            exclusive,
            except,
            #[cfg(test)]
            visited: 0,
        };
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
    except: Option<u32>,
    /// The number of nodes visited.
    #[cfg(test)]
    visited: usize,
}

impl<'a, O> Overlapping<'a, O> {
    /// Goes down to the first range of a subtree that may overlap.
    fn visit(&mut self, mut link: &'a Link<O>) {
        while let Some(node) = link {
            #[cfg(test)]
            {
                self.visited += 1;
            }
            if node.reach(self.exclusive).without(self.except) <= self.range.start {
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
            let is_of_kind = node.exclusive || !self.exclusive;
            if node.end > self.range.start && is_of_kind && Some(node.number) != self.except {
                return Some(node.locked());
            }
        }
        None
    }
}

impl<O> Node<O> {
    fn key(&self) -> (u64, u32) {
        (self.start, self.number)
    }

    fn locked(&self) -> Locked<'_, O> {
        let range = LockRange { start: self.start, end: self.end };
        let lock = Lock { range, exclusive: self.exclusive };
        Locked { lock, owner: &self.owner }
    }

    /// The reach of its subtree's ranges, or of the exclusive ones only.
    fn reach(&self, exclusive: bool) -> Reach {
        let kind = usize::from(exclusive);
        Reach {
            last_end: self.last_ends[kind],
            owner: self.last_owners[kind],
            other_end: self.other_ends[kind],
        }
    }

    /// Computes what it knows of its subtree.
    fn update(&mut self) {
        for exclusive in [false, true] {
            let is_of_kind = self.exclusive || !exclusive;
            let own = Reach {
                last_end: if is_of_kind { self.end } else { 0 },
                owner: self.number,
                other_end: 0,
            };
            let sides = self.sides.iter().flatten().map(|side| side.reach(exclusive));
            let reach = sides.fold(own, Reach::and);
            let kind = usize::from(exclusive);
            self.last_ends[kind] = reach.last_end;
            self.last_owners[kind] = reach.owner;
            self.other_ends[kind] = reach.other_end;
        }
        self.height = 1 + self.sides.iter().map(height).max().unwrap_or(0);
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

fn remove<O>(link: Link<O>, key: (u64, u32)) -> Link<O> {
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
        let keys: Vec<_> = check(&self.root).1.into_iter().map(Node::key).collect();
        assert!(keys.is_sorted_by(|a, b| a < b), "{keys:?}");
    }
}

/// The height of a subtree, and its nodes in their order.
#[cfg(test)]
fn check<O>(link: &Link<O>) -> (u8, Vec<&Node<O>>) {
    let Some(node) = link else { return (0, Vec::new()) };
    let [(left, mut nodes), (right, after)] = node.sides.each_ref().map(check);
    assert!(left.abs_diff(right) <= 1, "heights {left} and {right}");
    assert_eq!(node.height, left.max(right) + 1);
    nodes.push(node);
    nodes.extend(after);
    for exclusive in [false, true] {
        let last = |except| {
            let of_kind = nodes.iter().filter(|node| node.exclusive || !exclusive);
            of_kind
                .filter(|node| Some(node.number) != except)
                .map(|node| node.end)
                .max()
                .unwrap_or(0)
        };
        let known = node.reach(exclusive);
        assert_eq!(known.last_end, last(None));
        for owner in nodes.iter().map(|node| node.number) {
            assert_eq!(known.without(Some(owner)), last(Some(owner)), "without {owner}: {known:?}");
        }
    }
    (node.height, nodes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_does_not_visit_the_ranges_of_the_owner_that_it_leaves_out() {
        const OWN: u32 = 10_000;
        for exclusive in [false, true] {
            let mut tree = RangeTree::default();
            for at in 0..=OWN {
                let (start, number) = (u64::from(at) * 10, u32::from(at == OWN));
                let range = LockRange { start, end: start + 5 };
                tree.insert(Arc::new(number), number, Lock { range, exclusive });
            }
            // Twice the height at most: beside the path to the range, its neighbours.
            let bound = 2 * usize::from(height(&tree.root));
            let mut found = tree.overlapping(LockRange::ALL, exclusive, Some(0));
            assert_eq!(found.next().map(|locked| *locked.owner), Some(1));
            assert!(found.visited <= bound, "{} of {bound}", found.visited);
            assert!(found.next().is_none() && found.visited <= bound);
            tree.remove(u64::from(OWN) * 10, 1);
            let mut found = tree.overlapping(LockRange::ALL, exclusive, Some(0));
            assert!(found.next().is_none() && found.visited == 1);
        }
    }
}
