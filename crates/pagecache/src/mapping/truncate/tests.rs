//! Tests of changes of whole files: what the store makes in part, limits, and what is known of the store's file.

use crate::File;
use crate::file::segments::Segment;
use crate::mapping::writeback::Ask;
use crate::testing::{Rig, poll_once};
use crate::writeback::flusher::DirtyFile;
use async_trait::async_trait;
use pollster::block_on;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use weir_stores::fault::{Call, Fault, Rule, What, When};
use weir_stores::memory::MemoryFs;
use weir_vfs::{
    Access, Advice, Caller, Capabilities, Error, FileId, FileSystem, FileSystemDecorator, IoFlags,
    OpenFile, OpenFileDecorator, Result,
};

#[test]
fn a_hole_past_the_end_keeps_what_others_have_appended() {
    let rig = Rig::new();
    let file = rig.create("f");
    file.write_at(&[1; 8192], 0, IoFlags::empty()).unwrap();
    let stored = block_on(rig.fs.store().open(&Caller::Own, file.id(), Access::WRITE)).unwrap();
    block_on(stored.set_size(50_000)).unwrap();
    block_on(file.punch_hole_async(4096, 1 << 20)).unwrap();
    assert_eq!(block_on(rig.fs.store().getattr(file.id())).unwrap().size, 50_000);
    assert_eq!(block_on(file.getattr()).unwrap().size, 50_000);
    let mut bytes = [9; 8192];
    assert_eq!(file.read_at(&mut bytes, 0, IoFlags::empty()), Ok(8192));
    assert_eq!((&bytes[..4096], &bytes[4096..]), (&[1; 4096][..], &[0; 4096][..]));
}

#[test]
fn pages_are_read_again_after_a_change_that_the_store_has_made_in_part() {
    for call in [Call::PunchHole, Call::CloneRange, Call::SetSize] {
        let store = MemoryFs::new();
        let (ours, theirs) = (Rig::over(store.clone()), Rig::over(store));
        let (file, source) = (ours.create("f"), ours.create("g"));
        for file in [&file, &source] {
            file.write_at(&[1; 8192], 0, IoFlags::empty()).unwrap();
            file.sync(true).unwrap();
        }
        let change = block_on(file.getattr()).unwrap().change;
        // The part of the change that the store makes.
        let part = theirs.open(file.id());
        part.write_at(&[2; 4096], 0, IoFlags::empty()).unwrap();
        part.sync(true).unwrap();
        ours.always(call, What::Fail(Error::Io));
        let changed = block_on(async {
            match call {
                Call::PunchHole => file.punch_hole_async(0, 8192).await,
                Call::CloneRange => file.clone_range_async(&source, 0, 8192, 0).await,
                _ => file.truncate_async(100).await,
            }
        });
        assert_eq!((changed, file.size()), (Err(Error::Io), 8192));
        let mut bytes = [9; 8192];
        assert_eq!(file.read_at(&mut bytes, 0, IoFlags::empty()), Ok(8192));
        assert_eq!((bytes[0], bytes[8191]), (2, 1), "{call:?}");
        assert!(block_on(file.getattr()).unwrap().change > change);
    }
}

#[test]
fn pages_that_a_failed_change_cannot_have_changed_stay() {
    for call in [Call::Allocate, Call::PunchHole, Call::SetSize, Call::CopyRange] {
        let rig = Rig::new();
        let (file, source) = (rig.create("f"), rig.create("g"));
        for file in [&file, &source] {
            file.write_at(&[1; 3 * 4096], 0, IoFlags::empty()).unwrap();
            file.sync(true).unwrap();
        }
        rig.always(call, What::Fail(Error::NoSpace));
        let failed = block_on(async {
            match call {
                Call::Allocate => file.allocate_async(0, 1 << 20).await,
                Call::PunchHole => file.punch_hole_async(4096, 4096).await,
                Call::SetSize => file.truncate_async(5000).await,
                _ => file.copy_range_async(&source, 0, 4096, 4096).await.map(drop),
            }
        });
        assert_eq!(failed, Err(Error::NoSpace), "{call:?}");
        rig.always(Call::Read, What::Fail(Error::Io));
        let resident = [0, 4096, 8192].map(|at| {
            let read = file.read_at(&mut [0; 4096], at, IoFlags::empty());
            assert!(matches!(read, Ok(4096) | Err(Error::Io)), "{call:?}: {read:?}");
            read.is_ok()
        });
        let expected = match call {
            Call::Allocate => [true; 3],
            Call::SetSize => [true, false, false],
            _ => [true, false, true],
        };
        assert_eq!(resident, expected, "{call:?}");
    }
}

/// The writers stop if it takes longer than they write this often, so that a failure shows.
#[test]
fn a_clone_ends_although_writers_never_pause() {
    const MOST: usize = 20_000_000;
    let rig = Rig::new();
    let (from, to) = (rig.create("a"), rig.create("b"));
    from.write_at(&[1; 4096], 0, IoFlags::empty()).unwrap();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers = [&from, &to].map(|file| {
            let is_done = &is_done;
            scope.spawn(move || {
                for written in 0..MOST {
                    if is_done.load(Relaxed) {
                        return written;
                    }
                    file.write_at(&[2; 64], 8192, IoFlags::empty()).unwrap();
                }
                MOST
            })
        });
        while from.size() < 8192 || to.size() < 8192 {
            std::thread::yield_now();
        }
        let cloned = block_on(to.clone_range_async(&from, 0, 4096, 0));
        is_done.store(true, Relaxed);
        let written = writers.map(|writer| writer.join().unwrap());
        assert_eq!(cloned, Ok(()));
        assert!(written.iter().all(|&written| written < MOST), "{written:?}");
    });
    let mut bytes = [0; 4096];
    assert_eq!(to.read_at(&mut bytes, 0, IoFlags::empty()), Ok(4096));
    assert_eq!(bytes, [1; 4096]);
}

#[test]
fn a_transfer_that_moves_nothing_leaves_the_size() {
    let rig = Rig::new();
    let (from, to) = (rig.create("a"), rig.create("b"));
    from.write_at(&[1; 8192], 0, IoFlags::empty()).unwrap();
    to.write_at(&[9; 100], 0, IoFlags::empty()).unwrap();
    let sizes = || (to.size(), block_on(rig.fs.store().getattr(to.id())).unwrap().size);
    // From the end of the source, with the length that means "to the end".
    assert_eq!(block_on(to.clone_range_async(&from, 8192, 0, 1 << 20)), Ok(()));
    assert_eq!(sizes(), (100, 100));
    assert_eq!(block_on(to.copy_range_async(&from, 8192, 0, 1 << 20)), Ok(0));
    rig.always(Call::CopyRange, What::Fail(Error::NoSpace));
    let failed = block_on(to.copy_range_async(&from, 0, 4096, 1 << 20));
    assert_eq!(failed, Err(Error::NoSpace));
    assert_eq!(sizes(), (100, 100));
    let mut bytes = [0; 200];
    assert_eq!(to.read_at(&mut bytes, 0, IoFlags::empty()), Ok(100));
    assert_eq!(bytes[..100], [9; 100]);
}

/// A change of a file, with the help of another one.
type Change = fn(&File, &File) -> Result<()>;

/// Changes of a file of two pages, with the size that it has afterwards.
const CHANGES: [(&str, u64, Change); 9] = [
    ("truncate", 5000, |file, _| block_on(file.truncate_async(5000))),
    ("extend", 9000, |file, _| block_on(file.truncate_async(9000))),
    ("punch", 8192, |file, _| block_on(file.punch_hole_async(100, 5000))),
    ("punch to the end", 8192, |file, _| block_on(file.punch_hole_async(4096, 4096))),
    ("zero", 8192, |file, _| block_on(file.zero_range_async(100, 5000, false))),
    ("zero past the end", 9000, |file, _| block_on(file.zero_range_async(8192, 808, false))),
    ("allocate", 9000, |file, _| block_on(file.allocate_async(0, 9000))),
    ("clone", 12_288, |file, from| block_on(file.clone_range_async(from, 0, 4096, 8192))),
    ("copy", 12_288, |file, from| block_on(file.copy_range_async(from, 0, 4096, 8192)).map(drop)),
];

/// A rig without threads of its own, over a store that copies a page at a time.
fn quiet() -> Rig {
    Rig::without_threads_over(Arc::new(Slow(MemoryFs::new())))
}

fn stored_size(rig: &Rig, file: &File) -> u64 {
    block_on(rig.fs.store().getattr(file.id())).unwrap().size
}

#[test]
fn what_is_known_of_the_stores_file_is_true_after_each_change() {
    for (name, size, change) in CHANGES {
        for is_synced in [true, false] {
            let rig = quiet();
            let (file, from) = (rig.create("f"), rig.create("g"));
            for file in [&file, &from] {
                file.write_at(&[1; 8192], 0, IoFlags::empty()).unwrap();
            }
            let mapping = &file.open.mapping;
            if is_synced {
                file.sync(true).unwrap();
                mapping.clone().flush(false, mapping.memory.now());
                assert!(mapping.state.lock().listed.is_none(), "the flusher has left it");
            }
            assert!(mapping.state.lock().durability.is_synced(), "{name}");
            change(&file, &from).unwrap();
            let state = mapping.state.lock();
            let stored = stored_size(&rig, &file);
            let known = state.stored_size;
            assert!(known <= stored && stored <= size && file.size() == size, "{name}");
            assert!(!is_synced || known == size, "{name}: {known}");
            assert!(!state.durability.is_synced(), "{name} is to be synced");
            assert!(state.overlay.pending().is_some(), "{name} has ended, and set the time");
            assert!(state.listed.is_some(), "{name} is to be settled");
            drop(state);
            file.sync(true).unwrap();
            assert_eq!(stored_size(&rig, &file), size, "{name}");
            assert!(mapping.state.lock().is_clean(), "{name}");
        }
    }
}

#[test]
fn a_change_may_reach_the_largest_size_and_no_further() {
    let disk = Fault::over(Arc::new(Slow(MemoryFs::new())), 1);
    disk.set_max_file_size(8192);
    let rig = Rig::over(disk);
    let from = rig.create("from");
    from.write_at(&[1; 4096], 0, IoFlags::empty()).unwrap();
    type To = fn(&File, &File, u64) -> Result<()>;
    let changes: [To; 5] = [
        |file, _, end| block_on(file.truncate_async(end)),
        |file, _, end| block_on(file.zero_range_async(end - 100, 100, false)),
        |file, _, end| block_on(file.allocate_async(end - 100, 100)),
        |file, from, end| block_on(file.clone_range_async(from, 0, 4096, end - 4096)),
        |file, from, end| block_on(file.copy_range_async(from, 0, 4096, end - 4096)).map(drop),
    ];
    for (n, change) in changes.iter().enumerate() {
        let file = rig.create(&n.to_string());
        assert_eq!((change(&file, &from, 8193), file.size()), (Err(Error::TooBig), 0), "{n}");
        assert_eq!((change(&file, &from, 8192), file.size()), (Ok(()), 8192), "{n}");
    }
}

#[test]
fn a_hole_up_to_the_end_keeps_the_length_that_only_dirty_pages_had() {
    let rig = quiet();
    let file = rig.create("f");
    file.write_at(&[1; 5000], 0, IoFlags::empty()).unwrap();
    block_on(file.punch_hole_async(4096, 904)).unwrap();
    assert_eq!((file.size(), stored_size(&rig, &file)), (5000, 5000));
    assert_eq!(rig.fs.cache().dirty_bytes(), 4096, "the last page is a hole");
    rig.always(Call::Write, What::Fail(Error::NoSpace));
    assert_eq!(file.sync(true), Err(Error::NoSpace));
    assert_eq!(file.size(), 5000, "the store has the hole");
    let mut bytes = [9; 5000];
    assert_eq!(file.read_at(&mut bytes, 0, IoFlags::empty()), Ok(5000));
    assert_eq!(bytes, [0; 5000]);
}

#[test]
fn zeros_past_the_end_punch_no_hole_and_an_empty_range_of_them_changes_nothing() {
    let rig = Rig::new();
    let file = rig.create("f");
    file.write_at(&[1; 100], 0, IoFlags::empty()).unwrap();
    rig.always(Call::PunchHole, What::Fail(Error::Io));
    assert_eq!(block_on(file.zero_range_async(100, 50, false)), Ok(()));
    assert_eq!(file.size(), 150);
    rig.always(Call::SetSize, What::Fail(Error::Io));
    assert_eq!(block_on(file.zero_range_async(200, 0, false)), Ok(()));
    assert_eq!(file.size(), 150);
}

#[test]
fn a_failed_zeroing_takes_back_its_extension_and_not_what_others_have_appended() {
    for appended in [0, 10] {
        let disk = Fault::over(MemoryFs::new(), 1);
        let what = What::Fail(Error::Io);
        disk.add(Rule { call: Call::PunchHole, when: When::Always, what });
        let rig = Rig::over(disk);
        let file = rig.create("f");
        file.write_at(&[1; 100], 0, IoFlags::empty()).unwrap();
        file.sync(true).unwrap();
        rig.always(Call::PunchHole, What::Hold);
        let mut zero = pin!(file.zero_range_async(50, 100, false));
        assert!(poll_once(zero.as_mut()).is_pending());
        assert_eq!((rig.store.held(), stored_size(&rig, &file)), (1, 150));
        if appended > 0 {
            let opened = rig.fs.store().open(&Caller::Own, file.id(), Access::WRITE);
            block_on(block_on(opened).unwrap().set_size(150 + appended)).unwrap();
        }
        rig.store.release();
        assert_eq!(block_on(zero), Err(Error::Io));
        let left = if appended > 0 { 150 + appended } else { 100 };
        assert_eq!(stored_size(&rig, &file), left);
    }
}

#[test]
fn a_fill_in_flight_during_a_change_that_fails_publishes_nothing() {
    let rig = Rig::new();
    let file = rig.create("f");
    file.write_at(&[1; 4 * 4096], 0, IoFlags::empty()).unwrap();
    file.sync(true).unwrap();
    file.advise(0, 0, Advice::DontNeed).unwrap();
    rig.always(Call::Read, What::Hold);
    rig.always(Call::PunchHole, What::Fail(Error::Io));
    file.advise(0, 0, Advice::WillNeed).unwrap();
    assert_eq!(rig.store.held(), 1);
    // The store may have made a part of the change, before or after it reads.
    assert_eq!(block_on(file.punch_hole_async(0, 4096)), Err(Error::Io));
    rig.store.release();
    assert_eq!(file.resident(), []);
}

#[test]
fn no_fill_begins_during_a_change() {
    let rig = Rig::new();
    let file = rig.create("f");
    file.write_at(&[1; 4 * 4096], 0, IoFlags::empty()).unwrap();
    file.sync(true).unwrap();
    file.advise(0, 0, Advice::DontNeed).unwrap();
    rig.always(Call::PunchHole, What::Hold);
    let mut punch = pin!(file.punch_hole_async(0, 4096));
    assert!(poll_once(punch.as_mut()).is_pending());
    // It would read before the change, and publish after it.
    file.advise(0, 0, Advice::WillNeed).unwrap();
    assert_eq!((file.resident(), file.stats().fills), (vec![], 0));
    rig.store.release();
    assert_eq!(block_on(punch), Ok(()));
    file.advise(0, 0, Advice::WillNeed).unwrap();
    assert_eq!(file.resident(), [4096..4 * 4096]);
}

#[test]
fn a_write_between_writeback_and_a_clone_is_written_back_first() {
    let rig = quiet();
    let (from, to) = (rig.create("a"), rig.create("b"));
    for (file, byte) in [(&from, 1), (&to, 2)] {
        file.write_at(&[byte; 8192], 0, IoFlags::empty()).unwrap();
        file.sync(true).unwrap();
    }
    to.write_at(&[3; 4096], 0, IoFlags::empty()).unwrap();
    rig.always(Call::Write, What::Hold);
    let mut clone = pin!(to.clone_range_async(&from, 0, 4096, 0));
    assert!(poll_once(clone.as_mut()).is_pending());
    assert_eq!(rig.store.held(), 1);
    // Into the range, and behind it.
    to.write_at(&[4; 8192], 0, IoFlags::empty()).unwrap();
    rig.store.clear();
    rig.store.release();
    assert_eq!(block_on(clone), Ok(()));
    assert_eq!(rig.fs.cache().dirty_bytes(), 0);
    let mut bytes = [9; 8192];
    assert_eq!(to.read_at(&mut bytes, 0, IoFlags::empty()), Ok(8192));
    assert_eq!((&bytes[..4096], &bytes[4096..]), (&[1; 4096][..], &[4; 4096][..]));
}

/// A store that copies one page at a time.
struct Slow(Arc<MemoryFs>);

struct SlowFile(Arc<dyn OpenFile>);

#[async_trait]
impl FileSystemDecorator for Slow {
    fn below(&self) -> &dyn FileSystem {
        &*self.0
    }

    async fn open(&self, caller: &Caller, id: FileId, access: Access) -> Result<Arc<dyn OpenFile>> {
        Ok(Arc::new(SlowFile(self.0.open(caller, id, access).await?)))
    }
}

#[async_trait]
impl OpenFileDecorator for SlowFile {
    fn below(&self) -> &dyn OpenFile {
        &*self.0
    }

    async fn copy_range(&self, from: &dyn OpenFile, at: u64, len: u64, to: u64) -> Result<u64> {
        let len = len.min(4096);
        OpenFile::clone_range(self, from, at, len, to).await.map(|()| len)
    }

    async fn clone_range(&self, from: &dyn OpenFile, at: u64, len: u64, to: u64) -> Result<()> {
        let from = from.as_any().downcast_ref::<Self>().ok_or(Error::CrossDevice)?;
        self.0.clone_range(&*from.0, at, len, to).await
    }
}

/// A store that cannot punch holes.
struct Solid(Arc<MemoryFs>);

impl FileSystemDecorator for Solid {
    fn below(&self) -> &dyn FileSystem {
        &*self.0
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities() - Capabilities::HOLES
    }
}

#[test]
fn a_file_does_not_grow_for_zeros_that_its_store_cannot_write() {
    let rig = Rig::over(Arc::new(Solid(MemoryFs::new())));
    let file = rig.create("f");
    file.write_at(&[1; 8192], 0, IoFlags::empty()).unwrap();
    file.sync(true).unwrap();
    rig.always(Call::SetSize, What::Fail(Error::Io));
    rig.always(Call::Allocate, What::Fail(Error::Io));
    for reserve in [false, true] {
        let zeroed = block_on(file.zero_range_async(4096, 8192, reserve));
        assert_eq!((zeroed, file.size()), (Err(Error::NotSupported), 8192));
    }
    rig.store.clear();
    // Behind the end, an extension has zeros.
    assert_eq!(block_on(file.zero_range_async(8192, 100, false)), Ok(()));
    assert_eq!(stored_size(&rig, &file), 8292);
}

#[test]
fn a_copy_of_less_than_was_asked_for_changes_no_more() {
    let rig = Rig::over(Arc::new(Slow(MemoryFs::new())));
    let (from, to) = (rig.create("a"), rig.create("b"));
    from.write_at(&[1; 8192], 0, IoFlags::empty()).unwrap();
    to.write_at(&[2; 100], 0, IoFlags::empty()).unwrap();
    assert_eq!(block_on(to.copy_range_async(&from, 0, 8192, 0)), Ok(4096));
    assert_eq!((to.size(), stored_size(&rig, &to)), (4096, 4096));
    let mut bytes = [9; 4097];
    assert_eq!(to.read_at(&mut bytes, 0, IoFlags::empty()), Ok(4096));
    assert_eq!(bytes[..4096], [1; 4096]);
}

#[test]
fn a_clone_replaces_the_last_page_in_part_too() {
    let rig = Rig::new();
    let (from, to) = (rig.create("a"), rig.create("b"));
    for (file, byte) in [(&from, 1), (&to, 2)] {
        file.write_at(&[byte; 5000], 0, IoFlags::empty()).unwrap();
    }
    block_on(to.clone_range_async(&from, 0, 0, 0)).unwrap();
    let mut bytes = [9; 5000];
    assert_eq!(to.read_at(&mut bytes, 0, IoFlags::empty()), Ok(5000));
    assert_eq!(bytes, [1; 5000]);
}

#[test]
fn lent_zeros_that_an_extension_made_visible_do_not_change() {
    let extensions: [Change; 3] = [
        |file, _| block_on(file.truncate_async(3000)),
        |file, _| block_on(file.allocate_async(0, 3000)),
        |file, from| block_on(file.clone_range_async(from, 0, 4096, 4096)),
    ];
    for (n, extend) in extensions.into_iter().enumerate() {
        let rig = Rig::new();
        let (file, from) = (rig.create("f"), rig.create("g"));
        file.write_at(&[1; 100], 0, IoFlags::empty()).unwrap();
        from.write_at(&[7; 4096], 0, IoFlags::empty()).unwrap();
        extend(&file, &from).unwrap();
        let lent = file.read_segments(0, 3000, IoFlags::empty()).unwrap();
        file.write_at(&[2; 2900], 100, IoFlags::empty()).unwrap();
        let Segment::Data { pages, .. } = &lent.segments[0] else { panic!("data") };
        let mut slices = Vec::new();
        pages.slices(0, &mut slices);
        let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
        assert_eq!((bytes.len(), &bytes[..100]), (3000, &[1; 100][..]), "{n}");
        assert!(bytes[100..].iter().all(|&byte| byte == 0), "{n}");
    }
}

#[test]
fn extents_have_what_is_dirty_or_under_writeback_as_data() {
    use crate::ranges::RangeSet;
    use weir_vfs::{Extent, SegmentKind};
    let rig = quiet();
    let file = rig.create("f");
    // The store's file: a hole of three pages.
    block_on(file.truncate_async(3 * 4096)).unwrap();
    let extents = || {
        let mut found = Vec::new();
        let mut at = 0;
        while at < file.size() {
            let Extent { kind, end, .. } = block_on(file.extent_at_async(at)).unwrap();
            found.push((kind == SegmentKind::Data, end / 4096));
            at = end;
        }
        found
    };
    assert_eq!(extents(), [(false, 3)]);
    rig.always(Call::Write, What::Hold);
    let write = |page: u64| file.write_at(&[1; 4096], page * 4096, IoFlags::empty()).unwrap();
    let begin = || {
        let begun = &mut RangeSet::default();
        file.open.mapping.start_writeback(0..u64::MAX, Ask::Now, begun);
    };
    write(1);
    assert_eq!(extents(), [(false, 1), (true, 2), (false, 3)], "dirty");
    begin();
    assert_eq!(extents(), [(false, 1), (true, 2), (false, 3)], "under writeback");
    write(2);
    assert_eq!(extents(), [(false, 1), (true, 3)], "writeback before dirty");
    begin();
    write(5);
    assert_eq!(extents(), [(false, 1), (true, 3), (false, 5), (true, 6)], "past the store's end");
    rig.store.clear();
    rig.store.release();
    file.sync(true).unwrap();
    assert_eq!(extents(), [(false, 1), (true, 3), (false, 5), (true, 6)], "in the store");
}
