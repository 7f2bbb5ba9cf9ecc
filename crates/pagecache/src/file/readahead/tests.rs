//! Traces of reads, and the plans that they cause.

use super::stream::STRIDES;
use super::*;
use crate::mapping::fill::PIECE;
use proptest::prelude::*;
use std::collections::BTreeSet;

const WINDOW: u64 = 256;
/// Pages of a large file.
const LARGE: u64 = 1 << 28;

/// A cache without a memory limit, which shows what a store would be asked for.
struct Model {
    readahead: Readahead,
    bounds: Bounds,
    resident: BTreeSet<u64>,
    marks: BTreeSet<u64>,
    /// Pages that were read ahead.
    ahead: BTreeSet<u64>,
    /// Reads that had to wait.
    misses: u32,
    longest: u64,
}

impl Model {
    fn new(end: u64) -> Self {
        Self {
            readahead: Readahead::default(),
            bounds: Bounds { window: WINDOW, total: 16 * WINDOW, end },
            resident: BTreeSet::new(),
            marks: BTreeSet::new(),
            ahead: BTreeSet::new(),
            misses: 0,
            longest: 0,
        }
    }

    fn read(&mut self, start: u64, len: u64) {
        let asked = start..start + len;
        let mut missed = false;
        for page in start / PAGE..asked.end.div_ceil(PAGE).min(self.bounds.end) {
            let plan = if self.marks.remove(&page) {
                let missing = (page + 1..).find(|p| !self.resident.contains(p)).unwrap();
                self.readahead.marked(page, missing, self.bounds)
            } else if self.resident.insert(page) && !missed {
                missed = true;
                self.misses += 1;
                self.readahead.miss(&asked, page, self.bounds)
            } else {
                continue;
            };
            let planned: u64 = plan.iter().map(|pages| pages.end - pages.start).sum();
            assert!(planned <= self.bounds.window.max(STRIDES), "{planned} pages in one plan");
            self.longest = self.longest.max(planned);
            for pages in plan {
                assert!(pages.start < pages.end && pages.end <= self.bounds.end);
                let pieces = pages.clone().step_by(PIECE as usize);
                self.marks.extend(pieces.filter(|first| !self.resident.contains(first)));
                self.ahead.extend(pages.clone().filter(|p| self.resident.insert(*p)));
            }
        }
        assert!(self.readahead.streams.len() <= STREAMS);
        assert!(self.readahead.recent.len() <= RECENT);
    }

    fn drop_pages(&mut self, pages: Range<u64>) {
        for page in pages {
            self.resident.remove(&page);
            self.marks.remove(&page);
        }
    }

    /// Pages read ahead that `wanted` does not include.
    fn waste(&self, wanted: impl Fn(u64) -> bool) -> usize {
        self.ahead.iter().filter(|&&page| !wanted(page)).count()
    }
}

#[test]
fn a_sequential_stream_waits_a_few_times_and_never_again() {
    for len in [512, 1000, 4096, 5000, 65536, 1 << 20] {
        let mut model = Model::new(LARGE);
        for at in (0..64u64 << 20).step_by(len) {
            model.read(at, len as u64);
        }
        assert!(model.misses <= 2, "{} misses with reads of {len} bytes", model.misses);
        assert_eq!(model.longest, WINDOW);
    }
}

#[test]
fn a_large_window_slides_with_its_reader_by_pieces() {
    let mut model = Model::new(LARGE);
    model.bounds = Bounds { window: 4 * PIECE, ..model.bounds };
    for page in 0..64 * PIECE {
        model.longest = 0;
        model.read(page * PAGE, PAGE);
        let left = model.resident.len() as u64 - page - 1;
        assert!(left < 5 * PIECE, "{left} pages read ahead");
        if page > 16 * PIECE {
            assert!(left >= 4 * PIECE - 1, "{left} pages left");
            assert!(model.longest <= PIECE, "{} pages at once", model.longest);
        }
    }
}

#[test]
fn a_stream_in_the_middle_of_the_file_begins_with_its_second_read() {
    let mut model = Model::new(LARGE);
    model.read(5000 * PAGE, 100);
    assert!(model.ahead.is_empty());
    model.read(5000 * PAGE + 100, 100);
    model.read(5001 * PAGE, 100);
    assert_eq!(model.ahead.len(), FIRST as usize);
}

#[test]
fn read_ahead_stops_at_the_end_of_the_file() {
    let mut model = Model::new(100);
    for page in 0..100 {
        model.read(page * PAGE, PAGE);
    }
    assert_eq!(model.resident.len(), 100);
    // The file has grown: the stream continues.
    model.bounds.end = 200;
    for page in 100..200 {
        model.read(page * PAGE, PAGE);
    }
    assert_eq!((model.resident.len(), model.misses), (200, 2));
}

#[test]
fn a_strided_stream_gets_its_next_reads_and_nothing_between() {
    for (len, stride) in
        [(65536, 1 << 20), (4096, 65536), (1000, 100_000), (65536, -(1 << 20)), (300_000, 1 << 22)]
    {
        let mut model = Model::new(LARGE);
        let start = |i: i64| ((1i64 << 36) + i * stride) as u64;
        for i in 0..500 {
            model.read(start(i), len);
        }
        assert!(model.misses <= 5, "{} misses with a stride of {stride}", model.misses);
        let wanted: BTreeSet<u64> =
            (0..1000).flat_map(|i| start(i) / PAGE..(start(i) + len).div_ceil(PAGE)).collect();
        assert_eq!(model.waste(|page| wanted.contains(&page)), 0);
        assert!(model.longest >= 64.min(WINDOW / len.div_ceil(PAGE)));
    }
}

#[test]
fn the_largest_offsets_do_not_overflow() {
    let end = i64::MAX as u64 / PAGE;
    for stride in [1u64 << 60, 1 << 61, 1 << 62, (1 << 61) - 1] {
        for from_end in [false, true] {
            let mut model = Model::new(end);
            for i in 0..8 {
                let at = stride.wrapping_mul(i) % (end * PAGE);
                model.read(if from_end { end * PAGE - 1 - at } else { at }, 1);
            }
            assert!(model.ahead.len() <= 64);
        }
    }
}

#[test]
fn reading_backwards_is_a_stride_too() {
    let mut model = Model::new(LARGE);
    for at in (0..4096u64).rev().map(|page| page * PAGE) {
        model.read(at, 4096);
    }
    assert!(model.misses <= 5, "{} misses", model.misses);
    assert_eq!(model.resident.len(), 4096);
}

#[test]
fn random_reads_cause_no_read_ahead() {
    let mut model = Model::new(LARGE);
    let mut random = 1u64;
    for _ in 0..10_000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        model.read((random >> 32) % (LARGE - 300) * PAGE, 1 << (12 + random % 8));
    }
    assert_eq!(model.ahead.len(), 0);
}

#[test]
fn a_window_halves_when_its_pages_are_dropped_unread_and_grows_again() {
    let mut model = Model::new(LARGE);
    let mut at = 0;
    let mut run = |model: &mut Model, reads: u64| {
        for _ in 0..reads {
            model.read(at * PAGE, PAGE);
            at += 1;
        }
        at
    };
    let window = |model: &Model| model.readahead.streams[0].window;
    let next = run(&mut model, 3000);
    assert_eq!(window(&model), WINDOW);
    for halved in [WINDOW / 2, WINDOW / 4, WINDOW / 8] {
        let page = model.resident.range(next..).next().copied().unwrap_or(next);
        model.drop_pages(page..LARGE.min(page + 10 * WINDOW));
        run(&mut model, 1);
        assert_eq!(window(&model), halved);
    }
    run(&mut model, 3000);
    assert_eq!(window(&model), WINDOW);
}

#[test]
fn a_window_halves_when_there_is_no_memory_for_it() {
    let mut readahead = Readahead::default();
    let bounds = Bounds { window: WINDOW, total: 16 * WINDOW, end: LARGE };
    assert_eq!(readahead.miss(&(0..65536), 0, bounds)[..], [16..80]);
    readahead.fell_short(20);
    assert_eq!(readahead.marked(16, 20, bounds)[..], [20..56]);
    assert_eq!(readahead.streams[0].window, 36);
    readahead.fell_short(20);
    // The pages are missing: the next miss asks for them again and does not skip them.
    assert_eq!(readahead.miss(&(20 * PAGE..21 * PAGE), 20, bounds)[..], [21..41]);
}

#[test]
fn a_jumping_reader_begins_with_smaller_windows() {
    let mut model = Model::new(LARGE);
    let mut wasted = Vec::new();
    for jump in 1..40 {
        let before = model.ahead.len();
        for page in 0..8 {
            model.read((jump * 10_000 + page) * PAGE, PAGE);
        }
        wasted.push(model.ahead.len() - before - 6);
    }
    assert!(wasted[0] >= 16 && wasted[38] * 2 <= wasted[0], "{wasted:?}");
    for page in 0..2000 {
        model.read((1_000_000 + page) * PAGE, PAGE);
    }
    assert_eq!(model.readahead.caution, 0);
}

#[test]
fn streams_share_the_read_ahead_budget() {
    let mut model = Model::new(LARGE);
    model.bounds.total = 2 * WINDOW;
    for page in 0..2000 {
        for stream in 0..4 {
            model.read(((stream << 20) + page) * PAGE, PAGE);
        }
    }
    assert!(model.readahead.streams.iter().all(|s| s.window == WINDOW / 4));
}

#[test]
fn a_stream_continues_the_read_ahead_of_another_open_file() {
    let mut readahead = Readahead::default();
    let bounds = Bounds { window: WINDOW, total: 16 * WINDOW, end: LARGE };
    assert_eq!(readahead.marked(100, 120, bounds)[..], [120..160]);
    // A window is in flight already: nothing to add.
    assert!(readahead.marked(101, 160, bounds).is_empty());
}

#[test]
fn advice_sets_the_window() {
    let bounds = Bounds { window: WINDOW, total: 16 * WINDOW, end: LARGE };
    let mut readahead = Readahead::default();
    readahead.advise(Advice::Sequential);
    let page = 777;
    let asked = page * PAGE..(page + 1) * PAGE;
    assert_eq!(readahead.miss(&asked, page, bounds)[..], [page + 1..page + 1 + WINDOW]);
    readahead.advise(Advice::Random);
    for page in 0..50 {
        assert!(readahead.miss(&(page * PAGE..(page + 1) * PAGE), page, bounds).is_empty());
        assert!(readahead.marked(page, page + 1, bounds).is_empty());
    }
    readahead.advise(Advice::Normal);
    assert!(readahead.miss(&asked, page, bounds).is_empty());
    let next = (page + 1) * PAGE..(page + 2) * PAGE;
    assert!(!readahead.miss(&next, page + 1, bounds).is_empty());
}

proptest! {
    /// Sequential readers of any lengths, interleaved in any order: each waits only a few times at
    /// its start, and unused read-ahead is bounded.
    #[test]
    fn interleaved_streams_are_distinguished(
        lens in prop::collection::vec(100u64..200_000, 1..=STREAMS),
        turns in prop::collection::vec(0..STREAMS, 500..1000),
    ) {
        let mut model = Model::new(LARGE);
        // At unequal distances, so that they form no stride.
        let mut at: Vec<u64> = (0..lens.len()).map(|i| 1 << (31 + i)).collect();
        for turn in turns {
            let stream = turn % lens.len();
            model.read(at[stream], lens[stream]);
            at[stream] += lens[stream];
        }
        prop_assert!(model.misses as usize <= 2 * lens.len(), "{} misses", model.misses);
        let wanted = |page: u64| page * PAGE < at[(page * PAGE).ilog2() as usize - 31];
        let waste = model.waste(wanted) as u64;
        prop_assert!(waste <= 2 * WINDOW * lens.len() as u64, "{waste} pages for nothing");
    }

    /// For any sequence of reads, plans stay within the file and the window, follow the request or
    /// its stride, and memory is bounded: see the assertions of `Model::read`.
    #[test]
    fn any_trace_keeps_the_bounds(
        reads in prop::collection::vec((0u64..3000, 0u64..4096, 1u64..600_000), 1..300),
        drops in prop::collection::vec((0u64..3000, 1u64..500), 1..50),
    ) {
        let mut model = Model::new(3000);
        for (i, (page, within, len)) in reads.into_iter().enumerate() {
            model.read(page * PAGE + within, len);
            let (from, count) = drops[i % drops.len()];
            model.drop_pages(from..from + count);
            if i % 7 == 0 {
                model.readahead.fell_short(from);
            }
        }
    }
}
