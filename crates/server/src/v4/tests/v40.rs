//! Minor version 0: clients without sessions, owners with sequence numbers.

use super::*;
use std::sync::LazyLock;
use std::time::Duration;
use weir_base::ManualClock;
use weir_nfs::v4::Detailed;
use weir_nfs::v4::op::open::ResultFlags;
use weir_nfs::v4::op::{close, create, lock, open_confirm, read, setclientid, setclientid_confirm};
use weir_nfs::v4::types::{LockType, NetAddr};

async fn introduce(c: &mut Client) -> u64 {
    introduce_at(c, None).await
}

/// SETCLIENTID and its confirmation, with a callback address.
pub(super) async fn introduce_at(c: &mut Client, listens: Option<SocketAddr>) -> u64 {
    introduce_run_at(c, *b"one run.", listens).await
}

/// The same for a run of the client, by its verifier.
pub(super) async fn introduce_run_at(
    c: &mut Client,
    verifier: [u8; 8],
    listens: Option<SocketAddr>,
) -> u64 {
    let cb_location = listens.map_or_else(NetAddr::default, |addr| {
        let [high, low] = addr.port().to_be_bytes();
        let addr = format!("{}.{high}.{low}", addr.ip());
        NetAddr { netid: "tcp".into(), addr: addr.as_bytes().into() }
    });
    let args = setclientid::Args {
        client: ClientOwner { verifier, owner: c.name.into() },
        cb_program: callbacks::PROGRAM,
        cb_location,
        callback_ident: 0,
    };
    let results = c.raw(vec![Op::Setclientid(args)]).await.results;
    let Some(OpRes::Setclientid(Ok(introduced))) = results.last() else { panic!("{results:?}") };
    let client_id = introduced.client_id;
    let wrong = setclientid_confirm::Args { client_id, confirm: [9; 8] };
    let refused = c.raw(vec![Op::SetclientidConfirm(wrong)]).await.status;
    assert_eq!(refused, Err(Error::StaleClientId));
    let args = setclientid_confirm::Args { client_id, confirm: introduced.confirm };
    assert_eq!(c.raw(vec![Op::SetclientidConfirm(args)]).await.status, Ok(()));
    client_id
}

#[tokio::test]
async fn an_owners_operations_are_executed_once_and_in_order() {
    let f = Fixture::new().await;
    let mut c = f.connect("old", 0).await;
    let client_id = introduce(&mut c).await;
    assert_eq!(c.raw(vec![Op::Renew(client_id)]).await.status, Ok(()));
    assert_eq!(c.raw(vec![Op::Renew(client_id + 1)]).await.status, Err(Error::StaleClientId));

    let open = |c: &Client, seqid| match c.open_op("file", 0) {
        Op::Open(args) => Op::Open(open::Args {
            seqid,
            owner: StateOwner { client_id, owner: "process".into() },
            ..args
        }),
        op => op,
    };
    let ops = |c: &Client, seqid| vec![Op::Putrootfh(()), open(c, seqid), Op::Getfh(())];
    let first = c.raw(ops(&c, 5)).await;
    let again = c.raw(ops(&c, 5)).await;
    assert_eq!(first.status, Ok(()));
    assert_eq!(again.results, first.results);
    assert_eq!(c.raw(ops(&c, 7)).await.status, Err(Error::BadSeqId));

    let OpRes::Open(Ok(opened)) = &first.results[1] else { panic!() };
    let file = handle(&first.results).unwrap();
    let close = close::Args { seqid: 6, open_stateid: opened.stateid };
    let closed = c.raw(vec![Op::Putfh(file.clone()), Op::Close(close)]).await;
    assert_eq!(closed.status, Ok(()));
    // The reply was lost: the client retransmits the request.
    let again = c.raw(vec![Op::Putfh(file.clone()), Op::Close(close)]).await;
    assert_eq!(again.results, closed.results);
    assert_eq!(c.raw(ops(&c, 6)).await.status, Err(Error::BadSeqId), "that was no OPEN");
    let late = close::Args { seqid: 7, ..close };
    let closed = c.raw(vec![Op::Putfh(file.clone()), Op::Close(late)]).await;
    assert_eq!(closed.status, Err(Error::BadStateId));
    let next = c.raw(ops(&c, 7)).await;
    let OpRes::Open(Ok(reopened)) = &next.results[1] else { panic!("{next:?}") };
    assert_ne!(reopened.stateid.other, opened.stateid.other);
    // The owner has sent later requests: a retransmission of the earlier CLOSE is refused.
    let gone = c.raw(vec![Op::Putfh(file), Op::Close(close)]).await;
    assert_eq!(gone.status, Err(Error::BadStateId));
    assert_eq!(
        c.raw(vec![Op::Sequence(sequence::Args {
            session: [0; 16],
            sequence_id: 0,
            slot: 0,
            highest_slot: 0,
            cache_this: false,
        })])
        .await
        .status,
        Err(Error::OpIllegal)
    );
}

/// Clients that have given a request up without a reply send another one with its seqid.
#[tokio::test]
async fn a_request_with_other_arguments_does_not_get_the_last_result() {
    let f = Fixture::new().await;
    let mut c = f.connect("old", 0).await;
    let client_id = introduce(&mut c).await;
    let process = Process { client_id, name: "process" };
    let (file, opened) = process.open(&mut c, 5).await;
    let lock_for = |owner: &'static str, offset| {
        Op::Lock(lock::Args {
            kind: LockType::Write,
            reclaim: false,
            offset,
            length: 10,
            locker: lock::Locker::New(lock::NewLocker {
                open_seqid: 6,
                open_stateid: opened.stateid,
                lock_seqid: 0,
                lock_owner: StateOwner { client_id, owner: owner.into() },
            }),
        })
    };
    let locked = on(&mut c, &file, lock_for("first", 0)).await;
    assert!(matches!(locked, OpRes::Lock(Ok(_))), "{locked:?}");
    assert_eq!(on(&mut c, &file, lock_for("first", 0)).await, locked);
    for other in [lock_for("second", 0), lock_for("first", 100)] {
        assert_eq!(on(&mut c, &file, other).await.status(), Err(Error::BadSeqId));
    }
}

/// An open owner of a client, with operations on the file named "file".
struct Process {
    client_id: u64,
    name: &'static str,
}

impl Process {
    async fn open(&self, c: &mut Client, seqid: u32) -> (FileHandle, open::Opened) {
        let Op::Open(args) = c.open_op("file", 0) else { panic!() };
        let owner = StateOwner { client_id: self.client_id, owner: self.name.into() };
        let open = Op::Open(open::Args { seqid, owner, ..args });
        let results = c.raw(vec![Op::Putrootfh(()), open, Op::Getfh(())]).await.results;
        let OpRes::Open(Ok(opened)) = &results[1] else { panic!("{results:?}") };
        (handle(&results).unwrap(), opened.clone())
    }
}

async fn on(c: &mut Client, file: &FileHandle, op: Op) -> OpRes {
    c.raw(vec![Op::Putfh(file.clone()), op]).await.results.pop().unwrap()
}

/// The server's client ID, unless set to another one.
const LEASE: Duration = Duration::from_secs(90);

#[tokio::test]
async fn an_owner_that_the_server_may_have_forgotten_must_confirm() {
    static CLOCK: LazyLock<Arc<ManualClock>> = LazyLock::new(Arc::default);
    let f = Fixture::with(|config| config.clock = CLOCK.clone()).await;
    let mut c = f.connect("old", 0).await;
    let client_id = introduce(&mut c).await;
    let process = Process { client_id, name: "process" };
    let (file, opened) = process.open(&mut c, 5).await;
    assert!(!opened.flags.contains(ResultFlags::CONFIRM), "no owner was forgotten");
    let close = |stateid, seqid| Op::Close(close::Args { seqid, open_stateid: stateid });
    let closed = on(&mut c, &file, close(opened.stateid, 6)).await;
    assert!(matches!(closed, OpRes::Close(Ok(_))), "{closed:?}");

    // A retransmission of the first request after the server forgot its owner.
    for _ in 0..2 {
        CLOCK.advance(LEASE * 2 / 3);
        assert_eq!(c.raw(vec![Op::Renew(client_id)]).await.status, Ok(()));
    }
    f.server.sweep().await;
    let (_, again) = process.open(&mut c, 5).await;
    assert!(again.flags.contains(ResultFlags::CONFIRM));
    let read = |stateid| Op::Read(read::Args { stateid, offset: 0, count: 1 });
    let io = on(&mut c, &file, read(again.stateid)).await;
    assert!(matches!(io, OpRes::Read(Err(Error::BadStateId))), "{io:?}");
    let lock_owner = StateOwner { client_id, owner: "thread".into() };
    let new =
        lock::NewLocker { open_seqid: 6, open_stateid: again.stateid, lock_seqid: 0, lock_owner };
    let locker = lock::Locker::New(new);
    let args = lock::Args { kind: LockType::Read, reclaim: false, offset: 0, length: 1, locker };
    let locked = on(&mut c, &file, Op::Lock(args)).await;
    assert!(matches!(locked, OpRes::Lock(Err(Detailed::Plain(Error::BadStateId)))), "{locked:?}");

    // A new request of the client, with any seqid: it replaces the unconfirmed open.
    let (_, opened) = process.open(&mut c, 50).await;
    assert!(opened.flags.contains(ResultFlags::CONFIRM));
    let confirm = |stateid: StateId, seqid| {
        Op::OpenConfirm(open_confirm::Args { open_stateid: stateid, seqid })
    };
    let result = |res| match res {
        OpRes::OpenConfirm(res) => res,
        other => panic!("{other:?}"),
    };
    let void = result(on(&mut c, &file, confirm(again.stateid, 51)).await);
    assert_eq!(void, Err(Error::BadStateId));
    let early = result(on(&mut c, &file, confirm(opened.stateid, 52)).await);
    assert_eq!(early, Err(Error::BadSeqId));
    let confirmed = result(on(&mut c, &file, confirm(opened.stateid, 51)).await).unwrap();
    assert_eq!((confirmed.seqid, confirmed.other), (2, opened.stateid.other));
    let replayed = result(on(&mut c, &file, confirm(opened.stateid, 51)).await);
    assert_eq!(replayed, Ok(confirmed));
    let twice = result(on(&mut c, &file, confirm(confirmed, 52)).await);
    assert_eq!(twice, Err(Error::BadStateId));
    let io = on(&mut c, &file, read(confirmed)).await;
    assert!(matches!(io, OpRes::Read(Ok(_))), "{io:?}");
    let (_, more) = process.open(&mut c, 52).await;
    assert!(!more.flags.contains(ResultFlags::CONFIRM));
    assert_eq!((more.stateid.seqid, more.stateid.other), (3, opened.stateid.other));
    let other = Process { client_id, name: "another" };
    let (_, opened) = other.open(&mut c, 1).await;
    assert!(opened.flags.contains(ResultFlags::CONFIRM));
}

fn mkdir(name: &'static str) -> Op {
    let (kind, attrs) = (create::Kind::Directory, Attrs::default().into());
    Op::Create(create::Args { kind, name: name.into(), attrs })
}

/// Sends a compound again, as if its reply had been lost.
async fn again(c: &mut Client, ops: Vec<Op>) -> Reply {
    c.xid -= 1;
    c.raw(ops).await
}

#[tokio::test]
async fn operations_beyond_the_most_of_a_compound_are_not_executed_nor_looked_at() {
    let f = Fixture::new().await;
    let mut c = f.connect("old", 0).await;
    let roots = vec![Op::Putrootfh(()); 128];
    let late = [roots.clone(), vec![mkdir("late")]].concat();
    let reply = c.raw(late.clone()).await;
    assert_eq!((reply.status, reply.results.len()), (Err(Error::Resource), 129));
    let lookup = vec![Op::Putrootfh(()), Op::Lookup("late".into())];
    assert_eq!(c.raw(lookup).await.status, Err(Error::NoEnt));
    // The first one is within the most, so the whole compound is executed once.
    let early = [vec![Op::Putrootfh(()), mkdir("early")], roots].concat();
    let first = c.raw(early.clone()).await;
    assert_eq!((first.status, first.results.len()), (Err(Error::Resource), 129));
    let second = again(&mut c, early).await;
    assert_eq!(second.bytes, first.bytes, "its reply is kept");
}

#[tokio::test]
async fn a_long_reply_is_sent_whole_and_not_kept() {
    let f = Fixture::new().await;
    let mut c = f.connect("old", 0).await;
    let text: &'static str = "x".repeat(4000).leak();
    let link = create::Args {
        kind: create::Kind::Symlink(text.into()),
        name: "link".into(),
        attrs: Attrs::default().into(),
    };
    let read = [Op::Putrootfh(()), Op::Lookup("link".into()), Op::Readlink(())];
    let ops = |reads| {
        let make = vec![Op::Putrootfh(()), Op::Create(link.clone())];
        [make, vec![read.to_vec(); reads].concat()].concat()
    };
    let first = c.raw(ops(6)).await;
    assert_eq!((first.status, first.results.len()), (Ok(()), 20));
    assert!(first.bytes.len() > 24_000, "{}", first.bytes.len());
    let second = again(&mut c, ops(6)).await;
    assert_eq!(second.status, Err(Error::Exist), "it is executed again");
    let remove = vec![Op::Putrootfh(()), Op::Remove("link".into())];
    assert_eq!(c.raw(remove).await.status, Ok(()));
    let first = c.raw(ops(3)).await;
    assert_eq!(first.status, Ok(()));
    assert_eq!(again(&mut c, ops(3)).await.bytes, first.bytes, "a short one is kept");
}

#[tokio::test]
async fn an_owner_that_cannot_be_remembered_gets_no_lock() {
    let f = Fixture::with(|config| config.state.owner_bytes = 800).await;
    let mut c = f.connect("old", 0).await;
    let client_id = introduce(&mut c).await;
    let (file, opened) = Process { client_id, name: "process" }.open(&mut c, 5).await;
    let lock_owner = StateOwner { client_id, owner: "thread".into() };
    let open_stateid = opened.stateid;
    let new = lock::NewLocker { open_seqid: 6, open_stateid, lock_seqid: 0, lock_owner };
    let locker = lock::Locker::New(new);
    let args = lock::Args { kind: LockType::Write, reclaim: false, offset: 0, length: 1, locker };
    let locked = on(&mut c, &file, Op::Lock(args)).await;
    assert!(matches!(locked, OpRes::Lock(Err(Detailed::Plain(Error::Resource)))), "{locked:?}");
    let uses = f.server.services.state.lock().limit_uses();
    let held = uses.iter().filter(|one| ["lock_states", "locked_ranges"].contains(&one.name));
    assert!(held.map(|one| one.used).eq([0, 0]), "{uses:?}");
}
