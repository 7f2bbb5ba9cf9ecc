//! Interleavings: each test holds one operation between two of its steps, and runs another one
//! meanwhile.

use super::callbacks;
use super::delegations::{WANT_READ, WANT_WRITE, delegation, open_as};
use super::exports::{cache, export, serve, serve_adjusted, walk};
use super::v40::introduce_at;
use super::*;
use futures_util::FutureExt;
use std::sync::LazyLock;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use weir_base::ManualClock;
use weir_nfs::v4::CbOp;
use weir_nfs::v4::cb::notify_lock;
use weir_nfs::v4::op::open::{Claim, Delegation, ShareAccess, WhyNone};
use weir_nfs::v4::op::{close, copy, create, link, read, write};
use weir_nfs::v4::types::StableHow;
use weir_stores::fault::{Call, Fault, Rule, What, When};

const LONG: Duration = Duration::from_secs(30);

fn store() -> Arc<Fault> {
    Fault::over(MemoryFs::new(), 1)
}

/// Holds all further calls of a kind.
fn hold(store: &Fault, call: Call) {
    store.add(Rule { call, when: When::Always, what: What::Hold });
}

fn let_go(store: &Fault) {
    store.clear();
    store.release();
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(LONG, waiting).await.unwrap_or_else(|_| panic!("{what}"));
}

async fn held(store: &Fault) {
    until("nothing is held", || store.held() > 0).await;
}

#[tokio::test]
async fn an_open_during_the_removal_of_its_export_leaves_no_state() {
    let (cache, store) = (cache(), store());
    let stays = export(&cache, "/stays", ExportOptions::default());
    let goes = export(&cache, "/goes", ExportOptions::default());
    let goes = Export { fs: cache.mount(store.clone()), ..goes };
    let f = serve(vec![stays.clone(), goes]).await;
    let mut c = f.client("a").await;
    let mut ops = walk("/goes");
    ops.push(c.open_op("file", 0));
    hold(&store, Call::Create);
    let (reply, ()) = tokio::join!(c.run(ops), async {
        held(&store).await;
        f.server.set_exports(vec![stays]).unwrap();
        let_go(&store);
    });
    assert_eq!(reply.status, Err(Error::Stale));
    assert_eq!(f.server.services.state.lock().counts(), (0, 0));
    assert!(c.ok(vec![]).await.is_empty());
    assert!(c.status_flags.is_empty(), "nothing was taken of which the client knows");
}

#[tokio::test]
async fn a_failed_truncating_open_keeps_the_earlier_open() {
    let store = store();
    let f = Fixture::of(store.clone()).await;
    let (mut a, mut b) = (f.client("a").await, f.client("b").await);
    let file = closed_file(&mut a).await;
    let before = a.on(&file, open_as(ShareAccess::READ, Claim::Fh)).await;
    let OpRes::Open(Ok(before)) = before else { panic!("{before:?}") };
    store.add(Rule {
        call: Call::SetSize,
        when: When::Always,
        what: What::Fail(weir_vfs::Error::NoSpace),
    });
    let truncating = |c: &Client, deny| vec![Op::Putrootfh(()), Op::Open(truncating_args(c, deny))];
    assert_eq!(a.fails(truncating(&a, 2)).await, Error::NoSpc);
    // Neither the access nor the deny mode of the failed open is left.
    let read = |count| read::Args { stateid: before.stateid, offset: 0, count };
    assert!(matches!(a.on(&file, Op::Read(read(1))).await, OpRes::Read(Ok(_))));
    let data = weir_nfs::Data::Bytes("new".into());
    let write =
        write::Args { stateid: before.stateid, offset: 0, stable: StableHow::Unstable, data };
    assert!(matches!(a.on(&file, Op::Write(write)).await, OpRes::Write(Err(Error::OpenMode))));
    assert!(matches!(
        b.on(&file, open_as(ShareAccess::WRITE, Claim::Fh)).await,
        OpRes::Open(Ok(_))
    ));
    // A new open is removed.
    let counts = f.server.services.state.lock().counts();
    assert_eq!(f.client("c").await.fails(truncating(&b, 0)).await, Error::NoSpc);
    assert_eq!(f.server.services.state.lock().counts(), counts);
}

/// An OPEN of the file by a client that truncates it.
fn truncating_args(c: &Client, deny: u32) -> open::Args {
    let Op::Open(args) = c.open_op("file", deny) else { panic!() };
    let attrs = Attrs { size: Some(0), ..Attrs::default() };
    open::Args { how: open::How::Create(open::CreateHow::Unchecked(attrs.into())), ..args }
}

/// An OPEN of the file for reading that truncates it, and denies writing to others.
fn truncating_open(c: &Client) -> Vec<Op> {
    let args = open::Args { share_access: ShareAccess::READ, ..truncating_args(c, 2) };
    vec![Op::Putrootfh(()), Op::Open(args)]
}

/// A file with data that no client has open.
async fn closed_file(a: &mut Client) -> FileHandle {
    let (file, stateid) = a.open("file").await;
    let data = weir_nfs::Data::Bytes("old".into());
    let args = write::Args { stateid, offset: 0, stable: StableHow::FileSync, data };
    assert!(matches!(a.on(&file, Op::Write(args)).await, OpRes::Write(Ok(_))));
    let args = close::Args { seqid: 0, open_stateid: stateid };
    assert!(matches!(a.on(&file, Op::Close(args)).await, OpRes::Close(Ok(_))));
    file
}

/// A compound in slot 1 of a session, whose first it is.
fn in_slot_1(session: SessionId, ops: Vec<Op>) -> Vec<Op> {
    let (sequence_id, slot, highest_slot) = (1, 1, 1);
    let args = sequence::Args { session, sequence_id, slot, highest_slot, cache_this: false };
    std::iter::once(Op::Sequence(args)).chain(ops).collect()
}

/// A [`closed_file`], and a store that holds its truncation.
async fn held_truncation(store: &Fault, f: &Fixture) -> (Client, FileHandle) {
    let mut a = f.client("a").await;
    let file = closed_file(&mut a).await;
    hold(store, Call::SetSize);
    (a, file)
}

#[tokio::test]
async fn a_failed_open_takes_back_its_own_share_mode_and_not_that_of_a_later_open() {
    let store = store();
    let f = Fixture::of(store.clone()).await;
    let (mut a, file) = held_truncation(&store, &f).await;
    let mut b = f.client("b").await;
    let (mut again, session) = (f.connect("a", 2).await, a.session);
    let failed = a.run(truncating_open(&a));
    let (failed, opened) = tokio::join!(failed, async {
        held(&store).await;
        // Of the same owner, so that both are one open.
        let opens = open_as(ShareAccess::READ, Claim::Fh);
        let opened = again.raw(in_slot_1(session, vec![Op::Putfh(file.clone()), opens])).await;
        let what = What::Fail(weir_vfs::Error::NoSpace);
        store.clear();
        store.add(Rule { call: Call::SyncNode, when: When::Always, what });
        store.release();
        opened.results.last().cloned()
    });
    assert!(failed.status.is_err(), "{failed:?}");
    store.clear();
    let Some(OpRes::Open(Ok(opened))) = opened else { panic!("{opened:?}") };
    let read = read::Args { stateid: opened.stateid, offset: 0, count: 1 };
    assert!(matches!(a.on(&file, Op::Read(read)).await, OpRes::Read(Ok(_))));
    let writes = b.on(&file, open_as(ShareAccess::WRITE, Claim::Fh)).await;
    assert!(matches!(writes, OpRes::Open(Ok(_))), "the failed open denies nothing: {writes:?}");
    let args = close::Args { seqid: 0, open_stateid: opened.stateid };
    assert!(matches!(a.on(&file, Op::Close(args)).await, OpRes::Close(Ok(_))));
}

#[tokio::test]
async fn an_open_that_ends_in_a_panic_leaves_neither_its_share_mode_nor_its_truncation() {
    let store = store();
    let f = Fixture::of(store.clone()).await;
    let (mut a, file) = held_truncation(&store, &f).await;
    let mut b = f.client("b").await;
    let mut dropped = f.connect("a", 2).await;
    let reads = a.on(&file, open_as(ShareAccess::READ, Claim::Fh)).await;
    assert!(matches!(reads, OpRes::Open(Ok(_))));
    // Dropped where a panic would unwind it.
    let local = f.server.connect("127.0.0.1:700".parse().unwrap(), f.addr);
    let call = local.call(dropped.call("tag", &in_slot_1(a.session, truncating_open(&a))));
    let mut call = Box::pin(call);
    let early = (&mut call).now_or_never();
    assert!(early.is_none(), "{early:?}");
    held(&store).await;
    drop(call);
    for deny in [ShareAccess::READ, ShareAccess::WRITE] {
        let Op::Open(args) = open_as(deny, Claim::Fh) else { panic!() };
        let share_deny = open::ShareDeny::from_bits_retain(2);
        let alone = open::Args { share_deny, ..args };
        let opened = b.on(&file, Op::Open(alone)).await;
        assert!(matches!(opened, OpRes::Open(Ok(_))), "{deny:?}: {opened:?}");
        if let OpRes::Open(Ok(opened)) = opened {
            let args = close::Args { seqid: 0, open_stateid: opened.stateid };
            assert!(matches!(b.on(&file, Op::Close(args)).await, OpRes::Close(Ok(_))));
        }
    }
}

#[tokio::test]
async fn a_file_is_not_delegated_while_its_name_is_removed_or_changed() {
    for (call, op) in [
        (Call::Unlink, Op::Remove("file".into())),
        (
            Call::Rename,
            Op::Rename(weir_nfs::v4::op::rename::Args { from: "file".into(), to: "new".into() }),
        ),
    ] {
        let store = store();
        let f = Fixture::of(store.clone()).await;
        let (mut a, mut b) = (f.callable("a").await, f.client("b").await);
        let file = a.make("file").await;
        hold(&store, call);
        let change = b.run(vec![Op::Putrootfh(()), Op::Savefh(()), op]);
        let (reply, opened) = tokio::join!(change, async {
            held(&store).await;
            let opened = a.on(&file, open_as(WANT_READ, Claim::Fh)).await;
            let_go(&store);
            opened
        });
        assert_eq!(reply.status, Ok(()));
        let why = Delegation::NoneExt(WhyNone::Contention(false));
        assert_eq!(*delegation(&opened), why);
    }
}

/// While one operation waits for the return of a delegation, others change the directory.
#[tokio::test]
async fn no_operation_waits_for_a_recall_while_it_locks_a_directory() {
    use weir_nfs::v3;
    let f = Fixture::new().await;
    let (mut a, mut b) = (f.callable("a").await, f.client("b").await);
    let mut old = f.connect("b", 0).await;
    let file = a.make("file").await;
    a.delegated(&file, WANT_WRITE).await;
    let root = handle(&b.ok(vec![Op::Putrootfh(()), Op::Getfh(())]).await).unwrap();
    let dir = f.server.services.exports.unseal(&root).unwrap();
    let is_free = || f.server.services.exports.changes().lock(dir).now_or_never().is_some();

    let ops = vec![
        Op::Putfh(file.clone()),
        Op::Savefh(()),
        Op::Putrootfh(()),
        Op::Link(link::Args::from("link")),
    ];
    let (error, free) = tokio::join!(b.fails(ops), async {
        assert!(matches!(a.called().await, CbOp::Recall(_)));
        is_free()
    });
    assert_eq!((error, free), (Error::Delay, true));

    let other = a.make("other").await;
    a.delegated(&other, WANT_WRITE).await;
    let set = v3::types::SetAttr { size: Some(0), ..v3::types::SetAttr::default() };
    let target = v3::types::DirOp { dir: weir_xdr::Opaque::copy_from(&root), name: "other".into() };
    let args = v3::op::create::Args { target, how: v3::op::create::How::Unchecked(set) };
    let call = old.call_v3::<_, v3::op::create::Res>(8, &args);
    let (created, free) = tokio::join!(call, async {
        assert!(matches!(a.called().await, CbOp::Recall(_)));
        is_free()
    });
    assert_eq!((created.unwrap_err().status, free), (v3::Error::Jukebox, true));
    let set = v3::types::SetAttr::default();
    let target = v3::types::DirOp { dir: weir_xdr::Opaque::copy_from(&root), name: "other".into() };
    let args = v3::op::create::Args { target, how: v3::op::create::How::Unchecked(set) };
    assert!(
        old.call_v3::<_, v3::op::create::Res>(8, &args).await.is_ok(),
        "no delegation is in its way"
    );
}

#[tokio::test]
async fn a_hanging_export_does_not_delay_the_sweep() {
    let store = store();
    let f = Fixture::of(store.clone()).await;
    let mut a = f.callable("a").await;
    let file = a.make("file").await;
    a.delegated(&file, WANT_READ).await;
    hold(&store, Call::Getattr);
    for _ in 0..3 {
        timeout(LONG, f.server.sweep()).await.expect("the sweep waits for a store");
    }
    held(&store).await;
    assert_eq!(store.held(), 1, "one look at an export at a time");
    let_go(&store);
}

#[tokio::test]
async fn an_abandoned_callback_keeps_its_slot_until_it_is_answered() {
    let f = Fixture::new().await;
    let mut c = f.callable("a").await;
    let id = f.server.services.state.lock().clients.iter().next().unwrap().id;
    let notice = || {
        let owner = StateOwner { client_id: id.0, owner: "owner".into() };
        CbOp::NotifyLock(notify_lock::Args { file: FileHandle::default(), lock_owner: owner })
    };
    c.service.is_silent = true;
    let callbacks = f.server.services.callbacks.clone();
    let called = async {
        tokio::select! {
            _ = callbacks.call(id, notice(), None) => panic!("no client answers"),
            _ = c.called() => {}
        }
    };
    called.await;
    c.service.is_silent = false;
    let (answered, _) = tokio::join!(callbacks.call(id, notice(), None), c.called());
    assert!(answered.is_some());
    let [first, second] = &c.service.turns[..] else { panic!("{:?}", c.service.turns) };
    assert_ne!(first, second, "a number is used once");
}

/// A request of CREATE_SESSION.
fn session(client_id: u64, sequence_id: u32, max_response_size: u32) -> Op {
    let fore = create_session::ChannelAttrs {
        max_request_size: 1 << 20,
        max_response_size,
        max_response_size_cached: 1024,
        max_operations: 16,
        max_requests: 4,
        ..create_session::ChannelAttrs::default()
    };
    Op::CreateSession(create_session::Args {
        client_id,
        sequence_id,
        flags: create_session::Flags::empty(),
        fore: fore.clone(),
        back: fore,
        cb_program: callbacks::PROGRAM,
        sec_parms: vec![weir_nfs::v4::types::CallbackSec::None].into(),
    })
}

async fn exchange(c: &mut Client, verifier: [u8; 8]) -> exchange_id::Exchanged {
    let args = exchange_id::Args {
        client: ClientOwner { verifier, owner: c.name.into() },
        flags: exchange_id::Flags::empty(),
        state_protect: exchange_id::StateProtect::None,
        impl_id: List::default(),
    };
    match c.raw(vec![Op::ExchangeId(args)]).await.results.pop() {
        Some(OpRes::ExchangeId(Ok(exchanged))) => exchanged,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_refused_create_session_only_advances_its_sequence_number() {
    // An address may have half of them.
    let f = Fixture::with(|config| config.state.sessions = 4).await;
    let mut a = f.client("a").await;
    a.open("file").await;
    let counts = f.server.services.state.lock().counts();
    let mut again = f.connect("a", 2).await;
    let exchange_id::Exchanged { client_id, sequence_id, .. } =
        exchange(&mut again, *b"two run.").await;
    // No reply fits that size: the server consumes the number and keeps the reply.
    for max_response in [79, 79, 1 << 20] {
        let reply = again.raw(vec![session(client_id, sequence_id, max_response)]).await;
        assert_eq!(reply.status, Err(Error::TooSmall));
    }
    assert_eq!(f.server.services.state.lock().counts(), counts, "the run before has its state");
    a.ok(vec![]).await;
    // A request of another principal consumes no number.
    let mut thief = f.connect("a", 2).await;
    let cred = AuthSys { uid: 7, machine_name: "a".into(), ..AuthSys::default() };
    thief.cred = OpaqueAuth::from(&cred);
    let reply = thief.raw(vec![session(client_id, sequence_id + 1, 1 << 20)]).await;
    assert_eq!(reply.status, Err(Error::ClIdInUse));

    // Without room the server confirms no client, and the number can be used again.
    let other = f.client("other").await;
    let mut full = f.connect("full", 2).await;
    let waiting = exchange(&mut full, *b"one run.").await;
    let make = || session(waiting.client_id, waiting.sequence_id, 1 << 20);
    assert_eq!(full.raw(vec![make()]).await.status, Err(Error::Delay));
    // A restarted client replaces its earlier incarnation.
    let reply = again.raw(vec![session(client_id, sequence_id + 1, 1 << 20)]).await;
    assert_eq!(reply.status, Ok(()));
    assert_eq!(f.server.services.state.lock().counts(), (0, 0));
    f.server.services.state.lock().sessions.remove(crate::state::SessionId(other.session));
    assert_eq!(full.raw(vec![make()]).await.status, Ok(()));
}

#[tokio::test]
async fn a_session_stays_while_a_request_is_in_progress_and_goes_with_its_client() {
    let store = store();
    let f = Fixture::of(store.clone()).await;
    let mut a = f.client("a").await;
    a.cache_this = true;
    hold(&store, Call::Mkdir);
    let destroy = Op::DestroySession(a.session);
    let make = create::Args {
        kind: create::Kind::Directory,
        name: "made".into(),
        attrs: Attrs::default().into(),
    };
    let task = tokio::spawn(async move {
        let reply = a.run(vec![Op::Putrootfh(()), Op::Create(make)]).await;
        (a, reply.status)
    });
    held(&store).await;
    let mut again = f.connect("a", 2).await;
    assert_eq!(again.raw(vec![destroy]).await.status, Err(Error::Delay), "it is busy");
    let kept = || {
        let uses = f.server.services.state.lock().limit_uses();
        uses.iter().find(|used| used.name == "kept_reply_bytes").unwrap().used
    };
    assert_eq!(kept(), 1024, "the largest reply");
    // The client restarts: its new run replaces it, and does not wait for its requests.
    let exchange_id::Exchanged { client_id, sequence_id, .. } =
        exchange(&mut again, *b"two run.").await;
    let made = again.raw(vec![session(client_id, sequence_id, 1 << 20)]).await;
    assert_eq!((made.status, kept()), (Ok(()), 0));
    let_go(&store);
    let (mut a, status) = task.await.unwrap();
    assert_eq!(status, Ok(()));
    let retry = vec![a.sequence(), Op::Putrootfh(())];
    assert_eq!(a.raw(retry).await.status, Err(Error::BadSession));
    assert_eq!(kept(), 0, "the closed session counts none");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sequence_and_the_end_of_a_compound_do_not_take_the_lock_of_the_state() {
    let f = Fixture::new().await;
    let mut c = f.client("a").await;
    let state = f.server.services.state.clone();
    let (locked, is_locked) = std::sync::mpsc::channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let holder = std::thread::spawn(move || {
        let _held = state.lock();
        locked.send(()).unwrap();
        released.recv_timeout(LONG)
    });
    is_locked.recv().unwrap();
    for cache_this in [false, true] {
        c.cache_this = cache_this;
        c.ok(vec![Op::Putrootfh(()), Op::Getfh(())]).await;
    }
    drop(release);
    let ended = holder.join().unwrap();
    assert_eq!(ended, Err(std::sync::mpsc::RecvTimeoutError::Disconnected), "they waited for it");
}

/// A copy of a long file with data only at its front, held while it writes the hole.
struct Held {
    store: Arc<Fault>,
    f: Fixture,
    c: Client,
    from: FileHandle,
    to: FileHandle,
    to_id: StateId,
    name: StateId,
}

const LEN: u64 = 300 << 20;

impl Held {
    async fn new() -> Self {
        let store = store();
        let f = Fixture::of(store.clone()).await;
        let mut c = f.callable("copier").await;
        let (from, from_id) = c.open("source").await;
        let (to, to_id) = c.open("destination").await;
        for (offset, bytes) in [(0, "front"), (LEN - 7, "the end")] {
            let data = weir_nfs::Data::Bytes(bytes.into());
            let args = write::Args { stateid: from_id, offset, stable: StableHow::FileSync, data };
            assert!(matches!(c.on(&from, Op::Write(args)).await, OpRes::Write(Ok(_))));
        }
        hold(&store, Call::SetSize);
        let args = copy::Args {
            source: from_id,
            destination: to_id,
            source_offset: 0,
            destination_offset: 0,
            count: 0,
            consecutive: true,
            synchronous: false,
            source_servers: List::default(),
        };
        let ops =
            vec![Op::Putfh(from.clone()), Op::Savefh(()), Op::Putfh(to.clone()), Op::Copy(args)];
        let Some(OpRes::Copy(Ok(copied))) = c.ok(ops).await.pop() else { panic!() };
        held(&store).await;
        let name = copied.response.callback_id[0];
        Self { store, f, c, from, to, to_id, name }
    }

    /// The size of the destination.
    async fn size(&self) -> u64 {
        let own = &weir_vfs::Caller::Own;
        self.f.fs.lookup(own, self.f.fs.root().entry(b"destination")).await.unwrap().size
    }
}

#[tokio::test]
async fn a_cancelled_copy_writes_nothing_and_sends_no_callback() {
    let mut h = Held::new().await;
    let cancel = Op::OffloadCancel(h.name);
    let cancelled = h.c.on(&h.to, cancel.clone()).await;
    assert_eq!(cancelled, OpRes::OffloadCancel(Err(Error::Delay)), "its step is under way");
    let_go(&h.store);
    let ended = async {
        loop {
            match h.c.on(&h.to, cancel.clone()).await {
                OpRes::OffloadCancel(Err(Error::Delay)) => {}
                OpRes::OffloadCancel(Ok(()) | Err(Error::BadStateId)) => break,
                other => panic!("{other:?}"),
            }
        }
    };
    timeout(LONG, ended).await.unwrap();
    let size = h.size().await;
    assert!(size < LEN, "the copy did not go on to its end");
    h.c.serve_for(Duration::from_millis(300)).await;
    assert!(h.c.service.called.is_empty(), "{:?}", h.c.service.called);
    assert_eq!(h.size().await, size);
}

#[tokio::test]
async fn a_copy_ends_with_the_open_that_it_writes_under() {
    let mut h = Held::new().await;
    let open_stateid = h.to_id;
    let close = close::Args { seqid: 0, open_stateid };
    assert!(matches!(h.c.on(&h.to, Op::Close(close)).await, OpRes::Close(Ok(_))));
    // The next owner denies all access, and waits for the step in progress.
    let mut next = h.f.client("next").await;
    let opening = tokio::spawn(async move {
        let alone = next.open_op("destination", 3);
        let reply = next.run(vec![Op::Putrootfh(()), alone]).await;
        (next, reply.status)
    });
    sleep(Duration::from_millis(200)).await;
    assert!(!opening.is_finished(), "it is given the file while the copy writes to it");
    let_go(&h.store);
    let (_next, status) = timeout(LONG, opening).await.unwrap().unwrap();
    assert_eq!(status, Ok(()));
    let size = h.size().await;
    assert!(size < LEN);
    let CbOp::Offload(told) = h.c.called().await else { panic!() };
    assert_eq!(told.outcome.unwrap_err().error, Error::BadStateId);
    assert_eq!(h.size().await, size, "no step follows");
    let read = read::Args { stateid: StateId::ANONYMOUS, offset: 0, count: 5 };
    assert!(matches!(h.c.on(&h.from, Op::Read(read)).await, OpRes::Read(Ok(_))));
}

#[tokio::test]
async fn a_copy_ends_with_its_export() {
    let h = Held::new().await;
    let other = cache();
    h.f.server.set_exports(vec![export(&other, "/other", ExportOptions::default())]).unwrap();
    let_go(&h.store);
    let mut c = h.c;
    let CbOp::Offload(told) = c.called().await else { panic!() };
    assert_eq!(told.outcome.unwrap_err().error, Error::Stale);
    let own = &weir_vfs::Caller::Own;
    assert!(h.f.fs.lookup(own, h.f.fs.root().entry(b"destination")).await.unwrap().size < LEN);
}

#[tokio::test]
async fn directories_are_made_while_files_are_linked() {
    let f = Fixture::new().await;
    let mut c = f.client("a").await;
    let file = c.make("file").await;
    let attrs = Attrs { mode: Some(0o755), ..Attrs::default() }.into();
    let made = create::Args { kind: create::Kind::Directory, name: "dir".into(), attrs };
    c.ok(vec![
        Op::Putfh(file.clone()),
        Op::Savefh(()),
        Op::Putrootfh(()),
        Op::Link(link::Args::from("link")),
        Op::Create(made),
    ])
    .await;
    // LINK of a directory and LINK in a non-directory fail.
    let ops = |saved: &FileHandle, at: Vec<Op>| {
        let mut ops = vec![Op::Putfh(saved.clone()), Op::Savefh(())];
        ops.extend(at);
        ops.push(Op::Link(link::Args::from("another")));
        ops
    };
    let mut at_dir = walk("/dir");
    at_dir.push(Op::Getfh(()));
    let dir = handle(&c.ok(at_dir).await).unwrap();
    assert_eq!(c.fails(ops(&dir, vec![Op::Putrootfh(())])).await, Error::IsDir);
    assert_eq!(c.fails(ops(&file, vec![Op::Putfh(file.clone())])).await, Error::NotDir);
}

#[tokio::test]
async fn a_client_keeps_its_lease_while_the_store_delays_its_call() {
    static CLOCK: LazyLock<Arc<ManualClock>> = LazyLock::new(Arc::default);
    const LEASE: Duration = Duration::from_secs(90);
    const DENY_ALL: u32 = 3;
    for minor in [0, 2] {
        let store = store();
        let f = Fixture::of_with(store.clone(), |config| config.clock = CLOCK.clone()).await;
        let mut b = f.client("b").await;
        let (mut a, client_id) = match minor {
            0 => {
                let mut a = f.connect("a", 0).await;
                let client_id = introduce_at(&mut a, None).await;
                (a, client_id)
            }
            _ => (f.client("a").await, 0),
        };
        let open = |name, seqid| match b.open_op(name, DENY_ALL) {
            Op::Open(args) => {
                let owner = StateOwner { client_id, owner: "process".into() };
                vec![Op::Putrootfh(()), Op::Open(open::Args { seqid, owner, ..args })]
            }
            other => panic!("{other:?}"),
        };
        let (first, second) = (open("file", 1), open("other", 2));
        let taken = match b.open_op("file", 0) {
            Op::Open(args) => Op::Open(open::Args { how: open::How::NoCreate, ..args }),
            other => panic!("{other:?}"),
        };
        let taken = vec![Op::Putrootfh(()), taken];
        let reply = if minor == 0 { a.raw(first).await } else { a.run(first).await };
        assert_eq!(reply.status, Ok(()));
        hold(&store, Call::Create);
        let delayed = async { if minor == 0 { a.raw(second).await } else { a.run(second).await } };
        let meanwhile = async {
            held(&store).await;
            CLOCK.advance(LEASE * 2);
            let status = b.run(taken.clone()).await.status;
            let_go(&store);
            status
        };
        let (reply, status) = tokio::join!(delayed, meanwhile);
        assert_eq!((reply.status, status), (Ok(()), Err(Error::ShareDenied)), "version 4.{minor}");
        CLOCK.advance(LEASE * 2);
        assert_eq!(b.run(taken).await.status, Ok(()), "version 4.{minor}");
    }
}

/// Opens a file in two exports, and creates another in the first, whose store delays that for two lease times. Returns
/// what another client gets that opens the two files meanwhile.
async fn opened_beside_a_hanging_call(has_idle_slot: bool) -> Vec<Result<(), Error>> {
    static CLOCK: LazyLock<Arc<ManualClock>> = LazyLock::new(Arc::default);
    const LEASE: Duration = Duration::from_secs(90);
    const DENY_ALL: u32 = 3;
    let (cache, store) = (cache(), store());
    let hangs = export(&cache, "/hangs", ExportOptions::default());
    let hangs = Export { fs: cache.mount(store.clone()), ..hangs };
    let other = export(&cache, "/other", ExportOptions::default());
    let f = serve_adjusted(vec![hangs, other], |config| config.clock = CLOCK.clone()).await;
    let (mut a, mut b) = (f.client("a").await, f.client("b").await);
    let opens = |c: &Client, path, name, deny| {
        let mut ops = walk(path);
        ops.push(c.open_op(name, deny));
        ops
    };
    for path in ["/hangs", "/other"] {
        a.ok(opens(&a, path, "file", DENY_ALL)).await;
    }
    if has_idle_slot {
        let reply = a.raw(in_slot_1(a.session, Vec::new())).await;
        assert_eq!(reply.status, Ok(()));
    }
    hold(&store, Call::Create);
    let delayed = a.run(opens(&a, "/hangs", "new", 0));
    let meanwhile = async {
        held(&store).await;
        CLOCK.advance(LEASE * 2);
        let taken = |c: &Client, path| match opens(c, path, "file", 0).pop() {
            Some(Op::Open(args)) => {
                let open = Op::Open(open::Args { how: open::How::NoCreate, ..args });
                walk(path).into_iter().chain([open]).collect()
            }
            other => panic!("{other:?}"),
        };
        let ops = ["/hangs", "/other"].map(|path| taken(&b, path));
        let mut statuses = Vec::new();
        for ops in ops {
            statuses.push(b.run(ops).await.status);
        }
        let_go(&store);
        statuses
    };
    let (reply, statuses) = tokio::join!(delayed, meanwhile);
    assert_eq!(reply.status, Ok(()));
    a.ok(vec![]).await;
    statuses
}

#[tokio::test]
async fn a_call_that_hangs_in_one_export_keeps_no_state_in_another() {
    let statuses = opened_beside_a_hanging_call(true).await;
    assert_eq!(statuses, [Err(Error::ShareDenied), Ok(())]);
    // Its only slot is in use, so the client cannot renew its lease.
    let statuses = opened_beside_a_hanging_call(false).await;
    assert_eq!(statuses, [Err(Error::ShareDenied), Err(Error::ShareDenied)]);
}
