//! Faults happen according to rules, and only then.

use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_stores::fault::{Call, Fault, Rule, What, When};
use weir_stores::memory::MemoryFs;
use weir_stores::testing::{self, bytes_of, read, read_all, write};
use weir_vfs::{Caller, Capabilities, Error, FileSystem, OpenFile};

async fn setup(seed: u64) -> (Arc<Fault>, Arc<dyn OpenFile>) {
    let fault = Fault::over(MemoryFs::new(), seed);
    let fs: Arc<dyn FileSystem> = fault.clone();
    let file = testing::new_file(&fs, fs.root(), "f").await;
    write(&*file, 0, &[7; 10_000]).await.unwrap();
    (fault, file)
}

#[tokio::test]
async fn without_rules_it_is_the_store_itself() {
    let fs: Arc<dyn FileSystem> = Fault::over(MemoryFs::new(), 1);
    testing::suite(&fs, Capabilities::WRITE_TIMES).await;
}

#[tokio::test]
async fn errors_occur_at_the_requested_calls() {
    let (fault, file) = setup(1).await;
    fault.add(Rule { call: Call::Write, when: When::Nth(1), what: What::Fail(Error::NoSpace) });
    fault.add(Rule {
        call: Call::Read,
        when: When::Touching(8192..8193),
        what: What::Fail(Error::Io),
    });
    write(&*file, 0, b"0").await.unwrap();
    assert_eq!(write(&*file, 0, b"1").await, Err(Error::NoSpace));
    write(&*file, 0, b"2").await.unwrap();
    read(&*file, 0, 8192).await.unwrap();
    assert_eq!(read(&*file, 0, 8193).await.unwrap_err(), Error::Io);
    fault.add(Rule { call: Call::Lookup, when: When::Always, what: What::Fail(Error::TimedOut) });
    let found = fault.lookup(&Caller::Own, fault.root().entry(b"f")).await;
    assert_eq!(found.unwrap_err(), Error::TimedOut);
    assert_eq!(fault.injected(), 3);
    fault.clear();
    read(&*file, 0, 8193).await.unwrap();
}

#[tokio::test]
async fn short_reads_and_torn_writes() {
    let (fault, file) = setup(1).await;
    fault.add(Rule { call: Call::Read, when: When::First(1), what: What::Short(100) });
    let (buffer, layout) = read(&*file, 10, 5000).await.unwrap();
    assert_eq!(bytes_of(10, &buffer, &layout), [7; 100]);
    assert!(!layout.eof);
    fault.add(Rule { call: Call::Write, when: When::Always, what: What::Short(3) });
    assert_eq!(write(&*file, 0, b"abcdef").await, Err(Error::Io));
    assert_eq!(read_all(&*file, 1 << 16).await[..7], *b"abc\x07\x07\x07\x07");
}

#[tokio::test]
async fn held_calls_wait_for_release() {
    let (fault, file) = setup(1).await;
    fault.add(Rule { call: Call::Read, when: When::First(2), what: What::Hold });
    let reads: Vec<_> = (0..2)
        .map(|_| {
            let file = file.clone();
            tokio::spawn(async move { read(&*file, 0, 10).await })
        })
        .collect();
    while fault.held() < 2 {
        tokio::task::yield_now().await;
    }
    read(&*file, 0, 10).await.unwrap();
    assert!(reads.iter().all(|read| !read.is_finished()));
    assert!(fault.release_one());
    fault.release();
    for read in reads {
        read.await.unwrap().unwrap();
    }
    assert!(!fault.release_one());
}

#[tokio::test]
async fn delays_hold_calls_back() {
    let (fault, file) = setup(1).await;
    let delay = Duration::from_millis(20);
    for call in [Call::Read, Call::Sync] {
        fault.add(Rule { call, when: When::Always, what: What::Delay(delay) });
    }
    let start = Instant::now();
    read(&*file, 0, 10).await.unwrap();
    file.sync(true).await.unwrap();
    assert!(start.elapsed() >= 2 * delay);
}

#[tokio::test]
async fn the_same_seed_does_the_same() {
    async fn pattern(seed: u64) -> Vec<bool> {
        let (fault, file) = setup(seed).await;
        fault.add(Rule { call: Call::Read, when: When::OneIn(3), what: What::Fail(Error::Io) });
        let mut failed = Vec::new();
        for _ in 0..100 {
            failed.push(read(&*file, 0, 1).await.is_err());
        }
        failed
    }
    assert_eq!(pattern(5).await, pattern(5).await);
    assert_ne!(pattern(5).await, pattern(6).await);
}
