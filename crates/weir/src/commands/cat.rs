//! `weir cat`: writes files to standard output. If that is a regular file, holes stay holes.

use super::with_mounts;
use crate::arguments::{MountArgs, location};
use crate::closing::close;
use crate::ended::Ended;
use crate::output::complain;
use rustix::fs::{FileType, OFlags, SeekFrom};
use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::AsFd;
use weir_pagecache::{Segment, Segments};
use weir_stores::local::stream::stream_of;
use weir_tools::copy::{source, zeros};
use weir_tools::failure::{Asked, Failure, Result};
use weir_tools::location::Location;
use weir_tools::mounts::{Links, Mounts};
use weir_tools::size::Size;
use weir_tools::text::kind_name;
use weir_vfs::{Access, Caller, FileKind, IoFlags};

/// Bytes of one read from the cache.
const CHUNK_BYTES: u64 = 1 << 20;

/// Write files to standard output
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  weir cat nfs://filer/notes.txt
  weir cat --offset 1GiB --length 64K nfs://filer/disk.img | xxd | less
  weir cat nfs://filer/disk.img > disk.img      keeps holes, because the output is a file")]
pub(crate) struct Args {
    /// The files
    #[arg(value_name = "LOCATION", required = true, value_parser = location())]
    locations: Vec<Location>,
    #[command(flatten)]
    range: Range,
    /// Leave the page cache unchanged, here and at the server
    #[arg(long)]
    uncached: bool,
    #[command(flatten)]
    mount: MountArgs,
}

/// The part of each file to write.
#[derive(clap::Args)]
struct Range {
    /// Offset to start at in each file
    #[arg(long, value_name = "SIZE", default_value = "0")]
    offset: Size,
    /// Bytes to write of each file [default: up to its end]
    #[arg(long, value_name = "SIZE")]
    length: Option<Size>,
}

pub(crate) fn run(args: Args) -> Result<Ended> {
    let flags = if args.uncached { IoFlags::UNCACHED } else { IoFlags::empty() };
    with_mounts(&args.mount, async |mounts| {
        if args.uncached {
            mounts.uncached();
        }
        let mut out = Out::new()?;
        let mut failed = false;
        for location in &args.locations {
            match cat(mounts, location, &args.range, flags, &mut out).await {
                Ok(Ended::Done) => {}
                Ok(ended) => return Ok(ended),
                Err(failure) => {
                    complain(&failure);
                    failed = true;
                }
            }
        }
        match written(out.finish())? {
            Ended::Done if failed => Ok(Ended::Failed),
            ended => Ok(ended),
        }
    })
}

/// Writes a whole file to standard output.
pub(crate) async fn to_output(
    mounts: &mut Mounts,
    location: &Location,
    flags: IoFlags,
) -> Result<Ended> {
    let mut out = Out::new()?;
    let range = Range { offset: Size::Bytes(0), length: None };
    match cat(mounts, location, &range, flags, &mut out).await? {
        Ended::Done => written(out.finish()),
        ended => Ok(ended),
    }
}

async fn cat(
    mounts: &mut Mounts,
    location: &Location,
    args: &Range,
    flags: IoFlags,
    out: &mut Out,
) -> Result<Ended> {
    let place = mounts.place(location, Links::Follow).await?;
    let attr = place.existing("read")?;
    let asked = || format!("read {location}");
    if attr.kind != FileKind::Regular {
        return Err(Failure::new(asked(), format!("it is a {}", kind_name(attr.kind))));
    }
    let file = place.fs.open(&Caller::Own, attr.id, Access::READ).await.asked(asked)?;
    let attr = &source::look(&file).await.asked(asked)?;
    if attr.allocated == 0 {
        let opened = place.fs.store().open(&Caller::Own, attr.id, Access::READ).await;
        let opened = opened.asked(asked)?;
        if let Some(stream) = stream_of(&*opened, attr).asked(asked)? {
            return cat_stream(stream, location, args, out);
        }
    }
    let mut at = args.offset.of(attr.size);
    let end = args.length.map_or(u64::MAX, |length| at.saturating_add(length.of(attr.size)));
    while at < end {
        let len = CHUNK_BYTES.min(end - at) as usize;
        let found = file.read_segments_async(at, len, flags).await.asked(asked)?;
        let before = at;
        match written(out.segments(&found, &mut at, end.min(file.size())))? {
            Ended::Done => {}
            ended => return Ok(ended),
        }
        if at == before || found.eof && at >= file.size() {
            break;
        }
    }
    source::unchanged(&file, attr, &place.shown).await?;
    // The file became shorter between the check and the last read.
    if at < end.min(attr.size) { Err(source::changed(&place.shown)) } else { Ok(Ended::Done) }
}

/// Writes out a file whose size does not describe its content.
fn cat_stream(mut stream: File, location: &Location, args: &Range, out: &mut Out) -> Result<Ended> {
    let asked = || format!("read {location}");
    let bytes_of = |size: Size| match size {
        Size::Bytes(bytes) => Ok(bytes),
        Size::Percent(_) => {
            let failure = Failure::new(asked(), "its size, and so a share of it, is not known");
            Err(failure.advice("give --offset and --length in bytes"))
        }
    };
    let mut skip = bytes_of(args.offset)?;
    let mut left = args.length.map_or(Ok(u64::MAX), bytes_of)?;
    let mut bytes = vec![0; CHUNK_BYTES as usize];
    while left > 0 {
        let n = match stream.read(&mut bytes) {
            Ok(0) => break,
            Ok(n) => n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error).asked(asked),
        };
        let from = skip.min(n as u64);
        skip -= from;
        let len = left.min(n as u64 - from);
        left -= len;
        match written(out.bytes(&bytes[from as usize..(from + len) as usize]))? {
            Ended::Done => {}
            ended => return Ok(ended),
        }
    }
    Ok(Ended::Done)
}

/// The result of a write to standard output. A closed pipe (`| head`) ends the command silently,
/// with the exit code of a program that SIGPIPE ended.
fn written(result: io::Result<()>) -> Result<Ended> {
    match result {
        Ok(()) => Ok(Ended::Done),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Ended::With(128 + 13)),
        Err(error) => Err(error).asked(|| "write to standard output".into()),
    }
}

/// Standard output, which can have holes if it is a regular file.
struct Out {
    file: File,
    /// Whether a seek may replace zeros at the end of the output.
    sparse: bool,
    /// Zeros that are not written yet, because a hole may replace them.
    due: u64,
}

impl Out {
    fn new() -> Result<Self> {
        let stdout = io::stdout();
        let asked = || "use standard output".into();
        let fd = stdout.as_fd().try_clone_to_owned().asked(asked)?;
        let regular = rustix::fs::fstat(&fd)
            .is_ok_and(|s| FileType::from_raw_mode(s.st_mode) == FileType::RegularFile);
        let append = rustix::fs::fcntl_getfl(&fd).is_ok_and(|flags| flags.contains(OFlags::APPEND));
        Ok(Self { file: fd.into(), sparse: regular && !append, due: 0 })
    }

    fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.settle()?;
        self.file.write_all(bytes)
    }

    /// Writes the bytes between `at` and `end`, and advances `at`.
    fn segments(&mut self, found: &Segments, at: &mut u64, end: u64) -> io::Result<()> {
        for segment in &found.segments {
            match segment {
                Segment::Hole { end: hole_end, .. } => {
                    let to = (*hole_end).min(end).max(*at);
                    self.due += to - *at;
                    *at = to;
                }
                Segment::Data { pages, .. } => {
                    self.settle()?;
                    let mut slices: Vec<IoSlice<'_>> = Vec::new();
                    pages.slices(0, &mut slices);
                    for slice in slices {
                        self.file.write_all(&slice)?;
                        *at += slice.len() as u64;
                    }
                }
            }
        }
        Ok(())
    }

    /// Produces the pending zeros: by a seek at the end of the file, otherwise by writing them.
    fn settle(&mut self) -> io::Result<()> {
        if self.due == 0 {
            return Ok(());
        }
        if self.sparse {
            let here = rustix::fs::tell(&self.file)?;
            if here >= self.file.metadata()?.len() {
                let there = here.checked_add(self.due).ok_or(io::ErrorKind::FileTooLarge)?;
                rustix::fs::seek(&self.file, SeekFrom::Start(there))?;
                self.due = 0;
                return Ok(());
            }
        }
        while self.due > 0 {
            let zeros = zeros::some(self.due);
            self.file.write_all(zeros)?;
            self.due -= zeros.len() as u64;
        }
        Ok(())
    }

    /// Settles, extends a file that ends in a hole to its length, and closes it.
    fn finish(mut self) -> io::Result<()> {
        self.settle()?;
        if self.sparse {
            let here = rustix::fs::tell(&self.file)?;
            if here > self.file.metadata()?.len() {
                self.file.set_len(here)?;
            }
        }
        close(self.file)
    }
}
