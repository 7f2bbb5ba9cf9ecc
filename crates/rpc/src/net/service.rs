//! A service for small calls: accepts connections, and answers each call before it reads the next.
//!
//! 1. At most [`ServiceLimits::connections`] are open; further ones wait to be accepted. Each holds
//!    less than twice [`ServiceLimits::record_bytes`] of calls, and one reply.
//! 2. A connection is closed if it is idle for [`ServiceLimits::idle`], if its record is too long,
//!    late, or not a call, or if the peer does not receive its reply.

use super::error::Error;
use super::record_stream::RecordStream;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use weir_xdr::{Bytes, Message};

/// Limits on the cost of callers.
#[derive(Clone, Copy, Debug)]
pub struct ServiceLimits {
    /// Simultaneous connections; at least one.
    pub connections: usize,
    /// Longest call, in bytes.
    pub record_bytes: usize,
    /// How long a connection may be idle between two calls.
    pub idle: Duration,
    /// Time limit for receiving the rest of a call, and for sending its reply.
    pub deadline: Duration,
}

/// Pause after a failed accept.
const PAUSE: Duration = Duration::from_secs(1);

/// Serves until the future is dropped, which closes all connections. `answer` returns the reply to
/// a record ([`answer`](crate::answer())), or `None` to close the connection.
pub async fn serve(
    listener: TcpListener,
    limits: ServiceLimits,
    answer: impl Fn(Bytes) -> Option<Message> + Send + Sync + 'static,
) -> Infallible {
    let answer = Arc::new(answer);
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = connections.join_next() => {}
            accepted = listener.accept(), if connections.len() < limits.connections.max(1) => {
                match accepted {
                    Ok((stream, from)) => {
                        let answer = Arc::clone(&answer);
                        connections.spawn(async move {
                            if let Err(error) = converse(stream, limits, &*answer).await {
                                tracing::debug!("{from}: {error}");
                            }
                        });
                    }
                    Err(error) => {
                        tracing::debug!("cannot accept a connection: {error}");
                        sleep(PAUSE).await;
                    }
                }
            }
        }
    }
}

/// Serves one peer until it closes the connection.
async fn converse(
    stream: TcpStream,
    ServiceLimits { record_bytes, idle, deadline, .. }: ServiceLimits,
    answer: &(impl Fn(Bytes) -> Option<Message> + Sync),
) -> Result<(), Error> {
    stream.set_nodelay(true)?;
    let mut records = RecordStream::new(stream, record_bytes);
    while timeout(idle, records.begins()).await.map_err(|_| Error::TimedOut(idle))?? {
        let exchange = async {
            let call = records.next().await?;
            match answer(call) {
                Some(reply) => Ok(records.send(&reply).await?),
                None => Err(Error::NotACall),
            }
        };
        timeout(deadline, exchange).await.map_err(|_| Error::TimedOut(deadline))??;
    }
    Ok(())
}
