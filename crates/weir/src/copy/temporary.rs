//! The names that files have while they are being written.
//!
//! 1. An ordinary one is removed when the copy fails or is interrupted.
//! 2. With `--continue`, the name says how much of the file is durable. It is kept when the copy
//!    fails, and found by the next one: of the same name, from a source that did not change.

use super::Copier;
use crate::mounts::Place;
use parking_lot::Mutex;
use std::sync::atomic::Ordering;
use std::time::UNIX_EPOCH;
use weir_vfs::{Attr, Caller, Error, FileId, RenameFlags, Result, SetAttr};
use xxhash_rust::xxh3::xxh3_64;

/// Entries read from a directory at a time.
const ENTRIES: usize = 1000;

/// A file under a temporary name.
pub(super) struct Temporary<'a> {
    copier: &'a Copier,
    place: &'a Place,
    id: FileId,
    name: Mutex<Vec<u8>>,
    kind: Kind,
}

enum Kind {
    /// Known to the copier by this number, so that it can be removed on interrupt.
    Once(u64),
    /// To be gone on with: for this name, from this source, with this much there already.
    Resumable { key: Key, start: u64 },
}

/// Which name a resumable file is for, and which state of which source it comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Key {
    name: u64,
    source: u64,
}

impl Key {
    fn new(place: &Place, source: &Attr) -> Self {
        let mtime = source.mtime.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let state = format!("{}/{mtime}/{}", source.size, source.change);
        Self {
            name: xxh3_64(place.name.as_deref().unwrap_or_default()),
            source: xxh3_64(state.as_bytes()),
        }
    }

    fn temporary(self, durable: u64) -> Vec<u8> {
        format!(".weir-{:016x}-{:016x}-{durable:x}.part", self.name, self.source).into_bytes()
    }

    /// The key and how much is durable, if this is the name of a resumable file.
    fn parse(name: &[u8]) -> Option<(Self, u64)> {
        let inner =
            std::str::from_utf8(name).ok()?.strip_prefix(".weir-")?.strip_suffix(".part")?;
        let mut fields = inner.splitn(3, '-').map(|field| u64::from_str_radix(field, 16).ok());
        let (name, source, durable) = (fields.next()??, fields.next()??, fields.next()??);
        Some((Self { name, source }, durable))
    }
}

impl<'a> Temporary<'a> {
    /// Makes a file, or finds one to go on with, for a copy of `source` to `place`.
    pub(super) async fn begin(copier: &'a Copier, place: &'a Place, source: &Attr) -> Result<Self> {
        // What fits in one checkpoint is not worth looking for.
        match copier.options.resume_bytes {
            Some(every) if source.size > every => Self::resume(copier, place, source).await,
            _ => Self::once(copier, place).await,
        }
    }

    async fn once(copier: &'a Copier, place: &'a Place) -> Result<Self> {
        loop {
            let number = copier.next_temporary.fetch_add(1, Ordering::Relaxed);
            let name = format!(".weir-{}-{number}.part", std::process::id()).into_bytes();
            let entry = (place.fs.clone(), place.dir, name.clone());
            copier.temporary.lock().insert(number, entry);
            match create(place, &name).await {
                Ok(id) => {
                    let (name, kind) = (Mutex::new(name), Kind::Once(number));
                    return Ok(Self { copier, place, id, name, kind });
                }
                Err(error) => {
                    copier.temporary.lock().remove(&number);
                    // Left over from a process that was killed and had this one's number.
                    if error != Error::Exists {
                        return Err(error);
                    }
                }
            }
        }
    }

    async fn resume(copier: &'a Copier, place: &'a Place, source: &Attr) -> Result<Self> {
        let key = Key::new(place, source);
        let mut cookie = 0;
        let mut best: Option<(u64, Vec<u8>)> = None;
        loop {
            let page = place.fs.readdir(&Caller::Own, place.dir, cookie, ENTRIES, false).await?;
            let last = page.entries.last().map(|e| e.cookie);
            for entry in page.entries {
                match Key::parse(&entry.name) {
                    Some((found, durable)) if found == key => {
                        best = best.max(Some((durable, entry.name)));
                    }
                    // Of a source that has changed since.
                    Some((found, _)) if found.name == key.name => {
                        place.fs.unlink(&Caller::Own, place.dir, &entry.name).await?;
                    }
                    _ => {}
                }
            }
            match last {
                Some(last) if !page.eof => cookie = last,
                _ => break,
            }
        }
        let (start, name, id) = match best {
            Some((durable, name)) => {
                let id = place.fs.lookup(&Caller::Own, place.dir, &name).await?.id;
                (durable, name, id)
            }
            None => {
                let name = key.temporary(0);
                let id = create(place, &name).await?;
                (0, name, id)
            }
        };
        let kind = Kind::Resumable { key, start };
        Ok(Self { copier, place, id, name: Mutex::new(name), kind })
    }

    /// Which file it is.
    pub(super) fn id(&self) -> FileId {
        self.id
    }

    /// How much of the file is there already, in bytes.
    pub(super) fn start(&self) -> u64 {
        match self.kind {
            Kind::Once(_) => 0,
            Kind::Resumable { start, .. } => start,
        }
    }

    /// Whether it wants to know what is durable.
    pub(super) fn is_resumable(&self) -> bool {
        matches!(self.kind, Kind::Resumable { .. })
    }

    /// Remembers that the first `durable` bytes are durable.
    pub(super) async fn checkpoint(&self, durable: u64) -> Result<()> {
        match self.kind {
            Kind::Once(_) => Ok(()),
            Kind::Resumable { key, .. } => self.rename(&key.temporary(durable)).await,
        }
    }

    /// Gives it another name in its directory.
    pub(super) async fn rename(&self, to: &[u8]) -> Result<()> {
        let (fs, dir) = (&self.place.fs, self.place.dir);
        let from = self.name.lock().clone();
        fs.rename(&Caller::Own, dir, &from, dir, to, RenameFlags::Replace).await?;
        *self.name.lock() = to.to_vec();
        Ok(())
    }

    /// It has its final name.
    pub(super) fn forget(self) {
        if let Kind::Once(number) = self.kind {
            self.copier.temporary.lock().remove(&number);
        }
    }

    /// The copy failed: removed, unless somebody may go on with it.
    pub(super) async fn abandon(self) {
        let name = self.name.lock().clone();
        let worth_keeping = Key::parse(&name).is_some_and(|(_, durable)| durable > 0);
        if !worth_keeping {
            // It may be gone already; what failed before is what is worth saying.
            let _ = self.place.fs.unlink(&Caller::Own, self.place.dir, &name).await;
        }
        self.forget();
    }
}

async fn create(place: &Place, name: &[u8]) -> Result<FileId> {
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    let created = place.fs.create(&Caller::Own, place.dir, name, &set, true).await?;
    Ok(created.attr.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_how_much_is_durable() {
        let key = Key { name: 1, source: 0xABC };
        let name = key.temporary(1 << 30);
        assert!(Key::parse(&name).is_some_and(|found| found == (key, 1 << 30)));
        for other in ["file", ".weir-17-3.part", ".weir-1-2-x.part", ".weir-1-2-3"] {
            assert!(Key::parse(other.as_bytes()).is_none(), "{other}");
        }
    }
}
