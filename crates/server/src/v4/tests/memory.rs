//! Waiting calls pin no pages of the cache: any number of them leaves memory for others.

use super::exports::fill;
use super::*;
use std::time::Duration;
use tokio::time::timeout;
use weir_nfs::v4::op::{copy, read};
use weir_stores::fault::{Call, Fault, Rule, What, When};

const BUDGET: u64 = 4 << 20;
/// Length of a file; the pages of [`CLIENTS`] of them exceed the budget.
const LEN: u64 = 500 << 10;
const CLIENTS: usize = 12;
const PATIENCE: Duration = Duration::from_secs(60);

/// Has each client read its file, and then send a compound in the middle of which it waits for the store to read;
/// then lets the store go on. Returns the replies.
async fn all_wait(compound: fn(FileHandle, FileHandle) -> Vec<Op>) -> Vec<Reply> {
    let store = Fault::over(MemoryFs::new(), 1);
    let f = Fixture::of_budget(store.clone(), BUDGET, |_| {}).await;
    let options = ExportOptions::default();
    let export = Export { path: "/".into(), source: "".into(), fs: f.fs.clone(), options };
    let mut waiting = Vec::new();
    for number in 0..CLIENTS {
        let name = |what| -> &'static str { format!("{what} {number}").leak() };
        let [name, absent] = ["file", "absent"].map(name);
        fill(&export, name, LEN).await;
        fill(&export, absent, 2 * 4096).await;
        let mut c = f.client(name).await;
        let [file, absent] = [c.open(name).await.0, c.open(absent).await.0];
        let read = read_op(LEN as u32);
        let read = timeout(PATIENCE, c.on(&file, read)).await.expect("there is memory");
        assert!(matches!(read, OpRes::Read(Ok(_))), "{read:?}");
        store.add(Rule { call: Call::Read, when: When::Always, what: What::Hold });
        let ops = compound(file, absent);
        waiting.push(tokio::spawn(async move { c.run(ops).await }));
        let waits = async {
            while store.held() <= number {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(PATIENCE, waits).await.expect("it waits for the store");
        store.clear();
    }
    store.release();
    let mut replies = Vec::new();
    for reply in waiting {
        replies.push(timeout(PATIENCE, reply).await.expect("it ends").unwrap());
    }
    replies
}

fn read_op(count: u32) -> Op {
    Op::Read(read::Args { stateid: StateId::ANONYMOUS, offset: 0, count })
}

#[tokio::test]
async fn a_waiting_compound_pins_no_pages_of_its_reads() {
    let compound =
        |file, absent| vec![Op::Putfh(file), read_op(LEN as u32), Op::Putfh(absent), read_op(4096)];
    for reply in all_wait(compound).await {
        let [_, OpRes::Read(Ok(first)), _, OpRes::Read(Ok(second))] = &reply.results[..] else {
            panic!("{:?}", reply.results)
        };
        assert_eq!([first.data.len() as u64, second.data.len() as u64], [LEN, 4096]);
    }
}

#[tokio::test]
async fn a_waiting_copy_pins_no_pages_of_its_source() {
    let compound = |file, absent| {
        let copy = copy::Args {
            source: StateId::ANONYMOUS,
            destination: StateId::ANONYMOUS,
            source_offset: 0,
            // The cache reads the page in which the copy begins.
            destination_offset: 1,
            count: 0,
            consecutive: true,
            synchronous: true,
            source_servers: List::default(),
        };
        vec![Op::Putfh(file), Op::Savefh(()), Op::Putfh(absent), Op::Copy(copy)]
    };
    for reply in all_wait(compound).await {
        let Some(OpRes::Copy(Ok(copied))) = reply.results.last() else {
            panic!("{:?}", reply.results)
        };
        assert_eq!(copied.response.count, LEN);
    }
}
