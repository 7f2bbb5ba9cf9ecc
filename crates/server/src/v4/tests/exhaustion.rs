//! One peer takes all that it may of a limit. Another still gets some, the metrics show both, and what the first one
//! held is free again once its state is gone.

use super::delegations::{WANT_READ, open_as};
use super::*;
use std::sync::LazyLock;
use std::time::Duration;
use weir_base::ManualClock;
use weir_nfs::v4::op::open::{Claim, Delegation, ShareAccess};
use weir_nfs::v4::op::{close, lock};
use weir_nfs::v4::types::LockType;
use weir_stores::local::{LocalFs, LocalOptions};

const LEASE: Duration = Duration::from_secs(90);
const GREEDY: &str = "127.0.0.1";
const MODEST: &str = "127.0.0.2";

/// A server with a clock of its own, which the macro makes, and a short courtesy.
macro_rules! server {
    ($store:expr, $clock:ident, $($limit:ident = $value:expr),*) => {{
        static $clock: LazyLock<Arc<ManualClock>> = LazyLock::new(Arc::default);
        let adjust: fn(&mut ServerConfig) = |config| {
            config.clock = $clock.clone();
            config.state.courtesy = LEASE * 2;
            $(config.state.$limit = $value;)*
        };
        (Fixture::of_with($store, adjust).await, &**$clock)
    }};
}

impl Fixture {
    /// A client at an address that can be called back.
    async fn client_at(&self, ip: &str, name: &'static str) -> Client {
        let mut client = self.connect_from(ip, name, 2).await;
        client.service.is_there = true;
        client.begin_session(1 << 20).await;
        self.test_backchannel(&mut client).await;
        client.ok(vec![Op::ReclaimComplete(reclaim_complete::Args { one_fs: false })]).await;
        client
    }

    /// The use of a limit, and how often it refused a peer.
    fn limit(&self, name: &str) -> (u64, u64) {
        let uses = self.server.services.state.lock().limit_uses();
        let one = uses.iter().find(|limit| limit.name == name).unwrap();
        (one.used, one.refused)
    }
}

/// Has a client take what `take` asks for until it gets no more. Returns how much it got after `from`.
async fn take_all(
    c: &mut Client,
    from: usize,
    take: &impl AsyncFn(&mut Client, usize) -> bool,
) -> usize {
    let mut taken = from;
    while take(c, taken).await {
        taken += 1;
        assert!(taken < 1000, "there is no limit");
    }
    taken
}

/// Exhausts a limit. `take` asks for one more of what is limited, and returns whether the client got it.
async fn exhaust(
    (f, clock): (Fixture, &ManualClock),
    name: &str,
    take: impl AsyncFn(&mut Client, usize) -> bool,
) {
    let mut modest = f.client_at(MODEST, "modest").await;
    let mut greedy = f.client_at(GREEDY, "greedy").await;
    let taken = take_all(&mut greedy, 0, &take).await;
    let (full, refused) = f.limit(name);
    assert!(taken > 1 && refused > 0, "{name}: {taken}, {refused}");
    let metrics = f.server.report().open_metrics();
    for line in [
        format!("weir_limit_used{{limit=\"{name}\"}} {full}\n"),
        format!("weir_address_refused_total{{limit=\"{name}\",address=\"{GREEDY}\"}} {refused}\n"),
    ] {
        // Bytes are not counted by address.
        assert!(metrics.contains(&line) || name.ends_with("_bytes"), "{line}: {metrics}");
    }

    assert!(take(&mut modest, 0).await, "{name}: another peer gets nothing");

    for _ in 0..5 {
        clock.advance(LEASE * 2 / 3);
        modest.ok(vec![]).await;
        f.server.sweep().await;
    }
    let again = take_all(&mut modest, 1, &take).await;
    // Of sessions, the other one's own was there before.
    let as_much = taken..=taken + usize::from(name == "sessions");
    assert!(as_much.contains(&again), "{name}: {again}, but the other one got {taken}");
    drop((greedy, modest));
    clock.advance(LEASE * 4);
    f.server.sweep().await;
    assert_eq!(f.limit(name).0, 0, "{name}");
}

fn file_name(c: &Client, number: usize) -> &'static str {
    format!("{}-{number}", c.name).leak()
}

/// LOCK of one byte, on the first open of a file.
async fn lock_byte(c: &mut Client, file: &'static str, owner: &str, offset: u64) -> OpRes {
    let (file, open_stateid) = c.open(file).await;
    let lock_owner = StateOwner { client_id: 0, owner: owner.into() };
    let new = lock::NewLocker { open_seqid: 0, open_stateid, lock_seqid: 0, lock_owner };
    let locker = lock::Locker::New(new);
    let (kind, reclaim, length) = (LockType::Write, false, 1);
    c.on(&file, Op::Lock(lock::Args { kind, reclaim, offset, length, locker })).await
}

fn is_delayed(res: &OpRes) -> bool {
    use weir_nfs::v4::Detailed;
    assert!(matches!(res, OpRes::Lock(Ok(_) | Err(Detailed::Plain(Error::Delay)))), "{res:?}");
    !matches!(res, OpRes::Lock(Ok(_)))
}

#[tokio::test]
async fn a_peer_that_takes_all_opens_leaves_some_to_others() {
    let server = server!(MemoryFs::new(), CLOCK, opens = 24);
    exhaust(server, "opens", async |c, number| {
        let open = c.open_op(file_name(c, number), 0);
        match c.run(vec![Op::Putrootfh(()), open]).await.status {
            Ok(()) => true,
            Err(error) => {
                assert_eq!(error, Error::Delay);
                false
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_peer_that_takes_all_lock_states_leaves_some_to_others() {
    let server = server!(MemoryFs::new(), CLOCK, locks = 24);
    exhaust(server, "lock_states", async |c, number| {
        let owner = format!("thread {number}");
        let file = file_name(c, 0);
        !is_delayed(&lock_byte(c, file, &owner, 2 * number as u64).await)
    })
    .await;
}

#[tokio::test]
async fn a_peer_that_takes_all_ranges_leaves_some_to_others() {
    let server = server!(MemoryFs::new(), CLOCK, locks = 24);
    exhaust(server, "locked_ranges", async |c, number| {
        let file = file_name(c, 0);
        !is_delayed(&lock_byte(c, file, "thread", 2 * number as u64).await)
    })
    .await;
}

#[tokio::test]
async fn a_peer_that_takes_all_delegations_leaves_some_to_others() {
    let server = server!(MemoryFs::new(), CLOCK, delegations = 24);
    exhaust(server, "delegations", async |c, number| {
        let name = file_name(c, number);
        let open =
            open_as(ShareAccess::READ | ShareAccess::WANT_NO_DELEG, Claim::Null(name.into()));
        let Op::Open(args) = c.open_op(name, 0) else { unreachable!() };
        let Op::Open(open) = open else { unreachable!() };
        let made = Op::Open(open::Args { how: args.how, ..open });
        let results = c.ok(vec![Op::Putrootfh(()), made, Op::Getfh(())]).await;
        let OpRes::Open(Ok(made)) = &results[1] else { panic!("{results:?}") };
        let file = handle(&results).unwrap();
        let res = c.on(&file, open_as(WANT_READ, Claim::Fh)).await;
        // The open itself is granted.
        let OpRes::Open(Ok(opened)) = res else { panic!("{res:?}") };
        assert_eq!(opened.stateid.other, made.stateid.other);
        let args = close::Args { seqid: 0, open_stateid: opened.stateid };
        assert!(matches!(c.on(&file, Op::Close(args)).await, OpRes::Close(Ok(_))));
        matches!(opened.delegation, Delegation::Read(_))
    })
    .await;
}

#[tokio::test]
async fn a_peer_that_has_all_files_locked_in_the_store_leaves_some_to_others() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalFs::open(dir.path(), LocalOptions::default()).unwrap();
    let (f, clock) = server!(store, CLOCK, store_locks = 24);
    let state = f.server.services.state.clone();
    let used = || {
        let uses = state.lock().limit_uses();
        uses.iter().find(|limit| limit.name == "store_locks").unwrap().used
    };
    exhaust((f, clock), "store_locks", async |c, number| {
        let (before, file) = (used(), file_name(c, number));
        let locked = lock_byte(c, file, "thread", 0).await;
        assert!(matches!(locked, OpRes::Lock(Ok(_))), "clients' locks go on: {locked:?}");
        used() > before
    })
    .await;
}

/// CREATE_SESSION of one more session of the client.
async fn one_more_session(c: &mut Client) -> Result<SessionId, Error> {
    let args = exchange_id::Args {
        client: ClientOwner { verifier: *b"one run.", owner: c.name.into() },
        flags: exchange_id::Flags::empty(),
        state_protect: exchange_id::StateProtect::None,
        impl_id: List::default(),
    };
    let results = c.raw(vec![Op::ExchangeId(args)]).await.results;
    let Some(OpRes::ExchangeId(Ok(exchanged))) = results.last() else { panic!("{results:?}") };
    let channel = create_session::ChannelAttrs {
        max_request_size: 1 << 20,
        max_response_size: 1 << 20,
        max_response_size_cached: 1024,
        max_operations: 16,
        max_requests: 4,
        ..create_session::ChannelAttrs::default()
    };
    let args = create_session::Args {
        client_id: exchanged.client_id,
        sequence_id: exchanged.sequence_id,
        flags: create_session::Flags::empty(),
        fore: channel.clone(),
        back: channel,
        cb_program: callbacks::PROGRAM,
        sec_parms: vec![weir_nfs::v4::types::CallbackSec::None].into(),
    };
    match c.raw(vec![Op::CreateSession(args)]).await.results.pop() {
        Some(OpRes::CreateSession(created)) => created.map(|created| created.session),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_peer_that_takes_all_sessions_leaves_some_to_others() {
    let server = server!(MemoryFs::new(), CLOCK, sessions = 24);
    exhaust(server, "sessions", async |c, _| match one_more_session(c).await {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error, Error::Delay);
            false
        }
    })
    .await;
}

#[tokio::test]
async fn a_peer_whose_replies_are_all_kept_leaves_room_for_those_of_others() {
    let server = server!(MemoryFs::new(), CLOCK, kept_reply_bytes = 16 << 10);
    exhaust(server, "kept_reply_bytes", async |c, _| {
        // The second slot of a new session: the first one is not limited.
        let session = one_more_session(c).await.unwrap();
        let args =
            sequence::Args { session, sequence_id: 1, slot: 1, highest_slot: 1, cache_this: true };
        let status = c.raw(vec![Op::Sequence(args), Op::Putrootfh(()), Op::Getfh(())]).await.status;
        assert!(matches!(status, Ok(()) | Err(Error::Delay)), "{status:?}");
        status.is_ok()
    })
    .await;
}
