//! Each operation that uses the store, in every minor version, with an error at its first call of the store, its
//! second, and so on until it makes no more calls. A reply that says success is true. After an error, the same
//! operation succeeds, or says that its work is done. The server holds what it says that it holds, and nothing
//! more.

mod peer;
mod work;

use super::*;
use crate::every_fault::at_every_call;
use std::sync::LazyLock;
use std::time::Duration;
use weir_base::ManualClock;
use weir_nfs::v4::attr::{MODE, NUMLINKS, SIZE};
use weir_nfs::v4::op::{close, lock, locku, readdir};
use weir_nfs::v4::types::LockType;
use weir_nfs::v4::{Bitmap, CbOp, Detailed};
use weir_stores::fault::Fault;
use weir_stores::testing;
use weir_vfs::{Access, Caller, CreateMode, FileId, SetAttr};

use peer::Peer;
use work::{ALL, Trial, Work};

const OLD: &[u8] = &[1; 10_000];
const NEW: &[u8] = &[2; 9000];
/// Where the new bytes go: into two pages, and past the end.
const AT: u64 = 3000;
/// Of a lock.
const LENGTH: u64 = 100;

/// Opens, lock states, locked ranges and delegations.
fn held(f: &Fixture) -> [usize; 4] {
    ["opens", "lock_states", "locked_ranges", "delegations"].map(|name| used(f, name))
}

fn used(f: &Fixture, name: &str) -> usize {
    let uses = f.server.services.state.lock().limit_uses();
    uses.iter().find(|limit| limit.name == name).unwrap().used as usize
}

/// A directory with the files that a kind of work begins with. The server has not seen them yet.
async fn prepare(store: &MemoryFs, name: &str, work: Work) -> FileId {
    let (dir, file) = (SetAttr { mode: Some(0o777), ..SetAttr::default() }, SetAttr::default());
    let root = store.root();
    let dir = store.mkdir(&Caller::Own, root.entry(name.as_bytes()).with(&dir)).await.unwrap().id;
    for (name, bytes) in work.begins_with() {
        let Some(bytes) = bytes else {
            store.mkdir(&Caller::Own, dir.entry(name.as_bytes()).with(&file)).await.unwrap();
            continue;
        };
        let new = dir.entry(name.as_bytes()).with(&file);
        let made = store.create(&Caller::Own, new, CreateMode::MustBeNew).await.unwrap();
        let opened = store.open(&Caller::Own, made.attr.id, Access::WRITE).await.unwrap();
        testing::write(&*opened, 0, bytes).await.unwrap();
    }
    dir
}

/// The bytes of a file in the store, below the cache.
async fn stored(store: &MemoryFs, dir: FileId, name: &str) -> Vec<u8> {
    let id = store.lookup(&Caller::Own, dir.entry(name.as_bytes())).await.unwrap().id;
    let file = store.open(&Caller::Own, id, Access::READ).await.unwrap();
    testing::read_all(&*file, 1 << 16).await
}

async fn every_work(minor: u32, clock: &ManualClock, adjust: fn(&mut ServerConfig)) {
    let store = MemoryFs::new();
    let fault = Fault::over(store.clone(), 1);
    let f = Fixture::of_with(fault.clone(), adjust).await;
    let (mut a, mut b) = (Peer::new(&f, "a", minor).await, Peer::new(&f, "b", minor).await);
    for work in ALL.into_iter().filter(|work| work.is_of(minor)) {
        let calls = at_every_call(&fault, async |injection| {
            let what = format!("{work:?} in 4.{minor}, {injection}");
            let name = injection.name(&format!("{work:?}"));
            let id = prepare(&store, &name, work).await;
            a.begin(name.clone());
            b.begin(format!("{name} of b"));
            let root =
                handle(&a.run(vec![Op::Putrootfh(()), Op::Getfh(())]).await.unwrap()).unwrap();
            let dir = a.lookup(&root, &name).await.unwrap();
            let trial = Trial { work, dir, name };
            trial.prepare(&mut a).await;
            let done = injection.during(trial.run(&mut a, &mut b)).await;
            let sum = |a: &Peer, b: &Peer| [0, 1, 2, 3].map(|kind| a.held()[kind] + b.held()[kind]);
            assert_eq!(held(&f), sum(&a, &b), "{what}: {done:?}");
            if let Err(status) = done {
                assert!(injection.failed(), "{what}: {status:?} without an error of the store");
                match trial.run(&mut a, &mut b).await {
                    Ok(()) => {}
                    Err(status) => assert_eq!(Some(status), work.done_before(), "{what}"),
                }
                assert_eq!(held(&f), sum(&a, &b), "{what}, repeated");
            }
            // Before the other client asks, so that no delegation has to be recalled for that.
            a.release().await;
            b.release().await;
            assert_eq!(held(&f), [0; 4], "{what}: state is left");
            trial.check(&mut b, &what).await;
            if work.is_durable() {
                let bytes = stored(&store, id, work.changes()).await;
                assert!(bytes == work.bytes(), "{what}: other bytes in the store");
            }
        })
        .await;
        assert!(calls > 0 || work.is_state_only(), "{work:?} calls the store");
    }
    f.fs.cache().flush().await.unwrap();
    assert_eq!(f.fs.cache().dirty_bytes(), 0);

    clock.advance(Duration::from_secs(48 * 3600));
    f.server.sweep().await;
    assert_eq!([used(&f, "clients"), used(&f, "sessions")], [0, 0]);
}

macro_rules! in_version {
    ($test:ident, $minor:literal) => {
        #[tokio::test]
        async fn $test() {
            static CLOCK: LazyLock<Arc<ManualClock>> = LazyLock::new(Arc::default);
            every_work($minor, &CLOCK, |config| config.clock = CLOCK.clone()).await;
        }
    };
}

in_version!(nothing_is_lost_or_left_in_4_0_when_any_call_of_the_store_fails, 0);
in_version!(nothing_is_lost_or_left_in_4_1_when_any_call_of_the_store_fails, 1);
in_version!(nothing_is_lost_or_left_in_4_2_when_any_call_of_the_store_fails, 2);
