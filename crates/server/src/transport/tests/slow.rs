//! Peers that read, or write, as slowly as they can.

use super::*;

const MEGABYTE: u32 = 1 << 20;

#[tokio::test]
async fn replies_that_are_not_read_keep_the_next_call_from_being_executed() {
    let f = Fixture::new(Limits::default()).await;
    let mut slow = f.connect().await;
    for xid in 0..64 {
        slow.send(xid, ECHO, 6, &MEGABYTE.to_be_bytes()).await;
    }
    let mut other = f.connect().await;
    for xid in 0..100 {
        other.send(xid, ECHO, 0, b"").await;
        assert_eq!(other.reply().await.0.xid, xid);
    }
    // What the sockets' buffers hold comes on top of the limit.
    let made = f.echo.made.load(Ordering::Relaxed);
    assert!(made < 32 << 20, "{made} bytes of replies are held for a peer that reads none");
    for xid in 0..64 {
        let (header, rest) = slow.reply().await;
        assert_eq!((header.xid, rest.len()), (xid, 4 + MEGABYTE as usize));
    }
}

/// Waits until no connection's replies take memory.
async fn all_is_given_back(f: &Fixture) {
    while f.transport.addresses.reply_bytes.used() > 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_peer_that_reads_more_slowly_than_the_minimum_is_disconnected() {
    let limits =
        Limits { stall: Duration::from_millis(400), min_drain_rate: 1 << 30, ..Limits::default() };
    let f = Fixture::new(limits).await;
    let mut slow = f.connect().await;
    for xid in 0..64 {
        slow.send(xid, ECHO, 6, &MEGABYTE.to_be_bytes()).await;
    }
    // It goes on reading, which does not help.
    let mut byte = [0];
    slow.0.read_exact(&mut byte).await.unwrap();
    all_is_given_back(&f).await;
    let mut rest = Vec::new();
    let _ = slow.0.read_to_end(&mut rest).await;
    assert!(rest.len() < 32 << 20, "{} bytes came before the end", rest.len());
}

#[tokio::test]
async fn calls_that_wait_do_not_make_more_replies_than_the_connection_may_hold() {
    let f = Fixture::new(Limits { reply_bytes: 4 << 20, ..Limits::default() }).await;
    let mut slow = f.connect().await;
    for xid in 0..64 {
        slow.send(xid, ECHO, 7, &MEGABYTE.to_be_bytes()).await;
    }
    f.open_the_gate(64).await;
    let mut other = f.connect().await;
    for xid in 0..100 {
        other.send(xid, ECHO, 0, b"").await;
        assert_eq!(other.reply().await.0.xid, xid);
        assert!(f.transport.addresses.reply_bytes.used() <= (4 << 20) + (64 << 10));
    }
    let made = f.echo.made.load(Ordering::Relaxed);
    assert!(made < 32 << 20, "{made} bytes of replies are held for a peer that reads none");
    let mut seen = Vec::new();
    for _ in 0..64 {
        seen.push(slow.reply().await.0.xid);
    }
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..64));
    all_is_given_back(&f).await;
}

#[tokio::test]
async fn connections_of_one_address_leave_room_for_the_replies_of_another() {
    let limits = Limits { reply_bytes: 4 << 20, all_reply_bytes: 8 << 20, ..Limits::default() };
    let f = Fixture::new(limits).await;
    let mut flood = Vec::new();
    for _ in 0..16 {
        let mut slow = f.connect_from("127.0.0.1").await;
        for xid in 0..16 {
            slow.send(xid, ECHO, 6, &MEGABYTE.to_be_bytes()).await;
        }
        flood.push(slow);
    }
    let mut other = f.connect_from("127.0.0.2").await;
    for xid in 0..20 {
        other.send(xid, ECHO, 4, &MEGABYTE.to_be_bytes()).await;
        assert_eq!(other.reply().await.0.xid, xid);
    }
    // One reply of each connection may be beyond its address's share.
    let used = f.transport.addresses.reply_bytes.used();
    assert!(used < (4 + 16 + 2) << 20, "{used} bytes are held");
    for slow in &mut flood {
        for xid in 0..16 {
            assert_eq!(slow.reply().await.0.xid, xid);
        }
    }
}
