//! Files kept open between calls, because NFSv3 has no OPEN.
//!
//! 1. A file is kept per connection, so that read-ahead follows the reads of one client, and a
//!    writeback error is reported to the client that wrote.
//! 2. A granted right holds for at most [`RIGHT_TICKS`] ticks, and only while the file's owner,
//!    group and mode stay the same, and no client changes its ACL.
//! 3. At most as many files are kept as the budget of descriptors allows. A file is closed after
//!    [`IDLE_TICKS`] ticks without use, and within a tick after its last name is removed.

use crate::handle::Node;
use hashlink::LruCache;
use parking_lot::Mutex;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::{Arc, Weak};
use std::time::Duration;
use weir_pagecache::File;
use weir_vfs::{Access, Attr, Caller};

const SHARDS: usize = 16;
const TICK: Duration = Duration::from_secs(1);
const IDLE_TICKS: u64 = 2;
/// Number of ticks for which a granted right holds.
const RIGHT_TICKS: u64 = 2;

/// Identifies a kept file: connection, file and access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    /// The connection.
    pub(super) peer: u64,
    pub(super) node: Node,
    pub(super) access: Access,
}

/// What determines rights: mode, user, group; and the number of changes, which includes those of the ACL that leave
/// the mode the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RightsAttrs(u32, u32, u32, u32);

impl RightsAttrs {
    /// Of a file, with the number of changes from before the store was asked for the right.
    pub(super) fn of(attr: &Attr, changes: u32) -> Self {
        Self(attr.mode, attr.uid, attr.gid, changes)
    }
}

/// The kept files.
pub(crate) struct Files {
    table: Arc<Shards>,
}

struct Shards {
    shards: Box<[Mutex<Shard>]>,
}

struct Shard {
    files: LruCache<Key, KeptFile>,
    tick: u64,
    /// A task increments `tick`. It runs while the shard keeps files.
    ticking: bool,
}

struct KeptFile {
    file: File,
    caller: Caller,
    rights: RightsAttrs,
    /// The ticks of the last rights check and the last use.
    checked: u64,
    used: u64,
}

impl Shards {
    fn shard_of(&self, key: &Key) -> usize {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(key);
        (hash % self.shards.len() as u64) as usize
    }
}

impl Files {
    /// Keeps at most `most` files, but at least one.
    pub(crate) fn new(most: usize) -> Self {
        let shards = most.clamp(1, SHARDS);
        let files = (most / shards).max(1);
        let shard = || Shard { files: LruCache::new(files), tick: 0, ticking: false };
        let shards = (0..shards).map(|_| Mutex::new(shard())).collect();
        Self { table: Arc::new(Shards { shards }) }
    }

    /// Returns the kept file. The rights are `Some` if the caller was granted them recently: they
    /// hold if the file's attributes still match.
    pub(super) fn get(&self, key: &Key, caller: &Caller) -> Option<(File, Option<RightsAttrs>)> {
        let mut shard = self.table.shards[self.table.shard_of(key)].lock();
        let tick = shard.tick;
        let kept = shard.files.get_mut(key)?;
        kept.used = tick;
        let holds = kept.caller == *caller && tick - kept.checked < RIGHT_TICKS;
        Some((kept.file.clone(), holds.then_some(kept.rights)))
    }

    /// Keeps a file to which the caller has just been granted access.
    pub(super) fn keep(&self, key: Key, file: File, caller: Caller, rights: RightsAttrs) {
        let number = self.table.shard_of(&key);
        let mut shard = self.table.shards[number].lock();
        let tick = shard.tick;
        let kept = KeptFile { file, caller, rights, checked: tick, used: tick };
        let replaced = shard.files.insert(key, kept);
        if !std::mem::replace(&mut shard.ticking, true) {
            tokio::spawn(count_ticks(Arc::downgrade(&self.table), number));
        }
        drop(shard);
        // Closed after the lock is released.
        drop(replaced);
    }

    /// Closes files whose last name was removed.
    pub(super) fn let_unlinked_go(&self) {
        for shard in &self.table.shards {
            let gone = shard.lock().take(|kept| kept.file.is_unlinked());
            drop(gone);
        }
    }
}

impl Shard {
    fn tick(&mut self) -> Vec<KeptFile> {
        self.tick += 1;
        let tick = self.tick;
        self.take(|kept| kept.file.is_unlinked() || tick - kept.used > IDLE_TICKS)
    }

    fn take(&mut self, unwanted: impl Fn(&KeptFile) -> bool) -> Vec<KeptFile> {
        if self.files.is_empty() {
            return Vec::new();
        }
        let keys: Vec<Key> =
            self.files.iter().filter(|(_, kept)| unwanted(kept)).map(|(key, _)| *key).collect();
        keys.iter().filter_map(|key| self.files.remove(key)).collect()
    }
}

/// Increments a shard's tick while it keeps files.
async fn count_ticks(table: Weak<Shards>, number: usize) {
    loop {
        tokio::time::sleep(TICK).await;
        let Some(table) = table.upgrade() else { return };
        let mut shard = table.shards[number].lock();
        let gone = shard.tick();
        shard.ticking = !shard.files.is_empty();
        let go_on = shard.ticking;
        drop(shard);
        drop(gone);
        if !go_on {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_pagecache::{Cache, CachedFs, Config};
    use weir_stores::memory::MemoryFs;
    use weir_vfs::{CreateMode, SetAttr};

    async fn file(name: &[u8]) -> (CachedFs, Key, File, RightsAttrs) {
        let config = Config {
            budget_bytes: 1 << 20,
            fast_read: true,
            readahead_bytes: 0,
            ..Config::default()
        };
        let fs = Cache::new(config).unwrap().mount(MemoryFs::new());
        let (own, set) = (Caller::Own, SetAttr::default());
        let attr = fs
            .create(&own, fs.root().entry(name).with(&set), CreateMode::MustBeNew)
            .await
            .unwrap()
            .attr;
        let file = fs.open(&own, attr.id, Access::READ).await.unwrap();
        let key = Key { peer: 1, node: Node { export: 0, id: attr.id }, access: Access::READ };
        (fs, key, file, RightsAttrs::of(&attr, 0))
    }

    fn tick(files: &Files, key: &Key) {
        drop(files.table.shards[files.table.shard_of(key)].lock().tick());
    }

    #[tokio::test]
    async fn rights_are_cached_briefly_and_idle_files_closed() {
        let (_fs, key, file, rights) = file(b"a").await;
        let files = Files::new(1024);
        let rights_of = |caller| files.get(&key, caller).map(|(_, rights)| rights);
        assert_eq!(rights_of(&Caller::Own), None);
        files.keep(key, file, Caller::Own, rights);
        assert_eq!(rights_of(&Caller::Own), Some(Some(rights)));
        let other = Caller::As(weir_vfs::Cred { uid: 1, gid: 1, groups: Vec::new() });
        assert_eq!(rights_of(&other), Some(None));
        tick(&files, &key);
        assert_eq!(rights_of(&Caller::Own), Some(Some(rights)));
        tick(&files, &key);
        assert_eq!(rights_of(&Caller::Own), Some(None));
        (0..=IDLE_TICKS).for_each(|_| tick(&files, &key));
        assert_eq!(rights_of(&Caller::Own), None);
    }

    #[tokio::test]
    async fn at_most_as_many_files_are_kept_as_there_are_descriptors() {
        let (_fs, key, file, rights) = file(b"a").await;
        for most in [1, 2, 15, 16, 40] {
            let files = Files::new(most);
            let keys: Vec<Key> = (0..200).map(|peer| Key { peer, ..key }).collect();
            for key in &keys {
                files.keep(*key, file.clone(), Caller::Own, rights);
            }
            let kept = keys.iter().filter(|key| files.get(key, &Caller::Own).is_some()).count();
            assert!((1..=most).contains(&kept), "{kept} of {most}");
        }
    }

    #[tokio::test]
    async fn an_unlinked_file_is_not_kept_open() {
        let (fs, key, file, rights) = file(b"a").await;
        let files = Files::new(1024);
        files.keep(key, file, Caller::Own, rights);
        files.let_unlinked_go();
        assert!(files.get(&key, &Caller::Own).is_some());
        fs.unlink(&Caller::Own, fs.root().entry(b"a")).await.unwrap();
        files.let_unlinked_go();
        assert!(files.get(&key, &Caller::Own).is_none());
    }
}
