//! The names of files while they are being written.
//!
//! 1. An ordinary temporary file is removed when the copy fails or is interrupted.
//! 2. With `--continue`, the name says how much of the file is durable. The file is kept when the
//!    copy fails, and the next copy of the same name, from an unchanged source, finds it.
//! 3. Only one run writes to a resumable file: it holds a lock on it from before the first look at
//!    it until the file is renamed to its final name. A run that continues a file first gives it a
//!    name of its own, so that a run that lost its lock (a lease expired) can neither record its
//!    progress nor publish it.
//! 4. A run continues only files that this user created: regular, with one name and mode 0600, and
//!    at least as long as their name says.
//!    It gets its final mode and owner when all of it is recorded as durable, right before it is
//!    renamed. If the copy ends in between, these are taken back, or else the file is removed.
//! 5. Where files cannot be locked, none is resumable.
//! 6. What is no regular file replaces an entry in the same way ([`replace_entry`]).

use super::copier::{Copier, Left};
use crate::listing::Listing;
use crate::mounts::Place;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};
use weir_base::PAGE_SIZE;
use weir_pagecache::{CachedFs, File};
use weir_vfs::{
    Access, Attr, Caller, CreateMode, EntryName, Error, FileId, FileKind, Lock, LockOwner,
    LockRange, OpenFile, RenameFlags, Result, SetAttr,
};
use xxhash_rust::xxh3::xxh3_64;

/// The only lock owner in this process's open of the file.
const OWNER: LockOwner = LockOwner(1);
/// The mode of a file being written.
const MODE: u32 = 0o600;

/// A file under a temporary name.
pub(crate) struct Temporary<'a> {
    copier: &'a Copier,
    place: &'a Place,
    id: FileId,
    name: Mutex<Vec<u8>>,
    /// Its number in the copier's table.
    number: u64,
    resume: Option<Resume>,
}

/// How a file can be resumed.
struct Resume {
    key: Key,
    /// Bytes that existed when this copy began.
    start: u64,
    /// This program's user at the store.
    uid: u32,
    /// Holds the lock.
    _locked: Arc<dyn OpenFile>,
}

/// Why there is no file to write to.
#[derive(Debug)]
pub(crate) enum Refused {
    /// The store says no.
    Store(Error),
    /// Another run writes to the file of this name.
    Busy(String),
}

type Begun<T> = std::result::Result<T, Refused>;

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

/// The name that a resumable file is for, the state of its source, and the run that writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    name: u64,
    source: u64,
    run: u64,
}

impl Key {
    fn new(copier: &Copier, place: &Place, source: &Attr) -> Self {
        let nanos =
            |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let (mtime, ctime) = (nanos(source.mtime), nanos(source.ctime));
        let size = source.size;
        // Without the change attribute, which some servers advance when a file is read, and without the number of
        // the file system, which may be another one after a remount.
        let state = format!("{}/{size}/{mtime}/{ctime}", source.id.ino);
        Self {
            name: xxh3_64(place.name.as_deref().unwrap_or_default()),
            source: xxh3_64(state.as_bytes()),
            run: copier.run,
        }
    }

    fn temporary(self, durable: u64) -> Vec<u8> {
        let Self { name, source, run } = self;
        format!(".weir-{name:016x}-{source:016x}-{run:016x}-{durable:x}.part").into_bytes()
    }

    /// The key and the durable length, if this is the name of a resumable file.
    fn parse(name: &[u8]) -> Option<(Self, u64)> {
        let inner =
            std::str::from_utf8(name).ok()?.strip_prefix(".weir-")?.strip_suffix(".part")?;
        let mut fields = inner.splitn(4, '-').map(|field| u64::from_str_radix(field, 16).ok());
        let key = Self { name: fields.next()??, source: fields.next()??, run: fields.next()?? };
        Some((key, fields.next()??))
    }

    /// Whether two files are for one name and from one source.
    fn is_like(self, other: Self) -> bool {
        (self.name, self.source) == (other.name, other.source)
    }
}

/// The result of an attempt to lock a file.
enum Claim {
    Mine(Arc<dyn OpenFile>, Attr),
    /// Another run has it.
    Busy,
    /// It is not a file to continue, or no longer exists.
    Not,
    /// Nothing can be locked here.
    NoLocks,
}

impl<'a> Temporary<'a> {
    /// Creates a file, or finds one to continue, for a copy of `source` to `place`.
    pub(crate) async fn begin(copier: &'a Copier, place: &'a Place, source: &Attr) -> Begun<Self> {
        // If the file fits in one checkpoint, a search is not worth it.
        if let Some(every) = copier.options.resume_bytes
            && source.size > every
            && let Some(resumable) = Self::resumable(copier, place, source).await?
        {
            return Ok(resumable);
        }
        Ok(Self::once(copier, place).await?)
    }

    /// Creates a file that is not continued.
    pub(crate) async fn once(copier: &'a Copier, place: &'a Place) -> Result<Self> {
        loop {
            let number = copier.next_temporary.fetch_add(1, Ordering::Relaxed);
            // Unique to this run on any machine: the file is removed and renamed by its name.
            let name = copier.temporary_name(number);
            // Listed before it exists, so that it never exists unlisted.
            copier.temporary.lock().insert(number, Left::new(place, &name, false));
            match create(place, &name).await {
                Ok(attr) => {
                    let (id, name) = (attr.id, Mutex::new(name));
                    return Ok(Self { copier, place, id, name, number, resume: None });
                }
                Err(error) => {
                    copier.temporary.lock().remove(&number);
                    // Someone's who guessed it.
                    if error != Error::Exists {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// A file that can be continued; `None` if files cannot be locked.
    async fn resumable(copier: &'a Copier, place: &'a Place, source: &Attr) -> Begun<Option<Self>> {
        let key = Key::new(copier, place, source);
        let number = copier.next_temporary.fetch_add(1, Ordering::Relaxed);
        let fresh = key.temporary(0);
        copier.temporary.lock().insert(number, Left::new(place, &fresh, false));
        let begun = Self::choose(place, key, &fresh).await;
        match begun {
            Ok(Some((id, start, uid, locked))) => {
                let name = key.temporary(start);
                copier.temporary.lock().insert(number, Left::new(place, &name, start > 0));
                let resume = Some(Resume { key, start, uid, _locked: locked });
                Ok(Some(Self { copier, place, id, name: Mutex::new(name), number, resume }))
            }
            other => {
                copier.temporary.lock().remove(&number);
                other.map(|_| None)
            }
        }
    }

    /// The new file `fresh`, or the longest partial one, under the name derived from `key`.
    async fn choose(
        place: &Place,
        key: Key,
        fresh: &[u8],
    ) -> Begun<Option<(FileId, u64, u32, Arc<dyn OpenFile>)>> {
        let new = create(place, fresh).await?;
        let discard = async |name: &[u8]| {
            // If the removal fails, the file only takes space.
            let _ = place.fs.unlink(&Caller::Own, place.dir.entry(name)).await;
        };
        let locked = match claim(place, fresh, new.uid).await {
            Ok(Claim::Mine(locked, _)) => locked,
            Ok(Claim::NoLocks | Claim::Busy | Claim::Not) => {
                discard(fresh).await;
                return Ok(None);
            }
            Err(error) => {
                discard(fresh).await;
                return Err(error.into());
            }
        };
        let begun = match begun(place, key).await {
            Ok(begun) => begun,
            Err(error) => {
                discard(fresh).await;
                return Err(error.into());
            }
        };
        let mut best = None;
        for (found, durable, name) in begun {
            match claim(place, &name, new.uid).await? {
                Claim::Mine(theirs, attr)
                    if best.is_none()
                        && found.is_like(key)
                        && (PAGE_SIZE as u64..=attr.size).contains(&durable) =>
                {
                    // Digests are computed by pages.
                    let start = durable - durable % PAGE_SIZE as u64;
                    best = Some((attr.id, start, theirs, name));
                }
                // From a source that has changed since, or shorter.
                Claim::Mine(..) => discard(&name).await,
                Claim::Busy if found.is_like(key) => {
                    discard(fresh).await;
                    return Err(Refused::Busy(String::from_utf8_lossy(&name).into_owned()));
                }
                Claim::Busy | Claim::Not | Claim::NoLocks => {}
            }
        }
        let Some((id, start, theirs, name)) = best else {
            return Ok(Some((new.id, 0, new.uid, locked)));
        };
        discard(fresh).await;
        let own = key.temporary(start);
        place
            .fs
            .rename(
                &Caller::Own,
                place.dir.entry(&name),
                place.dir.entry(&own),
                RenameFlags::Replace,
            )
            .await?;
        Ok(Some((id, start, new.uid, theirs)))
    }

    /// Which file it is.
    pub(crate) fn id(&self) -> FileId {
        self.id
    }

    /// Length of the existing part, in bytes: whole pages.
    pub(crate) fn start(&self) -> u64 {
        self.resume.as_ref().map_or(0, |resume| resume.start)
    }

    /// Whether it records which data is durable.
    pub(crate) fn is_resumable(&self) -> bool {
        self.resume.is_some()
    }

    /// Records that the first `durable` bytes are durable.
    pub(crate) async fn checkpoint(&self, durable: u64) -> Result<()> {
        let Some(resume) = &self.resume else { return Ok(()) };
        let name = resume.key.temporary(durable);
        self.rename(&name, RenameFlags::Replace).await?;
        self.copier.temporary.lock().insert(self.number, Left::new(self.place, &name, durable > 0));
        Ok(())
    }

    /// Makes all of `file`, which is complete, durable and records that, before the file gets its final mode and
    /// owner: with these no run would continue it.
    pub(crate) async fn complete(&self, file: &File) -> Result<()> {
        let Some(resume) = &self.resume else { return Ok(()) };
        file.sync_async(true).await?;
        let size = file.size();
        let durable = size - size % PAGE_SIZE as u64;
        self.checkpoint(durable).await?;
        if durable > 0
            && let Some(left) = self.copier.temporary.lock().get_mut(&self.number)
        {
            left.is_kept = false;
            left.begun = Some((self.id, resume.uid));
        }
        Ok(())
    }

    /// Gives it its final name.
    ///
    /// # Errors
    /// [`Error::Stale`]: another file has the temporary name. [`Error::Exists`]: a file has that name,
    /// and must not be replaced.
    pub(crate) async fn publish(&self, name: &[u8], flags: RenameFlags) -> Result<()> {
        if self.is_resumable() {
            let now = self.name.lock().clone();
            let found = self.place.fs.lookup(&Caller::Own, self.place.dir.entry(&now)).await?;
            if found.id != self.id {
                return Err(Error::Stale);
            }
        }
        let swap = |begun| {
            let mut listed = self.copier.temporary.lock();
            listed.get_mut(&self.number).and_then(|left| std::mem::replace(&mut left.begun, begun))
        };
        // The store may still rename it after this future is dropped, or after it timed out. From now on it may be
        // the published file, whose mode and owner must stay.
        let begun = swap(None);
        let renamed = self.rename(name, flags).await;
        if renamed.as_ref().is_err_and(|&error| error != Error::TimedOut) {
            swap(begun);
        }
        renamed
    }

    async fn rename(&self, to: &[u8], flags: RenameFlags) -> Result<()> {
        let (fs, dir) = (&self.place.fs, self.place.dir);
        let from = self.name.lock().clone();
        fs.rename(&Caller::Own, dir.entry(&from), dir.entry(to), flags).await?;
        *self.name.lock() = to.to_vec();
        Ok(())
    }

    /// It has its final name.
    pub(crate) fn forget(self) {
        self.copier.temporary.lock().remove(&self.number);
    }

    /// After a failure: removes the file, unless a later run may continue it (not if `is_useless`).
    pub(crate) async fn abandon(self, is_useless: bool) {
        let name = self.name.lock().clone();
        let place = self.place;
        let left =
            self.copier.temporary.lock().get(&self.number).map(|left| (left.is_kept, left.begun));
        let is_kept = !is_useless
            && match left {
                Some((_, Some(begun))) => take_back(&place.fs, place.dir.entry(&name), begun).await,
                Some((is_kept, None)) => is_kept,
                None => false,
            };
        if !is_kept {
            // It may be gone already; the earlier failure is the one to report.
            let _ = place.fs.unlink(&Caller::Own, place.dir.entry(&name)).await;
        }
        self.forget();
    }
}

/// Gives a file to continue the mode and the owner back that it had when it was begun. Returns false if a later run
/// would not continue it.
pub(super) async fn take_back(
    fs: &CachedFs,
    entry: EntryName<'_>,
    (id, uid): (FileId, u32),
) -> bool {
    let is_as_begun = |attr: &Attr| (attr.uid, attr.mode & 0o7777) == (uid, MODE);
    match fs.lookup(&Caller::Own, entry).await {
        // It may have got its final name, although a failure was reported.
        Ok(now) if now.id != id => false,
        // Also if they look right: a change of the mode that was not awaited may still be under way.
        Ok(now) => {
            let uid = (now.uid != uid).then_some(uid);
            let set = SetAttr { mode: Some(MODE), uid, ..SetAttr::default() };
            let set = fs.setattr(&Caller::Own, id, &set).await;
            set.is_ok_and(|now| is_as_begun(&now))
        }
        Err(_) => false,
    }
}

/// Replaces the entry at a place by what `make` makes under the name that it is given. The old entry
/// exists until then.
pub(crate) async fn replace_entry<T, F>(
    copier: &Copier,
    place: &Place,
    make: impl FnOnce(Vec<u8>) -> F,
) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let name = place.name.as_deref().ok_or(Error::Exists)?;
    let number = copier.next_temporary.fetch_add(1, Ordering::Relaxed);
    let temporary = copier.temporary_name(number);
    // Listed before it exists, so that it never exists unlisted.
    copier.temporary.lock().insert(number, Left::new(place, &temporary, false));
    let (fs, dir) = (&place.fs, place.dir);
    let (from, to) = (dir.entry(&temporary), dir.entry(name));
    let replace = async {
        let made = make(temporary.clone()).await?;
        fs.rename(&Caller::Own, from, to, RenameFlags::Replace).await?;
        Ok(made)
    };
    let replaced = replace.await;
    // It may exist after any failure, say if the reply was lost, and after a success: if both names already
    // refer to one file, rename(2) does nothing.
    match (fs.unlink(&Caller::Own, from).await, replaced) {
        (Ok(()) | Err(Error::NotFound), replaced) => {
            copier.temporary.lock().remove(&number);
            replaced
        }
        // The directory was evicted, and can be found again. Nothing can be removed under this identity.
        (Err(Error::Stale), Err(Error::Stale)) => {
            copier.temporary.lock().remove(&number);
            Err(Error::Stale)
        }
        // The name stays on the list, for the end of the copy.
        (Err(error), replaced) => replaced.and(Err(error)),
    }
}

/// Creates an empty file that no other user may open.
async fn create(place: &Place, name: &[u8]) -> Result<Attr> {
    let set = SetAttr { mode: Some(MODE), ..SetAttr::default() };
    Ok(place
        .fs
        .create(&Caller::Own, place.dir.entry(name).with(&set), CreateMode::MustBeNew)
        .await?
        .attr)
}

/// Partial files for the name of `key` from other runs, the longest first.
async fn begun(place: &Place, key: Key) -> Result<Vec<(Key, u64, Vec<u8>)>> {
    let mut begun = Vec::new();
    let mut listing = Listing::of_names(&place.fs, place.dir);
    while let Some(entries) = listing.next().await? {
        for entry in entries {
            if let Some((found, durable)) = Key::parse(&entry.name)
                && found.name == key.name
                && found.run != key.run
            {
                begun.push((found, durable, entry.name));
            }
        }
    }
    begun.sort_by_key(|(_, durable, _)| std::cmp::Reverse(*durable));
    Ok(begun)
}

/// Locks the file of this name, and checks whether user `uid` of the store, which is this program's
/// user there, may continue it.
async fn claim(place: &Place, name: &[u8], uid: u32) -> Result<Claim> {
    let usable = |attr: &Attr| {
        attr.kind == FileKind::Regular
            && (attr.uid, attr.nlink, attr.mode & 0o7777) == (uid, 1, MODE)
    };
    let found = match place.fs.lookup(&Caller::Own, place.dir.entry(name)).await {
        Ok(found) if usable(&found) => found,
        Ok(_) | Err(Error::NotFound) => return Ok(Claim::Not),
        Err(error) => return Err(error),
    };
    let store = place.fs.store();
    let file = match store.open(&Caller::Own, found.id, Access::READ | Access::WRITE).await {
        Ok(file) => file,
        Err(Error::AccessDenied | Error::NotFound | Error::Stale) => return Ok(Claim::Not),
        Err(error) => return Err(error),
    };
    let lock = Lock { range: LockRange::ALL, exclusive: true };
    match file.lock(OWNER, lock, false).await {
        Ok(()) => {}
        Err(Error::WouldBlock) => return Ok(Claim::Busy),
        Err(_) => return Ok(Claim::NoLocks),
    }
    // It may have been finished, or continued, before it was locked.
    match place.fs.lookup(&Caller::Own, place.dir.entry(name)).await {
        Ok(again) if again.id == found.id && usable(&again) => Ok(Claim::Mine(file, again)),
        Ok(_) | Err(Error::NotFound) => Ok(Claim::Not),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_names_record_the_durable_length() {
        let key = Key { name: 1, source: 0xABC, run: 7 };
        let name = key.temporary(1 << 30);
        assert!(Key::parse(&name).is_some_and(|found| found == (key, 1 << 30)));
        for other in ["file", ".weir-17-3.part", ".weir-1-2-3-x.part", ".weir-1-2-3-4"] {
            assert!(Key::parse(other.as_bytes()).is_none(), "{other}");
        }
    }
}
