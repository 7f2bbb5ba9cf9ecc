//! Tests of the index: its boundaries, and a comparison with a map.

use super::*;
use crate::memory::epoch::Domain;
use proptest::prelude::*;
use std::collections::BTreeMap;

#[test]
fn a_two_tebibyte_hole_is_a_handful_of_nodes() {
    let index = Index::default();
    let (domain, mut garbage) = (Domain::new(), Vec::new());
    let guard = domain.enter();
    let pages = (2u64 << 40) >> 12;
    index.replace(3..pages - 3, Replacement::Hole, &mut |_, _| {}, &mut garbage);
    assert_eq!(index.get(2, &guard), Slot::Empty);
    assert_eq!(index.get(pages / 2, &guard), Slot::Hole);
    assert_eq!(index.hole_end(3, u64::MAX, &guard), pages - 3);
    index.set(pages / 2, Slot::Frame(FrameNo(7)), &mut garbage);
    assert_eq!(index.hole_end(3, u64::MAX, &guard), pages / 2);
    assert_eq!(index.hole_end(pages / 2 + 1, u64::MAX, &guard), pages - 3);
    let mut removed = Vec::new();
    index.replace(
        0..u64::MAX >> 12,
        Replacement::Empty,
        &mut |p, s| removed.push((p, s)),
        &mut garbage,
    );
    assert_eq!(removed, [(pages / 2, Slot::Frame(FrameNo(7)))]);
    assert_eq!(index.get(pages / 2, &guard), Slot::Empty);
    assert!(garbage.len() < 20, "{} nodes", garbage.len());
    assert_eq!(index.bytes(), 0);
}

#[test]
fn the_tree_is_as_high_as_its_last_page_needs() {
    let (domain, mut garbage) = (Domain::new(), Vec::new());
    let guard = domain.enter();
    let frame = |n| Slot::Frame(FrameNo(n));
    for height in 0..=4 {
        let index = Index::default();
        let (first, next) = (span(height) - 1, span(height));
        index.set(first, frame(1), &mut garbage);
        let low = index.bytes();
        assert_eq!(low, node_bytes(0) + height as usize * node_bytes(1), "{height}");
        assert!(matches!(index.lookup(next, &guard), Found::Empty(u64::MAX)));
        assert_eq!(index.set(next, Slot::Empty, &mut garbage), Slot::Empty);
        assert_eq!(index.bytes(), low, "nothing was made for an empty page");
        index.set(next, frame(2), &mut garbage);
        let slots = [first - 1, first, next, next + 1].map(|page| index.get(page, &guard));
        assert_eq!(slots, [Slot::Empty, frame(1), frame(2), Slot::Empty]);
        assert_eq!(index.bytes(), 2 * low + node_bytes(1));
        assert_eq!(index.set(next, Slot::Empty, &mut garbage), frame(2));
        assert_eq!(index.bytes(), low + node_bytes(1));
        assert_eq!(index.set(first, Slot::Empty, &mut garbage), frame(1));
        assert_eq!(index.bytes(), 0);
    }
}

#[test]
fn a_hole_as_long_as_the_tree_needs_no_node() {
    let (domain, mut garbage) = (Domain::new(), Vec::new());
    let guard = domain.enter();
    for height in 0..=4 {
        let (index, end) = (Index::default(), span(height));
        index.replace(0..end, Replacement::Hole, &mut |_, _| {}, &mut garbage);
        assert_eq!(index.bytes(), 0);
        assert_eq!(index.hole_end(0, u64::MAX, &guard), end);
        assert_eq!(index.hole_end(0, end - 1, &guard), end - 1);
        assert_eq!(index.hole_end(end, u64::MAX, &guard), end, "no hole");
        index.replace(0..end + 1, Replacement::HoleWhereEmpty, &mut |_, _| {}, &mut garbage);
        assert_eq!(index.hole_end(0, u64::MAX, &guard), end + 1);
        index.replace(0..u64::MAX, Replacement::Empty, &mut |_, _| {}, &mut garbage);
        assert_eq!((index.bytes(), index.get(0, &guard)), (0, Slot::Empty));
    }
}

#[test]
fn a_visit_ends_with_its_range_and_passes_holes_over() {
    let (index, domain, mut garbage) = (Index::default(), Domain::new(), Vec::new());
    let guard = domain.enter();
    index.replace(0..span(0), Replacement::Hole, &mut |_, _| {}, &mut garbage);
    let fill = Slot::InFlight(1);
    for page in [1, span(0) - 1, span(0), 2 * span(0), 2 * span(0) + 1] {
        index.set(page, fill, &mut garbage);
    }
    let visited = |range| {
        let mut pages = Vec::new();
        index.visit(range, &guard, &mut |page, slot| {
            assert_eq!(slot, fill);
            pages.push(page);
        });
        pages
    };
    assert_eq!(visited(0..u64::MAX), [1, 63, 64, 128, 129]);
    assert_eq!(visited(2..129), [63, 64, 128]);
    assert_eq!(visited(2..64), [63]);
}

#[test]
fn a_hole_within_a_hole_needs_no_node() {
    let (index, domain, mut garbage) = (Index::default(), Domain::new(), Vec::new());
    let guard = domain.enter();
    index.replace(0..span(1), Replacement::Hole, &mut |_, _| {}, &mut garbage);
    assert_eq!(index.set(5, Slot::Hole, &mut garbage), Slot::Hole);
    index.replace(3..70, Replacement::Hole, &mut |_, _| {}, &mut garbage);
    index.replace(3..70, Replacement::HoleWhereEmpty, &mut |_, _| {}, &mut garbage);
    assert_eq!((index.bytes(), index.get(5, &guard)), (0, Slot::Hole));
}

#[test]
fn a_leaf_with_a_frame_or_a_fill_holds_a_page() {
    let (index, domain, mut garbage) = (Index::default(), Domain::new(), Vec::new());
    let guard = domain.enter();
    index.set(1, Slot::Hole, &mut garbage);
    let Found::Leaf(leaf) = index.lookup(0, &guard) else { panic!("a hole of one page") };
    assert!(leaf.holds_no_page());
    for slot in [Slot::Frame(FrameNo(0)), Slot::InFlight(1)] {
        for page in [0, span(0) - 1] {
            index.set(page, slot, &mut garbage);
            assert!(!leaf.holds_no_page(), "{slot:?} at {page}");
            index.set(page, Slot::Empty, &mut garbage);
        }
    }
    assert!(leaf.holds_no_page());
}

/// What a look-up says of the pages after the one asked for, and what a visit passes over.
fn check_runs(index: &Index, guard: &Guard, model: &BTreeMap<u64, Slot>) {
    let mut visited = Vec::new();
    index.visit(0..u64::MAX, guard, &mut |page, slot| visited.push((page, slot)));
    let busy = |slot: &Slot| matches!(slot, Slot::Frame(_) | Slot::InFlight(_));
    let expected = model.iter().filter(|(_, slot)| busy(slot)).map(|(&page, &slot)| (page, slot));
    assert!(visited.into_iter().eq(expected));
    for &page in model.keys().step_by(if cfg!(miri) { 61 } else { 1 }) {
        let (end, all) = match index.lookup(page, guard) {
            Found::Leaf(_) => continue,
            Found::Hole(end) => (end, Slot::Hole),
            Found::Empty(end) => (end, Slot::Empty),
        };
        assert!(end > page);
        assert!(model.range(page..end).all(|(_, &slot)| slot == all), "{page} to {end}");
    }
}

#[derive(Clone, Debug)]
enum Op {
    Set(u64, u8),
    Replace(u64, u64, u8),
}

fn page() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..200, 32_700u64..32_900, (1u64 << 24) - 70..(1u64 << 24) + 70]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        (page(), 0u8..4).prop_map(|(p, k)| Op::Set(p, k)),
        (page(), page(), 0u8..3).prop_map(|(a, b, k)| Op::Replace(a.min(b), a.max(b), k)),
    ]
}

proptest! {
    #[test]
    fn behaves_like_a_map(ops in prop::collection::vec(op(), 1..if cfg!(miri) { 12 } else { 60 })) {
        let index = Index::default();
        let (domain, mut garbage) = (Domain::new(), Vec::new());
        let guard = domain.enter();
        // Every page at which a range's edge can lie, so that ranges stay cheap to model.
        let all: Vec<u64> =
            (0..300).chain(32_600..33_000).chain((1 << 24) - 150..(1 << 24) + 150).collect();
        let mut model: BTreeMap<u64, Slot> = BTreeMap::new();
        for (n, op) in ops.into_iter().enumerate() {
            match op {
                Op::Set(page, kind) => {
                    let slot = match kind {
                        0 => Slot::Empty,
                        1 => Slot::Frame(FrameNo(n as u32)),
                        2 => Slot::Hole,
                        _ => Slot::InFlight(n as u64),
                    };
                    let old = index.set(page, slot, &mut garbage);
                    let was = model.insert(page, slot).unwrap_or(Slot::Empty);
                    prop_assert_eq!(old, was);
                }
                Op::Replace(start, end, kind) => {
                    let with = [Replacement::Empty, Replacement::Hole, Replacement::HoleWhereEmpty][kind as usize];
                    let mut removed = Vec::new();
                    index.replace(
                        start..end, with, &mut |p, s| removed.push((p, s)), &mut garbage);
                    let mut expected = Vec::new();
                    for &p in all.iter().filter(|p| (start..end).contains(p)) {
                        let was = model.get(&p).copied().unwrap_or(Slot::Empty);
                        let busy = matches!(was, Slot::Frame(_) | Slot::InFlight(_));
                        if with == Replacement::HoleWhereEmpty && was != Slot::Empty {
                            continue;
                        }
                        if busy {
                            expected.push((p, was));
                        }
                        model.insert(
                            p, if with == Replacement::Empty { Slot::Empty } else { Slot::Hole });
                    }
                    prop_assert_eq!(removed, expected);
                }
            }
            // Miri is slow, and checks each access by itself.
            for &p in all.iter().step_by(if cfg!(miri) { 61 } else { 1 }) {
                prop_assert_eq!(
                    index.get(p, &guard), model.get(&p).copied().unwrap_or(Slot::Empty), "{}", p);
            }
        }
        check_runs(&index, &guard, &model);
    }
}
