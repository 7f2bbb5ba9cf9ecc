//! Peers that use as much as they can of the server's limits.

use super::v40::{introduce_at, introduce_run_at};
use super::*;
use crate::state::ClientId;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use weir_nfs::v4::Bitmap;
use weir_nfs::v4::op::{create, readdir, setclientid};
use weir_vfs::{Caller, CreateMode, SetAttr};

/// A READDIR whose reply may have a megabyte.
fn long_readdir() -> Op {
    use weir_nfs::v4::attr::{FILEHANDLE, FILEID, OWNER, OWNER_GROUP, SIZE};
    Op::Readdir(readdir::Args {
        cookie: 0,
        verifier: [0; 8],
        dir_count: 1 << 20,
        max_count: 1 << 20,
        attrs: Bitmap::of(&[FILEID, FILEHANDLE, OWNER, OWNER_GROUP, SIZE]),
    })
}

#[tokio::test]
async fn unread_listings_use_bounded_memory() {
    const REPLY_BYTES: usize = 3 << 20;
    let f = Fixture::with(|config| config.transport.reply_bytes = REPLY_BYTES).await;
    for i in 0..4000 {
        let name = format!("{i:0200}");
        let (own, set) = (Caller::Own, SetAttr::default());
        f.fs.create(&own, f.fs.root().entry(name.as_bytes()).with(&set), CreateMode::MustBeNew)
            .await
            .unwrap();
    }
    let mut slow = f.connect("slow", 0).await;
    for _ in 0..64 {
        slow.send("tag", 2, &[Op::Putrootfh(()), long_readdir()]).await;
    }
    let mut other = f.client("other").await;
    for _ in 0..50 {
        other.ok(vec![Op::Putrootfh(())]).await;
        let used = f.server.addresses().reply_bytes.used();
        assert!(used <= REPLY_BYTES + REPLY_BYTES / 8 + (1 << 20), "{used} bytes");
    }
    for _ in 0..64 {
        let reply = slow.record().await;
        assert!(reply.len() > 900_000, "{}", reply.len());
    }
}

#[tokio::test]
async fn kept_results_stay_within_the_session_limit_for_every_operation() {
    let f = Fixture::new().await;
    let mut c = f.client("a").await;
    let text: &'static str = "x".repeat(3000).leak();
    let link = create::Kind::Symlink(text.into());
    let make = create::Args { kind: link, name: "l".into(), attrs: Attrs::default().into() };
    c.ok(vec![Op::Putrootfh(()), Op::Create(make)]).await;
    let (_, stateid) = c.open("file").await;
    let readlink = vec![Op::Putrootfh(()), Op::Lookup("l".into()), Op::Readlink(())];
    let test = vec![Op::TestStateid(vec![stateid; 300].into())];
    c.ok(readlink.clone()).await;
    c.ok(test.clone()).await;
    c.cache_this = true;
    for ops in [readlink, test] {
        let reply = c.run(ops.clone()).await;
        assert_eq!(reply.status, Err(Error::RepTooBigToCache));
        assert!(reply.bytes.len() <= 1024, "{} bytes are kept", reply.bytes.len());
        let again = c.raw([vec![c.sequence()], ops].concat()).await;
        assert_eq!(again.bytes[4..], reply.bytes[4..], "it is kept");
    }
}

/// The status of a compound with this tag, and the number of its results.
async fn with_tag(c: &mut Client, tag: &'static str, ops: &[Op]) -> (Status, u32) {
    c.send(tag, ops.len() as u32, ops).await;
    let mut d = Decoder::new(c.record().await);
    let _: ReplyHeader = d.get().unwrap();
    let header: CompoundResHeader = d.get().unwrap();
    assert_eq!(&header.tag[..], tag.as_bytes());
    (header.status, header.results)
}

#[tokio::test]
async fn tags_are_limited_and_count_towards_the_kept_reply() {
    let f = Fixture::new().await;
    let mut c = f.client("a").await;
    c.sequence += 1;
    let tag = |len| -> &'static str { "t".repeat(len).leak() };
    let ops = [c.sequence()];
    assert_eq!(with_tag(&mut c, tag(1025), &ops).await, (Err(Error::Inval), 0));
    assert_eq!(with_tag(&mut c, tag(60_000), &ops).await, (Err(Error::Inval), 0));
    c.cache_this = true;
    let ops = [c.sequence(), Op::Putrootfh(())];
    assert_eq!(with_tag(&mut c, tag(1000), &ops).await, (Err(Error::RepTooBigToCache), 1));
    c.cache_this = false;
    let ops = [c.sequence()];
    assert_eq!(with_tag(&mut c, tag(1000), &ops).await, (Ok(()), 1), "its number was not used up");
    c.minor = 0;
    assert_eq!(with_tag(&mut c, tag(1025), &[Op::Putrootfh(())]).await, (Err(Error::Inval), 0));
}

#[tokio::test]
async fn clients_of_one_address_leave_room_for_other_addresses() {
    let f = Fixture::with(|config| config.state.clients = 12).await;
    let exchange = |name: String| exchange_id::Args {
        client: ClientOwner { verifier: *b"one run.", owner: name.as_bytes().into() },
        flags: exchange_id::Flags::empty(),
        state_protect: exchange_id::StateProtect::None,
        impl_id: List::default(),
    };
    let mut flood = f.connect_from("127.0.0.1", "flood", 1).await;
    let mut made = 0;
    for i in 0..30 {
        // Each over its own connection, like a host that reconnects repeatedly.
        let mut c = f.connect_from("127.0.0.1", "flood", 1).await;
        let status = c.raw(vec![Op::ExchangeId(exchange(format!("{i}")))]).await.status;
        made += usize::from(status.is_ok());
        assert!(matches!(status, Ok(()) | Err(Error::Delay)), "{status:?}");
    }
    assert_eq!(made, 6);
    let again = flood.raw(vec![Op::ExchangeId(exchange("0".into()))]).await.status;
    assert_eq!(again, Ok(()), "that client is known");
    let mut other = f.connect_from("127.0.0.2", "other", 1).await;
    for i in 0..3 {
        let status = other.raw(vec![Op::ExchangeId(exchange(format!("o{i}")))]).await.status;
        assert_eq!(status, Ok(()));
    }
    let name = weir_nfs::v4::types::ClientOwner { verifier: *b"one run.", owner: "v40".into() };
    let args = setclientid::Args {
        client: name,
        cb_program: 0,
        cb_location: weir_nfs::v4::types::NetAddr::default(),
        callback_ident: 0,
    };
    flood.minor = 0;
    let refused = flood.raw(vec![Op::Setclientid(args)]).await.status;
    assert_eq!(refused, Err(Error::Delay), "in minor version 0, too");
}

#[tokio::test]
async fn each_use_of_descriptors_stays_within_its_part() {
    let f = Fixture::with(|config| config.descriptors = Some(64)).await;
    let limit = |f: &Fixture, name| {
        let state = f.server.services.state.lock().limit_uses();
        let uses = [f.server.addresses().uses(), state].concat();
        uses.into_iter().find(|limit| limit.name == name).unwrap()
    };
    for (name, most) in [("connections", 16), ("opens", 24), ("delegations", 4)] {
        assert_eq!(limit(&f, name).limit, most, "{name}");
    }
    assert_eq!(f.server.services.state.lock().limits().store_locks, 6);

    // Peers of many addresses take all that they can, and each one still gets on.
    let mut kept = Vec::new();
    for (number, ip) in ["127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4"].iter().enumerate() {
        let name: &'static str = format!("client{number}").leak();
        let mut c = f.connect_from(ip, name, 2).await;
        c.begin_session(1 << 20).await;
        c.ok(vec![Op::ReclaimComplete(reclaim_complete::Args { one_fs: false })]).await;
        let mut opened = 0;
        while let Ok(()) = {
            let file: &'static str = format!("{number}-{opened}").leak();
            c.run(vec![Op::Putrootfh(()), c.open_op(file, 0)]).await.status
        } {
            opened += 1;
        }
        assert!(opened > 0, "{name}");
        let refused: &'static str = format!("{number}-{opened}").leak();
        let lookup = vec![Op::Putrootfh(()), Op::Lookup(refused.into())];
        assert_eq!(c.fails(lookup).await, Error::NoEnt, "an open that is refused makes no file");
        kept.push(c);
    }
    let metrics = f.server.report().open_metrics();
    let refused = "weir_address_refused_total{limit=\"opens\",address=\"127.0.0.1\"} 1";
    assert!(metrics.contains(refused), "{metrics}");
    let opens = limit(&f, "opens");
    assert!(opens.used <= opens.limit && opens.refused > 0, "{opens:?}");
    let mut connections = Vec::new();
    while limit(&f, "connections").refused == 0 {
        connections.push(f.connect("more", 2).await);
        assert!(connections.len() <= 1000, "connections are not limited");
        tokio::task::yield_now().await;
    }
    let used = limit(&f, "connections").used;
    assert!(used < 16, "there is one for another address: {used}");
    let mut other = f.connect_from("127.0.0.9", "other", 2).await;
    other.begin_session(1 << 20).await;
}

/// A callback service that accepts connections and answers nothing: its address, and the maximum
/// number of connections that were open at a time.
async fn silent_service(ip: &str) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind((ip, 0)).await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (open, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let at_once = most.clone();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            at_once.fetch_max(open.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            let open = open.clone();
            tokio::spawn(async move {
                // Reads to the end, at which the server has given up.
                while stream.read_u8().await.is_ok() {}
                open.fetch_sub(1, Ordering::Relaxed);
            });
        }
    });
    (addr, most)
}

/// Registers a client that answers callbacks, and waits until the server knows that.
async fn answers_callbacks(f: &Fixture) {
    let (addr, _called, _) = callbacks::listen().await;
    let mut c = f.connect("answers", 0).await;
    let id = ClientId(introduce_at(&mut c, Some(addr)).await);
    f.test_callback_service(id).await;
}

#[tokio::test]
async fn clients_at_whose_addresses_nothing_answers_leave_callbacks_to_others() {
    let f = Fixture::new().await;
    let (addr, most) = silent_service("127.0.0.2").await;
    for number in 0..80 {
        let name = format!("silent {number}").leak();
        let mut c = f.connect_from("127.0.0.2", name, 0).await;
        introduce_at(&mut c, Some(addr)).await;
    }
    answers_callbacks(&f).await;
    // More than four only for the moments in which the server gives others up.
    let most = most.load(Ordering::Relaxed);
    assert!(most <= 8, "{most} connections at once to an address at which nothing answers");
}

#[tokio::test]
async fn a_client_that_registers_repeatedly_is_tried_once_at_a_time() {
    let f = Fixture::new().await;
    let (addr, most) = silent_service("127.0.0.1").await;
    let mut c = f.connect("silent", 0).await;
    for _ in 0..20 {
        introduce_at(&mut c, Some(addr)).await;
    }
    // Of the same address, so it would wait behind a queue.
    answers_callbacks(&f).await;
    let most = most.load(Ordering::Relaxed);
    assert!(most <= 2, "{most} connections at once for one client");
}

#[tokio::test]
async fn a_client_that_replaces_itself_repeatedly_makes_no_queue() {
    let f = Fixture::new().await;
    let (addr, _most) = silent_service("127.0.0.1").await;
    let mut c = f.connect("silent", 0).await;
    for run in 0..150_u64 {
        introduce_run_at(&mut c, run.to_be_bytes(), Some(addr)).await;
        let waiting = f.server.services.callbacks.probed();
        assert!(waiting <= 100, "{waiting} clients wait to be tried");
    }
    // Those that were replaced are not tried: each of them would take five seconds.
    let begun = Instant::now();
    while f.server.services.callbacks.probed() > 4 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(begun.elapsed() < Duration::from_secs(40));
    answers_callbacks(&f).await;
}

#[tokio::test]
async fn a_silent_connection_stays_open_while_it_is_a_backchannel() {
    let f = Fixture::with(|config| config.transport.idle = Duration::from_secs(2)).await;
    let mut bound = f.callable("bound").await;
    for _ in 0..2 {
        let mut silent = f.connect("silent", 2).await;
        assert!(silent.stream.read_u8().await.is_err(), "it is closed");
    }
    bound.ok(vec![]).await;
    let session = bound.session;
    assert_eq!(bound.raw(vec![Op::DestroySession(session)]).await.status, Ok(()));
    assert!(bound.stream.read_u8().await.is_err(), "it is as the others from then on");
}
