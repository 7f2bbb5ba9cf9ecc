//! Files that another program truncates in the store: a read ends at the new end, and never returns
//! zeros that no program wrote.

mod common;

use common::{Rig, block_on, pattern, read_full, write_all};
use std::sync::atomic::Ordering;
use weir_pagecache::{File, Segment};
use weir_vfs::{Access, Caller, Error, FileSystem, IoFlags, SegmentKind};

const NONE: IoFlags = IoFlags::empty();
const LEN: usize = 1 << 20;

/// Sets the size of the store's file behind the cache's back.
fn cut(rig: &Rig, file: &File, size: u64) {
    let stored = block_on(rig.store.open(&Caller::Own, file.id(), Access::WRITE)).unwrap();
    block_on(stored.set_size(size)).unwrap();
}

/// The bytes of all segments up to the end of file, which holds no hole.
fn lent(file: &File, flags: IoFlags) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let found = file.read_segments(bytes.len() as u64, LEN, flags).unwrap();
        for segment in &found.segments {
            let Segment::Data { pages, .. } = segment else {
                panic!("a hole that no program made")
            };
            let mut slices = Vec::new();
            pages.slices(0, &mut slices);
            slices.iter().for_each(|slice| bytes.extend_from_slice(slice));
        }
        if found.segments.is_empty() {
            return bytes;
        }
    }
}

#[test]
fn a_read_ends_where_another_program_truncated_the_file() {
    let bytes = pattern(LEN, 1);
    for size in [0, 1, 4096, 300_000, LEN - 4096, LEN - 1] {
        for flags in [NONE, IoFlags::UNCACHED] {
            for lend in [false, true] {
                let rig = Rig::new(1024);
                let file = rig.cold("f", &bytes);
                cut(&rig, &file, size as u64);
                assert_eq!(file.size(), LEN as u64, "not noticed yet");
                let got = if lend { lent(&file, flags) } else { read_full(&file, 0, LEN, flags) };
                assert_eq!(got.len(), size, "{flags:?}, lent: {lend}");
                assert!(got == bytes[..size]);
                assert_eq!(file.size(), size as u64);
                assert_eq!(rig.cache.stats().outside_changes, 1);
            }
        }
    }
}

/// A copy that goes around holes would write zeros that no program wrote.
#[test]
fn what_another_program_has_cut_off_is_no_hole() {
    let rig = Rig::new(1024);
    let bytes = pattern(LEN, 5);
    let file = rig.cold("f", &bytes);
    cut(&rig, &file, 300_000);
    for at in [0, 500_000] {
        let found = block_on(file.extent_at_async(at)).unwrap();
        assert_eq!((found.kind, found.end), (SegmentKind::Data, LEN as u64), "from {at}");
    }
    assert!(read_full(&file, 500_000, LEN, NONE).is_empty());
    assert_eq!(file.size(), 300_000);
    assert_eq!(block_on(file.extent_at_async(500_000)), Err(Error::NoSuchRange));
    let found = block_on(file.extent_at_async(0)).unwrap();
    assert_eq!((found.kind, found.end), (SegmentKind::Data, 300_000));
}

#[test]
fn read_ahead_ends_where_another_program_truncated_the_file() {
    const CUT: usize = 800_000;
    let bytes = pattern(LEN, 2);
    for flags in [NONE, IoFlags::UNCACHED] {
        for late in [false, true] {
            let rig = Rig::new(1024);
            let file = rig.cold("f", &bytes);
            rig.store.set_late(late);
            let mut got = read_full(&file, 0, 128 << 10, flags);
            cut(&rig, &file, CUT as u64);
            got.extend(read_full(&file, got.len() as u64, LEN, flags));
            assert_eq!(got.len(), CUT);
            assert!(got == bytes[..CUT]);
        }
    }
}

#[test]
fn a_file_truncated_during_a_write_keeps_the_written_data() {
    let rig = Rig::new(1024);
    let bytes = pattern(LEN, 3);
    let file = rig.cold("f", &bytes);
    // The flusher writes what is old.
    rig.store.switches.hold_writes.store(true, Ordering::SeqCst);
    write_all(&file, &[7; 100], 900_000);
    cut(&rig, &file, 300_000);
    // The write is still to come, and will extend the file again, with a hole before it.
    let mut expected = bytes[..300_000].to_vec();
    expected.resize(900_000, 0);
    expected.extend([7; 100]);
    for _ in 0..2 {
        let got = read_full(&file, 0, LEN, NONE);
        assert!(got.len() >= expected.len(), "{}", got.len());
        assert!(got[..300_000] == expected[..300_000]);
        // The written page was complete when it was written, for the file of that time.
        let page = 900_000 / 4096 * 4096;
        assert!(got[300_000..page].iter().all(|&b| b == 0));
        assert!(got[900_000..900_100] == [7; 100]);
        rig.store.switches.hold_writes.store(false, Ordering::SeqCst);
        file.sync(true).unwrap();
    }
}

#[test]
fn a_read_that_ends_before_the_reported_size_is_retried_and_then_fails() {
    let rig = Rig::new(1024);
    let bytes = pattern(20_000, 4);
    let file = rig.cold("f", &bytes);
    Rig::random(&file);
    rig.store.switches.end_early.store(2, Ordering::SeqCst);
    assert!(read_full(&file, 0, LEN, NONE) == bytes);
    let file = rig.cold("g", &bytes);
    Rig::random(&file);
    rig.store.switches.end_early.store(u32::MAX, Ordering::SeqCst);
    for flags in [NONE, IoFlags::UNCACHED] {
        assert_eq!(file.read_at(&mut [0; 100], 0, flags), Err(Error::Io));
        assert!(file.read_segments(0, 100, flags).is_err());
    }
    assert!(file.resident().is_empty());
    rig.store.switches.end_early.store(0, Ordering::SeqCst);
    assert!(read_full(&file, 0, LEN, NONE) == bytes);
}
