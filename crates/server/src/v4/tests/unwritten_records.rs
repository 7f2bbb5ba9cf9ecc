//! The database of clients' records cannot be written.

use super::locks::{fill_disk, lock_op};
use super::*;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::sync::atomic::Ordering;
use std::time::Duration;
use weir_base::ManualClock;
use weir_nfs::v4::Detailed;
use weir_nfs::v4::op::{close, create, lockt, locku, read, write};
use weir_nfs::v4::types::{LockType, StableHow};

/// The server's state directory, moved away until this is dropped. A record is due.
struct Away(PathBuf, PathBuf);

impl Away {
    fn of(f: &Fixture) -> Self {
        let (there, away) = (f.dir.path().to_owned(), f.dir.path().with_extension("away"));
        fill_disk(f);
        std::fs::rename(&there, &away).unwrap();
        Self(there, away)
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        std::fs::rename(&self.1, &self.0).unwrap();
    }
}

/// EXCHANGE_ID of a client that the server does not know.
fn exchange() -> Op {
    Op::ExchangeId(exchange_id::Args {
        client: ClientOwner { verifier: *b"one run.", owner: "new".into() },
        flags: exchange_id::Flags::empty(),
        state_protect: exchange_id::StateProtect::None,
        impl_id: List::default(),
    })
}

fn lockt() -> Op {
    let owner = StateOwner { client_id: 0, owner: "another".into() };
    Op::Lockt(lockt::Args { kind: LockType::Write, offset: 0, length: 1, owner })
}

#[tokio::test]
async fn what_grants_no_state_goes_on() {
    let f = Fixture::new().await;
    let mut a = f.client("a").await;
    let (file, open_stateid) = a.open("file").await;
    let lock = lock_op(open_stateid, LockType::Write, false);
    let OpRes::Lock(Ok(lock_stateid)) = a.on(&file, lock.clone()).await else { panic!() };
    let _away = Away::of(&f);

    let on_file = |op| vec![Op::Putfh(file.clone()), op];
    let (stateid, offset) = (open_stateid, 0);
    let data = Bytes::from_static(b"data").into();
    let (kind, length) = (LockType::Write, u64::MAX);
    let unlock = locku::Args { kind, seqid: 0, lock_stateid, offset, length };
    let attrs = Attrs { mode: Some(0o700), ..Attrs::default() };
    let kind = create::Kind::Directory;
    let make = create::Args { kind, name: "dir".into(), attrs: attrs.into() };
    let stable = StableHow::Unstable;
    for ops in [
        vec![Op::Putrootfh(()), Op::Lookup("file".into())],
        on_file(Op::Write(write::Args { stateid, offset, stable, data })),
        on_file(Op::Read(read::Args { stateid, offset, count: 4 })),
        on_file(Op::Locku(unlock)),
        vec![Op::Putrootfh(()), Op::Create(make)],
    ] {
        a.ok(ops).await;
    }
    // What another client may have lost is not granted.
    assert_eq!(a.fails(on_file(lock)).await, Error::Delay);
    assert_eq!(a.fails(on_file(lockt())).await, Error::Delay);
    assert_eq!(a.fails(vec![Op::Putrootfh(()), a.open_op("new", 0)]).await, Error::Delay);
    let mut new = f.connect("new", 2).await;
    assert_eq!(new.raw(vec![exchange()]).await.status, Err(Error::Delay));

    a.ok(on_file(Op::Close(close::Args { seqid: 0, open_stateid }))).await;
    assert!(f.server.services.state.lock().records_due().load(Ordering::Acquire));
}

#[tokio::test]
async fn clients_get_an_error_once_no_record_could_be_written_for_a_lease() {
    static CLOCK: LazyLock<Arc<ManualClock>> = LazyLock::new(Arc::default);
    let f = Fixture::with(|config| config.clock = CLOCK.clone()).await;
    let mut a = f.client("a").await;
    let (file, open_stateid) = a.open("file").await;
    let lock = lock_op(open_stateid, LockType::Write, false);
    let away = Away::of(&f);
    for third in 0..5 {
        let locked = a.on(&file, lock.clone()).await;
        let OpRes::Lock(Err(Detailed::Plain(error))) = locked else { panic!("{locked:?}") };
        let expected = if third > 3 { Error::ServerFault } else { Error::Delay };
        assert_eq!(error, expected, "{third}");
        let open = vec![Op::Putrootfh(()), a.open_op("new", 0)];
        assert_eq!(a.fails(open).await, expected, "{third}");
        let removed = a.fails(vec![Op::Putrootfh(()), Op::Remove("file".into())]).await;
        assert_eq!(removed, Error::Delay, "what clients may drop if it fails: {third}");
        CLOCK.advance(Duration::from_secs(30));
    }
    drop(away);
    assert!(matches!(a.on(&file, lock).await, OpRes::Lock(Ok(_))), "and it goes on");
}
