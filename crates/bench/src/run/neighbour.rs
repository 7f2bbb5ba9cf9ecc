//! The neighbour: a process that reads a hot file from the kernel's cache while commands run.

use crate::measure::histogram;
use crate::peers::{Host, Running};
use crate::process::{self, PathBytes};
use rustix::io::ReadWriteFlags;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use weir_stores::random::Random;
use weir_tools::failure::{Asked, Failure, Result};

/// The name of the helper.
pub(crate) const NAME: &str = "neighbour";

const PAGE: u64 = 4096;
/// Reads in one burst.
const BURST: u32 = 32;

/// What the helper does.
#[derive(Serialize, Deserialize)]
pub(crate) struct Settings {
    file: PathBytes,
    reads_per_s: u32,
}

/// What the neighbour saw.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Seen {
    pub(super) reads: u64,
    pub(super) hits: u64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) p99_9_us: f64,
}

/// The helper: reads the file three times, and says so; reads 4 KiB at random from the next line of
/// standard input on, until the line after that, and answers with what it saw.
pub(crate) fn run(settings: &Settings) -> Result<()> {
    let asked = || "read the hot file".to_owned();
    let file = File::open(&*settings.file).asked(asked)?;
    let mut whole = vec![0; 1 << 20];
    let mut size = 0;
    // Used several times, some time apart, like hot data.
    for _ in 0..3 {
        size = 0;
        loop {
            match file.read_at(&mut whole, size).asked(asked)? {
                0 => break,
                read => size += read as u64,
            }
        }
    }
    process::answer("{}")?;
    hear()?;
    let stop = AtomicBool::new(false);
    let seen = std::thread::scope(|scope| {
        let reader = scope.spawn(|| read(&file, size / PAGE, settings.reads_per_s, &stop));
        process::answer("{}")?;
        let heard = hear();
        stop.store(true, Relaxed);
        let seen = reader.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()));
        heard.and(seen.asked(asked))
    })?;
    let text = serde_json::to_string(&seen).map_err(io::Error::from);
    process::answer(&text.asked(|| "answer".into())?)
}

fn hear() -> Result<()> {
    io::stdin().read_line(&mut String::new()).asked(|| "read from standard input".into())?;
    Ok(())
}

/// Reads 4 KiB at random, at this rate, until told to stop.
fn read(file: &File, pages: u64, reads_per_s: u32, stop: &AtomicBool) -> io::Result<Seen> {
    let (mut calls, mut random, mut seen) = (histogram(), Random::new(1), Seen::default());
    let (mut buf, begun) = ([0; PAGE as usize], Instant::now());
    while !stop.load(Relaxed) {
        for _ in 0..BURST {
            let at = random.below(pages.max(1)) * PAGE;
            let call = Instant::now();
            // Fails where the page is not cached.
            let cached = rustix::io::preadv2(
                file,
                &mut [IoSliceMut::new(&mut buf)],
                at,
                ReadWriteFlags::NOWAIT,
            );
            match cached {
                Ok(read) if read == buf.len() => seen.hits += 1,
                _ => file.read_exact_at(&mut buf, at)?,
            }
            calls.saturating_record((call.elapsed().as_nanos() as u64).max(1));
            seen.reads += 1;
        }
        let due = Duration::from_secs_f64(seen.reads as f64 / f64::from(reads_per_s));
        std::thread::sleep(due.saturating_sub(begun.elapsed()));
    }
    let quantile = |q| calls.value_at_quantile(q) as f64 / 1e3;
    Ok(Seen { p50_us: quantile(0.5), p99_us: quantile(0.99), p99_9_us: quantile(0.999), ..seen })
}

/// A running neighbour.
pub(super) struct Neighbour(Running);

impl Neighbour {
    /// Starts one, moves it to the control group with `move_to`, and has it read its file.
    pub(super) fn start(
        file: &Path,
        reads_per_s: u32,
        move_to: impl FnOnce(u32) -> io::Result<()>,
    ) -> Result<Self> {
        let settings = Settings { file: file.to_path_buf().into(), reads_per_s };
        let mut command = Host::LOCAL.command("/bin/sh");
        // It waits for a line before it opens the file, so that the group pays for the file's pages.
        command.args(["-c", "read -r go && exec \"$0\" \"$@\""]);
        command.arg(process::program()?).args(process::arguments(NAME, &settings)?);
        let mut running = Running::start(&mut command)?;
        move_to(running.id()).asked(|| "limit the neighbour's memory".into())?;
        running.control("go")?;
        Ok(Self(running))
    }

    /// It reads while `work` runs.
    pub(super) fn beside<T>(&mut self, work: impl FnOnce() -> Result<T>) -> Result<(T, Seen)> {
        self.0.control("go")?;
        let done = work();
        let seen = self.0.control("stop")?;
        let seen = serde_json::from_value(seen)
            .map_err(|error| Failure::new("hear from the neighbour", error.to_string()))?;
        Ok((done?, seen))
    }
}
