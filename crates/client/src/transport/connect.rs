//! Opening TCP connections, and closing broken ones.
//!
//! 1. A connection that replaces a broken one uses the same local port if possible: the reply
//!    caches of NFSv3 and 4.0 servers identify a resent call by its xid and source address.
//! 2. An address of several that does not answer delays a connection by [`ATTEMPT_DELAY`]: then the next one is tried
//!    as well. The first connection that is made is used, and later ones begin with its address, and leave it only
//!    when it refuses, or has not answered for [`CONNECT_TIMEOUT`]: another address may be another server, and is
//!    another client to a reply cache.

use super::peer::{Locate, Peer};
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use weir_rpc::net::{self, Source};

/// For one of several addresses.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The time before the next address is tried as well (RFC 8305 section 5).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Connects to the first address that answers, from local `port` if it is given and free.
pub(super) async fn connect(peer: &Peer, port: Option<u16>) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    let at = match &peer.locate {
        Some(Locate(locate)) => Some(locate().await?),
        None => None,
    };
    let mut untried = peer.addrs_to_try().into_iter();
    let known = port.is_some() || peer.answered.lock().is_some();
    let delay = if known { CONNECT_TIMEOUT } else { ATTEMPT_DELAY };
    let mut attempts = FuturesUnordered::new();
    loop {
        match untried.next() {
            Some(addr) => attempts.push(async move {
                let to = at.map_or(addr, |port| SocketAddr::new(addr.ip(), port));
                let source = Source { port, ..peer.source() };
                let made = timeout(CONNECT_TIMEOUT, net::connect(to, source)).await;
                (addr, made.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())))
            }),
            None if attempts.is_empty() => return Err(last),
            None => {}
        }
        tokio::select! {
            Some((addr, made)) = attempts.next() => match made {
                Ok(socket) => {
                    peer.note_answer(addr);
                    return Ok(socket);
                }
                Err(error) => last = error,
            },
            () = sleep(delay), if untried.len() > 0 => {}
        }
    }
}

/// Closes a broken connection without waiting for the peer, so that its port can be reused.
pub(super) fn abort(socket: TcpStream) {
    // If the reset fails, the connection closes normally, and the next one uses another port.
    let _ = socket.set_zero_linger();
    drop(socket);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tokio::net::{TcpListener, TcpSocket};
    use tokio::time::Instant;

    fn peer_at(addrs: Vec<SocketAddr>) -> Peer {
        Peer {
            name: "server".into(),
            addrs,
            answered: Arc::default(),
            resvport: false,
            locate: None,
            heard: Arc::default(),
        }
    }

    /// A listener that takes no more connections: it drops what asks for one.
    async fn full() -> (TcpListener, SocketAddr) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let listener = socket.listen(0).unwrap();
        let addr = listener.local_addr().unwrap();
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        for _ in 0..8 {
            let tell = tell.clone();
            tokio::spawn(async move {
                let made = TcpStream::connect(addr).await;
                // The test may have ended.
                let _ = tell.send(());
                std::future::pending::<()>().await;
                drop(made);
            });
        }
        told.recv().await.unwrap();
        sleep(Duration::from_millis(100)).await;
        (listener, addr)
    }

    #[tokio::test]
    async fn an_address_that_does_not_answer_does_not_hold_up_the_next() {
        let (_listener, full) = full().await;
        let answers = TcpListener::bind("127.0.0.2:0").await.unwrap();
        let addr = answers.local_addr().unwrap();
        let peer = peer_at(vec![full, addr]);
        assert_eq!(peer.addrs_to_try(), [full, addr]);
        let begun = Instant::now();
        let socket = connect(&peer, None).await.unwrap();
        assert_eq!(socket.peer_addr().unwrap(), addr);
        assert!(begun.elapsed() < CONNECT_TIMEOUT, "{:?}", begun.elapsed());
        assert_eq!(peer.clone().addrs_to_try(), [addr, full]);
    }

    #[tokio::test]
    async fn the_last_error_is_returned_if_no_address_answers() {
        let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = closed.local_addr().unwrap();
        drop(closed);
        let peer = peer_at(vec![addr, addr]);
        let error = connect(&peer, None).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }
}
