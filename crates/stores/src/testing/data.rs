//! Open files: bytes, holes, sizes.

use super::{Random, attr, bytes_of, new_file, own, read, read_all, scratch, write};
use std::sync::Arc;
use weir_base::PAGE_SIZE;
use weir_vfs::{
    Access, Caller, Capabilities, Error, FileId, FileSystem, OpenFile, SegmentKind, SetAttr,
};

const PAGE: u64 = PAGE_SIZE as u64;

pub(super) async fn all(fs: &Arc<dyn FileSystem>) {
    let dir = scratch(fs, "data").await;
    bytes_come_back(fs, dir).await;
    an_empty_file_and_reads_past_the_end(fs, dir).await;
    bytes_past_the_end_of_the_last_page_are_zero(fs, dir).await;
    growing_exposes_nothing(fs, dir).await;
    access_is_kept_to(fs, dir).await;
    an_unlinked_file_lives_on(fs, dir).await;
    change_moves_with_every_change(fs, dir).await;
    impossible_ranges_are_refused(fs, dir).await;
    many_reads_and_writes_in_flight(fs, dir).await;
    if fs.capabilities().contains(Capabilities::HOLES) {
        holes_are_reported_whole(fs, dir).await;
        sparse_writes_allocate_what_they_write(fs, dir).await;
        punching_makes_holes(fs, dir).await;
    }
    if fs.capabilities().contains(Capabilities::ALLOCATE) {
        allocation_extends(fs, dir).await;
    }
    if fs.capabilities().contains(Capabilities::CLONE) {
        clones_share_and_then_differ(fs, dir).await;
    }
    if fs.capabilities().contains(Capabilities::COPY) {
        copies_are_of_any_range(fs, dir).await;
    }
    for seed in 0..8 {
        a_file_is_what_a_vector_is(fs, dir, seed).await;
    }
}

async fn bytes_come_back(fs: &Arc<dyn FileSystem>, dir: FileId) {
    let file = new_file(fs, dir, "bytes").await;
    let bytes = Random::new(1).bytes(3 * PAGE_SIZE + 100);
    write(&*file, 0, &bytes).await.unwrap();
    assert_eq!(file.getattr().await.unwrap().size, bytes.len() as u64);
    for step in [1 << 20, PAGE_SIZE, 1000] {
        assert!(read_all(&*file, step).await == bytes, "in steps of {step}");
    }
    for (offset, len) in [(1, 1), (4095, 2), (100, 9000), (8191, 4200)] {
        let (buffer, layout) = read(&*file, offset, len).await.unwrap();
        let want = &bytes[offset as usize..(offset as usize + len).min(bytes.len())];
        assert!(bytes_of(offset, &buffer, &layout) == want, "{len} at {offset}: {layout:?}");
    }
    file.sync(true).await.unwrap();
    file.sync(false).await.unwrap();
    let again = fs.open(&own(), file.getattr().await.unwrap().id, Access::READ).await.unwrap();
    assert!(read_all(&*again, 1 << 20).await == bytes);
}

async fn an_empty_file_and_reads_past_the_end(fs: &Arc<dyn FileSystem>, dir: FileId) {
    let file = new_file(fs, dir, "empty").await;
    // The last page of the largest possible file ends past the largest offset.
    for offset in [0, 1, PAGE, 1 << 40, i64::MAX as u64 - 4095] {
        let (_, layout) = read(&*file, offset, PAGE_SIZE).await.unwrap();
        assert!(layout.eof && layout.extents.is_empty(), "at {offset}: {layout:?}");
    }
    write(&*file, 0, b"abc").await.unwrap();
    let (_, layout) = read(&*file, 0, 3).await.unwrap();
    assert!(layout.eof, "a read up to the end says so: {layout:?}");
    let (_, layout) = read(&*file, 0, 2).await.unwrap();
    assert!(!layout.eof, "a read short of the end does not: {layout:?}");
    let (_, layout) = read(&*file, 3, 1).await.unwrap();
    assert!(layout.eof && layout.extents.is_empty());
    write(&*file, 0, b"").await.unwrap();
    assert_eq!(file.getattr().await.unwrap().size, 3);
    assert_eq!(file.extent_at(3).await, Err(Error::NoSuchRange));
}

async fn bytes_past_the_end_of_the_last_page_are_zero(fs: &Arc<dyn FileSystem>, dir: FileId) {
    let file = new_file(fs, dir, "tail").await;
    write(&*file, 0, &[7; 5000]).await.unwrap();
    let (buffer, layout) = read(&*file, 0, 2 * PAGE_SIZE).await.unwrap();
    assert_eq!(layout.end(0), 5000);
    assert!(buffer[..5000].iter().all(|&b| b == 7) && buffer[5000..].iter().all(|&b| b == 0));
    let (buffer, layout) = read(&*file, PAGE, 4 * PAGE_SIZE).await.unwrap();
    assert_eq!((layout.end(PAGE), layout.eof), (5000, true));
    assert!(buffer[5000 - PAGE_SIZE..PAGE_SIZE].iter().all(|&b| b == 0));
}

async fn growing_exposes_nothing(fs: &Arc<dyn FileSystem>, dir: FileId) {
    let file = new_file(fs, dir, "grow").await;
    write(&*file, 0, &[9; 3 * PAGE_SIZE]).await.unwrap();
    file.set_size(100).await.unwrap();
    file.set_size(2 * PAGE).await.unwrap();
    let mut want = vec![9; 100];
    want.resize(2 * PAGE_SIZE, 0);
    assert!(read_all(&*file, 1 << 16).await == want, "truncated and grown again");
    file.set_size(50).await.unwrap();
    write(&*file, 5000, b"x").await.unwrap();
    want.truncate(50);
    want.resize(5000, 0);
    want.push(b'x');
    assert!(read_all(&*file, 1 << 16).await == want, "truncated and written past the end");
    let id = file.getattr().await.unwrap().id;
    let set = SetAttr { size: Some(10), ..SetAttr::default() };
    assert_eq!(fs.setattr(&own(), id, &set).await.unwrap().size, 10);
    assert_eq!(read_all(&*file, 1 << 16).await, [9; 10]);
}

async fn access_is_kept_to(fs: &Arc<dyn FileSystem>, dir: FileId) {
    let id = new_file(fs, dir, "access").await.getattr().await.unwrap().id;
    let reader = fs.open(&own(), id, Access::READ).await.unwrap();
    let writer = fs.open(&own(), id, Access::WRITE).await.unwrap();
    assert_eq!((reader.access(), writer.access()), (Access::READ, Access::WRITE));
    assert_eq!(write(&*reader, 0, b"x").await, Err(Error::BadFile));
    assert_eq!(reader.set_size(9).await, Err(Error::BadFile));
    write(&*writer, 0, b"x").await.unwrap();
    assert_eq!(read(&*writer, 0, 1).await.unwrap_err(), Error::BadFile);
    assert_eq!(read_all(&*reader, 10).await, b"x");
    assert_eq!(fs.open(&own(), dir, Access::READ).await.err(), Some(Error::IsDirectory));
    let link =
        fs.symlink(&own(), dir.entry(b"to").with(&SetAttr::default()), b"access").await.unwrap().id;
    assert!(fs.open(&own(), link, Access::READ).await.is_err(), "links are not followed");
}

async fn an_unlinked_file_lives_on(fs: &Arc<dyn FileSystem>, dir: FileId) {
    let file = new_file(fs, dir, "gone").await;
    write(&*file, 0, b"still here").await.unwrap();
    fs.unlink(&own(), dir.entry(b"gone")).await.unwrap();
    assert_eq!(read_all(&*file, 100).await, b"still here");
    write(&*file, 10, b", and written").await.unwrap();
    file.set_size(16).await.unwrap();
    assert_eq!(read_all(&*file, 100).await, b"still here, and ");
    assert_eq!(file.getattr().await.unwrap().size, 16);
    file.sync(false).await.unwrap();
}

async fn change_moves_with_every_change(fs: &Arc<dyn FileSystem>, dir: FileId) {
    let file = new_file(fs, dir, "change").await;
    let id = file.getattr().await.unwrap().id;
    let mut seen = vec![attr(fs, id).await.change];
    write(&*file, 0, b"one").await.unwrap();
    seen.push(attr(fs, id).await.change);
    write(&*file, 0, b"two").await.unwrap();
    seen.push(file.getattr().await.unwrap().change);
    file.set_size(2).await.unwrap();
    seen.push(attr(fs, id).await.change);
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    seen.push(fs.setattr(&own(), id, &set).await.unwrap().change);
    fs.link(&own(), id, dir.entry(b"change2")).await.unwrap();
    seen.push(attr(fs, id).await.change);
    let count = seen.len();
    assert!(seen.is_sorted(), "{seen:?}");
    seen.dedup();
    assert_eq!(seen.len(), count, "each change is seen: {seen:?}");
    assert_eq!(attr(fs, id).await.change, seen[count - 1], "and nothing else is");
}

async fn impossible_ranges_are_refused(fs: &Arc<dyn FileSystem>, dir: FileId) {
    let file = new_file(fs, dir, "far").await;
    let last = i64::MAX as u64;
    assert_eq!(write(&*file, last, b"x").await, Err(Error::TooBig));
    assert_eq!(write(&*file, u64::MAX, b"xx").await, Err(Error::TooBig));
    assert!(file.set_size(u64::MAX).await.is_err());
    assert_eq!(file.getattr().await.unwrap().size, 0);
}

async fn many_reads_and_writes_in_flight(fs: &Arc<dyn FileSystem>, dir: FileId) {
    let file = new_file(fs, dir, "flight").await;
    let block = |i: u64| Random::new(i).bytes(70_000);
    let writes = (0..64).map(|i| {
        let file = file.clone();
        tokio::spawn(async move { write(&*file, i * 70_000, &block(i)).await })
    });
    for done in writes.collect::<Vec<_>>() {
        done.await.unwrap().unwrap();
    }
    let reads = (0..64).map(|i| {
        let file = file.clone();
        tokio::spawn(async move { read(&*file, i * 70_000, 70_000).await.map(|r| r.0) })
    });
    for (i, done) in reads.collect::<Vec<_>>().into_iter().enumerate() {
        assert!(done.await.unwrap().unwrap() == block(i as u64), "block {i}");
    }
}

async fn holes_are_reported_whole(fs: &Arc<dyn FileSystem>, dir: FileId) {
    let file = new_file(fs, dir, "holes").await;
    let far = 1 << 30;
    file.set_size(far).await.unwrap();
    let (_, layout) = read(&*file, 8 * PAGE, PAGE_SIZE).await.unwrap();
    assert_eq!(layout.extents.len(), 1);
    let hole = layout.extents[0];
    assert_eq!((hole.kind, hole.start, hole.end), (SegmentKind::Hole, 8 * PAGE, far));
    // Whether it is also the end of file may be unknown: READ_PLUS sets `eof` only for the
    // requested range (RFC 7862 section 15.10.3).

    write(&*file, 1 << 20, &[1; 1 << 16]).await.unwrap();
    let (_, layout) = read(&*file, 0, PAGE_SIZE).await.unwrap();
    assert_eq!((layout.end(0), layout.eof), (1 << 20, false), "up to the data: {layout:?}");
    let (_, layout) = read(&*file, 0, 4 << 20).await.unwrap();
    let kinds: Vec<_> = layout.extents.iter().map(|e| e.kind).collect();
    assert_eq!(kinds, [SegmentKind::Hole, SegmentKind::Data, SegmentKind::Hole]);
    assert_eq!(layout.end(0), far);
    let extent = file.extent_at(5).await.unwrap();
    assert_eq!((extent.kind, extent.start, extent.end), (SegmentKind::Hole, 5, 1 << 20));
    let extent = file.extent_at((1 << 20) + 9).await.unwrap();
    assert_eq!((extent.kind, extent.end), (SegmentKind::Data, (1 << 20) + (1 << 16)));
    assert_eq!(file.extent_at(far).await, Err(Error::NoSuchRange));
    write(&*file, far, b"end").await.unwrap();
    let extent = file.extent_at(far - 1).await.unwrap();
    assert_eq!((extent.kind, extent.end), (SegmentKind::Hole, far));
    assert_eq!(file.extent_at(far).await.unwrap().end, far + 3);
}

async fn sparse_writes_allocate_what_they_write(fs: &Arc<dyn FileSystem>, dir: FileId) {
    let file = new_file(fs, dir, "sparse").await;
    for i in 0..16 {
        write(&*file, i << 20, &[1; 4 * PAGE_SIZE]).await.unwrap();
    }
    file.sync(false).await.unwrap();
    let allocated = file.getattr().await.unwrap().allocated;
    // Some room for the file system's own blocks.
    assert!(allocated <= 16 * 4 * PAGE + 64 * 1024, "{allocated} bytes allocated");
    let (_, layout) = read(&*file, 0, 16 << 20).await.unwrap();
    let data = layout.extents.iter().filter(|e| e.kind == SegmentKind::Data);
    assert_eq!(data.map(|e| e.len()).sum::<u64>(), 16 * 4 * PAGE, "{layout:?}");
}

async fn punching_makes_holes(fs: &Arc<dyn FileSystem>, dir: FileId) {
    let file = new_file(fs, dir, "punch").await;
    let size = 64 * PAGE;
    write(&*file, 0, &vec![5; size as usize]).await.unwrap();
    let before = file.getattr().await.unwrap().allocated;
    file.punch_hole(100, 20 * PAGE).await.unwrap();
    let mut want = vec![5; size as usize];
    want[100..100 + 20 * PAGE_SIZE].fill(0);
    assert!(read_all(&*file, 1 << 16).await == want, "unaligned edges are zeroed");
    let (_, layout) = read(&*file, 0, size as usize).await.unwrap();
    let hole = layout.extents.iter().find(|e| e.kind == SegmentKind::Hole).unwrap();
    assert_eq!((hole.start, hole.end), (PAGE, 20 * PAGE));
    assert!(file.getattr().await.unwrap().allocated < before);
    file.punch_hole(size - 10, 1 << 20).await.unwrap();
    assert_eq!(file.getattr().await.unwrap().size, size, "punching past the end keeps the size");
    want[size as usize - 10..].fill(0);
    assert!(read_all(&*file, 1 << 16).await == want);
}

async fn allocation_extends(fs: &Arc<dyn FileSystem>, dir: FileId) {
    let file = new_file(fs, dir, "allocate").await;
    write(&*file, 0, b"kept").await.unwrap();
    file.allocate(0, 10 * PAGE).await.unwrap();
    let attr = file.getattr().await.unwrap();
    assert_eq!(attr.size, 10 * PAGE);
    assert!(attr.allocated >= 10 * PAGE);
    let all = read_all(&*file, 1 << 16).await;
    assert!(all.starts_with(b"kept") && all[4..].iter().all(|&b| b == 0));
    assert_eq!(file.allocate(0, 0).await, Err(Error::Invalid));
}

async fn clones_share_and_then_differ(fs: &Arc<dyn FileSystem>, dir: FileId) {
    let from = new_file(fs, dir, "original").await;
    let bytes = Random::new(3).bytes(4 * PAGE_SIZE + 77);
    write(&*from, 0, &bytes).await.unwrap();
    let to = new_file(fs, dir, "clone").await;
    to.clone_range(&*from, 0, 0, 0).await.unwrap();
    assert!(read_all(&*to, 1 << 16).await == bytes, "length 0 is up to the end");
    write(&*from, 10, b"changed").await.unwrap();
    assert!(read_all(&*to, 1 << 16).await == bytes, "a clone keeps what was cloned");
    to.clone_range(&*from, 0, PAGE, 8 * PAGE).await.unwrap();
    assert_eq!(to.getattr().await.unwrap().size, 9 * PAGE);
    let (buffer, layout) = read(&*to, 8 * PAGE, PAGE_SIZE).await.unwrap();
    assert!(bytes_of(8 * PAGE, &buffer, &layout)[10..].starts_with(b"changed"));
    assert!(to.clone_range(&*from, 1, PAGE, 0).await.is_err(), "unaligned");
}

async fn copies_are_of_any_range(fs: &Arc<dyn FileSystem>, dir: FileId) {
    let from = new_file(fs, dir, "copied").await;
    let bytes = Random::new(4).bytes(4 * PAGE_SIZE + 77);
    write(&*from, 0, &bytes).await.unwrap();
    let to = new_file(fs, dir, "copy").await;
    let mut at = 5;
    while at < bytes.len() as u64 {
        let len = bytes.len() as u64 - at;
        let copied = to.copy_range(&*from, at, len, at - 5).await.unwrap();
        assert!(copied > 0 && copied <= len);
        at += copied;
    }
    assert!(read_all(&*to, 1 << 16).await == bytes[5..]);
    write(&*from, 10, b"changed").await.unwrap();
    assert!(read_all(&*to, 1 << 16).await == bytes[5..], "a copy keeps what was copied");
    assert!(to.copy_range(&*from, 0, 1 << 20, 0).await.is_err(), "past the end");
}

/// Random writes, truncations, punches and reads, compared with a vector.
async fn a_file_is_what_a_vector_is(fs: &Arc<dyn FileSystem>, dir: FileId, seed: u64) {
    const MAX_BYTES: u64 = 256 * 1024;
    let mut random = Random::new(seed);
    let file = new_file(fs, dir, &format!("random{seed}")).await;
    let id = file.getattr().await.unwrap().id;
    let punches = fs.capabilities().contains(Capabilities::HOLES);
    let mut oracle: Vec<u8> = Vec::new();
    for step in 0..300 {
        let aligned = random.one_in(2);
        let fit = |x: u64| if aligned { x.next_multiple_of(PAGE) } else { x };
        let offset = fit(random.below(MAX_BYTES));
        let most = [100, 5000, 70_000][random.below(3) as usize];
        let len = fit(1 + random.below(most));
        match random.below(10) {
            0..4 => {
                let bytes = random.bytes(len as usize);
                write(&*file, offset, &bytes).await.unwrap();
                let end = (offset + len) as usize;
                oracle.resize(oracle.len().max(end), 0);
                oracle[offset as usize..end].copy_from_slice(&bytes);
            }
            4 if random.one_in(2) => {
                file.set_size(offset).await.unwrap();
                oracle.resize(offset as usize, 0);
            }
            5 if punches => {
                file.punch_hole(offset, len).await.unwrap();
                let size = oracle.len();
                oracle[(offset as usize).min(size)..((offset + len) as usize).min(size)].fill(0);
            }
            6 if random.one_in(4) => {
                file.sync(true).await.unwrap();
            }
            _ => check_read(&*file, &oracle, offset, len as usize, (seed, step)).await,
        }
    }
    assert!(read_all(&*file, 1 << 16).await == oracle, "seed {seed}");
    assert_eq!(attr(fs, id).await.size, oracle.len() as u64);
    let caller = Caller::Own;
    let again = fs.open(&caller, id, Access::READ).await.unwrap();
    assert!(read_all(&*again, 12_345).await == oracle, "opened anew, seed {seed}");
}

async fn check_read(file: &dyn OpenFile, oracle: &[u8], offset: u64, len: usize, at: (u64, usize)) {
    let (buffer, layout) = read(file, offset, len).await.unwrap();
    let size = oracle.len();
    let (from, to) = ((offset as usize).min(size), (offset as usize + len).min(size));
    let got = bytes_of(offset, &buffer, &layout);
    assert!(got == oracle[from..to], "{len} bytes at {offset}, (seed, step) {at:?}: {layout:?}");
    // If a hole continues after the request, whether it ends with the file may be unknown.
    let open_ended = layout.end(offset) > offset + len as u64;
    let ends = layout.end(offset).max(offset) >= size as u64;
    assert!(layout.eof == ends || (open_ended && !layout.eof), "{at:?}: {layout:?}");
    if let Some(hole) = layout.extents.iter().find(|e| e.kind == SegmentKind::Hole) {
        let end = (hole.end as usize).min(size);
        assert!(oracle[hole.start as usize..end].iter().all(|&b| b == 0), "{at:?}: {hole:?}");
    }
    let got_from_extent = file.extent_at(offset).await;
    if offset as usize >= size {
        assert_eq!(got_from_extent, Err(Error::NoSuchRange));
    } else {
        let extent = got_from_extent.unwrap();
        assert!(extent.start == offset && extent.end <= size as u64 && !extent.is_empty());
        let bytes = &oracle[extent.start as usize..extent.end as usize];
        assert!(extent.kind == SegmentKind::Data || bytes.iter().all(|&b| b == 0), "{extent:?}");
    }
}
