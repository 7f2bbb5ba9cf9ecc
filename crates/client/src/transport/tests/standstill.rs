//! This process stands still (Ctrl-Z, a frozen container) while replies arrive.

use super::*;
use std::io::{Read, Write};

/// In which order a connection's tasks go on is random, so there are several.
const CONNECTIONS: usize = 16;

/// Answers one call of each connection when told to, and reports what it has done.
fn answer_together(
    listener: &std::net::TcpListener,
    go: &mpsc::Receiver<()>,
    done: &mpsc::Sender<()>,
) {
    let mut sockets = Vec::new();
    for _ in 0..CONNECTIONS {
        let (mut socket, _) = listener.accept().unwrap();
        let mut marker = [0; 4];
        socket.read_exact(&mut marker).unwrap();
        let mut call = vec![0; (u32::from_be_bytes(marker) & 0x7fff_ffff) as usize];
        socket.read_exact(&mut call).unwrap();
        sockets.push((socket, u32::from_be_bytes(*call.first_chunk().unwrap())));
    }
    done.send(()).unwrap();
    go.recv().unwrap();
    for (socket, xid) in &mut sockets {
        socket.write_all(&record(&reply(*xid, &[]), usize::MAX)).unwrap();
    }
    done.send(()).unwrap();
    // The test ends.
    assert!(go.recv().is_err());
}

#[test]
fn a_reply_that_arrived_while_this_process_stood_still_is_read() {
    let patience = Patience { timeo: Duration::from_secs(2), retrans: 0, hard: false };
    for hard in [false, true] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let (go, told) = mpsc::channel();
        let (done, is_done) = mpsc::channel();
        let server = std::thread::spawn(move || answer_together(&listener, &told, &done));
        run(async {
            let counters: Arc<Counters> = Arc::default();
            let mut calls = Vec::new();
            for _ in 0..CONNECTIONS {
                let patience = Patience { hard, ..patience };
                let (peer, counters) = (peer_at("peer", addr), Arc::clone(&counters));
                let connection = Connection::open(peer, patience, counters, None).await.unwrap();
                calls.push(tokio::spawn(async move {
                    let expect = Expect::Results { max_bytes: 0 };
                    let request = Request::new((100_003, 3, 7), &OpaqueAuth::NONE, "WRITE", expect);
                    connection.call(request).await
                }));
            }
            while is_done.try_recv().is_err() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            // The runtime has no other thread.
            go.send(()).unwrap();
            is_done.recv().unwrap();
            std::thread::sleep(patience.timeo * 2);
            for call in calls {
                let answer = tokio::time::timeout(Duration::from_secs(120), call).await;
                let reply = answer.expect("it ends").unwrap();
                assert!(!reply.unwrap().resent, "hard: {hard}");
            }
            assert_eq!(counters.reconnects.load(std::sync::atomic::Ordering::Relaxed), 0);
        });
        drop(go);
        server.join().unwrap();
    }
}
