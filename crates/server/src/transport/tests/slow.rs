//! Peers that read or write as slowly as they can.

use super::*;

const MEGABYTE: u32 = 1 << 20;

#[tokio::test]
async fn unread_replies_block_the_connections_next_call() {
    let f = Fixture::new(TransportLimits::default()).await;
    let mut slow = f.connect().await;
    for xid in 0..64 {
        slow.send(xid, ECHO, 6, &MEGABYTE.to_be_bytes()).await;
    }
    let mut other = f.connect().await;
    for xid in 0..100 {
        other.send(xid, ECHO, 0, b"").await;
        assert_eq!(other.reply().await.0.xid, xid);
    }
    // The socket buffers hold more on top of the limit.
    let made = f.echo.made.load(Ordering::Relaxed);
    assert!(made < 32 << 20, "{made} bytes of replies are held for a peer that reads none");
    for xid in 0..64 {
        let (header, rest) = slow.reply().await;
        assert_eq!((header.xid, rest.len()), (xid, 4 + MEGABYTE as usize));
    }
}

#[tokio::test]
async fn unread_small_replies_block_the_connections_next_call() {
    const BYTES: u32 = 15 << 10;
    let f = Fixture::new(TransportLimits { reply_bytes: 256 << 10, ..TransportLimits::default() })
        .await;
    let mut slow = f.connect().await;
    // Replies of more bytes than the sockets' buffers hold.
    let mut calls = Vec::new();
    for xid in 0..1024 {
        let mut e = start_record();
        let (cred, verf) = (OpaqueAuth::NONE, OpaqueAuth::NONE);
        e.put(&CallHeader { xid, program: ECHO.program, version: 1, procedure: 6, cred, verf });
        e.u32(BYTES);
        calls.extend_from_slice(&finish_record(e).to_bytes());
    }
    slow.0.write_all(&calls).await.unwrap();
    let mut other = f.connect().await;
    for xid in 0..100 {
        other.send(xid, ECHO, 0, b"").await;
        assert_eq!(other.reply().await.0.xid, xid);
    }
    // Replies that wait are counted.
    while f.transport.addresses.reply_bytes.used() <= 64 << 10 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let used = f.transport.addresses.reply_bytes.used();
    assert!(used <= (64 * 16) << 10, "{used} bytes are held");
    for xid in 0..1024 {
        assert_eq!(slow.reply().await.0.xid, xid);
    }
    all_is_given_back(&f).await;
}

impl Client {
    /// Requests `replies` replies of a megabyte, unless the connection ends first.
    async fn ask(&mut self, replies: u32) {
        for xid in 0..replies {
            if !self.try_send(xid, ECHO, 6, &MEGABYTE.to_be_bytes()).await {
                break;
            }
        }
    }
}

/// Waits until no connection's replies take memory.
async fn all_is_given_back(f: &Fixture) {
    while f.transport.addresses.reply_bytes.used() > 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn calls_that_wait_for_reply_memory_when_their_connection_ends_end_too() {
    let f =
        Fixture::new(TransportLimits { reply_bytes: 4 << 20, ..TransportLimits::default() }).await;
    let mut gone = f.connect().await;
    for xid in 0..64 {
        gone.send(xid, ECHO, 4, &MEGABYTE.to_be_bytes()).await;
    }
    while f.transport.addresses.reply_bytes.used() < 4 << 20 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(gone);
    tokio::time::timeout(Duration::from_secs(60), all_is_given_back(&f)).await.unwrap();
}

#[tokio::test]
async fn a_connection_counts_until_its_calls_have_ended() {
    const CALLS: u32 = 8;
    let f = Fixture::new(TransportLimits { connections: 4, ..TransportLimits::default() }).await;
    let mut left = 0;
    for _ in 0..20 {
        let mut gone = f.connect().await;
        for xid in 0..CALLS {
            if !gone.try_send(xid, ECHO, 2, b"").await {
                break;
            }
        }
        // A reply, or the end, says that the server has seen the calls, or refused the connection.
        if gone.try_send(CALLS, ECHO, 0, b"").await && gone.record().await.is_some() {
            left += CALLS as usize;
        }
    }
    let used = f.transport.addresses.connections.used();
    assert_eq!(used, left / CALLS as usize);
    assert!((1..=4).contains(&used), "{used} connections are counted");
    f.open_the_gate(left);
    while f.transport.addresses.connections.used() > 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_peer_below_the_minimum_rate_is_disconnected() {
    let limits = TransportLimits {
        stall: Duration::from_millis(400),
        least_drain_rate: 1 << 30,
        ..TransportLimits::default()
    };
    let f = Fixture::new(limits).await;
    let mut slow = f.connect().await;
    // If this test is suspended, the server may disconnect the peer before it has sent all calls.
    slow.ask(64).await;
    // The peer continues to read, too slowly.
    let _ = slow.0.read_u8().await;
    all_is_given_back(&f).await;
    let mut rest = Vec::new();
    let _ = slow.0.read_to_end(&mut rest).await;
    assert!(rest.len() < 32 << 20, "{} bytes came before the end", rest.len());
}

/// Limits with an unreachable rate while others wait for the memory, and none while they do not.
fn limits_for_the_patient() -> TransportLimits {
    let stall = Duration::from_millis(200);
    TransportLimits {
        stall,
        min_drain_rate: 1 << 40,
        least_drain_rate: 0,
        ..TransportLimits::default()
    }
}

#[tokio::test]
async fn a_slow_reader_stays_connected_while_no_other_waits_for_memory() {
    let f = Fixture::new(limits_for_the_patient()).await;
    let mut slow = f.connect().await;
    slow.ask(64).await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    for xid in 0..64 {
        let (header, rest) = slow.reply().await;
        assert_eq!((header.xid, rest.len()), (xid, 4 + MEGABYTE as usize));
    }
}

#[tokio::test]
async fn a_slow_reader_is_disconnected_while_others_wait_for_memory() {
    let limits = TransportLimits { all_reply_bytes: 8 << 20, ..limits_for_the_patient() };
    let f = Fixture::new(limits).await;
    let mut slow = f.connect().await;
    slow.ask(64).await;
    // The address has used up its share, so this connection waits for `slow`'s memory.
    let mut next = f.connect().await;
    next.send(1, ECHO, 4, &MEGABYTE.to_be_bytes()).await;
    assert_eq!(next.reply().await.0.xid, 1);
    all_is_given_back(&f).await;
    let mut rest = Vec::new();
    let _ = slow.0.read_to_end(&mut rest).await;
    assert!(rest.len() < 32 << 20, "{} bytes came before the end", rest.len());
}

#[tokio::test]
async fn replies_of_waiting_calls_stay_within_the_connections_limit() {
    let f =
        Fixture::new(TransportLimits { reply_bytes: 4 << 20, ..TransportLimits::default() }).await;
    let mut slow = f.connect().await;
    for xid in 0..64 {
        slow.send(xid, ECHO, 7, &MEGABYTE.to_be_bytes()).await;
    }
    f.open_the_gate(64);
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
async fn connections_of_one_address_leave_room_for_replies_of_other_addresses() {
    let limits = TransportLimits {
        reply_bytes: 4 << 20,
        all_reply_bytes: 8 << 20,
        ..TransportLimits::default()
    };
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
    // One reply of each connection may exceed its address's share.
    let used = f.transport.addresses.reply_bytes.used();
    assert!(used < (4 + 16 + 2) << 20, "{used} bytes are held");
    for slow in &mut flood {
        for xid in 0..16 {
            assert_eq!(slow.reply().await.0.xid, xid);
        }
    }
}

#[tokio::test]
async fn slow_records_leave_room_for_records_of_other_addresses() {
    const RECORD_BYTES: usize = 100_000;
    let limits = TransportLimits {
        record_bytes: RECORD_BYTES,
        call_bytes: 10 * RECORD_BYTES,
        stall: Duration::from_secs(3600),
        ..TransportLimits::default()
    };
    let f = Fixture::new(limits).await;
    let mut slow = Vec::new();
    for _ in 0..30 {
        let mut stream = f.connect_from("127.0.0.1").await;
        // The beginning of a record of 64 KiB.
        stream.0.write_all(b"\x80\x01\x00\x00and so on").await.unwrap();
        slow.push(stream);
    }
    let drip = async {
        loop {
            for stream in &mut slow {
                // The server disconnects those that it does not read from for long.
                let _ = stream.0.write_all(b".").await;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let mut other = f.connect_from("127.0.0.2").await;
    let served = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        for xid in 0..10 {
            other.send(xid, ECHO, 1, &opaque(&[1; 50_000])).await;
            assert_eq!(other.reply().await.0, accepted(xid, Success));
        }
    };
    tokio::select! {
        () = served => {}
        () = drip => unreachable!(),
        () = tokio::time::sleep(Duration::from_secs(60)) => panic!("the other address waits"),
    }
}

#[tokio::test]
async fn a_large_call_is_charged_its_own_length_while_it_is_executed() {
    const BYTES: usize = 50_000;
    const CALLS: u32 = 20;
    let record_bytes = 1 << 20;
    let limits = TransportLimits {
        record_bytes,
        call_bytes: 8 * record_bytes,
        ..TransportLimits::default()
    };
    let f = Fixture::new(limits).await;
    let mut c = f.connect().await;
    for xid in 0..CALLS {
        let mut e = start_record();
        let (cred, verf) = (OpaqueAuth::NONE, OpaqueAuth::NONE);
        e.put(&CallHeader { xid, program: ECHO.program, version: 1, procedure: 2, cred, verf });
        e.raw(&[0; BYTES]);
        let record = finish_record(e).to_bytes();
        if xid % 2 == 0 {
            c.0.write_all(&record).await.unwrap();
            continue;
        }
        // In two fragments, of which the first does not say how long the record is.
        let (first, last) = record[4..].split_at(30_000);
        c.0.write_u32(first.len() as u32).await.unwrap();
        c.0.write_all(first).await.unwrap();
        c.0.write_u32(last.len() as u32 | 1 << 31).await.unwrap();
        c.0.write_all(last).await.unwrap();
    }
    c.send(CALLS, ECHO, 0, b"").await;
    let next = tokio::time::timeout(Duration::from_secs(60), c.reply()).await;
    assert_eq!(next.expect("the large calls are all being executed").0.xid, CALLS);
    let (used, calls) = (f.transport.addresses.call_bytes.used(), CALLS as usize);
    assert!(used >= calls * BYTES && used < calls * (BYTES + 200), "{used} bytes are charged");
    f.open_the_gate(CALLS as usize);
    for _ in 0..CALLS {
        c.reply().await;
    }
    while f.transport.addresses.call_bytes.used() > 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn connections_of_one_address_leave_room_for_other_addresses() {
    let f = Fixture::new(TransportLimits { connections: 12, ..TransportLimits::default() }).await;
    let mut flood = Vec::new();
    for _ in 0..30 {
        let mut c = f.connect_from("127.0.0.1").await;
        c.send(1, ECHO, 0, b"").await;
        if c.record().await.is_some() {
            flood.push(c);
        }
    }
    assert_eq!(flood.len(), 6);
    for _ in 0..3 {
        let mut other = f.connect_from("127.0.0.2").await;
        other.send(1, ECHO, 0, b"").await;
        assert_eq!(other.reply().await.0.xid, 1);
        flood.push(other);
    }
    let limit = f.transport.addresses.uses().pop().unwrap();
    assert_eq!((limit.name, limit.limit, limit.used, limit.refused), ("connections", 12, 9, 24));
    drop(flood);
    while f.transport.addresses.connections.used() > 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn silent_connections_are_closed_unless_they_are_in_use() {
    let f = Fixture::new(TransportLimits {
        idle: Duration::from_millis(300),
        ..TransportLimits::default()
    })
    .await;
    let mut waits = f.connect().await;
    waits.send(1, ECHO, 2, b"").await;
    let mut called_back = f.connect().await;
    called_back.send(1, ECHO, 5, b"").await;
    called_back.record().await.unwrap();
    for _ in 0..3 {
        assert!(f.connect().await.ends().await);
    }
    f.open_the_gate(1);
    assert_eq!(waits.reply().await.0.xid, 1);
    assert!(waits.ends().await, "it is silent from then on");
}

#[tokio::test]
async fn keepalive_and_user_timeout_are_set_on_connections() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    notice_gone(&stream, Duration::from_secs(120)).unwrap();
    let socket = SockRef::from(&stream);
    assert!(socket.keepalive().unwrap());
    assert_eq!(socket.tcp_user_timeout().unwrap(), Some(Duration::from_secs(120)));
    assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(60));
}
