//! Model checks of the lock-free parts; see the crate's front page for the commands.

/// The smallest core, under loom, which tries every order that the memory model allows: a reader
/// looks up a slot and reads the frame, while a writer publishes another frame in its place,
/// retires the first, and overwrites it once its epoch has passed. Loom reports a race if the
/// reader can still be reading it.
#[cfg(loom)]
mod core {
    use crate::mapping::index::{Index, Slot};
    use crate::memory::epoch::{Domain, Guard};
    use crate::memory::frame_no::FrameNo;
    use loom::cell::UnsafeCell;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use weir_base::sync::{Arc, thread};

    struct World {
        domain: Domain,
        other: Domain,
        index: Index,
        frames: [UnsafeCell<u64>; 2],
    }

    // SAFETY: this is what the model checks; loom watches every access.
    unsafe impl Sync for World {}
    // SAFETY: as above.
    unsafe impl Send for World {}

    impl World {
        /// A reader's work inside the epoch.
        fn read(&self, guard: &Guard) {
            let Slot::Frame(frame) = self.index.get(0, guard) else {
                panic!("the page is always there")
            };
            // SAFETY: loom checks that no thread writes it meanwhile.
            let seen = self.frames[frame.index()].with(|f| unsafe { *f });
            assert!(seen == 10 || seen == 11, "frame {frame} has {seen}");
        }
    }

    /// Runs `reader` against a writer who replaces the page's frame, and `other`.
    fn check(preemptions: usize, reader: fn(&World), other: Option<fn(&World)>) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(preemptions);
        // Over all executions, outside the model: those in which the frame was overwritten, and those in
        // which the reader kept it from that.
        let counts: std::sync::Arc<[AtomicU64; 2]> = Default::default();
        let counted = counts.clone();
        model.check(move || {
            let frames = [UnsafeCell::new(10), UnsafeCell::new(0)];
            let world = World {
                domain: Domain::new(),
                other: Domain::new(),
                index: Index::default(),
                frames,
            };
            let world = Arc::new(world);
            let mut garbage = Vec::new();
            world.index.set(0, Slot::Frame(FrameNo(0)), &mut garbage);
            let readers = world.clone();
            let reader = thread::spawn(move || reader(&readers));
            let others = world.clone();
            let other = other.map(|other| thread::spawn(move || other(&others)));
            // SAFETY: not published yet; loom checks.
            world.frames[1].with_mut(|f| unsafe { *f = 11 });
            world.index.set(0, Slot::Frame(FrameNo(1)), &mut garbage);
            let tag = world.domain.now();
            world.domain.advance();
            world.domain.advance();
            let passed = world.domain.passed(tag);
            counted[usize::from(passed)].fetch_add(1, Relaxed);
            if passed {
                // SAFETY: no reader can see it any more; loom checks.
                world.frames[0].with_mut(|f| unsafe { *f = 99 });
            }
            reader.join().unwrap();
            if let Some(other) = other {
                other.join().unwrap();
            }
        });
        let [kept, overwritten] = [0, 1].map(|n| counts[n].load(Relaxed));
        assert!(kept > 0 && overwritten > 0, "kept {kept} times, overwritten {overwritten}");
    }

    #[test]
    fn a_frame_is_not_reused_while_a_reader_may_see_it() {
        check(3, |world| world.read(&world.domain.enter()), None);
    }

    #[test]
    fn a_frame_is_not_reused_while_a_reader_that_enters_again_may_see_it() {
        let reader = |world: &World| {
            world.read(&world.domain.enter());
            world.read(&world.domain.enter());
        };
        check(4, reader, None);
    }

    #[test]
    fn a_frame_is_not_reused_while_two_threads_advance_the_epoch() {
        let advance = |world: &World| {
            world.domain.advance();
        };
        check(2, |world| world.read(&world.domain.enter()), Some(advance));
    }

    #[test]
    fn a_frame_is_not_reused_while_a_reader_from_another_domain_may_see_it() {
        let reader = |world: &World| {
            let _other = world.other.enter();
            world.read(&world.domain.enter());
        };
        check(2, reader, None);
    }

    #[test]
    fn a_frame_is_not_reused_while_a_reader_that_entered_another_domain_may_see_it() {
        let reader = |world: &World| {
            let guard = world.domain.enter();
            let _other = world.other.enter();
            world.read(&guard);
        };
        check(2, reader, None);
    }
}

/// Lent frames, under loom: one borrower returns a run while another, which has found it in the
/// slots, borrows it too, and one of its pages is replaced. Lent frames are never free.
#[cfg(loom)]
mod lent {
    use crate::memory::arena::Arena;
    use crate::memory::frame_no::FrameNo;
    use std::sync::Arc;
    use weir_base::sync::thread;

    /// Total number of frames.
    const FRAMES: u32 = 5;
    /// The run: its first frame shares its word of references with a frame that is not lent.
    const RUN: (FrameNo, u32) = (FrameNo(1), 4);

    /// Runs two borrowers of one run; the second begins when the first may be about to end.
    fn check(preemptions: usize, replaced: &'static [u32]) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(preemptions);
        model.check(move || {
            let arena = Arc::new(Arena::new(FRAMES, FRAMES).unwrap());
            let mut frames = arena.take(FRAMES as usize, FRAMES as usize).unwrap();
            for index in 0..FRAMES {
                assert_eq!(frames.publish(index as usize, 0, 4096), FrameNo(index));
            }
            drop(frames);
            arena.pin_run(RUN.0, RUN.1);
            let first = arena.clone();
            let first = thread::spawn(move || {
                first.unpin_runs([RUN].into_iter());
            });
            arena.pin_run(RUN.0, RUN.1);
            // Other frames take the place of these, and the epoch passes.
            let replaced = || replaced.iter().copied().map(FrameNo);
            arena.unpin(replaced());
            let lent = || replaced().filter(|&frame| frame >= RUN.0);
            for frame in lent() {
                assert!(arena.is_used(frame), "frame {frame} is lent, and free");
            }
            first.join().unwrap();
            for frame in lent() {
                assert!(arena.is_used(frame), "frame {frame} is lent, and free");
            }
            arena.unpin_runs([RUN].into_iter());
            assert_eq!(
                arena.used_frames(),
                FRAMES - replaced().count() as u32,
                "each is freed once"
            );
        });
    }

    #[test]
    fn a_lent_frame_stays_when_another_borrower_of_its_run_ends() {
        check(3, &[1]);
    }

    #[test]
    fn neighbours_of_a_lent_frame_stay() {
        check(2, &[0, 2, 3]);
    }
}

/// The real code under shuttle: mappings over a memory store, and threads that read, write,
/// truncate and reclaim, in thousands of random schedules.
#[cfg(shuttle)]
mod whole {
    use crate::cache::Config;
    use crate::cache_policy::CachePolicy;
    use crate::memory::Memory;
    use crate::memory::arena::Frames;
    use crate::{Cache, File};
    use shuttle::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use shuttle::thread;
    use std::sync::Arc;
    // Not the model's: they count over all schedules.
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use weir_stores::memory::MemoryFs;
    use weir_vfs::{Access, Caller, CreateMode, IoFlags, SetAttr};

    /// A cache of 16 pages without threads of its own.
    fn rig() -> (Arc<Memory>, File) {
        let config =
            Config { budget_bytes: 1, fast_read: true, readahead_bytes: 0, ..Config::default() };
        let cache = Cache::without_reclaimer(&config).unwrap();
        let memory = cache.memory().clone();
        let fs = cache.mount(MemoryFs::new());
        let file = crate::block_on(async {
            let set = SetAttr::default();
            let new = fs.root().entry(b"f").with(&set);
            let made = fs.create(&Caller::Own, new, CreateMode::MustBeNew).await.unwrap();
            fs.open(&Caller::Own, made.attr.id, Access::READ | Access::WRITE).await.unwrap()
        });
        (memory, file)
    }

    /// Runs a model, whose schedules together have to pass through each of the named states. It
    /// counts these.
    fn check<const N: usize>(
        states: [&str; N],
        model: impl Fn(&[AtomicU64; N]) + Send + Sync + 'static,
    ) {
        let counts = Arc::new([const { AtomicU64::new(0) }; N]);
        let counted = counts.clone();
        shuttle::check_random(move || model(&counted), 2000);
        for (state, count) in states.iter().zip(counts.iter()) {
            assert!(count.load(Relaxed) > 0, "no schedule passes through: {state}");
        }
    }

    /// Starts a thread, and iterates until it has ended, and once more: a loop of a few reads would
    /// end before a write has begun, in almost every random schedule.
    fn while_running(work: impl FnOnce() + Send + 'static) -> impl Iterator<Item = ()> {
        let ended = Arc::new(AtomicBool::new(false));
        let ends = ended.clone();
        let mut thread = Some(thread::spawn(move || {
            work();
            ends.store(true, SeqCst);
        }));
        std::iter::from_fn(move || {
            thread::yield_now();
            if ended.load(SeqCst) { thread.take()?.join().ok() } else { Some(()) }
        })
    }

    #[test]
    fn i5_a_read_sees_all_of_a_write_or_nothing() {
        let states = ["a read of the first write", "a read of another", "a frame is reused"];
        check(states, |[first, other, reused]| {
            let (memory, file) = rig();
            file.write_at(&[1; 8192], 0, IoFlags::empty()).unwrap();
            let writer = {
                let file = file.clone();
                while_running(move || {
                    for byte in 2..4 {
                        file.write_at(&[byte; 6000], 1000, IoFlags::empty()).unwrap();
                    }
                })
            };
            let reclaimer = thread::spawn(move || {
                let mut taken = 0;
                // Frames that the writer has released are reused at once, with other bytes.
                for _ in 0..3 {
                    memory.collect();
                    let mut frames: Option<Frames> = memory.try_alloc(10, 1, CachePolicy::Cached);
                    if let Some(frames) = &mut frames {
                        for index in 0..frames.len() {
                            frames.write(index, 0, &[0xEE; 4096]);
                            taken += 1;
                        }
                    }
                }
                taken
            });
            let mut last = 0;
            for () in writer {
                let mut buf = [0; 6000];
                if let Some(6000) = file.read_resident(&mut buf, 1000) {
                    assert!(buf.iter().all(|&b| b == buf[0]), "half of a write");
                    assert!(buf[0] >= last && (1..4).contains(&buf[0]), "{} after {last}", buf[0]);
                    last = buf[0];
                    if last == 1 { first } else { other }.fetch_add(1, Relaxed);
                }
            }
            reused.fetch_add(reclaimer.join().unwrap(), Relaxed);
        });
    }

    #[test]
    fn i5_nothing_past_the_end_is_read_while_it_moves() {
        let states = ["before", "truncated", "appended"];
        check(states, |[before, truncated, appended]| {
            let (_shared, file) = rig();
            file.write_at(&[1; 5000], 0, IoFlags::empty()).unwrap();
            let writer = {
                let file = file.clone();
                while_running(move || {
                    file.truncate(3000).unwrap();
                    file.write_at(&[2; 3000], 0, IoFlags::APPEND).unwrap();
                })
            };
            for () in writer {
                let mut buf = [0; 8192];
                if let Some(n) = file.read_resident(&mut buf, 0) {
                    match n {
                        3000 => truncated.fetch_add(1, Relaxed),
                        // The fast path may end at the end of the resident pages.
                        4096 => 0,
                        5000 => before.fetch_add(1, Relaxed),
                        6000 => appended.fetch_add(1, Relaxed),
                        _ => panic!("a size that never was: {n}"),
                    };
                    assert!(buf[..n.min(3000)].iter().all(|&b| b == 1));
                    let rest = &buf[3000.min(n)..n];
                    assert!(rest.iter().all(|&b| b == 1) || rest.iter().all(|&b| b == 2));
                }
            }
        });
    }

    #[test]
    fn i2_claim_and_prune_race() {
        check(["a page is claimed", "a page is pruned"], |[claimed, pruned]| {
            let (memory, file) = rig();
            file.write_at(&[7; 8192], 0, IoFlags::empty()).unwrap();
            file.sync(true).unwrap();
            file.advise(0, 0, weir_vfs::Advice::DontNeed).unwrap();
            let uncached = {
                let file = file.clone();
                thread::spawn(move || {
                    let mut buf = [0; 8192];
                    assert_eq!(file.read_at(&mut buf, 0, IoFlags::UNCACHED), Ok(8192));
                    assert_eq!(buf, [7; 8192]);
                })
            };
            let mut buf = [0; 4096];
            assert_eq!(file.read_at(&mut buf, 0, IoFlags::empty()), Ok(4096));
            assert_eq!(buf, [7; 4096]);
            uncached.join().unwrap();
            drop(file);
            memory.collect();
            let stats = memory.stats.sum();
            assert_eq!(stats.lost_pages, 0);
            assert!(stats.pruned_pages + stats.claimed_pages <= stats.uncached_pages);
            claimed.fetch_add(stats.claimed_pages, Relaxed);
            pruned.fetch_add(stats.pruned_pages, Relaxed);
        });
    }
}
