//! The kernel's methods of streaming, for comparison: buffered, RWF_DONTCACHE, and O_DIRECT with
//! several operations in flight. Run in a process of its own, so that a control group can bound the
//! memory of the kernel's cache.
//!
//! Sound because a ring's buffers are neither freed nor accessed while the kernel has them: a slot
//! is reused only after its completion, and all completions are awaited in the end.

#![allow(unsafe_code, reason = "system calls and mappings that rustix does not wrap")]

use super::streams::{self, Meter, Outcome};
use crate::limit::Limit;
use crate::process::{self, PathBytes};
use io_uring::{IoUring, opcode, types};
use rustix::fs::{Mode, OFlags};
use rustix::io::ReadWriteFlags;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, BufRead, BufReader, IoSlice, IoSliceMut, Write};
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use weir_tools::failure::{Asked, Failure, Result};

/// The name of the helper.
pub(crate) const NAME: &str = "kernel";

/// One of the kernel's methods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum How {
    /// Through its cache.
    Buffered,
    /// Through its cache, dropping the pages after use.
    Dontcache,
    /// Past its cache.
    Direct,
}

/// Streams through the kernel.
#[derive(Serialize, Deserialize)]
pub(crate) struct Streams {
    pub(crate) how: How,
    pub(crate) write: bool,
    pub(crate) block: usize,
    /// Operations in flight per stream, with direct I/O.
    pub(crate) depth: usize,
    pub(crate) millis: u64,
    pub(crate) files: Vec<PathBytes>,
}

/// RWF_DONTCACHE of preadv2(2).
const DONTCACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);

/// Waits for a line on standard input, then streams, with a line of output each second; the last
/// line is the result as JSON.
pub(crate) fn run(args: &Streams) -> Result<()> {
    io::stdin().read_line(&mut String::new()).asked(|| "read from standard input".into())?;
    let direct = if args.how == How::Direct { OFlags::DIRECT } else { OFlags::empty() };
    let files: Vec<(File, u64)> = args
        .files
        .iter()
        .map(|path| {
            let flags = OFlags::RDWR | OFlags::CLOEXEC | direct;
            let open = || {
                let file = File::from(rustix::fs::open(&**path, flags, Mode::empty())?);
                let size = file.metadata()?.len();
                Ok::<_, io::Error>((file, size))
            };
            open().asked(|| format!("open {}", path.display()))
        })
        .collect::<Result<_>>()?;
    let outcome = streams::run(
        files.len(),
        Duration::from_millis(args.millis),
        |i, meter| {
            let (file, size) = &files[i];
            let streamed = match args.how {
                How::Direct => stream_direct(args, file, *size, meter),
                _ => stream_buffered(args, file, *size, meter),
            };
            if let Err(error) = streamed {
                meter.failed(error);
            }
        },
        |mb| {
            // If the reader is gone the streams continue, and printing the result fails.
            let _ = process::answer(&mb.to_string());
        },
        || {
            for (file, _) in files.iter().filter(|_| args.write) {
                // An error would have occurred in a stream.
                let _ = file.sync_data();
            }
        },
    );
    let line = serde_json::to_string(&outcome).map_err(io::Error::from);
    process::answer(&line.asked(|| "write JSON".into())?)
}

fn stream_buffered(
    args: &Streams,
    file: &File,
    size: u64,
    meter: &mut Meter<'_>,
) -> io::Result<()> {
    let flags = if args.how == How::Dontcache { DONTCACHE } else { ReadWriteFlags::empty() };
    let mut buf = vec![0x5A; args.block];
    let mut at = 0;
    while !meter.stopped() {
        let start = Instant::now();
        let moved = if args.write {
            rustix::io::pwritev2(file, &[IoSlice::new(&buf)], at, flags)?
        } else {
            rustix::io::preadv2(file, &mut [IoSliceMut::new(&mut buf)], at, flags)?
        };
        meter.moved(moved, start.elapsed());
        at += args.block as u64;
        if at + args.block as u64 > size {
            at = 0;
        }
    }
    Ok(())
}

fn stream_direct(args: &Streams, file: &File, size: u64, meter: &mut Meter<'_>) -> io::Result<()> {
    const ALIGN: usize = 4096;
    let (block, depth) = (args.block.next_multiple_of(ALIGN), args.depth.clamp(1, 256));
    let mut memory = vec![0x5A_u8; block * depth + ALIGN];
    let base = memory.as_ptr().align_offset(ALIGN);
    let mut ring: IoUring = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .build(256)
        .or_else(|_| IoUring::new(256))?;
    let mut started = vec![Instant::now(); depth];
    let (mut idle, mut at): (Vec<usize>, u64) = ((0..depth).collect(), 0);
    loop {
        while !meter.stopped()
            && let Some(slot) = idle.pop()
        {
            let buffer = memory[base + slot * block..].as_mut_ptr();
            let fd = types::Fd(file.as_raw_fd());
            let entry = if args.write {
                opcode::Write::new(fd, buffer, block as u32).offset(at).build()
            } else {
                opcode::Read::new(fd, buffer, block as u32).offset(at).build()
            };
            started[slot] = Instant::now();
            // SAFETY: the slot was idle, and its memory lives until every completion has arrived.
            let pushed = unsafe { ring.submission().push(&entry.user_data(slot as u64)) };
            debug_assert!(pushed.is_ok(), "the queue has room for every slot");
            at += block as u64;
            if at + block as u64 > size {
                at = 0;
            }
        }
        if idle.len() == depth {
            return Ok(());
        }
        match ring.submit_and_wait(1) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // The kernel may still have the buffers.
            Err(error) => panic!("io_uring fails: {error}"),
        }
        let answers: Vec<(usize, i32)> =
            ring.completion().map(|a| (a.user_data() as usize, a.result())).collect();
        for (slot, moved) in answers {
            idle.push(slot);
            match usize::try_from(moved) {
                Ok(moved) => meter.moved(moved, started[slot].elapsed()),
                Err(_) => meter.failed(io::Error::from_raw_os_error(-moved)),
            }
        }
    }
}

/// Runs streams in a process of their own, with bounded memory if permitted; returns whether it was.
pub(crate) fn in_a_process(
    args: &Streams,
    limit_bytes: Option<u64>,
    mut each_second: impl FnMut(f64),
) -> Result<(Outcome, bool)> {
    let asked = || "run the kernel's streams".to_owned();
    let mut command = Command::new(process::program()?);
    command.args(process::arguments(NAME, args)?).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().asked(asked)?;
    let limit = limit_bytes.and_then(|bytes| Limit::on(child.id(), bytes).ok());
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(b"go\n").asked(asked)?;
    }
    let mut last = String::new();
    for line in child.stdout.take().into_iter().flat_map(|out| BufReader::new(out).lines()) {
        last = line.asked(asked)?;
        if let Ok(mb) = last.parse() {
            each_second(mb);
        }
    }
    let status = child.wait().asked(asked)?;
    let outcome: Outcome = serde_json::from_str(&last)
        .map_err(|error| Failure::new(asked(), format!("it ended with {status}: {error}")))?;
    Ok((outcome, limit.is_some()))
}
