//! The files of the retry journal: records with checksums, in two files written in turn.
//!
//! 1. A record is appended by one write(2), so it survives a kill of the process as soon as the call
//!    returns. The files are never synced: a log of an earlier boot of the machine is ignored.
//! 2. When a file reaches [`MAX_FILE_BYTES`], the other one is truncated and continues the log. So
//!    the log always holds at least the last [`MAX_FILE_BYTES`] of records.
//! 3. A torn record at the end is cut off, and reading stops there.

use super::ChangeKey;
use crate::handle::Node;
use bytes::Bytes;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use tracing::warn;
use weir_vfs::FileId;
use weir_xdr::{Decode, Decoder, Encode, Encoder, Opaque, Result, xdr_struct, xdr_union};

/// Maximum size of one of the two files, in bytes.
pub(super) const MAX_FILE_BYTES: u64 = 2 << 20;
/// Maximum length of a name, in bytes; longer names have no record.
pub(super) const MAX_NAME_BYTES: usize = 1024;
const FILES: [&str; 2] = ["retries.0", "retries.1"];
const MAGIC: &[u8] = b"WEIRRTY3";
/// Length of a checksum in bytes: the beginning of a BLAKE3 hash.
const SUM_BYTES: usize = 8;

xdr_struct! {
    /// A name in a directory.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub(super) struct Entry { pub(super) dir: Node, pub(super) name: Opaque<MAX_NAME_BYTES> }

    /// A change of names: `gone` ceases to name `file`, and `new` begins to name it.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub(super) struct Change {
        /// `None`: a new file.
        pub(super) file: Option<Node>,
        pub(super) gone: Option<Entry>,
        pub(super) new: Option<Entry>,
    }

    /// A record of the log.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub(super) struct Record {
        pub(super) key: ChangeKey,
        /// Nanoseconds since 1970.
        pub(super) since: u64,
        pub(super) event: Event,
    }
}

xdr_union! {
    /// What happened to a change.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub(super) enum Event {
        /// It is about to be made.
        Begun(Change) = 0,
        /// It was made; the file that has the new name, or had the one that is gone.
        Made(Option<Node>) = 1,
        /// It was not made.
        NotMade = 2,
        /// A later run found that it was made; the file as for `Made`.
        FoundMade(Option<Node>) = 3,
    }
}

impl Encode for Node {
    fn encode(&self, e: &mut Encoder) {
        e.u32(self.export.into());
        e.u64(self.id.ino);
        e.u64(self.id.generation);
    }
}

impl Decode for Node {
    const MIN_BYTES: usize = 20;

    fn decode(d: &mut Decoder) -> Result<Self> {
        let export = u16::try_from(d.u32()?).map_err(|_| weir_xdr::Error::BadValue)?;
        Ok(Self { export, id: FileId { ino: d.u64()?, generation: d.u64()? } })
    }
}

/// The log, open for appending.
#[derive(Debug)]
pub(super) struct Log {
    dir: PathBuf,
    boot: String,
    /// The number of the file being written; its lowest bit selects one of [`FILES`].
    number: u64,
    file: File,
    bytes: u64,
}

impl Log {
    /// Opens the log in `dir`, and returns the records of this `boot` of the machine, oldest first.
    /// An empty `boot` is unknown: no earlier record counts.
    ///
    /// # Errors
    /// A file cannot be read or written.
    pub(super) fn open(dir: &Path, boot: &str) -> io::Result<(Self, Vec<Record>)> {
        let mut files = Vec::new();
        for name in FILES {
            let mut bytes = Vec::new();
            match File::open(dir.join(name)) {
                Ok(file) => drop(file.take(2 * MAX_FILE_BYTES).read_to_end(&mut bytes)?),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            files.extend(Contents::read(bytes.into(), boot));
        }
        files.sort_by_key(|file| file.number);
        let (dir, boot) = (dir.to_path_buf(), boot.to_owned());
        let log = match files.last() {
            Some(newest) => Self::continue_file(dir, boot, newest.number, newest.valid_bytes)?,
            None => Self::begin_file(dir, boot, 0)?,
        };
        Ok((log, files.into_iter().flat_map(|file| file.records).collect()))
    }

    /// Appends records. After an error the log must not be used: a torn record hides those after it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn append(&mut self, records: &[Record]) -> io::Result<()> {
        let mut bytes = Vec::new();
        for record in records {
            record.append_to(&mut bytes);
        }
        if self.bytes + bytes.len() as u64 > MAX_FILE_BYTES {
            *self = Self::begin_file(self.dir.clone(), self.boot.clone(), self.number + 1)?;
        }
        self.file.write_all(&bytes)?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Removes the log in `dir`, as far as possible: later changes of the names are not in it.
    pub(super) fn remove(dir: &Path) {
        for name in FILES {
            if let Err(error) = std::fs::remove_file(dir.join(name))
                && error.kind() != io::ErrorKind::NotFound
            {
                warn!("cannot remove {}: {error}", dir.join(name).display());
            }
        }
    }

    /// The directory of the log.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Makes all later appends fail.
    #[cfg(test)]
    pub(super) fn make_read_only(&mut self) {
        self.file = File::open(path(&self.dir, self.number)).unwrap();
    }

    /// Truncates the older file and begins it anew.
    fn begin_file(dir: PathBuf, boot: String, number: u64) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.append(true).create(true).mode(0o600);
        let mut file = options.open(path(&dir, number))?;
        file.set_len(0)?;
        let header = header(&boot, number);
        file.write_all(&header)?;
        Ok(Self { dir, boot, number, file, bytes: header.len() as u64 })
    }

    /// Continues a file after its valid records.
    fn continue_file(dir: PathBuf, boot: String, number: u64, bytes: u64) -> io::Result<Self> {
        let file = OpenOptions::new().append(true).open(path(&dir, number))?;
        file.set_len(bytes)?;
        Ok(Self { dir, boot, number, file, bytes })
    }
}

fn path(dir: &Path, number: u64) -> PathBuf {
    dir.join(FILES[(number % 2) as usize])
}

/// The beginning of a file: magic, number, and the machine's boot.
fn header(boot: &str, number: u64) -> Bytes {
    let mut e = Encoder::new();
    e.raw(MAGIC);
    e.u64(number);
    e.opaque(boot.as_bytes());
    e.finish().to_bytes()
}

/// The contents of a file of the log.
struct Contents {
    number: u64,
    records: Vec<Record>,
    valid_bytes: u64,
}

impl Contents {
    /// `None` if the file has no valid header, or was written in another boot.
    fn read(bytes: Bytes, boot: &str) -> Option<Self> {
        let mut d = Decoder::new(bytes.clone());
        if d.fixed::<{ MAGIC.len() }>().ok()? != MAGIC {
            return None;
        }
        let number = d.u64().ok()?;
        if boot.is_empty() || d.opaque(MAX_NAME_BYTES).ok()? != boot.as_bytes() {
            return None;
        }
        let mut records = Vec::new();
        let mut valid_bytes = bytes.len() - d.remaining();
        while let Some(record) = Record::next(&mut d) {
            records.push(record);
            valid_bytes = bytes.len() - d.remaining();
        }
        Some(Self { number, records, valid_bytes: valid_bytes as u64 })
    }
}

impl Record {
    /// Appends the checksum of the record, its length, and the record.
    fn append_to(&self, bytes: &mut Vec<u8>) {
        let mut e = Encoder::new();
        e.put(self);
        let body = e.finish().to_bytes();
        let mut e = Encoder::new();
        e.fixed(&sum(&body));
        e.opaque(&body);
        bytes.extend_from_slice(&e.finish().to_bytes());
    }

    /// `None` if the next record is torn.
    fn next(d: &mut Decoder) -> Option<Self> {
        let sum_read = d.fixed::<SUM_BYTES>().ok()?;
        let body = d.opaque(MAX_FILE_BYTES as usize).ok()?;
        if sum_read != sum(&body) {
            return None;
        }
        let mut body = Decoder::new(body);
        let record = body.get().ok()?;
        body.finish().ok()?;
        Some(record)
    }
}

fn sum(body: &[u8]) -> [u8; SUM_BYTES] {
    let mut sum = [0; SUM_BYTES];
    sum.copy_from_slice(&blake3::hash(body).as_bytes()[..SUM_BYTES]);
    sum
}

#[cfg(test)]
mod tests {
    use super::super::RequestKey;
    use super::*;

    fn node(ino: u64) -> Node {
        Node { export: 7, id: FileId { ino, generation: u64::MAX } }
    }

    fn begun(number: u64, name: &[u8]) -> Record {
        let new = Some(Entry { dir: node(1), name: Opaque::copy_from(name) });
        let change = Change { file: Some(node(number)), gone: None, new };
        let key = RequestKey::of(&[&number.to_be_bytes()]).at(3);
        Record { key, since: number, event: Event::Begun(change) }
    }

    fn made(number: u64) -> Record {
        Record { event: Event::Made(Some(node(number))), ..begun(number, b"") }
    }

    #[test]
    fn records_of_this_boot_alone_are_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let open = |boot| Log::open(dir.path(), boot).unwrap();
        let records = [begun(1, b"name"), made(1)];
        open("one").0.append(&records[..1]).unwrap();
        let (mut log, read) = open("one");
        assert_eq!(read, records[..1]);
        log.append(&records[1..]).unwrap();
        assert_eq!(open("one").1, records);
        assert_eq!(open("two").1, []);
        assert_eq!(open("one").1, [], "the other boot has begun the log anew");
        open("").0.append(&records).unwrap();
        assert_eq!(open("").1, [], "the boot is unknown");
    }

    #[test]
    fn a_torn_record_hides_only_itself() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Log::open(dir.path(), "one").unwrap();
        let (first, second, third) = (made(1), begun(2, b"name"), made(3));
        open().0.append(&[first.clone(), second]).unwrap();
        let path = dir.path().join(FILES[0]);
        let bytes = std::fs::read(&path).unwrap();
        for cut in 1..60 {
            std::fs::write(&path, &bytes[..bytes.len() - cut]).unwrap();
            let (mut log, read) = open();
            assert_eq!(read, std::slice::from_ref(&first), "cut by {cut}");
            log.append(std::slice::from_ref(&third)).unwrap();
            assert_eq!(open().1, [first.clone(), third.clone()], "cut by {cut}");
        }
    }

    #[test]
    fn the_files_are_bounded_and_hold_the_newest_records() {
        let dir = tempfile::tempdir().unwrap();
        let name = [b'x'; MAX_NAME_BYTES];
        let count = 4 * MAX_FILE_BYTES / MAX_NAME_BYTES as u64;
        for numbers in [0..count / 2, count / 2..count] {
            let mut log = Log::open(dir.path(), "one").unwrap().0;
            for number in numbers {
                log.append(&[begun(number, &name)]).unwrap();
            }
        }
        for file in FILES {
            let bytes = std::fs::metadata(dir.path().join(file)).unwrap().len();
            assert!(bytes <= MAX_FILE_BYTES, "{file} has {bytes} bytes");
        }
        let records = Log::open(dir.path(), "one").unwrap().1;
        let since = records[0].since;
        assert!(since > 0 && (count - since) * 1024 > MAX_FILE_BYTES / 2, "{since} of {count}");
        assert!(records.iter().zip(since..count).all(|(record, number)| record.since == number));
        assert_eq!(records.len() as u64, count - since);
    }
}
