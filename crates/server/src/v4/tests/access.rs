//! Access control: a stateid, client name or handle grants no right by itself.

use super::locks::lock_op;
use super::*;
use std::sync::LazyLock;
use std::time::Duration;
use weir_base::ManualClock;
use weir_nfs::v4::Bitmap;
use weir_nfs::v4::attr;
use weir_nfs::v4::op::{close, commit, create, open_downgrade, read, readdir, setattr, write};
use weir_nfs::v4::types::{FileType, LockType, StableHow};
use weir_stores::fault::{Call, Fault, Rule, What, When};
use weir_vfs::CreateMode;

const OWNER: u32 = 1000;
const OTHER: u32 = 1001;

fn cred(uid: u32) -> OpaqueAuth {
    let sys = AuthSys { uid, gid: uid, machine_name: "machine".into(), ..AuthSys::default() };
    OpaqueAuth::from(&sys)
}

/// A client whose session sends every request as one user.
async fn client_as(f: &Fixture, name: &'static str, uid: u32) -> Client {
    let mut c = f.connect(name, 2).await;
    c.cred = cred(uid);
    c.begin_session(1 << 20).await;
    c.ok(vec![Op::ReclaimComplete(reclaim_complete::Args { one_fs: false })]).await;
    c
}

/// A server with a root directory that every user may write to.
async fn open_to_all() -> Fixture {
    of_open_to_all(MemoryFs::new(), |_| {}).await
}

async fn of_open_to_all(store: Arc<dyn FileSystem>, adjust: fn(&mut ServerConfig)) -> Fixture {
    let f = Fixture::of_with(store, adjust).await;
    let all = weir_vfs::SetAttr { mode: Some(0o777), ..Default::default() };
    f.fs.setattr(&weir_vfs::Caller::Own, f.fs.root(), &all).await.unwrap();
    f
}

/// The arguments with which a user opens a file in the root. `client_id` is 0 in a session.
fn open_as(client_id: u64, seqid: u32, access: open::ShareAccess, how: open::How) -> Op {
    Op::Open(open::Args {
        seqid,
        share_access: access,
        share_deny: open::ShareDeny::empty(),
        owner: StateOwner { client_id, owner: "process".into() },
        how,
        claim: open::Claim::Null("file".into()),
    })
}

fn made_with(mode: u32) -> open::How {
    let attrs = Attrs { mode: Some(mode), ..Attrs::default() };
    open::How::Create(open::CreateHow::Guarded(attrs.into()))
}

fn read_op(stateid: StateId) -> Op {
    Op::Read(read::Args { stateid, offset: 0, count: 100 })
}

fn write_op(stateid: StateId) -> Op {
    let data = Bytes::from_static(b"secret").into();
    Op::Write(write::Args { stateid, offset: 0, stable: StableHow::Unstable, data })
}

fn set(stateid: StateId, attrs: Attrs) -> Op {
    Op::Setattr(setattr::Args { stateid, attrs: attrs.into() })
}

fn set_mode(mode: u32) -> Op {
    set(StateId::default(), Attrs { mode: Some(mode), ..Attrs::default() })
}

fn set_size(stateid: StateId) -> Op {
    set(stateid, Attrs { size: Some(1), ..Attrs::default() })
}

async fn on(c: &mut Client, file: &FileHandle, op: Op) -> Status {
    let ops = vec![Op::Putfh(file.clone()), op];
    if c.minor == 0 { c.raw(ops).await.status } else { c.run(ops).await.status }
}

/// Creates and opens a file with a mode. Returns its handle and stateid.
async fn made(c: &mut Client, mode: u32) -> (FileHandle, StateId) {
    let open = open_as(0, 0, open::ShareAccess::BOTH, made_with(mode));
    opened(c.ok(vec![Op::Putrootfh(()), open, Op::Getfh(())]).await)
}

fn opened(results: Vec<OpRes>) -> (FileHandle, StateId) {
    match &results[1..] {
        [OpRes::Open(Ok(opened)), OpRes::Getfh(Ok(handle))] => (handle.clone(), opened.stateid),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_stolen_stateid_grants_no_right() {
    let f = open_to_all().await;
    let mut c = f.connect("old", 0).await;
    c.cred = cred(OWNER);
    let client_id = v40::introduce_at(&mut c, None).await;
    let open = open_as(client_id, 1, open::ShareAccess::BOTH, made_with(0o600));
    let (file, stateid) = opened(c.raw(vec![Op::Putrootfh(()), open, Op::Getfh(())]).await.results);
    assert_eq!(on(&mut c, &file, write_op(stateid)).await, Ok(()));

    let mut thief = f.connect("thief", 0).await;
    thief.cred = cred(OTHER);
    let share = (open::ShareAccess::BOTH, open::ShareDeny::empty());
    let downgrade = |seqid| {
        Op::OpenDowngrade(open_downgrade::Args {
            open_stateid: stateid,
            seqid,
            share_access: share.0,
            share_deny: share.1,
        })
    };
    let close = |seqid| Op::Close(close::Args { seqid, open_stateid: stateid });
    let lock = |seqid| match lock_op(stateid, LockType::Write, false) {
        Op::Lock(args) => {
            let weir_nfs::v4::op::lock::Locker::New(mut new) = args.locker else { panic!() };
            (new.open_seqid, new.lock_owner.client_id) = (seqid, client_id);
            let locker = weir_nfs::v4::op::lock::Locker::New(new);
            Op::Lock(weir_nfs::v4::op::lock::Args { locker, ..args })
        }
        other => other,
    };
    let commit = Op::Commit(commit::Args { offset: 0, count: 0 });
    let tries =
        [read_op(stateid), write_op(stateid), set_size(stateid), downgrade(2), close(2), lock(2)];
    for op in tries.into_iter().chain([commit]) {
        let name = format!("{op:?}");
        assert_eq!(on(&mut thief, &file, op).await, Err(Error::Access), "{name}");
    }
    // The thief's attempts consume none of the owner's seqids.
    assert_eq!(on(&mut c, &file, lock(2)).await, Ok(()));
    for op in [read_op(stateid), write_op(stateid), set_size(stateid), downgrade(3)] {
        let name = format!("{op:?}");
        assert_eq!(on(&mut c, &file, op).await, Ok(()), "{name}");
    }
}

#[tokio::test]
async fn an_open_without_the_right_to_truncate_keeps_set_user_id() {
    let f = open_to_all().await;
    let (own, root) = (weir_vfs::Caller::Own, f.fs.root());
    let set = |mode, size| weir_vfs::SetAttr { mode: Some(mode), size, ..Default::default() };
    let id =
        f.fs.create(&own, root.entry(b"file").with(&set(0o4755, None)), CreateMode::MustBeNew)
            .await
            .unwrap()
            .attr
            .id;
    let mut c = client_as(&f, "c", OTHER).await;
    let attrs = Attrs { size: Some(0), ..Attrs::default() };
    let how = open::How::Create(open::CreateHow::Unchecked(attrs.into()));
    let by_name = open_as(0, 0, open::ShareAccess::READ, how);
    let by_handle = match by_name.clone() {
        Op::Open(args) => Op::Open(open::Args { claim: open::Claim::Fh, ..args }),
        other => other,
    };
    let found = vec![Op::Putrootfh(()), Op::Lookup("file".into())];
    for open in [vec![Op::Putrootfh(()), by_name], [found, vec![by_handle]].concat()] {
        f.fs.setattr(&own, id, &set(0o4755, Some(10))).await.unwrap();
        assert_eq!(c.fails(open.clone()).await, Error::Access);
        let attr = f.fs.getattr(id).await.unwrap();
        assert_eq!((attr.mode, attr.size), (0o4755, 10));
        // A user who may write the file truncates it, which clears the bits.
        f.fs.setattr(&own, id, &set(0o4757, None)).await.unwrap();
        c.ok(open).await;
        let attr = f.fs.getattr(id).await.unwrap();
        assert_eq!((attr.mode, attr.size), (0o757, 0));
    }
}

#[tokio::test]
async fn a_retransmitted_close_is_answered_only_to_its_sender() {
    let f = open_to_all().await;
    let mut c = f.connect("old", 0).await;
    // As Linux does: the machine confirms the client, and its users open and close.
    let client_id = v40::introduce_at(&mut c, None).await;
    c.cred = cred(OWNER);
    let open = open_as(client_id, 1, open::ShareAccess::BOTH, made_with(0o600));
    let (file, stateid) = opened(c.raw(vec![Op::Putrootfh(()), open, Op::Getfh(())]).await.results);
    let close = || Op::Close(close::Args { seqid: 2, open_stateid: stateid });
    assert_eq!(on(&mut c, &file, close()).await, Ok(()));
    assert_eq!(on(&mut c, &file, close()).await, Ok(()), "its reply was lost");
    c.cred = cred(OTHER);
    assert_eq!(on(&mut c, &file, close()).await, Err(Error::BadStateId));
}

#[tokio::test]
async fn an_unlinked_file_is_accessible_to_its_opener_and_its_owner() {
    let f = open_to_all().await;
    let mut c = f.connect("old", 0).await;
    c.cred = cred(OWNER);
    let client_id = v40::introduce_at(&mut c, None).await;
    let open = open_as(client_id, 1, open::ShareAccess::BOTH, made_with(0o666));
    let (file, stateid) = opened(c.raw(vec![Op::Putrootfh(()), open, Op::Getfh(())]).await.results);
    f.fs.unlink(&weir_vfs::Caller::Own, f.fs.root().entry(b"file")).await.unwrap();
    for op in [write_op(stateid), read_op(stateid), set_size(stateid)] {
        let name = format!("{op:?}");
        assert_eq!(on(&mut c, &file, op).await, Ok(()), "{name}");
    }
    let mut thief = f.connect("thief", 0).await;
    thief.cred = cred(OTHER);
    for op in [write_op(stateid), read_op(stateid)] {
        let name = format!("{op:?}");
        assert_eq!(on(&mut thief, &file, op).await, Err(Error::Access), "{name}");
    }
}

#[tokio::test]
async fn state_of_a_client_is_usable_only_in_its_own_sessions() {
    let f = open_to_all().await;
    let mut a = client_as(&f, "a", OWNER).await;
    let (file, stateid) = made(&mut a, 0o666).await;
    let of_a = |client: &crate::state::Client| &client.owner.name[..] == b"a";
    let id = f.server.services.state.lock().clients.iter().find(|c| of_a(c)).unwrap().id.0;

    let mut b = client_as(&f, "b", OWNER).await;
    let mut old = f.connect("old", 0).await;
    old.cred = cred(OWNER);
    v40::introduce_at(&mut old, None).await;
    for c in [&mut b, &mut old] {
        let close = Op::Close(close::Args { seqid: 1, open_stateid: stateid });
        let lock = lock_op(stateid, LockType::Write, false);
        for op in [read_op(stateid), write_op(stateid), set_size(stateid), close, lock] {
            let name = format!("{op:?}, version 4.{}", c.minor);
            // The lock owner names a client ID that does not exist.
            let names_none = c.minor == 0 && matches!(op, Op::Lock(_));
            let error = if names_none { Error::StaleClientId } else { Error::BadStateId };
            assert_eq!(on(c, &file, op).await, Err(error), "{name}");
        }
    }
    let open = open_as(id, 1, open::ShareAccess::READ, open::How::NoCreate);
    for ops in [vec![Op::Renew(id)], vec![Op::Putrootfh(()), open]] {
        assert_eq!(old.raw(ops).await.status, Err(Error::StaleClientId));
    }
    // Conversely, a client without sessions is refused.
    let mut plain = f.connect("plain", 0).await;
    let plain = v40::introduce_at(&mut plain, None).await;
    let mut c = f.connect("c", 2).await;
    let destroyed = c.raw(vec![Op::DestroyClientid(plain)]).await.status;
    assert_eq!(destroyed, Err(Error::StaleClientId));
    assert_eq!(on(&mut a, &file, read_op(stateid)).await, Ok(()));
}

#[tokio::test]
async fn each_read_and_write_checks_the_rights_again() {
    let f = open_to_all().await;
    let mut a = client_as(&f, "a", OWNER).await;
    let (file, stateid) = made(&mut a, 0o666).await;
    let mut b = client_as(&f, "b", OTHER).await;
    let open = open_as(0, 0, open::ShareAccess::BOTH, open::How::NoCreate);
    let (_, of_b) = opened(b.ok(vec![Op::Putrootfh(()), open, Op::Getfh(())]).await);
    let tries = async |c: &mut Client, stateid, expected: [Status; 2]| {
        let got = [on(c, &file, read_op(stateid)).await, on(c, &file, write_op(stateid)).await];
        assert_eq!(got, expected);
    };
    tries(&mut b, of_b, [Ok(()); 2]).await;
    for (mode, expected) in [
        (0o644, [Ok(()), Err(Error::Access)]),
        (0o600, [Err(Error::Access); 2]),
        (0, [Err(Error::Access); 2]),
        (0o111, [Ok(()), Err(Error::Access)]),
        (0o666, [Ok(()); 2]),
    ] {
        assert_eq!(on(&mut a, &file, set_mode(mode)).await, Ok(()));
        tries(&mut b, of_b, expected).await;
        // The owner opened the file before it removed its own right.
        tries(&mut a, stateid, [Ok(()); 2]).await;
    }
    // Another user of the same client has its own rights, not those of the opener.
    assert_eq!(on(&mut a, &file, set_mode(0o600)).await, Ok(()));
    a.cred = cred(OTHER);
    tries(&mut a, stateid, [Err(Error::Access); 2]).await;
    a.cred = cred(0);
    tries(&mut a, stateid, [Ok(()); 2]).await;
}

/// The clock of this server does not advance.
static CLOCK: LazyLock<Arc<ManualClock>> = LazyLock::new(Arc::default);

#[tokio::test]
async fn a_repeated_read_asks_the_store_for_no_rights() {
    let store = Fault::over(MemoryFs::new(), 1);
    let f = of_open_to_all(store.clone(), |config| config.clock = CLOCK.clone()).await;
    let mut a = client_as(&f, "a", OWNER).await;
    let (file, stateid) = made(&mut a, 0o600).await;
    for op in [write_op(stateid), read_op(stateid)] {
        assert_eq!(on(&mut a, &file, op).await, Ok(()));
    }
    let what = What::Fail(weir_vfs::Error::Io);
    store.add(Rule { call: Call::Access, when: When::Always, what });
    for _ in 0..10 {
        assert_eq!(on(&mut a, &file, read_op(stateid)).await, Ok(()));
    }
    CLOCK.advance(Duration::from_secs(1));
    assert_eq!(on(&mut a, &file, read_op(stateid)).await, Err(Error::Io), "it is asked again");
}

fn previous(access: open::ShareAccess) -> Op {
    Op::Open(open::Args {
        seqid: 0,
        share_access: access,
        share_deny: open::ShareDeny::empty(),
        owner: StateOwner { client_id: 0, owner: "process".into() },
        how: open::How::NoCreate,
        claim: open::Claim::Previous(open::DelegationType::None),
    })
}

fn exchange(name: &'static str) -> Op {
    Op::ExchangeId(exchange_id::Args {
        client: ClientOwner { verifier: *b"stranger", owner: name.into() },
        flags: exchange_id::Flags::empty(),
        state_protect: exchange_id::StateProtect::None,
        impl_id: List::default(),
    })
}

#[tokio::test]
async fn a_reclaim_grants_only_the_rights_of_its_caller() {
    let mut f = open_to_all().await;
    // As Linux's client does: its own calls are the superuser's, and other calls their user's.
    let mut a = client_as(&f, "a", 0).await;
    a.cred = cred(OWNER);
    let (file, _) = made(&mut a, 0o600).await;
    f.restart().await;

    // Another principal cannot take the client's name.
    let mut thief = f.connect("a", 2).await;
    thief.cred = cred(OTHER);
    assert_eq!(thief.raw(vec![exchange("a")]).await.status, Err(Error::ClIdInUse));

    let mut a = f.connect("a", 2).await;
    a.begin_session(1 << 20).await;
    a.cred = cred(OTHER);
    assert_eq!(on(&mut a, &file, previous(open::ShareAccess::READ)).await, Err(Error::Access));
    a.cred = cred(OWNER);
    assert_eq!(on(&mut a, &file, set_mode(0)).await, Ok(()));
    assert_eq!(on(&mut a, &file, previous(open::ShareAccess::BOTH)).await, Ok(()));
}

#[tokio::test]
async fn a_v40_client_name_stays_with_its_principal_after_a_restart() {
    let mut f = open_to_all().await;
    let mut c = f.connect("old", 0).await;
    c.cred = cred(OWNER);
    let client_id = v40::introduce_at(&mut c, None).await;
    let open = open_as(client_id, 1, open::ShareAccess::BOTH, made_with(0o600));
    assert_eq!(c.raw(vec![Op::Putrootfh(()), open]).await.status, Ok(()));
    f.restart().await;
    let mut thief = f.connect("old", 0).await;
    thief.cred = cred(OTHER);
    let args = weir_nfs::v4::op::setclientid::Args {
        client: ClientOwner { verifier: *b"stranger", owner: "old".into() },
        cb_program: 0,
        cb_location: weir_nfs::v4::types::NetAddr::default(),
        callback_ident: 0,
    };
    assert_eq!(thief.raw(vec![Op::Setclientid(args)]).await.status, Err(Error::ClIdInUse));
    let mut c = f.connect("old", 0).await;
    c.cred = cred(OWNER);
    v40::introduce_at(&mut c, None).await;
}

fn session_of(exchanged: &exchange_id::Exchanged) -> Op {
    let channel = create_session::ChannelAttrs {
        max_request_size: 1 << 20,
        max_response_size: 1 << 20,
        max_response_size_cached: 1024,
        max_operations: 16,
        max_requests: 4,
        ..create_session::ChannelAttrs::default()
    };
    Op::CreateSession(create_session::Args {
        client_id: exchanged.client_id,
        sequence_id: exchanged.sequence_id,
        flags: create_session::Flags::empty(),
        fore: channel.clone(),
        back: channel,
        cb_program: 0,
        sec_parms: List::default(),
    })
}

#[tokio::test]
async fn only_its_principal_confirms_a_client_and_replaces_its_state() {
    let f = open_to_all().await;
    let mut a = client_as(&f, "a", OWNER).await;
    // While the client has no state, another principal may use its name, ...
    let mut b = f.connect("a", 2).await;
    b.cred = cred(OTHER);
    let results = b.raw(vec![exchange("a")]).await.results;
    let Some(OpRes::ExchangeId(Ok(exchanged))) = results.last() else { panic!("{results:?}") };
    // ... and replaces the client only if it still has no state.
    let (file, stateid) = made(&mut a, 0o600).await;
    let create = session_of(exchanged);
    assert_eq!(b.raw(vec![create.clone()]).await.status, Err(Error::ClIdInUse));
    assert_eq!(on(&mut a, &file, read_op(stateid)).await, Ok(()));
    let close = Op::Close(close::Args { seqid: 0, open_stateid: stateid });
    assert_eq!(on(&mut a, &file, close).await, Ok(()));

    // Another principal can neither create the client's session nor get the reply about it.
    let mut c = f.connect("c", 2).await;
    c.cred = cred(OWNER);
    assert_eq!(c.raw(vec![create.clone()]).await.status, Err(Error::ClIdInUse));
    assert_eq!(b.raw(vec![create.clone()]).await.status, Ok(()));
    assert_eq!(b.raw(vec![create.clone()]).await.status, Ok(()), "the reply again");
    assert_eq!(c.raw(vec![create]).await.status, Err(Error::ClIdInUse));
}

#[tokio::test]
async fn setclientid_can_remove_the_callback_address() {
    let f = open_to_all().await;
    let mut c = f.connect("old", 0).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let id = v40::introduce_at(&mut c, listener.local_addr().ok()).await;
    let id = crate::state::ClientId(id);
    let callback = || f.server.services.state.lock().clients.get(id).unwrap().callback;
    assert!(callback().is_some());
    assert_eq!(v40::introduce_at(&mut c, None).await, id.0, "it is the same client");
    assert_eq!(callback(), None);
}

fn exclusive(verifier: [u8; 8], access: open::ShareAccess) -> Op {
    let attrs = Attrs { mode: Some(0o600), ..Attrs::default() }.into();
    let how = open::CreateHow::Exclusive41(open::CreateVerifier { verifier, attrs });
    open_as(0, 0, access, open::How::Create(how))
}

#[tokio::test]
async fn times_set_by_a_user_do_not_pass_as_a_create_verifier() {
    use weir_nfs::v4::types::{NfsTime, SetTime};
    let f = open_to_all().await;
    let mut a = client_as(&f, "a", OWNER).await;
    let mut b = client_as(&f, "b", OTHER).await;
    let verifier = [0, 0, 0, 1, 0, 0, 0, 2];
    let access = open::ShareAccess::BOTH;
    let create = |verifier| vec![Op::Putrootfh(()), exclusive(verifier, access), Op::Getfh(())];

    // A file of another user, with times that match a verifier.
    let (file, stateid) = made(&mut a, 0o666).await;
    let at = |seconds| Some(SetTime::ToClientTime(NfsTime { seconds, nseconds: 0 }));
    let times = |a, m| Attrs { time_access_set: at(a), time_modify_set: at(m), ..Attrs::default() };
    assert_eq!(on(&mut a, &file, set(stateid, times(1, 2))).await, Ok(()));
    assert_eq!(b.fails(create(verifier)).await, Error::Exist);
    assert_eq!(a.fails(create(verifier)).await, Error::Exist);
    a.ok(vec![Op::Putrootfh(()), Op::Remove("file".into())]).await;

    // The server recognises the file only for its creator, with the creator's verifier.
    let (made, _) = opened(a.ok(create(verifier)).await);
    assert_eq!(b.fails(create(verifier)).await, Error::Exist);
    assert_eq!(opened(a.ok(create(verifier)).await).0, made);
    let asked = Bitmap::of(&[attr::TIME_ACCESS, attr::TIME_MODIFY]);
    let OpRes::Getattr(Ok(kept)) = a.on(&made, Op::Getattr(asked)).await else { panic!() };
    let (kept_access, kept_modify) = (kept.time_access.unwrap(), kept.time_modify.unwrap());

    // The same times on another file are not recognised: not with another name, ...
    a.ok(vec![Op::Putrootfh(()), Op::Savefh(()), Op::Rename(rename("file", "elsewhere"))]).await;
    let other = open_as(0, 0, access, made_with(0o666));
    let (other, of_other) = opened(b.ok(vec![Op::Putrootfh(()), other, Op::Getfh(())]).await);
    let copied = times(kept_access.seconds, kept_modify.seconds);
    assert_eq!(on(&mut b, &other, set(of_other, copied)).await, Ok(()));
    // ... not with another owner, ...
    assert_eq!(a.fails(create(verifier)).await, Error::Exist);
    b.ok(vec![Op::Putrootfh(()), Op::Remove("file".into())]).await;
    a.ok(vec![Op::Putrootfh(()), Op::Savefh(()), Op::Rename(rename("elsewhere", "file"))]).await;
    let (_, stateid) = opened(a.ok(create(verifier)).await);
    // ... and not on a file with data.
    assert_eq!(on(&mut a, &made, write_op(stateid)).await, Ok(()));
    let again = times(kept_access.seconds, kept_modify.seconds);
    assert_eq!(on(&mut a, &made, set(stateid, again)).await, Ok(()));
    assert_eq!(a.fails(create(verifier)).await, Error::Exist);
}

fn rename(from: &'static str, to: &'static str) -> weir_nfs::v4::op::rename::Args {
    weir_nfs::v4::op::rename::Args { from: from.into(), to: to.into() }
}

#[tokio::test]
async fn an_exclusively_created_file_is_private_until_its_attributes_are_set() {
    let f = open_to_all().await;
    let mut c = f.connect("old", 0).await;
    c.cred = cred(OWNER);
    let client_id = v40::introduce_at(&mut c, None).await;
    let how = open::How::Create(open::CreateHow::Exclusive(*b"verifier"));
    let open = open_as(client_id, 1, open::ShareAccess::BOTH, how);
    let (file, stateid) = opened(c.raw(vec![Op::Putrootfh(()), open, Op::Getfh(())]).await.results);
    let mode = Op::Getattr(Bitmap::of(&[attr::MODE]));
    let results = c.raw(vec![Op::Putfh(file.clone()), mode]).await.results;
    let Some(OpRes::Getattr(Ok(attrs))) = results.last() else { panic!("{results:?}") };
    assert_eq!(attrs.mode.unwrap() & 0o077, 0);
    assert_eq!(on(&mut c, &file, write_op(stateid)).await, Ok(()));
    assert_eq!(on(&mut c, &file, set_mode(0o644)).await, Ok(()));
}

#[tokio::test]
async fn readdir_and_lookupp_require_search_permission() {
    let f = open_to_all().await;
    let mut a = client_as(&f, "a", OWNER).await;
    let attrs = Attrs { mode: Some(0o744), ..Attrs::default() };
    let dir =
        create::Args { kind: create::Kind::Directory, name: "dir".into(), attrs: attrs.into() };
    let results = a.ok(vec![Op::Putrootfh(()), Op::Create(dir), Op::Getfh(())]).await;
    let dir = handle(&results).unwrap();
    let inner = open_as(0, 0, open::ShareAccess::BOTH, made_with(0o666));
    a.ok(vec![Op::Putfh(dir.clone()), inner]).await;

    let list = |asked: &[u32]| {
        Op::Readdir(readdir::Args {
            cookie: 0,
            verifier: [0; 8],
            dir_count: 4096,
            max_count: 4096,
            attrs: Bitmap::of(asked),
        })
    };
    let entries = |res| match res {
        OpRes::Readdir(Ok(listing)) => listing.entries.0,
        other => panic!("{other:?}"),
    };
    let all = [attr::FILEHANDLE, attr::SIZE, attr::TYPE, attr::RDATTR_ERROR];
    let seen = entries(a.on(&dir, list(&all)).await);
    assert!(seen[0].attrs.filehandle.is_some() && seen[0].attrs.kind == Some(FileType::Regular));
    let mut b = client_as(&f, "b", OTHER).await;
    let seen = entries(b.on(&dir, list(&all)).await);
    assert_eq!((seen.len(), &seen[0].name[..]), (1, &b"file"[..]));
    let nothing = Attrs { rdattr_error: Some(Err(Error::Access)), ..Attrs::default() };
    assert_eq!(seen[0].attrs, nothing);
    let refused = b.on(&dir, list(&all[..3])).await;
    assert!(matches!(refused, OpRes::Readdir(Err(Error::Access))), "{refused:?}");
    let seen = entries(b.on(&dir, list(&[attr::FILEID])).await);
    assert!(seen[0].attrs.fileid.is_some());
    assert_eq!(on(&mut b, &dir, Op::Lookupp(())).await, Err(Error::Access));
    assert_eq!(on(&mut a, &dir, Op::Lookupp(())).await, Ok(()));
}

#[tokio::test]
async fn no_reply_reveals_the_client_id_of_another_client() {
    let f = open_to_all().await;
    let (mut a, mut b) = (client_as(&f, "a", OWNER).await, client_as(&f, "b", OWNER).await);
    let (file, stateid) = made(&mut a, 0o666).await;
    assert_eq!(on(&mut a, &file, lock_op(stateid, LockType::Write, false)).await, Ok(()));
    let open = open_as(0, 0, open::ShareAccess::BOTH, open::How::NoCreate);
    let (_, stateid) = opened(b.ok(vec![Op::Putrootfh(()), open, Op::Getfh(())]).await);
    let denied = b.on(&file, lock_op(stateid, LockType::Write, false)).await;
    let OpRes::Lock(Err(weir_nfs::v4::Detailed::Detail(denied))) = denied else { panic!() };
    assert_eq!(&denied.owner.owner.0[..], b"thread");
    let told = crate::state::ClientId(denied.owner.client_id);
    assert!(f.server.services.state.lock().clients.get(told).is_err());
}
