//! Tests of the arena: runs, references, the limit, and memory ahead of its use.

use super::*;

#[test]
fn frames_are_allocated_in_runs_and_returned() {
    let arena = Arc::new(Arena::new(200, 200).unwrap());
    let mut a = arena.take(150, 1).unwrap();
    assert_eq!(a.runs().collect::<Vec<_>>(), [(FrameNo(0), 150)]);
    assert!(arena.take(51, 51).is_none());
    let b = arena.take(300, 1).unwrap();
    assert_eq!(b.len(), 50);
    assert!(arena.take(1, 1).is_none());
    a.write(3, 4090, b"abcdef");
    let frame = a.publish(3, flag::DIRTY, PAGE_SIZE);
    drop(a);
    drop(b);
    assert_eq!(arena.free_frames(), 199);
    // SAFETY: published, referenced, and its mark is the whole page.
    assert_eq!(unsafe { arena.bytes(frame, 4090, 6) }, b"abcdef");
    arena.pin(frame);
    assert_eq!(arena.unpin([frame].into_iter()), 0);
    assert_eq!(arena.unpin([frame].into_iter()), 1);
    assert_eq!(arena.free_frames(), 200);
}

#[test]
fn each_frame_of_a_lent_run_is_freed_with_its_own_last_reference() {
    // Runs that begin and end in either half of a word, and runs as short as possible.
    let short = [(7, 1), (8, 1), (7, 2), (7, 0), (8, 0)];
    for (first, count) in [(5, 40), (4, 40), (5, 39), (4, 39)].into_iter().chain(short) {
        let arena = Arc::new(Arena::new(101, 101).unwrap());
        let mut frames = arena.take(51, 51).unwrap();
        let published: Vec<_> = (0..51).map(|i| frames.publish(i, 0, PAGE_SIZE)).collect();
        assert_eq!(published, (0..51).map(FrameNo).collect::<Vec<_>>());
        let lent = first..first + count;
        arena.pin_run(FrameNo(first), count);
        arena.pin_run(FrameNo(16), 16);
        for frame in 0..51 {
            let pinned = lent.contains(&frame) || (16..32).contains(&frame);
            assert_eq!(arena.is_pinned(FrameNo(frame)), pinned, "{frame} of {first}, {count}");
        }
        let alone = (0..51).filter(|f| !lent.contains(f) && !(16..32).contains(f)).count();
        assert_eq!(arena.unpin(published.into_iter()), alone);
        let both = lent.clone().filter(|f| (16..32).contains(f)).count();
        let run = (FrameNo(first), count);
        assert_eq!(arena.unpin_runs([run].into_iter()), count as usize - both);
        assert_eq!(arena.unpin_runs([(FrameNo(16), 16)].into_iter()), 16);
        assert_eq!(arena.free_frames(), 101);
    }
}
#[test]
fn a_lower_limit_holds_until_frames_are_returned_and_a_higher_one_at_once() {
    let arena = Arc::new(Arena::new(10, 11).unwrap());
    let mut all = arena.take(10, 10).unwrap();
    let frames: Vec<_> = (0..10).map(|index| all.publish(index, 0, PAGE_SIZE)).collect();
    assert!(arena.take(1, 1).is_none(), "none is free");
    arena.set_limit(4);
    assert_eq!((arena.frames(), arena.used_frames(), arena.free_frames()), (4, 10, 0));
    assert_eq!(arena.release_above(), frames[4..]);
    assert_eq!(arena.release_above(), frames[4..], "still used");
    assert_eq!(arena.unpin(frames[4..].iter().copied()), 6);
    assert!(arena.take(1, 1).is_none(), "as many are used as may be");
    assert!(arena.release_above().is_empty());
    assert_eq!(arena.unpin([frames[3]].into_iter()), 1);
    let one = arena.take(5, 1).unwrap();
    assert_eq!(one.runs().collect::<Vec<_>>(), [(frames[3], 1)]);
    drop(one);
    for (limit, frames) in [(0, 1), (100, 11), (11, 11)] {
        arena.set_limit(limit);
        assert_eq!(arena.frames(), frames);
    }
    assert!(arena.take(9, 9).is_none(), "three are used");
    let mut rest = arena.take(9, 8).unwrap();
    assert_eq!(rest.len(), 8);
    rest.truncate(8);
    assert_eq!(arena.free_frames(), 0);
    let returns = arena.returns();
    rest.truncate(7);
    assert_eq!((rest.len(), arena.free_frames()), (7, 1));
    assert_ne!(arena.returns(), returns, "operations make progress");
    let returns = arena.returns();
    rest.truncate(7);
    assert_eq!(arena.returns(), returns, "nothing was returned");
}

#[test]
fn many_frames_are_freed_in_batches_and_all_counted() {
    for count in [FREE_BATCH - 1, FREE_BATCH, 2 * FREE_BATCH + 3] {
        let arena = Arc::new(Arena::new(count as u32, count as u32).unwrap());
        let mut frames = arena.take(count, count).unwrap();
        let published: Vec<_> = (0..count).map(|i| frames.publish(i, 0, PAGE_SIZE)).collect();
        arena.pin(published[1]);
        assert_eq!(arena.unpin(published.iter().copied()), count - 1);
        assert_eq!(arena.free_frames() as usize, count - 1);
        assert_eq!(arena.unpin([published[1]].into_iter()), 1);
    }
}

#[test]
fn a_free_frame_has_no_flags_and_a_published_one_has_its_own_mark() {
    let arena = Arc::new(Arena::new(1, 1).unwrap());
    for (flags, mark) in [(flag::DIRTY | flag::UNCACHED, PAGE_SIZE), (flag::READAHEAD, 7)] {
        let mut frames = arena.take(1, 1).unwrap();
        let frame = frames.publish(0, flags, mark);
        assert_eq!((arena.flags(frame), arena.meta(frame).mark()), (flags, mark));
        assert_eq!(arena.unpin([frame].into_iter()), 1);
        assert_eq!(arena.flags(frame), 0);
    }
}

#[test]
fn zeros_are_written_up_to_the_end_of_their_range() {
    let arena = Arc::new(Arena::new(2, 2).unwrap());
    let mut frames = arena.take(2, 2).unwrap();
    for index in 0..2 {
        frames.write(index, 0, &[9; PAGE_SIZE]);
    }
    frames.zero(0, 100, PAGE_SIZE);
    frames.zero(1, 0, 100);
    let mut expected = [[9; PAGE_SIZE]; 2];
    expected[0][100..].fill(0);
    expected[1][..100].fill(0);
    for (index, expected) in expected.iter().enumerate() {
        let frame = frames.publish(index, 0, PAGE_SIZE);
        // SAFETY: published, referenced, and its mark is the whole page.
        assert!(unsafe { arena.bytes(frame, 0, PAGE_SIZE) } == expected, "frame {index}");
        arena.unpin([frame].into_iter());
    }
}

/// Which of these frames have memory.
#[cfg(not(miri))]
fn with_memory(arena: &Arena, frames: std::ops::Range<u32>) -> Vec<bool> {
    let mut pages = vec![0u8; frames.len()];
    let at = arena.ptr(FrameNo(frames.start)).cast();
    // SAFETY: pages of the arena's mapping, and a byte for each.
    let looked = unsafe { libc::mincore(at, pages.len() * PAGE_SIZE, pages.as_mut_ptr()) };
    assert_eq!(looked, 0, "{}", std::io::Error::last_os_error());
    pages.into_iter().map(|page| page & 1 == 1).collect()
}

#[test]
#[cfg(not(miri))]
fn frames_have_memory_before_their_first_use_and_after_it_was_released() {
    use crate::memory::frame_bitmap::COMMIT;
    const FRAMES: u32 = 16 * COMMIT;
    let arena = Arc::new(Arena::new(FRAMES, FRAMES).unwrap());
    let commit = || (0..).take_while(|_| arena.commit_ahead()).count();
    let none = |frames| !with_memory(&arena, frames).contains(&true);
    let all = |frames| !with_memory(&arena, frames).contains(&false);
    assert_eq!((arena.is_behind(), commit()), (false, 0), "an idle cache");
    let mut used = arena.take(4 * COMMIT as usize, 1).unwrap();
    assert!(arena.is_behind() && none(0..FRAMES));
    used.write(4 * COMMIT as usize - 1, 0, b"used");
    assert_eq!((commit(), arena.is_behind()), (4, false));
    assert!(all(4 * COMMIT..8 * COMMIT), "ahead");
    // A huge page may reach beyond its part.
    assert!(none(9 * COMMIT..FRAMES), "no more than was used");

    arena.set_limit(6 * COMMIT);
    assert!(arena.release_above().is_empty());
    assert_eq!((arena.is_behind(), commit()), (false, 0));
    assert!(all(4 * COMMIT..6 * COMMIT) && none(6 * COMMIT..8 * COMMIT));
    arena.set_limit(FRAMES);
    let more = arena.take(1, 1).unwrap();
    assert!(arena.is_behind());
    assert_eq!((commit(), arena.is_behind()), (3, false));
    assert!(all(6 * COMMIT..8 * COMMIT));
    assert_eq!(used.publish(4 * COMMIT as usize - 1, 0, 4), FrameNo(4 * COMMIT - 1));
    // SAFETY: published, referenced, and below its mark.
    assert_eq!(unsafe { arena.bytes(FrameNo(4 * COMMIT - 1), 0, 4) }, b"used");
    drop(more);
}

#[test]
#[cfg(not(miri))]
fn frames_above_a_lower_limit_lose_their_memory_when_they_are_returned() {
    const FRAMES: usize = 8;
    let arena = Arc::new(Arena::new(FRAMES as u32, FRAMES as u32).unwrap());
    let mut used = arena.take(FRAMES, FRAMES).unwrap();
    (0..FRAMES).for_each(|index| used.write(index, 0, b"used"));
    arena.set_limit(4);
    assert_eq!(arena.release_above().len(), 4);
    assert!(!with_memory(&arena, 0..FRAMES as u32).contains(&false));
    drop(used);
    assert_eq!(with_memory(&arena, 0..FRAMES as u32), [[true; 4], [false; 4]].concat());
}

#[test]
#[cfg(not(miri))]
fn memory_above_a_lower_limit_is_returned_once_however_long_a_frame_is_in_use() {
    const FRAMES: u32 = 1000;
    // A free frame above the limit: whether it still has memory shows whether it was looked at.
    const FREE: FrameNo = FrameNo(500);
    let arena = Arc::new(Arena::new(FRAMES, FRAMES).unwrap());
    let mut all = arena.take(FRAMES as usize, FRAMES as usize).unwrap();
    let used = all.publish(FRAMES as usize - 1, 0, PAGE_SIZE);
    drop(all);
    // SAFETY: within the arena's mapping, and nothing refers to it.
    let give_memory = || unsafe { arena.ptr(FREE).write(1) };
    let has_memory = || with_memory(&arena, FREE.0..FREE.0 + 1)[0];
    arena.set_limit(10);
    give_memory();
    assert_eq!(arena.release_above(), [used]);
    assert!(!has_memory());
    give_memory();
    assert_eq!(arena.release_above(), [used]);
    assert!(has_memory(), "all frames were looked at again");
    arena.set_limit(11);
    assert_eq!(arena.release_above(), [used]);
    assert!(!has_memory(), "there was a new limit");
    assert_eq!(arena.unpin([used].into_iter()), 1);
    assert!(arena.release_above().is_empty());
    assert!(!with_memory(&arena, 11..FRAMES).contains(&true));
    // Frames that were above the limit are used again, and returned again.
    arena.set_limit(FRAMES);
    let mut all = arena.take(FRAMES as usize, FRAMES as usize).unwrap();
    all.write(FREE.index(), 0, b"used");
    drop(all);
    arena.set_limit(10);
    assert!(arena.release_above().is_empty() && !has_memory());
}

#[test]
#[cfg(not(miri))]
fn memory_beyond_the_limit_is_less_than_a_huge_page() {
    use crate::memory::frame_bitmap::COMMIT;
    const FRAMES: u32 = 16 * COMMIT;
    let size = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size");
    let huge = size.ok().and_then(|size| size.trim().parse::<usize>().ok()).unwrap_or(2 << 20);
    let huge_frames = (huge / PAGE_SIZE) as u32;
    // Somewhere within a huge page.
    let limit = 3 * COMMIT + 5;
    let arena = Arc::new(Arena::new(limit, FRAMES).unwrap());
    // Of several files.
    let mut used: Vec<_> = (0..limit).map_while(|_| arena.take(1, 1)).collect();
    assert_eq!(used.len() as u32, limit);
    while arena.commit_ahead() {}
    used.iter_mut().for_each(|frame| frame.write(0, 0, b"used"));
    assert!(!with_memory(&arena, 0..limit).contains(&false));
    assert!(!with_memory(&arena, limit + huge_frames - 1..FRAMES).contains(&true));
}

#[test]
#[cfg(not(miri))]
fn a_system_that_commits_no_memory_ahead_is_asked_once_for_each_part() {
    use crate::memory::frame_bitmap::COMMIT;
    let arena = Arc::new(Arena::new(4 * COMMIT, 4 * COMMIT).unwrap());
    let protect = |access| {
        let at = arena.ptr(FrameNo(COMMIT)).cast();
        // SAFETY: a part of the arena's mapping that nothing refers to.
        let done = unsafe { libc::mprotect(at, COMMIT as usize * PAGE_SIZE, access) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    };
    drop(arena.take(COMMIT as usize, 1).unwrap());
    protect(libc::PROT_NONE);
    assert_eq!((0..).take_while(|_| arena.commit_ahead()).count(), 1);
    protect(libc::PROT_READ | libc::PROT_WRITE);
    assert!(!with_memory(&arena, COMMIT..2 * COMMIT).contains(&true), "refused");
    let mut frames = arena.take(2 * COMMIT as usize, 1).unwrap();
    frames.write(COMMIT as usize, 0, b"used");
    assert!(with_memory(&arena, COMMIT..COMMIT + 1)[0]);
}

#[test]
#[should_panic(expected = "at + bytes.len() <= PAGE_SIZE")]
fn bytes_that_do_not_fit_in_a_frame_are_refused() {
    let arena = Arc::new(Arena::new(2, 2).unwrap());
    arena.take(2, 2).unwrap().write(0, PAGE_SIZE - 1, b"ab");
}

#[test]
fn adjacent_frames_are_joined() {
    let frames = [3, 4, 5, 7, 9, 8].map(FrameNo);
    let joined: Vec<_> = runs(&frames).map(|(first, count)| (first.0, count)).collect();
    assert_eq!(joined, [(3, 3), (7, 1), (9, 1), (8, 1)]);
    assert_eq!(runs(&[]).count(), 0);
}
