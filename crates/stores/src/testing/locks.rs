//! Byte-range locks.

use super::{new_file, own, scratch};
use std::sync::Arc;
use std::time::Duration;
use weir_vfs::{Access, Error, FileId, FileSystem, Lock, LockOwner, LockRange, OpenFile, TO_END};

const ONE: LockOwner = LockOwner(1);
const TWO: LockOwner = LockOwner(2);

pub(super) async fn all(fs: &Arc<dyn FileSystem>) {
    let dir = scratch(fs, "locks").await;
    readers_share_and_writers_exclude(fs, dir).await;
    ranges_are_split_and_joined(fs, dir).await;
    owners_of_one_open_file_exclude_each_other(fs, dir).await;
    locks_go_with_their_open_file(fs, dir).await;
    a_waiter_gets_the_lock_when_it_is_freed(fs, dir).await;
    locks_need_the_access_that_they_are_for(fs, dir).await;
}

fn shared(start: u64, end: u64) -> Lock {
    Lock { range: LockRange { start, end }, exclusive: false }
}

fn exclusive(start: u64, end: u64) -> Lock {
    Lock { range: LockRange { start, end }, exclusive: true }
}

/// A file that is open twice.
async fn twice(
    fs: &Arc<dyn FileSystem>,
    dir: FileId,
    name: &str,
) -> (Arc<dyn OpenFile>, Arc<dyn OpenFile>) {
    let file = new_file(fs, dir, name).await;
    let id = file.getattr().await.unwrap().id;
    let again = fs.open(&own(), id, Access::READ | Access::WRITE).await.unwrap();
    (file, again)
}

async fn readers_share_and_writers_exclude(fs: &Arc<dyn FileSystem>, dir: FileId) {
    let (a, b) = twice(fs, dir, "kinds").await;
    a.lock(ONE, shared(10, 20), false).await.unwrap();
    b.lock(ONE, shared(0, TO_END), false).await.unwrap();
    let taken = b.lock(ONE, exclusive(5, 11), false).await;
    assert_eq!(taken, Err(Error::WouldBlock));
    assert_eq!(b.test_lock(ONE, exclusive(0, TO_END)).await, Ok(Some(shared(10, 20))));
    assert_eq!(b.test_lock(ONE, shared(0, TO_END)).await, Ok(None));
    b.lock(ONE, exclusive(20, TO_END), false).await.unwrap();
    assert_eq!(a.test_lock(ONE, shared(0, TO_END)).await, Ok(Some(exclusive(20, TO_END))));
    b.unlock(ONE, LockRange::ALL).await.unwrap();
    a.lock(ONE, exclusive(0, TO_END), false).await.unwrap();
    assert_eq!(b.lock(ONE, shared(7, 8), false).await, Err(Error::WouldBlock));
    a.unlock(ONE, LockRange::ALL).await.unwrap();
    b.lock(ONE, shared(7, 8), false).await.unwrap();
}

async fn ranges_are_split_and_joined(fs: &Arc<dyn FileSystem>, dir: FileId) {
    let (a, b) = twice(fs, dir, "ranges").await;
    a.lock(ONE, exclusive(0, 100), false).await.unwrap();
    a.unlock(ONE, LockRange { start: 40, end: 60 }).await.unwrap();
    b.lock(ONE, exclusive(40, 60), false).await.unwrap();
    assert_eq!(b.test_lock(ONE, exclusive(0, 60)).await, Ok(Some(exclusive(0, 40))));
    assert_eq!(b.test_lock(ONE, exclusive(60, 200)).await, Ok(Some(exclusive(60, 100))));
    // The middle of an exclusive lock becomes a shared one.
    a.lock(ONE, shared(10, 20), false).await.unwrap();
    b.lock(ONE, shared(10, 20), false).await.unwrap();
    assert_eq!(b.lock(ONE, shared(9, 10), false).await, Err(Error::WouldBlock));
    // At a large offset.
    a.lock(ONE, exclusive(1 << 40, (1 << 40) + 1), false).await.unwrap();
    assert_eq!(b.lock(ONE, shared(1 << 40, TO_END), false).await, Err(Error::WouldBlock));
}

async fn owners_of_one_open_file_exclude_each_other(fs: &Arc<dyn FileSystem>, dir: FileId) {
    let file = new_file(fs, dir, "owners").await;
    file.lock(ONE, exclusive(0, 10), false).await.unwrap();
    assert_eq!(file.lock(TWO, exclusive(9, 11), false).await, Err(Error::WouldBlock));
    file.lock(TWO, exclusive(10, 11), false).await.unwrap();
    file.unlock(TWO, LockRange::ALL).await.unwrap();
    assert_eq!(file.test_lock(TWO, exclusive(0, 1)).await, Ok(Some(exclusive(0, 10))));
    file.unlock(ONE, LockRange::ALL).await.unwrap();
    assert_eq!(file.test_lock(TWO, exclusive(0, 1)).await, Ok(None));
}

async fn locks_go_with_their_open_file(fs: &Arc<dyn FileSystem>, dir: FileId) {
    let (a, b) = twice(fs, dir, "closed").await;
    a.lock(ONE, exclusive(0, 10), false).await.unwrap();
    b.lock(ONE, exclusive(10, 20), false).await.unwrap();
    drop(a);
    // A remote store releases it in the background.
    let whole = exclusive(0, 20);
    tokio::time::timeout(Duration::from_secs(120), b.lock(TWO, exclusive(0, 10), true))
        .await
        .expect("the lock went with its file")
        .unwrap();
    assert_eq!(b.lock(TWO, whole, false).await, Err(Error::WouldBlock));
}

async fn a_waiter_gets_the_lock_when_it_is_freed(fs: &Arc<dyn FileSystem>, dir: FileId) {
    let (a, b) = twice(fs, dir, "wait").await;
    a.lock(ONE, exclusive(0, 10), false).await.unwrap();
    let waiting = tokio::spawn(async move {
        b.lock(ONE, exclusive(5, 15), true).await.unwrap();
        b
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!waiting.is_finished());
    a.unlock(ONE, LockRange::ALL).await.unwrap();
    let b = tokio::time::timeout(Duration::from_secs(120), waiting).await.unwrap().unwrap();
    assert_eq!(a.test_lock(ONE, shared(0, TO_END)).await, Ok(Some(exclusive(5, 15))));

    // A waiter that stops waiting gets no lock.
    let impatient = a.lock(ONE, exclusive(0, 10), true);
    assert!(tokio::time::timeout(Duration::from_millis(50), impatient).await.is_err());
    b.unlock(ONE, LockRange::ALL).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(b.test_lock(ONE, exclusive(0, TO_END)).await, Ok(None));
}

async fn locks_need_the_access_that_they_are_for(fs: &Arc<dyn FileSystem>, dir: FileId) {
    let file = new_file(fs, dir, "access").await;
    let id = file.getattr().await.unwrap().id;
    let reader = fs.open(&own(), id, Access::READ).await.unwrap();
    reader.lock(ONE, shared(0, 1), false).await.unwrap();
    assert_eq!(reader.lock(ONE, exclusive(1, 2), false).await, Err(Error::BadFile));
}
