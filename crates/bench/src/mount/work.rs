//! What programs do with files: the pieces of work that are measured.

use super::mapped;
use crate::interrupt;
use crate::measure::histogram;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use weir_stores::random::Random;
use weir_tools::failure::{Asked, Result};

/// Bytes of a large read or write.
const LARGE: usize = 1 << 20;
/// Bytes of a random read.
const SMALL: usize = 4096;
/// Bytes of a small file.
const FILE_BYTES: usize = 1000;
/// The large file.
pub(super) const FILE: &str = "file";

/// A piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) enum Work {
    ColdRead,
    ColdMapped,
    Read,
    Mapped,
    Random,
    RandomMany,
    Write,
    Create,
    Stat,
    ReadFiles,
    Remove,
}

impl Work {
    /// In the order of a report.
    pub(super) const ALL: [Self; 11] = [
        Self::ColdMapped,
        Self::Mapped,
        Self::ColdRead,
        Self::Read,
        Self::Random,
        Self::RandomMany,
        Self::Write,
        Self::Create,
        Self::Stat,
        Self::ReadFiles,
        Self::Remove,
    ];

    /// The order of a round, but for the removal, which has rounds of its own. Work with cold caches
    /// comes first; what follows finds them warm.
    pub(super) const FIRST: &[Self] = Self::ALL.split_at(10).0;

    /// For reports.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::ColdRead => "read by 1 MiB, cold",
            Self::ColdMapped => "read by a mapping, cold",
            Self::Read => "read by 1 MiB",
            Self::Mapped => "read by a mapping",
            Self::Random => "random 4 KiB reads",
            Self::RandomMany => "the same, 32 threads",
            Self::Write => "write by 1 MiB, fsync",
            Self::Create => "create and write",
            Self::Stat => "stat",
            Self::ReadFiles => "open and read",
            Self::Remove => "remove",
        }
    }

    /// Whether all caches are to be empty.
    pub(super) fn is_cold(self) -> bool {
        matches!(self, Self::ColdRead | Self::ColdMapped)
    }

    /// Whether its rate is one of bytes; otherwise of operations.
    pub(super) fn is_of_bytes(self) -> bool {
        matches!(self, Self::ColdRead | Self::ColdMapped | Self::Read | Self::Mapped | Self::Write)
    }
}

/// How much work.
#[derive(Clone, Copy, Debug)]
pub(super) struct Amount {
    /// Size of the large file.
    pub(super) bytes: u64,
    /// Number of small files.
    pub(super) files: u32,
    /// Time for random reads.
    pub(super) time: Duration,
    /// Number of the directory of small files.
    pub(super) tree: usize,
}

impl Amount {
    fn tree(&self, dir: &Path) -> PathBuf {
        dir.join(format!("tree-{}", self.tree))
    }
}

/// Work that is done.
pub(super) struct Done {
    pub(super) seconds: f64,
    /// Bytes or operations.
    pub(super) count: f64,
    /// Time of each operation in nanoseconds.
    pub(super) latency: Option<Histogram<u64>>,
}

/// Does a piece of work with the files in `dir`.
///
/// # Errors
/// A file cannot be used, or does not have the content that it should have.
pub(super) fn run(work: Work, dir: &Path, amount: &Amount) -> Result<Done> {
    interrupt::check()?;
    let done = match work {
        Work::ColdRead | Work::Read => read(dir, amount),
        Work::ColdMapped | Work::Mapped => read_mapped(dir, amount),
        Work::Random => random(dir, amount, 1),
        Work::RandomMany => random(dir, amount, 32),
        Work::Write => write(dir, amount),
        Work::Create => each(amount, dir, |path| {
            let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
            file.write_all(&[7; FILE_BYTES])
        }),
        Work::Stat => each(amount, dir, |path| fs::symlink_metadata(path).map(drop)),
        Work::ReadFiles => each(amount, dir, |path| {
            let mut buffer = [0; SMALL];
            is_full(File::open(path)?.read_at(&mut buffer, 0)?, FILE_BYTES)
        }),
        Work::Remove => {
            let removed = each(amount, dir, |path| fs::remove_file(path));
            removed.and_then(|done| fs::remove_dir(amount.tree(dir)).map(|()| done))
        }
    };
    done.asked(|| format!("{} in {}", work.name(), dir.display()))
}

fn read(dir: &Path, amount: &Amount) -> io::Result<Done> {
    let mut buffer = vec![0; LARGE];
    let begun = Instant::now();
    let file = File::open(dir.join(FILE))?;
    let mut at = 0;
    loop {
        match file.read_at(&mut buffer, at)? {
            0 => break,
            read => at += read as u64,
        }
    }
    is_full(at as usize, amount.bytes as usize)?;
    Ok(Done { seconds: begun.elapsed().as_secs_f64(), count: at as f64, latency: None })
}

fn read_mapped(dir: &Path, amount: &Amount) -> io::Result<Done> {
    let mut buffer = vec![0; LARGE];
    let begun = Instant::now();
    let file = File::open(dir.join(FILE))?;
    is_full(file.metadata()?.len() as usize, amount.bytes as usize)?;
    mapped::read(&file, amount.bytes as usize, &mut buffer)?;
    let seconds = begun.elapsed().as_secs_f64();
    Ok(Done { seconds, count: amount.bytes as f64, latency: None })
}

fn random(dir: &Path, amount: &Amount, threads: u64) -> io::Result<Done> {
    let blocks = amount.bytes / SMALL as u64;
    let path = dir.join(FILE);
    let begun = Instant::now();
    let reader = |seed| {
        let file = File::open(&path)?;
        let (mut random, mut latency, mut buffer) = (Random::new(seed), histogram(), [0; SMALL]);
        // Once at least: opening the file may take longer than the time.
        loop {
            let at = random.below(blocks) * SMALL as u64;
            let call = Instant::now();
            is_full(file.read_at(&mut buffer, at)?, SMALL)?;
            latency.saturating_record((call.elapsed().as_nanos() as u64).max(1));
            if begun.elapsed() >= amount.time {
                return Ok::<_, io::Error>(latency);
            }
        }
    };
    let reader = &reader;
    let all = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..threads).map(|seed| scope.spawn(move || reader(seed))).collect();
        let ended = readers.into_iter().map(|reader| {
            reader.join().unwrap_or_else(|_| Err(io::Error::other("a reader failed")))
        });
        ended.collect::<io::Result<Vec<_>>>()
    })?;
    let seconds = begun.elapsed().as_secs_f64();
    let mut latency = histogram();
    for one in &all {
        latency.add(one).map_err(io::Error::other)?;
    }
    Ok(Done { seconds, count: latency.len() as f64, latency: Some(latency) })
}

fn write(dir: &Path, amount: &Amount) -> io::Result<Done> {
    let buffer = Random::new(7).bytes(LARGE);
    let path = dir.join("written");
    let begun = Instant::now();
    let file = File::create(&path)?;
    let mut at = 0;
    while at < amount.bytes {
        let now = (amount.bytes - at).min(LARGE as u64);
        file.write_all_at(&buffer[..now as usize], at)?;
        at += now;
    }
    file.sync_all()?;
    let seconds = begun.elapsed().as_secs_f64();
    drop(file);
    fs::remove_file(&path)?;
    Ok(Done { seconds, count: amount.bytes as f64, latency: None })
}

/// Calls `work` with the path of each small file.
fn each(
    amount: &Amount,
    dir: &Path,
    mut work: impl FnMut(&Path) -> io::Result<()>,
) -> io::Result<Done> {
    let dir = amount.tree(dir);
    match fs::create_dir(&dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let paths: Vec<PathBuf> = (0..amount.files).map(|n| dir.join(n.to_string())).collect();
    let mut latency = histogram();
    let begun = Instant::now();
    for path in &paths {
        let call = Instant::now();
        work(path)?;
        latency.saturating_record((call.elapsed().as_nanos() as u64).max(1));
    }
    let seconds = begun.elapsed().as_secs_f64();
    Ok(Done { seconds, count: amount.files.into(), latency: Some(latency) })
}

fn is_full(read: usize, wanted: usize) -> io::Result<()> {
    match read == wanted {
        true => Ok(()),
        false => Err(io::Error::other(format!("read {read} bytes in place of {wanted}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_piece_of_work_is_done() {
        let dir = tempfile::tempdir().unwrap();
        let bytes = (1 << 20) + 5 * 4096;
        fs::write(dir.path().join(FILE), vec![3; bytes as usize]).unwrap();
        let amount = Amount { bytes, files: 5, time: Duration::from_millis(5), tree: 0 };
        for work in Work::ALL {
            let done = run(work, dir.path(), &amount).unwrap();
            assert!(done.seconds > 0.0, "{}", work.name());
            match work {
                // However slow the machine is, each thread reads once.
                Work::Random => assert!(done.count >= 1.0),
                Work::RandomMany => assert!(done.count >= 32.0),
                _ if work.is_of_bytes() => assert_eq!(done.count, bytes as f64, "{}", work.name()),
                _ => assert_eq!(done.count, 5.0, "{}", work.name()),
            }
        }
        let left = fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(left, 1, "the large file stays");
        let other = Amount { bytes: 4096, ..amount };
        assert!(run(Work::Read, dir.path(), &other).is_err(), "another size");
    }
}
