//! The log of dm-log-writes (Documentation/admin-guide/device-mapper/log-writes.rst, format in
//! drivers/md/dm-log-writes.c): a super block, then one block for each entry, each followed by its data.

use super::Random;
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::FileExt;

const MAGIC: u64 = 0x006a_7366_7773_6872;
const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;
const MARK: u64 = 8;
/// Bytes of an entry's header: place, length, flags, and length of what follows it in its block.
const ENTRY_BYTES: usize = 32;
/// Most bytes that are copied at a time.
const PIECE: usize = 1 << 20;

/// An entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    sector: u64,
    sectors: u64,
    flags: u64,
    /// The text of a mark.
    pub mark: Option<String>,
    /// Where its data is in the log, in bytes.
    data: u64,
}

/// A log that has been closed.
#[derive(Debug)]
pub struct Log {
    file: File,
    sector_bytes: u64,
    /// Its entries, oldest first.
    pub entries: Vec<Entry>,
}

impl Log {
    /// Reads the entries of a log.
    ///
    /// # Errors
    /// It cannot be read, or is none.
    pub fn open(file: File) -> Result<Self> {
        let mut super_block = [0; 28];
        file.read_exact_at(&mut super_block, 0)?;
        let sector_bytes = u64::from(number(&super_block[24..]) as u32);
        if number(&super_block[..8]) != MAGIC || !(512..=4096).contains(&sector_bytes) {
            return Err(Error::new(ErrorKind::InvalidData, "no log of dm-log-writes"));
        }
        let (mut entries, mut at) = (Vec::new(), sector_bytes);
        let mut block = vec![0; sector_bytes as usize];
        for _ in 0..number(&super_block[16..24]) {
            file.read_exact_at(&mut block, at)?;
            let field = |i: usize| number(&block[i * 8..i * 8 + 8]);
            let (sector, sectors, flags, inline) = (field(0), field(1), field(2), field(3));
            let text = block.get(ENTRY_BYTES..ENTRY_BYTES.saturating_add(inline as usize));
            let mark = (flags & MARK != 0).then(|| {
                let text = String::from_utf8_lossy(text.unwrap_or_default());
                text.trim_end_matches('\0').to_string()
            });
            at += sector_bytes;
            entries.push(Entry { sector, sectors, flags, mark, data: at });
            if flags & DISCARD == 0 {
                at += sectors * sector_bytes;
            }
        }
        Ok(Self { file, sector_bytes, entries })
    }

    /// Writes the entries of a range to a disk. Discards are left out: what they drop is undefined.
    ///
    /// # Errors
    /// The log cannot be read, or the disk cannot be written.
    pub fn replay(&self, range: std::ops::Range<usize>, disk: &File) -> Result<()> {
        let mut piece = vec![0; PIECE];
        for entry in self.entries.get(range).unwrap_or_default() {
            if entry.flags & (DISCARD | MARK) != 0 {
                continue;
            }
            let (mut done, bytes) = (0, entry.sectors * self.sector_bytes);
            while done < bytes {
                let piece = &mut piece[..(bytes - done).min(PIECE as u64) as usize];
                self.file.read_exact_at(piece, entry.data + done)?;
                disk.write_all_at(piece, entry.sector * self.sector_bytes + done)?;
                done += piece.len() as u64;
            }
        }
        disk.sync_all()
    }

    /// The places, after the mark `from`, at which the power is cut: `count` of them, or as many as there are. Each
    /// is the number of entries before the cut. A cut is behind a mark or a flush; one in eight is anywhere.
    pub fn cuts(&self, from: &str, count: usize, seed: u64) -> Vec<usize> {
        let mut random = Random::new(seed);
        let begin = self.entries.iter().position(|entry| entry.mark.as_deref() == Some(from));
        let Some(begin) = begin else { return Vec::new() };
        let is_sharp = |entry: &Entry| entry.mark.is_some() || entry.flags & (FLUSH | FUA) != 0;
        let candidates: Vec<usize> = (begin..self.entries.len())
            .filter(|&i| is_sharp(&self.entries[i]) || random.below(8) == 0)
            .map(|i| i + 1)
            .collect();
        let count = count.min(candidates.len());
        // One of each of `count` equal parts.
        let part = |i: usize| i * candidates.len() / count;
        (0..count).map(|i| candidates[part(i) + random.below(part(i + 1) - part(i))]).collect()
    }

    /// The numbers in the last mark before a cut, and in the first one behind it.
    pub fn marks_around(&self, cut: usize) -> (Option<usize>, Option<usize>) {
        let (before, behind) = self.entries.split_at(cut.min(self.entries.len()));
        // The kernel makes one itself, at the end.
        let number = |entry: &Entry| entry.mark.as_ref()?.parse().ok();
        (before.iter().rev().find_map(number), behind.iter().find_map(number))
    }
}

/// A little-endian number of at most 8 bytes.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().take(8).rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    const SECTOR: usize = 512;

    /// A log with these entries (place, flags, data or mark).
    fn log(entries: &[(u64, u64, &[u8])]) -> Log {
        let mut bytes = [MAGIC, 1, entries.len() as u64].map(u64::to_le_bytes).concat();
        bytes.extend((SECTOR as u32).to_le_bytes());
        bytes.resize(SECTOR, 0);
        for (sector, flags, data) in entries {
            let is_mark = flags & MARK != 0;
            let (sectors, inline) =
                if is_mark { (0, data.len()) } else { (data.len() / SECTOR, 0) };
            let fields = [*sector, sectors as u64, *flags, inline as u64];
            let end = bytes.len() + SECTOR;
            bytes.extend(fields.map(u64::to_le_bytes).concat());
            bytes.extend(if is_mark { data } else { &[][..] });
            bytes.resize(end, 0);
            if flags & (DISCARD | MARK) == 0 {
                bytes.extend(*data);
            }
        }
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        Log::open(file).unwrap()
    }

    #[test]
    fn a_log_is_replayed_up_to_a_cut() {
        let (a, b, c) = ([1; SECTOR], [2; 2 * SECTOR], [3; SECTOR]);
        let log = log(&[
            (0, 0, &a),
            (0, MARK, b"0"),
            (1, FUA, &b),
            (0, FLUSH, &[]),
            (0, MARK, b"1"),
            (0, DISCARD, &c),
            (2, 0, &c),
            (0, MARK, b"2"),
        ]);
        let disk = tempfile::tempfile().unwrap();
        log.replay(0..5, &disk).unwrap();
        let mut bytes = [0; 3 * SECTOR];
        disk.read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes[..SECTOR] == a && bytes[SECTOR..] == b);
        log.replay(5..8, &disk).unwrap();
        disk.read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes[..SECTOR] == a && bytes[2 * SECTOR..] == c);

        let cuts = log.cuts("0", 1000, 7);
        assert!([2, 3, 4, 5, 8].iter().all(|cut| cuts.contains(cut)), "{cuts:?}");
        assert_eq!(log.cuts("0", 2, 7).len(), 2);
        assert_eq!(log.cuts("never", 2, 7), []);
        assert_eq!(log.marks_around(1), (None, Some(0)));
        assert_eq!(log.marks_around(5), (Some(1), Some(2)));
        assert_eq!(log.marks_around(8), (Some(2), None));
    }

    #[test]
    fn invalid_logs_are_refused() {
        let file = tempfile::tempfile().unwrap();
        assert!(Log::open(file.try_clone().unwrap()).is_err());
        file.set_len(1 << 20).unwrap();
        assert!(Log::open(file).is_err());
    }
}
