//! A conformance suite for every [`FileSystem`].
//!
//! Call [`suite`] with a store that is empty below its root. Tests of bytes compare with a plain
//! vector; each random one is reproducible by the seed in its message.

mod data;
mod endless;
mod locks;
mod moving;
mod names;

pub use crate::random::Random;
pub use endless::Endless;
pub use moving::Moving;

use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use tokio::sync::oneshot;
use weir_base::PAGE_SIZE;
use weir_vfs::{
    Access, Attr, Buffer, Caller, Capabilities, CreateMode, Error, FileId, FileSystem, Layout,
    OpenFile, ReadOp, Result, SegmentKind, SetAttr, Source, WriteOp,
};

/// Runs every test of the suite that applies to the store's capabilities, each in its own
/// directory. The store lacks the capabilities `lacking` by design; the tests of others that it
/// lacks are skipped.
///
/// # Panics
/// The store fails a test, or has a capability that it should lack.
pub async fn suite(fs: &Arc<dyn FileSystem>, lacking: Capabilities) {
    let has = fs.capabilities();
    assert!(!has.intersects(lacking), "it has {:?}", has & lacking);
    for (name, _) in (tested() - has - lacking).iter_names() {
        weir_skip::skip(format!("the store lacks {name}"));
    }
    names::all(fs).await;
    data::all(fs).await;
    if has.contains(Capabilities::LOCKS) {
        locks::all(fs).await;
    }
}

/// The capabilities that the suite tests.
fn tested() -> Capabilities {
    let data = Capabilities::HOLES | Capabilities::ALLOCATE | Capabilities::CLONE;
    data | Capabilities::LOCKS | Capabilities::XATTR | Capabilities::POSIX_ACL
}

/// A directory of its own for a test.
async fn scratch(fs: &Arc<dyn FileSystem>, name: &str) -> FileId {
    let set = SetAttr { mode: Some(0o777), ..SetAttr::default() };
    fs.mkdir(&Caller::Own, fs.root().entry(name.as_bytes()).with(&set)).await.unwrap().id
}

/// A new regular file, open for reading and writing.
///
/// # Panics
/// It cannot be created.
pub async fn new_file(fs: &Arc<dyn FileSystem>, dir: FileId, name: &str) -> Arc<dyn OpenFile> {
    let made = fs
        .create(
            &Caller::Own,
            dir.entry(name.as_bytes()).with(&SetAttr::default()),
            CreateMode::MustBeNew,
        )
        .await;
    let id = made.unwrap().attr.id;
    fs.open(&Caller::Own, id, Access::READ | Access::WRITE).await.unwrap()
}

/// Reads `len` bytes into a buffer whose every byte is 0xEE, and checks the layout against the
/// rules of [`Layout`].
pub async fn read(file: &dyn OpenFile, offset: u64, len: usize) -> Result<(Vec<u8>, Layout)> {
    let (tx, rx) = oneshot::channel();
    let buffer = Box::new(Aligned::new(&vec![0xEE; len], offset));
    file.submit_read(ReadOp::new(offset, buffer, move |mut buffer, result| {
        let mut slices = Vec::new();
        let len = buffer.len();
        buffer.slices(0, len, &mut slices);
        let bytes = slices.iter().flat_map(|slice| slice.iter().copied()).collect::<Vec<_>>();
        // The test may be gone.
        let _ = tx.send(result.map(|layout| (bytes, layout)));
    }));
    let (bytes, layout) = rx.await.map_err(|_| Error::Io)??;
    check_layout(&layout, offset, len);
    Ok((bytes, layout))
}

/// Writes bytes, and waits.
pub async fn write(file: &dyn OpenFile, offset: u64, bytes: &[u8]) -> Result<()> {
    let (tx, rx) = oneshot::channel();
    let done = move |_: Box<dyn Source>, result| {
        // The test may be gone.
        let _ = tx.send(result);
    };
    file.submit_write(WriteOp::new(offset, Box::new(Aligned::new(bytes, offset)), done));
    rx.await.map_err(|_| Error::Io)?
}

/// Memory with the file's offsets within pages, as in a page cache.
struct Aligned {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    fn new(bytes: &[u8], offset: u64) -> Self {
        let mut memory = vec![0; bytes.len() + 2 * PAGE_SIZE];
        let start = memory.as_ptr().align_offset(PAGE_SIZE) + offset as usize % PAGE_SIZE;
        memory[start..start + bytes.len()].copy_from_slice(bytes);
        Self { memory, start, len: bytes.len() }
    }
}

// SAFETY: the vector owns its memory, which does not move with it, and is never resized.
unsafe impl Buffer for Aligned {
    fn len(&self) -> usize {
        self.len
    }

    fn slices<'a>(&'a mut self, from: usize, to: usize, out: &mut Vec<IoSliceMut<'a>>) {
        out.push(IoSliceMut::new(&mut self.memory[self.start..][from..to]));
    }
}

// SAFETY: as above; nothing writes to the vector after its creation.
unsafe impl Source for Aligned {
    fn len(&self) -> usize {
        self.len
    }

    fn slices<'a>(&'a self, from: usize, to: usize, out: &mut Vec<IoSlice<'a>>) {
        out.push(IoSlice::new(&self.memory[self.start..][from..to]));
    }
}

/// The bytes of a read: data from the buffer, holes as zeros; clipped to the request.
pub fn bytes_of(offset: u64, buffer: &[u8], layout: &Layout) -> Vec<u8> {
    let end = offset + buffer.len() as u64;
    let mut bytes = Vec::new();
    for extent in &layout.extents {
        let to = extent.end.min(end);
        match extent.kind {
            SegmentKind::Data => bytes.extend_from_slice(
                &buffer[(extent.start - offset) as usize..(to - offset) as usize],
            ),
            SegmentKind::Hole => bytes.resize((to - offset) as usize, 0),
        }
    }
    bytes
}

/// The whole file, read `step` bytes at a time.
///
/// # Panics
/// A read fails, or makes no progress.
pub async fn read_all(file: &dyn OpenFile, step: usize) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let offset = all.len() as u64;
        let (buffer, layout) = read(file, offset, step).await.unwrap();
        let bytes = bytes_of(offset, &buffer, &layout);
        all.extend_from_slice(&bytes);
        if layout.eof {
            // A hole that begins after the request may extend to the end of the file.
            all.resize(layout.end(offset) as usize, 0);
            return all;
        }
        assert!(!bytes.is_empty(), "no progress at {offset}");
    }
}

fn check_layout(layout: &Layout, offset: u64, len: usize) {
    let mut at = offset;
    for (i, extent) in layout.extents.iter().enumerate() {
        assert_eq!(extent.start, at, "extents are contiguous: {layout:?}");
        assert!(!extent.is_empty(), "no extent is empty: {layout:?}");
        let past = extent.end > offset + len as u64;
        let last = i + 1 == layout.extents.len();
        assert!(!past || (last && extent.kind == SegmentKind::Hole), "{layout:?} for {len}");
        at = extent.end;
    }
}

fn own() -> Caller {
    Caller::Own
}

async fn attr(fs: &Arc<dyn FileSystem>, id: FileId) -> Attr {
    fs.getattr(id).await.unwrap()
}
