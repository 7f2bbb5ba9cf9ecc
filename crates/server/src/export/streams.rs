//! Detects long streams, for exports that do not cache their data.
//!
//! 1. A stream is a run of accesses of one client to one file, each near the end of the run. They
//!    need not be in order: clients send several requests at a time, over several connections.
//! 2. At most [`SHARDS`] times [`SHARD_FILES`] files are tracked, each with [`RUNS`] runs. The
//!    least recently used are dropped first.

use hashlink::LruCache;
use parking_lot::Mutex;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::net::IpAddr;
use weir_vfs::FileId;

const SHARDS: usize = 16;
const SHARD_FILES: usize = 64;
const RUNS: usize = 4;
/// Maximum distance of an access from the end of its run, in bytes.
const REACH_BYTES: u64 = 16 << 20;
/// Length of a run of reads, in bytes, from which on the stream is expected to continue to the end
/// of the file.
const SURE_BYTES: u64 = 4 << 20;

type Key = (IpAddr, FileId, Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Read,
    Write,
}

/// The runs of one export.
pub(super) struct Streams {
    shards: [Mutex<LruCache<Key, Runs>>; SHARDS],
}

#[derive(Clone, Copy, Debug, Default)]
struct Run {
    start: u64,
    end: u64,
}

/// The runs of a file, most recently used first.
#[derive(Default)]
struct Runs([Run; RUNS]);

impl Default for Streams {
    fn default() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::new(LruCache::new(SHARD_FILES))) }
    }
}

impl std::fmt::Debug for Streams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Streams")
    }
}

impl Streams {
    /// Tracks a read in a file of `size` bytes. Returns the expected length of its stream, in
    /// bytes.
    pub(super) fn read(&self, peer: IpAddr, file: FileId, offset: u64, len: u64, size: u64) -> u64 {
        let run = self.follow((peer, file, Kind::Read), offset, len);
        let so_far = run.end - run.start;
        if so_far < SURE_BYTES { so_far } else { so_far.max(size.saturating_sub(run.start)) }
    }

    /// Tracks a write. Returns the length of its stream so far, in bytes.
    pub(super) fn written(&self, peer: IpAddr, file: FileId, offset: u64, len: u64) -> u64 {
        let run = self.follow((peer, file, Kind::Write), offset, len);
        run.end - run.start
    }

    fn follow(&self, key: Key, offset: u64, len: u64) -> Run {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(key);
        let mut shard = self.shards[(hash % SHARDS as u64) as usize].lock();
        if let Some(runs) = shard.get_mut(&key) {
            return runs.follow(offset, len);
        }
        let mut runs = Runs::default();
        let run = runs.follow(offset, len);
        shard.insert(key, runs);
        run
    }
}

impl Runs {
    fn follow(&mut self, offset: u64, len: u64) -> Run {
        let end = offset.saturating_add(len);
        let near = |run: &Run| run.end > run.start && run.end.abs_diff(offset) <= REACH_BYTES;
        let found = self.0.iter().position(near);
        let run = match found {
            // An access before the start was overtaken by the first one seen.
            Some(at) => {
                let Run { start, end: was } = self.0[at];
                Run { start: start.min(offset), end: was.max(end) }
            }
            None => Run { start: offset, end },
        };
        self.0[..=found.unwrap_or(RUNS - 1)].rotate_right(1);
        self.0[0] = run;
        run
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const MIB: u64 = 1 << 20;
    const PEER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const FILE: FileId = FileId { ino: 5, generation: 1 };

    #[test]
    fn a_stream_is_detected_by_the_rest_of_the_file() {
        let streams = Streams::default();
        // An order in which a client's requests may arrive.
        let lengths: Vec<u64> = [1, 0, 3, 2, 5]
            .map(|at| streams.read(PEER, FILE, at * MIB, MIB, 1000 * MIB) / MIB)
            .into();
        assert_eq!(lengths, [1, 2, 1000, 1000, 1000]);
        let late = streams.read(PEER, FILE, 900 * MIB, 5 * MIB, 1000 * MIB);
        assert_eq!(late, 100 * MIB);
    }

    #[test]
    fn scattered_reads_and_reads_of_other_clients_are_no_stream() {
        let streams = Streams::default();
        for i in 0..1000 {
            let offset = (i * 7919 % 1000) * 100 * MIB;
            assert_eq!(streams.read(PEER, FILE, offset, 4096, 100_000 * MIB), 4096);
        }
        let other = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
        assert_eq!(streams.written(PEER, FILE, 0, MIB), MIB);
        assert_eq!(streams.written(other, FILE, MIB, MIB), MIB);
        assert_eq!(streams.written(PEER, FILE, MIB, MIB), 2 * MIB);
    }

    #[test]
    fn several_readers_of_a_file_are_distinguished() {
        let streams = Streams::default();
        for at in 0..8 {
            for reader in 0..4 {
                let offset = (reader * 1000 + at) * MIB;
                let len = streams.read(PEER, FILE, offset, MIB, 10_000 * MIB);
                assert_eq!(len > 1000 * MIB, at >= 3, "reader {reader} at {at}");
            }
        }
    }
}
