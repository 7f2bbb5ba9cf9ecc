//! Single calls of `weir_client::raw` to Weir's own server.

mod common;

use common::Served;
use common::between::Between;
use std::sync::Arc;
use std::time::Duration;
use weir_client::{MountOptions, NfsFs, raw};
use weir_nfs::v4::op::read;
use weir_nfs::v4::types::StateId;
use weir_nfs::v4::{Error, Op, OpCode, OpRes};
use weir_stores::testing::{new_file, write};
use weir_vfs::{FileSystem, Lock, LockOwner, LockRange};

#[tokio::test]
async fn raw_calls_that_a_version_does_not_have_fail() {
    let served = Served::start();
    for (vers, failing) in [("3", 5), ("4.1", 2), ("4.2", 0)] {
        let nfs = served.mount(&format!("vers={vers}")).await;
        let file = new_file(&(nfs.clone() as Arc<dyn FileSystem>), nfs.root(), vers).await;
        let all = Lock { range: LockRange::ALL, exclusive: true };
        let calls = [
            raw::read_plus(&*file, 0, 1).await.err(),
            raw::read_under(&*file, raw::stateid(&*file).unwrap_or(StateId::ANONYMOUS)).await.err(),
            raw::stateid(&*file).err(),
            raw::test_lock(&*file, LockOwner(1), all).await.err(),
            raw::fall_silent(&nfs, false).err(),
        ];
        let errors: Vec<_> = calls.into_iter().flatten().collect();
        assert_eq!(errors.len(), failing, "vers={vers}: {errors:?}");
        for error in errors {
            let text = error.to_string();
            assert!(text.ends_with("needs a mount with vers=4 (READ_PLUS: 4.2)"), "{text}");
            assert_eq!(error.to_vfs(), weir_vfs::Error::NotSupported);
        }
        nfs.unmount().await;
    }
}

#[tokio::test]
async fn a_session_sends_any_compound_and_returns_any_status() {
    let served = Served::start();
    let url = format!("nfs://{}/", served.addr).parse().unwrap();
    for minor in [1, 2] {
        let connection =
            raw::Connection::open(&url, &MountOptions::default(), minor).await.unwrap();
        let session = raw::Session::begin(connection).await.unwrap();
        let reply = session.call(&[Op::Putrootfh(()), Op::Getfh(())]).await.unwrap();
        assert!(matches!(reply.results[..], [OpRes::Putrootfh(Ok(())), OpRes::Getfh(Ok(_))]));
        let lookup = Op::Lookup("none".into());
        let reply = session.call(&[Op::Putrootfh(()), lookup, Op::Getfh(())]).await.unwrap();
        assert_eq!((reply.status, reply.results.len()), (Err(Error::NoEnt), 2));
        let reply = session.connection().call(&[Op::Putrootfh(())]).await.unwrap();
        assert_eq!(reply.status, Err(Error::OpNotInSession));
        session.end().await.unwrap();
    }
    let connection = raw::Connection::open(&url, &MountOptions::default(), 3).await.unwrap();
    let error = raw::Session::begin(connection).await.err().unwrap();
    assert!(error.to_string().ends_with("EXCHANGE_ID: NFS4ERR_MINOR_VERS_MISMATCH"), "{error}");
}

/// Minor version 0 requires STALE_STATEID (RFC 7530 section 9.1.4.4); with sessions the client id
/// is a new one, and BAD_STATEID is right, too (RFC 8881 section 8.2.4).
#[tokio::test]
async fn a_stateid_of_before_the_servers_restart_is_refused() {
    let mut served = Served::start();
    let nfs = served.mount("vers=4.2").await;
    let file = new_file(&(nfs.clone() as Arc<dyn FileSystem>), nfs.root(), "file").await;
    let stateid = raw::stateid(&*file).unwrap();
    // So that it does not reclaim its state.
    raw::fall_silent(&nfs, true).unwrap();
    served.restart();

    let url = format!("nfs://{}/", served.addr).parse().unwrap();
    let read = Op::Read(read::Args { stateid, offset: 0, count: 1 });
    let ops = [Op::Putrootfh(()), Op::Lookup("file".into()), read];
    let connection = raw::Connection::open(&url, &MountOptions::default(), 0).await.unwrap();
    let status = settled(async || connection.call(&ops).await.unwrap()).await;
    assert_eq!(status, Err(Error::StaleStateId));
    let connection = raw::Connection::open(&url, &MountOptions::default(), 2).await.unwrap();
    let session = raw::Session::begin(connection).await.unwrap();
    let status = settled(async || session.call(&ops).await.unwrap()).await;
    assert!(matches!(status, Err(Error::StaleStateId | Error::BadStateId)), "{status:?}");
}

/// By the lease from before it would renew too late, and lose its locks to another client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lease_of_a_restarted_server_is_learned() {
    for (vers, renewal) in [("4.0", OpCode::Renew), ("4.1", OpCode::Sequence)] {
        let mut served = Served::start();
        let between = Between::to(served.addr).await;
        let url = format!("nfs://{}/?vers={vers}", between.addr).parse().unwrap();
        let nfs = NfsFs::mount(&url, &MountOptions::default()).await.unwrap();
        let file = new_file(&(nfs.clone() as Arc<dyn FileSystem>), nfs.root(), vers).await;
        assert_eq!(raw::fall_silent(&nfs, false).unwrap(), served.lease);
        // Not the shortest one, which holds until the server has been asked.
        served.lease = Duration::from_secs(8);
        served.restart();
        // It comes back.
        write(&*file, 0, b"x").await.unwrap();
        let learned = async {
            while raw::fall_silent(&nfs, false).unwrap() != served.lease {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(300), learned).await.expect(vers);
        between.take_count(renewal);
        let renewed = async {
            while between.take_count(renewal) == 0 {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        // By the lease from before, it would be 20 minutes.
        tokio::time::timeout(Duration::from_secs(300), renewed).await.expect("it does not renew");
        drop(file);
        nfs.unmount().await;
    }
}

/// The status of a call after the server's grace period.
async fn settled(call: impl AsyncFn() -> raw::Reply) -> Result<(), Error> {
    loop {
        match call().await.status {
            Err(Error::Grace | Error::Delay) => tokio::time::sleep(Duration::from_millis(50)).await,
            status => return status,
        }
    }
}
