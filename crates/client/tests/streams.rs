//! A file as a stream beside calls at offsets, and its position after failures.

mod common;

use common::Served;
use futures_util::future::FutureExt;
use std::io::ErrorKind;
use tokio::io::{AsyncSeekExt, AsyncWriteExt};
use weir_client::Export;
use weir_stores::fault::{Call, Fault, Rule, What, When};
use weir_stores::memory::MemoryFs;

async fn connect(addr: impl std::fmt::Display, version: &str) -> Export {
    Export::connect(&format!("nfs://{addr}/?vers={version}")).await.unwrap()
}

/// Calls at offsets come after the writes of the stream before them, whether these are collected or in flight.
#[tokio::test]
async fn calls_at_offsets_come_after_the_writes_of_the_stream() {
    let served = Served::start();
    for version in ["3", "4.0", "4.2"] {
        let export = connect(served.addr, version).await;
        for len in [10, 3 << 20] {
            let (bytes, name) = (
                (0..len).map(|n| (n % 251) as u8).collect::<Vec<u8>>(),
                format!("order-{version}-{len}"),
            );
            let mut file = export.create(&name).await.unwrap();
            file.write_all(&bytes).await.unwrap();
            assert_eq!(file.read_at(1, len).await.unwrap(), bytes[1..], "{version}");
            file.write_all(&bytes).await.unwrap();
            file.set_len(4).await.unwrap();
            file.flush().await.unwrap();
            assert_eq!(export.metadata(&name).await.unwrap().len(), 4, "{version}, {len} bytes");
            file.rewind().await.unwrap();
            file.write_all(&bytes).await.unwrap();
            file.write_at(2, "later").await.unwrap();
            file.flush().await.unwrap();
            assert_eq!(file.read_at(2, 5).await.unwrap(), "later", "{version}, {len} bytes");
            if version != "4.2" {
                continue;
            }
            file.rewind().await.unwrap();
            file.write_all(&bytes).await.unwrap();
            file.punch_hole(0, len as u64).await.unwrap();
            file.flush().await.unwrap();
            let read = file.read_at(0, len).await.unwrap();
            assert!(read.len() == len && read.iter().all(|byte| *byte == 0), "{len} bytes");
            assert_eq!(file.next_data(0).await.unwrap(), None);
            file.write_all(b"data").await.unwrap();
            assert!(file.next_data(0).await.unwrap().is_some(), "{len} bytes");
        }
    }
}

/// A seek that failed, or was given up, is not made up for by a later call.
#[tokio::test]
async fn a_seek_that_failed_or_was_dropped_has_no_effect_later() {
    let store = Fault::over(MemoryFs::new(), 1);
    let mut served = Served::start();
    served.store = store.clone();
    served.restart();
    let export = connect(served.addr, "4.2").await;
    let mut file = export.create("file").await.unwrap();
    let fail = What::Fail(weir_vfs::Error::NoSpace);
    store.add(Rule { call: Call::Write, when: When::Always, what: fail });
    file.write_all(b"lost").await.unwrap();
    assert_eq!(file.rewind().await.unwrap_err().kind(), ErrorKind::StorageFull);
    store.clear();
    assert_eq!(file.stream_position().await.unwrap(), 4);
    file.write_all(b"sent").await.unwrap();
    assert!(file.rewind().now_or_never().is_none(), "the write is in flight");
    file.write_all(b"more").await.unwrap();
    assert_eq!(file.stream_position().await.unwrap(), 12);
    file.flush().await.unwrap();
    assert_eq!(&export.read("file").await.unwrap()[4..], b"sentmore");
}
