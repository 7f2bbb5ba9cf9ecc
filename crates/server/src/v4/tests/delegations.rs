//! Delegations: granted, recalled by every kind of conflict, returned, revoked, reclaimed.

use super::v40::introduce_at;
use super::*;
use std::sync::LazyLock;
use std::time::{Duration, Instant};
use weir_base::{Clock, ManualClock};
use weir_nfs::v4::CbOp;
use weir_nfs::v4::attr::{CHANGE, RDATTR_ERROR, SIZE};
use weir_nfs::v4::op::bind_conn_to_session::{Args as Bind, DirFromClient};
use weir_nfs::v4::op::open::{Claim, Delegation, DelegationType, How, ShareAccess, WhyNone};
use weir_nfs::v4::op::{close, read, readdir, remove, setattr, write};
use weir_nfs::v4::types::StableHow;
use weir_nfs::v4::{Bitmap, Fattr};
use weir_stores::local::{LocalFs, LocalOptions};
use weir_vfs::{Caller, FileSystem, FileSystemDecorator};

pub(super) const WANT_READ: ShareAccess = ShareAccess::READ.union(ShareAccess::WANT_READ_DELEG);
pub(super) const WANT_WRITE: ShareAccess = ShareAccess::BOTH.union(ShareAccess::WANT_WRITE_DELEG);

impl Fixture {
    /// A client that can be called back, and may take state.
    pub(super) async fn callable(&self, name: &'static str) -> Client {
        let mut client = self.connect(name, 2).await;
        client.service.is_there = true;
        client.begin_session(1 << 20).await;
        client.ok(vec![Op::ReclaimComplete(reclaim_complete::Args { one_fs: false })]).await;
        self.test_backchannel(&mut client).await;
        client
    }
}

pub(super) fn open_as(access: ShareAccess, claim: Claim) -> Op {
    Op::Open(open::Args {
        seqid: 0,
        share_access: access,
        share_deny: open::ShareDeny::empty(),
        owner: StateOwner { client_id: 0, owner: "process".into() },
        how: How::NoCreate,
        claim,
    })
}

pub(super) fn delegation(res: &OpRes) -> &Delegation {
    match res {
        OpRes::Open(Ok(opened)) => &opened.delegation,
        other => panic!("{other:?}"),
    }
}

/// The stateid of a delegation of either kind.
pub(super) fn stateid(delegation: &Delegation) -> StateId {
    match delegation {
        Delegation::Read(read) => read.stateid,
        Delegation::Write(write) | Delegation::WriteAttrs(write) => write.stateid,
        other => panic!("{other:?}"),
    }
}

impl Client {
    /// Makes a file and closes it.
    pub(super) async fn make(&mut self, name: &'static str) -> FileHandle {
        let (file, open_stateid) = self.open(name).await;
        self.on(&file, Op::Close(close::Args { seqid: 0, open_stateid })).await;
        file
    }

    /// Opens a file and gets a delegation of it.
    pub(super) async fn delegated(&mut self, file: &FileHandle, access: ShareAccess) -> StateId {
        let res = self.on(file, open_as(access, Claim::Fh)).await;
        stateid(delegation(&res))
    }

    /// Waits for a recall, and returns the delegation.
    pub(super) async fn give_back(&mut self, file: &FileHandle, expected: StateId) {
        let CbOp::Recall(recall) = self.called().await else { panic!() };
        assert_eq!((&recall.file, recall.stateid), (file, expected));
        assert!(matches!(
            self.on(file, Op::Delegreturn(expected)).await,
            OpRes::Delegreturn(Ok(()))
        ));
    }
}

pub(super) fn write_op(stateid: StateId) -> Op {
    let data = weir_nfs::Data::Bytes("new".into());
    Op::Write(write::Args { stateid, offset: 0, stable: StableHow::FileSync, data })
}

#[tokio::test]
async fn a_read_delegation_is_recalled_by_a_writer() {
    let f = Fixture::new().await;
    let (mut a, mut b) = (f.callable("a").await, f.client("b").await);
    let file = a.make("file").await;
    let held = a.delegated(&file, WANT_READ).await;
    let args = read::Args { stateid: held, offset: 0, count: 1 };
    assert!(matches!(a.on(&file, Op::Read(args)).await, OpRes::Read(Ok(_))));
    assert!(matches!(b.on(&file, open_as(ShareAccess::READ, Claim::Fh)).await, OpRes::Open(Ok(_))));
    let writer = open_as(ShareAccess::WRITE, Claim::Fh);
    let (opened, ()) = tokio::join!(b.on(&file, writer), a.give_back(&file, held));
    assert!(matches!(opened, OpRes::Open(Ok(_))));
}

#[tokio::test]
async fn an_open_truncates_what_a_recalled_delegate_writes_back() {
    let f = Fixture::new().await;
    let (mut a, mut b) = (f.callable("a").await, f.client("b").await);
    let file = a.make("file").await;
    // It has written to its cache: the server's file is still empty.
    let held = a.delegated(&file, WANT_WRITE).await;
    let empty = Attrs { size: Some(0), ..Attrs::default() };
    let truncates = Op::Open(open::Args {
        seqid: 0,
        share_access: ShareAccess::WRITE,
        share_deny: open::ShareDeny::empty(),
        owner: StateOwner { client_id: 0, owner: "process".into() },
        how: How::Create(open::CreateHow::Unchecked(empty.into())),
        claim: Claim::Null("file".into()),
    });
    let write_back = async {
        let CbOp::Recall(_) = a.called().await else { panic!() };
        assert!(matches!(a.on(&file, write_op(held)).await, OpRes::Write(Ok(_))));
        a.on(&file, Op::Delegreturn(held)).await;
    };
    let (opened, ()) = tokio::join!(b.ok(vec![Op::Putrootfh(()), truncates]), write_back);
    let OpRes::Open(Ok(opened)) = &opened[1] else { panic!() };
    assert_eq!(opened.attrs_set, Bitmap::of(&[SIZE]));
    let stored = f.fs.lookup(&Caller::Own, f.fs.root().entry(b"file")).await.unwrap();
    assert_eq!(stored.size, 0);
}

#[tokio::test]
async fn a_writer_gets_delay_while_the_delegate_is_slow() {
    let f = Fixture::new().await;
    let (mut a, mut b) = (f.callable("a").await, f.client("b").await);
    let file = a.make("file").await;
    let held = a.delegated(&file, WANT_READ).await;
    let begun = Instant::now();
    let writer = || open_as(ShareAccess::WRITE, Claim::Fh);
    let (opened, _) = tokio::join!(b.on(&file, writer()), a.called());
    assert!(matches!(opened, OpRes::Open(Err(Error::Delay))));
    assert!(begun.elapsed() > Duration::from_secs(1));
    // The delegate first sends the server the opens that it made locally.
    for claim in [Claim::DelegCurFh(held), Claim::DelegCurFh(StateId { seqid: 0, ..held })] {
        assert!(matches!(a.on(&file, open_as(ShareAccess::READ, claim)).await, OpRes::Open(Ok(_))));
    }
    let by_name =
        Claim::DelegateCur(open::DelegateCur { delegate_stateid: held, file: "file".into() });
    a.ok(vec![Op::Putrootfh(()), open_as(ShareAccess::READ, by_name)]).await;
    let too_much = open_as(ShareAccess::WRITE, Claim::DelegCurFh(held));
    assert!(matches!(a.on(&file, too_much).await, OpRes::Open(Err(Error::OpenMode))));
    a.on(&file, Op::Delegreturn(held)).await;
    assert!(matches!(b.on(&file, writer()).await, OpRes::Open(Ok(_))));
    let late = open_as(ShareAccess::READ, Claim::DelegCurFh(held));
    assert!(matches!(a.on(&file, late).await, OpRes::Open(Err(Error::BadStateId))));
}

#[tokio::test]
async fn every_kind_of_change_recalls_a_read_delegation() {
    let f = Fixture::new().await;
    let (mut a, mut b) = (f.callable("a").await, f.client("b").await);
    let attrs: Fattr = Attrs { mode: Some(0o600), ..Attrs::default() }.into();
    let on = |name: &'static str, file: &FileHandle| -> Vec<Op> {
        let put = Op::Putfh(file.clone());
        match name {
            "write" => vec![put, write_op(StateId::ANONYMOUS)],
            "setattr" => vec![
                put,
                Op::Setattr(setattr::Args { stateid: StateId::ANONYMOUS, attrs: attrs.clone() }),
            ],
            "link" => vec![put, Op::Savefh(()), Op::Putrootfh(()), Op::Link("other".into())],
            "remove" => vec![Op::Putrootfh(()), Op::Remove(remove::Args::from("remove"))],
            "rename" => vec![
                Op::Putrootfh(()),
                Op::Savefh(()),
                Op::Rename(weir_nfs::v4::op::rename::Args {
                    from: "rename".into(),
                    to: "x".into(),
                }),
            ],
            _ => unreachable!(),
        }
    };
    for name in ["write", "setattr", "link", "rename", "remove"] {
        let file = a.make(name).await;
        let held = a.delegated(&file, WANT_READ).await;
        // The delegate itself is not refused.
        if name == "setattr" {
            a.ok(on(name, &file)).await;
        }
        let (done, ()) = tokio::join!(b.run(on(name, &file)), a.give_back(&file, held));
        assert_eq!(done.status, Ok(()), "{name}");
    }
}

#[tokio::test]
async fn an_nfsv3_call_waits_for_a_recall_or_gets_jukebox() {
    use weir_nfs::v3;
    let f = Fixture::new().await;
    let mut a = f.callable("a").await;
    let file = a.make("file").await;
    let mut b = f.connect("b", 0).await;
    let write = v3::op::write::Args {
        file: weir_xdr::Opaque::copy_from(&file),
        offset: 0,
        count: 3,
        stable: v3::op::write::Stability::FileSync,
        data: weir_nfs::Data::Bytes("new".into()),
    };
    for silent in [false, true] {
        let file = if silent { a.make("other").await } else { file.clone() };
        let held = a.delegated(&file, WANT_WRITE).await;
        let args =
            v3::op::write::Args { file: weir_xdr::Opaque::copy_from(&file), ..write.clone() };
        let call = b.call_v3::<_, v3::op::write::Res>(7, &args);
        if silent {
            assert_eq!(call.await.unwrap_err().status, v3::Error::Jukebox);
        } else {
            let (written, ()) = tokio::join!(call, a.give_back(&file, held));
            assert_eq!(written.unwrap().count, 3);
        }
    }
}

impl Client {
    pub(super) async fn call_v3<A: weir_xdr::Encode, R: weir_xdr::Decode>(
        &mut self,
        procedure: u32,
        args: &A,
    ) -> R {
        self.xid += 1;
        let mut e = start_record();
        e.put(&CallHeader {
            xid: self.xid,
            program: weir_nfs::v3::PROGRAM,
            version: weir_nfs::v3::VERSION,
            procedure,
            cred: self.cred.clone(),
            verf: OpaqueAuth::NONE,
        });
        e.put(args);
        self.stream.write_all(&finish_record(e).to_bytes()).await.unwrap();
        let mut d = Decoder::new(self.record().await);
        let _: ReplyHeader = d.get().unwrap();
        d.get().unwrap()
    }
}

#[tokio::test]
async fn getattr_of_other_clients_includes_the_delegates_unwritten_changes() {
    let f = Fixture::new().await;
    let (mut a, mut b) = (f.callable("a").await, f.client("b").await);
    let file = a.make("file").await;
    let asked = Op::Getattr(Bitmap::of(&[CHANGE, SIZE]));
    let OpRes::Getattr(Ok(before)) = b.on(&file, asked.clone()).await else { panic!() };
    let held = a.delegated(&file, WANT_WRITE).await;

    a.service.attrs = before.clone();
    let (same, called) = tokio::join!(b.on(&file, asked.clone()), a.called());
    assert!(matches!(called, CbOp::Getattr(_)));
    assert_eq!(same, OpRes::Getattr(Ok(before.clone())));

    a.service.attrs =
        Attrs { change: before.change.map(|c| c + 1), size: Some(99), ..before.clone() };
    let (changed, _) = tokio::join!(b.on(&file, asked.clone()), a.called());
    let OpRes::Getattr(Ok(changed)) = changed else { panic!() };
    assert!(changed.change > before.change && changed.size == Some(99));
    // The server answers the delegate's own GETATTR without a callback.
    assert!(matches!(a.on(&file, asked.clone()).await, OpRes::Getattr(Ok(_))));

    let reader = open_as(ShareAccess::READ, Claim::Fh);
    let (opened, ()) = tokio::join!(b.on(&file, reader), a.give_back(&file, held));
    assert!(matches!(opened, OpRes::Open(Ok(_))));
}

#[tokio::test]
async fn listings_and_nfsv3_tell_no_older_size_than_getattr_while_a_file_is_delegated() {
    use weir_nfs::v3;
    let f = Fixture::new().await;
    let (mut a, mut b) = (f.callable("a").await, f.client("b").await);
    let mut old = f.connect("old", 0).await;
    let file = a.make("file").await;
    let asked = Bitmap::of(&[CHANGE, SIZE]);
    let OpRes::Getattr(Ok(before)) = b.on(&file, Op::Getattr(asked)).await else { panic!() };
    let held = a.delegated(&file, WANT_WRITE).await;
    a.service.attrs =
        Attrs { change: before.change.map(|c| c + 1), size: Some(99), ..before.clone() };

    let list = readdir::Args {
        cookie: 0,
        verifier: [0; 8],
        dir_count: 4096,
        max_count: 4096,
        attrs: asked,
    };
    let listing = vec![Op::Putrootfh(()), Op::Readdir(list)];
    let (listed, called) = tokio::join!(b.ok(listing.clone()), a.called());
    assert!(matches!(called, CbOp::Getattr(_)));
    let OpRes::Readdir(Ok(listed)) = &listed[1] else { panic!("{listed:?}") };
    let shown = &listed.entries.0[0].attrs;
    assert!(shown.size == Some(99) && shown.change > before.change, "{shown:?}");
    // The delegate sees its own.
    let OpRes::Readdir(Ok(own)) = &a.ok(listing).await[1] else { panic!() };
    assert_eq!(
        (own.entries.0[0].attrs.size, own.entries.0[0].attrs.change),
        (Some(0), before.change)
    );

    let root = v3_handle(&handle(&b.ok(vec![Op::Putrootfh(()), Op::Getfh(())]).await).unwrap());
    let look_up =
        v3::op::lookup::Args { what: v3::types::DirOp { dir: root.clone(), name: "file".into() } };
    let found: v3::op::lookup::Res = old.call_v3(3, &look_up).await;
    assert_eq!(found.unwrap().attr, None);
    let access =
        v3::op::access::Args { object: v3_handle(&file), rights: v3::op::access::Rights::all() };
    let granted: v3::op::access::Res = old.call_v3(4, &access).await;
    assert_eq!(granted.unwrap().attr, None);
    let list = v3::op::readdirplus::Args {
        dir: root,
        cookie: 0,
        verifier: [0; 8],
        dir_count: 4096,
        max_count: 4096,
    };
    let listed: v3::op::readdirplus::Res = old.call_v3(17, &list).await;
    let listed = listed.unwrap().entries.0;
    let with_attr = listed.iter().filter(|entry| entry.attr.is_some()).count();
    assert_eq!((with_attr, listed.len()), (2, 3), "all but the delegated file");
    let object = v3::op::getattr::Args { object: v3_handle(&file) };
    let newest = old.call_v3::<_, v3::op::getattr::Res>(1, &object);
    let (newest, _) = tokio::join!(newest, a.called());
    assert_eq!(newest.unwrap().size, 99);

    // When the delegation is gone, they have the attributes again.
    a.on(&file, Op::Delegreturn(held)).await;
    let found: v3::op::lookup::Res = old.call_v3(3, &look_up).await;
    assert!(found.unwrap().attr.is_some());
}

fn v3_handle(file: &FileHandle) -> weir_nfs::v3::types::FileHandle {
    weir_xdr::Opaque::copy_from(file)
}

/// READDIR of the root.
fn listing(cookie: u64, attrs: &[u32]) -> Vec<Op> {
    let attrs = Bitmap::of(attrs);
    let args = readdir::Args { cookie, verifier: [0; 8], dir_count: 4096, max_count: 4096, attrs };
    vec![Op::Putrootfh(()), Op::Readdir(args)]
}

#[tokio::test]
async fn a_listing_ends_before_a_file_whose_delegate_is_slow() {
    let f = Fixture::new().await;
    let (mut a, mut b) = (f.callable("a").await, f.client("b").await);
    let list = |cookie| listing(cookie, &[SIZE]);
    a.make("first").await;
    let file = a.make("second").await;
    let OpRes::Readdir(Ok(all)) = b.ok(list(0)).await.remove(1) else { panic!() };
    let names: Vec<_> = all.entries.0.iter().map(|entry| entry.name.clone()).collect();
    let last = if &names[1][..] == b"second" { file } else { a.make("first").await };
    a.delegated(&last, WANT_WRITE).await;
    let OpRes::Readdir(Ok(some)) = b.ok(list(0)).await.remove(1) else { panic!() };
    assert_eq!((some.entries.0.len(), some.eof), (1, false));
    assert_eq!(b.fails(list(some.entries.0[0].cookie)).await, Error::Delay);
}

#[tokio::test]
async fn a_listing_waits_for_one_slow_delegate_alone() {
    let f = Fixture::new().await;
    let (mut a, mut b) = (f.callable("a").await, f.client("b").await);
    for name in ["first", "second", "third", "fourth"] {
        let file = a.make(name).await;
        a.delegated(&file, WANT_WRITE).await;
    }
    a.make("fifth").await;
    let whole = listing(0, &[SIZE, RDATTR_ERROR]);
    let OpRes::Readdir(Ok(all)) = b.ok(whole).await.remove(1) else { panic!() };
    let slow = |entry: &&readdir::Entry| entry.attrs.rdattr_error == Some(Err(Error::Delay));
    assert_eq!((all.entries.0.len(), all.entries.0.iter().filter(slow).count()), (5, 4));
    assert_eq!(all.entries.0.iter().filter(|entry| entry.attrs.size.is_some()).count(), 1);
    // One is asked, and then recalled.
    let (CbOp::Getattr(asked), CbOp::Recall(recalled)) = (a.called().await, a.called().await)
    else {
        panic!()
    };
    assert_eq!(asked.file, recalled.file);
    a.ok(vec![]).await;
    let again = |op: &CbOp| matches!(op, CbOp::Recall(args) if args.file == recalled.file);
    assert!(a.service.called.iter().all(again), "{:?}", a.service.called);
}

#[tokio::test]
async fn a_delegation_is_recalled_if_cb_getattr_fails() {
    let f = Fixture::new().await;
    let (mut a, mut b) = (f.callable("a").await, f.client("b").await);
    let file = a.make("file").await;
    let asked = || Op::Getattr(Bitmap::of(&[CHANGE, SIZE]));
    // A CB_GETATTR reply without the attributes, and no reply.
    for is_silent in [false, true] {
        let other = a.make(if is_silent { "silent" } else { "wordless" }).await;
        let held = a.delegated(&other, WANT_WRITE).await;
        a.service.is_silent = is_silent;
        let returns = async {
            assert!(matches!(a.called().await, CbOp::Getattr(_)));
            a.service.is_silent = false;
            a.give_back(&other, held).await;
        };
        let (told, ()) = tokio::join!(b.on(&other, asked()), returns);
        assert!(matches!(told, OpRes::Getattr(Ok(_))), "{told:?}");
    }
    assert!(matches!(b.on(&file, asked()).await, OpRes::Getattr(Ok(_))));
}

#[tokio::test]
async fn an_unanswered_recall_revokes_the_delegation_after_a_lease() {
    const LEASE: Duration = Duration::from_secs(90);
    static CLOCK: LazyLock<Arc<ManualClock>> = LazyLock::new(Arc::default);
    let f = Fixture::with(|config| {
        config.state.lease = LEASE;
        config.clock = CLOCK.clone();
    })
    .await;
    let (mut a, mut b) = (f.callable("a").await, f.client("b").await);
    let file = a.make("file").await;
    let held = a.delegated(&file, WANT_READ).await;
    a.service.is_silent = true;
    let begun = CLOCK.monotonic();
    loop {
        match b.on(&file, write_op(StateId::ANONYMOUS)).await {
            OpRes::Write(Err(Error::Delay)) => {}
            OpRes::Write(Ok(_)) => break,
            other => panic!("{other:?}"),
        }
        assert!(CLOCK.monotonic() - begun <= LEASE, "it is not revoked");
        CLOCK.advance(LEASE * 2 / 3);
        // The client renews its lease; otherwise all of its state would expire.
        a.ok(vec![]).await;
    }
    assert!(CLOCK.monotonic() - begun > LEASE, "it is revoked too early");
    a.ok(vec![]).await;
    assert!(a.status_flags.contains(sequence::StatusFlags::RECALLABLE_STATE_REVOKED));
    let test = || Op::TestStateid(vec![held].into());
    let tested = |status: Error| vec![OpRes::TestStateid(Ok(vec![Err(status)].into()))];
    assert_eq!(a.ok(vec![test()]).await, tested(Error::DelegRevoked));
    let args = read::Args { stateid: held, offset: 0, count: 1 };
    assert!(matches!(a.on(&file, Op::Read(args)).await, OpRes::Read(Err(Error::DelegRevoked))));
    a.ok(vec![Op::FreeStateid(held)]).await;
    assert_eq!(a.ok(vec![test()]).await, tested(Error::BadStateId));
    assert!(!a.status_flags.contains(sequence::StatusFlags::RECALLABLE_STATE_REVOKED));
}

#[tokio::test]
async fn a_lost_backchannel_is_reported_and_can_be_bound_again() {
    use sequence::StatusFlags;
    let f = Fixture::new().await;
    let (mut a, mut b) = (f.callable("a").await, f.client("b").await);
    let file = a.make("file").await;
    let held = a.delegated(&file, WANT_READ).await;
    assert_eq!(a.status_flags, StatusFlags::empty());

    a.stream = TcpStream::connect(f.addr).await.unwrap();
    let down = StatusFlags::CB_PATH_DOWN | StatusFlags::CB_PATH_DOWN_SESSION;
    let begun = Instant::now();
    while a.status_flags != down {
        assert!(begun.elapsed() < Duration::from_secs(60));
        a.ok(vec![]).await;
    }
    let other = a.make("other").await;
    let refused = a.on(&other, open_as(WANT_READ, Claim::Fh)).await;
    assert_eq!(delegation(&refused), &Delegation::NoneExt(WhyNone::Resource(false)));
    let bind = Bind { session: a.session, dir: DirFromClient::BackOrBoth, use_rdma: false };
    assert_eq!(a.raw(vec![Op::BindConnToSession(bind)]).await.status, Ok(()));
    let begun = Instant::now();
    while a.status_flags != StatusFlags::empty() {
        assert!(begun.elapsed() < Duration::from_secs(120));
        a.ok(vec![]).await;
    }
    let writer = open_as(ShareAccess::WRITE, Claim::Fh);
    let (opened, ()) = tokio::join!(b.on(&file, writer), a.give_back(&file, held));
    assert!(matches!(opened, OpRes::Open(Ok(_))));
}

#[tokio::test]
async fn delegation_wants_are_honoured_and_refusals_give_a_reason() {
    let f = Fixture::new().await;
    let (mut a, mut b) = (f.callable("a").await, f.client("b").await);
    let file = a.make("file").await;
    let plain = || open_as(ShareAccess::READ, Claim::Fh);
    let with = |want| open_as(ShareAccess::READ | want, Claim::Fh);
    let none = Delegation::NoneExt;
    let res = a.on(&file, with(ShareAccess::WANT_NO_DELEG)).await;
    assert_eq!(delegation(&res), &none(WhyNone::NotWanted));
    let res = a.on(&file, with(ShareAccess::WANT_CANCEL)).await;
    assert_eq!(delegation(&res), &none(WhyNone::Cancelled));
    // Without a want, a second open gets a delegation; a client without callbacks gets none.
    assert_eq!(delegation(&a.on(&file, plain()).await), &Delegation::None);
    let res = b.on(&file, with(ShareAccess::WANT_READ_DELEG)).await;
    assert_eq!(delegation(&res), &none(WhyNone::Resource(false)));
    assert!(matches!(delegation(&a.on(&file, plain()).await), Delegation::Read(_)));
    let res = a.on(&file, with(ShareAccess::WANT_WRITE_DELEG)).await;
    assert_eq!(delegation(&res), &none(WhyNone::NotSuppUpgrade));
    let written = a.make("written").await;
    a.delegated(&written, WANT_WRITE).await;
    let res = a.on(&written, with(ShareAccess::WANT_READ_DELEG)).await;
    assert_eq!(delegation(&res), &none(WhyNone::NotSuppDowngrade));
    let res = a.on(&written, with(ShareAccess::WANT_ANY_DELEG)).await;
    assert_eq!(delegation(&res), &none(WhyNone::NotWanted));
    for undefined in [0x0600, 0xff00, 0x0040_0000] {
        let res = a.on(&file, with(ShareAccess::from_bits_retain(undefined))).await;
        assert!(matches!(res, OpRes::Open(Err(Error::Inval))), "{undefined:#x}: {res:?}");
    }
    // The server sends no CB_PUSH_DELEG or CB_RECALLABLE_OBJ_AVAIL, and says so.
    let later = ShareAccess::WANT_READ_DELEG
        | ShareAccess::SIGNAL_WHEN_RESOURCE_AVAILABLE
        | ShareAccess::PUSH_WHEN_UNCONTENDED;
    let res = b.on(&file, with(later)).await;
    assert_eq!(delegation(&res), &none(WhyNone::Resource(false)));

    let (_, _) = b.open("busy").await;
    let busy = b.make("busy").await;
    let (_, _) = b.open("busy").await;
    let res = a.on(&busy, open_as(WANT_WRITE, Claim::Fh)).await;
    assert_eq!(delegation(&res), &none(WhyNone::Contention(false)));
}

#[tokio::test]
async fn no_delegations_are_granted_where_they_are_disabled() {
    let f = Fixture::with(|config| config.state.delegations = 0).await;
    let mut a = f.callable("a").await;
    let file = a.make("file").await;
    let res = a.on(&file, open_as(WANT_READ, Claim::Fh)).await;
    assert_eq!(delegation(&res), &Delegation::NoneExt(WhyNone::Resource(false)));
}

#[tokio::test]
async fn a_delegation_is_reclaimed_after_a_restart() {
    let mut f = Fixture::new().await;
    let mut a = f.callable("a").await;
    let file = a.make("file").await;
    a.delegated(&file, WANT_READ).await;
    f.restart().await;
    let mut a = f.connect("a", 2).await;
    a.service.is_there = true;
    a.begin_session(1 << 20).await;
    let claim = Claim::Previous(DelegationType::Read);
    let res = a.on(&file, open_as(ShareAccess::READ, claim)).await;
    let Delegation::Read(again) = delegation(&res) else { panic!("{res:?}") };
    assert!(!again.recall);
    let held = again.stateid;
    a.ok(vec![Op::ReclaimComplete(reclaim_complete::Args { one_fs: false })]).await;
    let mut b = f.client("b").await;
    let (done, ()) =
        tokio::join!(b.on(&file, write_op(StateId::ANONYMOUS)), a.give_back(&file, held));
    assert!(matches!(done, OpRes::Write(Ok(_))));
}

#[tokio::test]
async fn a_change_by_a_local_program_recalls_within_seconds() {
    let served = tempfile::tempdir().unwrap();
    let f = Fixture::of(LocalFs::open(served.path(), LocalOptions::default()).unwrap()).await;
    let mut a = f.callable("a").await;
    let (file, stateid) = a.open("file").await;
    a.on(&file, write_op(stateid)).await;
    a.on(&file, Op::Close(close::Args { seqid: 0, open_stateid: stateid })).await;
    let held = a.delegated(&file, WANT_READ).await;
    let args = read::Args { stateid: held, offset: 0, count: 3 };
    assert!(matches!(a.on(&file, Op::Read(args)).await, OpRes::Read(Ok(_))));
    tokio::time::sleep(Duration::from_secs(2)).await;
    let asked = || Op::Getattr(Bitmap::of(&[CHANGE]));
    let before = a.on(&file, asked()).await;
    std::fs::write(served.path().join("file"), "old").unwrap();
    let CbOp::Recall(_) = a.called().await else { panic!() };
    // If the holder saw the change attribute, it would take the change for its own and keep its data.
    assert_eq!(a.on(&file, asked()).await, before);
    a.on(&file, Op::Delegreturn(held)).await;
    assert_ne!(a.on(&file, asked()).await, before);
}

/// The server could not distinguish the client's changes from those of a local program.
#[tokio::test]
async fn a_read_delegate_that_opens_to_write_is_recalled() {
    let f = Fixture::new().await;
    let mut a = f.callable("a").await;
    let file = a.make("file").await;
    let held = a.delegated(&file, WANT_READ).await;
    let writer = open_as(ShareAccess::WRITE, Claim::Fh);
    assert!(matches!(a.on(&file, writer).await, OpRes::Open(Ok(_))));
    a.give_back(&file, held).await;
}

#[tokio::test]
async fn v40_callbacks_go_to_the_address_of_setclientid() {
    let f = Fixture::new().await;
    let (addr, mut called, listening) = callbacks::listen().await;
    let mut a = f.connect("old", 0).await;
    let client_id = introduce_at(&mut a, Some(addr)).await;
    let mut b = f.client("b").await;
    let file = b.make("file").await;
    let open = |seqid| match open_as(ShareAccess::READ, Claim::Null("file".into())) {
        Op::Open(args) => {
            let owner = StateOwner { client_id, owner: "process".into() };
            Op::Open(open::Args { seqid, owner, ..args })
        }
        op => op,
    };
    let begun = Instant::now();
    let mut seqid = 0;
    let held = loop {
        seqid += 1;
        let reply = a.raw(vec![Op::Putrootfh(()), open(seqid)]).await;
        assert_eq!(reply.status, Ok(()));
        if let read @ Delegation::Read(_) = delegation(&reply.results[1]) {
            break stateid(read);
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "never given");
    };
    let giving_back = async {
        let CbOp::Recall(recall) = called.recv().await.unwrap() else { panic!() };
        assert_eq!((&recall.file, recall.stateid), (&file, held));
        a.raw(vec![Op::Putfh(file.clone()), Op::Delegreturn(held)]).await.status
    };
    let (done, returned) = tokio::join!(b.on(&file, write_op(StateId::ANONYMOUS)), giving_back);
    assert!(matches!(done, OpRes::Write(Ok(_))));
    assert_eq!(returned, Ok(()));

    // When a client that holds a delegation no longer listens, RENEW reports CB_PATH_DOWN.
    let other = b.make("other").await;
    let by_name = |seqid| match open(seqid) {
        Op::Open(args) => Op::Open(open::Args { claim: Claim::Null("other".into()), ..args }),
        op => op,
    };
    a.raw(vec![Op::Putrootfh(()), by_name(seqid + 1)]).await;
    let reply = a.raw(vec![Op::Putrootfh(()), by_name(seqid + 2)]).await;
    assert!(matches!(delegation(&reply.results[1]), Delegation::Read(_)));
    assert_eq!(a.raw(vec![Op::Renew(client_id)]).await.status, Ok(()));
    listening.abort();
    let delayed = b.on(&other, write_op(StateId::ANONYMOUS)).await;
    assert!(matches!(delayed, OpRes::Write(Err(Error::Delay))));
    assert_eq!(a.raw(vec![Op::Renew(client_id)]).await.status, Err(Error::CbPathDown));
}

/// A store of the file system with this number.
struct Numbered(Arc<MemoryFs>, u64);

impl FileSystemDecorator for Numbered {
    fn below(&self) -> &dyn FileSystem {
        &*self.0
    }

    fn numbering(&self) -> u64 {
        self.1
    }
}

/// One directory under two names, or a directory and one below it: an access by the other name would recall nothing.
#[tokio::test]
async fn files_that_two_exports_have_in_common_are_not_delegated() {
    let cache = exports::cache();
    let a = exports::export(&cache, "/a", ExportOptions::default());
    let twin = Export { path: "/twin".into(), ..a.clone() };
    let mounted = exports::export(&cache, "/inside", ExportOptions::default());
    let mounted = Export { source: a.source.join("below"), ..mounted };
    let of_one = Arc::new(Numbered(MemoryFs::new(), a.fs.store().numbering()));
    let inside = Export { fs: cache.mount(of_one), ..mounted.clone() };
    let beside = exports::export(&cache, "/beside", ExportOptions::default());
    let beside = Export { source: "/srv/ab".into(), ..beside };
    let f = exports::serve(vec![a.clone()]).await;
    let mut c = f.callable("a").await;
    for (name, other) in [("/a/one", twin), ("/a/two", inside)] {
        exports::fill(&a, &name[3..], 4).await;
        let file = c.handle_of(name).await;
        f.server.set_exports(vec![a.clone(), beside.clone(), mounted.clone()]).unwrap();
        let held = c.delegated(&file, WANT_READ).await;
        // A reload that adds the other name recalls it.
        f.server.set_exports(vec![a.clone(), other]).unwrap();
        c.give_back(&file, held).await;
    }
    exports::fill(&a, "three", 4).await;
    let file = c.handle_of("/a/three").await;
    for access in [WANT_READ, WANT_WRITE] {
        let opened = c.on(&file, open_as(access, Claim::Fh)).await;
        let none = Delegation::NoneExt(WhyNone::Resource(false));
        assert_eq!(*delegation(&opened), none);
    }
}
