//! The network between a client and the server: connections that deliver records in order, late, or not
//! at all. Records of different connections overtake each other as their latencies have it.

use crate::client::Client;
use crate::world::{Plant, World};
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use weir_server::LocalConnection;
use weir_xdr::Bytes;

/// How long a client waits for a reply before it connects anew: longer than the server lets a call wait
/// for a delegation.
const PATIENCE: Duration = Duration::from_millis(2000);

/// A client's way to the server: one connection after the other, all from one port.
pub(crate) struct Link {
    world: Arc<World>,
    client: usize,
    from: SocketAddr,
    /// Answers the server's calls.
    callee: Weak<Client>,
    connection: Mutex<Option<Arc<Connection>>>,
    /// The client has crashed.
    ended: AtomicBool,
    /// The next reply is lost with its connection.
    loses_reply: AtomicBool,
}

struct Connection {
    /// `None` when it has ended.
    local: Mutex<Option<LocalConnection>>,
    /// The server's run.
    run: u64,
    /// When the last record arrives, in each direction.
    last: [Mutex<Instant>; 2],
}

impl Link {
    pub(crate) fn new(world: &Arc<World>, client: usize, callee: Weak<Client>) -> Self {
        let from = SocketAddr::from(([192, 0, 2, 10 + client as u8], 700));
        world.hosts.lock().insert(from.ip(), callee.clone());
        Self {
            world: world.clone(),
            client,
            from,
            callee,
            connection: Mutex::default(),
            ended: AtomicBool::new(false),
            loses_reply: AtomicBool::new(false),
        }
    }

    /// Sends a record and waits for the reply. `None`: the connection ended before it came.
    pub(crate) async fn exchange(&self, record: Bytes) -> Option<Bytes> {
        let connection = match self.connection() {
            Some(connection) => connection,
            None => {
                sleep(Duration::from_millis(20 + self.world.below(100))).await;
                self.connect()?
            }
        };
        let reply = timeout(PATIENCE, self.carry(&connection, record)).await.ok().flatten();
        if reply.is_none() {
            // Calls that are being executed go on at the server.
            drop(connection.local.lock().take());
            let mut current = self.connection.lock();
            if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, &connection)) {
                *current = None;
            }
        }
        if self.ended.load(SeqCst) {
            // What is left of the client gets no further.
            return std::future::pending().await;
        }
        reply
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(SeqCst)
    }

    /// Ends the client.
    pub(crate) fn end(&self) {
        self.ended.store(true, SeqCst);
        self.drop_connection();
    }

    /// Has the next reply be lost with its connection.
    pub(crate) fn lose_reply(&self) {
        if !self.world.calm.load(SeqCst) {
            self.loses_reply.store(true, SeqCst);
        }
    }

    /// Ends the connection.
    pub(crate) fn drop_connection(&self) {
        if let Some(connection) = self.connection.lock().take() {
            drop(connection.local.lock().take());
        }
    }

    fn connection(&self) -> Option<Arc<Connection>> {
        let connection = self.connection.lock().clone()?;
        self.is_alive(&connection).then_some(connection)
    }

    fn is_alive(&self, connection: &Connection) -> bool {
        connection.run == self.world.run()
            && self.world.server.lock().is_some()
            && connection.local.lock().is_some()
    }

    fn connect(&self) -> Option<Arc<Connection>> {
        if let Some(connection) = self.connection() {
            return Some(connection);
        }
        if self.world.is_cut_off(self.client) || self.ended.load(SeqCst) {
            return None;
        }
        let to = SocketAddr::from(([192, 0, 2, 1], 2049));
        let local = self.world.server.lock().as_ref()?.server.connect(self.from, to);
        let last = [Mutex::new(Instant::now()), Mutex::new(Instant::now())];
        let local = Mutex::new(Some(local));
        let connection = Arc::new(Connection { local, run: self.world.run(), last });
        *self.connection.lock() = Some(connection.clone());
        tokio::spawn(serve(connection.clone(), self.callee.clone()));
        Some(connection)
    }

    async fn carry(&self, connection: &Arc<Connection>, record: Bytes) -> Option<Bytes> {
        self.travel(&connection.last[0]).await;
        if !self.is_alive(connection) {
            return None;
        }
        if self.world.plant == Some(Plant::Twice) {
            let mut copy = record.to_vec();
            copy[0] ^= 0x80;
            let call = connection.local.lock().as_ref()?.call(copy.into());
            tokio::spawn(call);
        }
        let call = connection.local.lock().as_ref()?.call(record);
        let (tell, told) = oneshot::channel();
        tokio::spawn(async move {
            // The client may not wait any more.
            let _ = tell.send(call.await);
        });
        let reply = told.await.ok()??;
        if self.loses_reply.swap(false, SeqCst) {
            self.world.event(&format!("client {} loses a reply", self.client));
            self.drop_connection();
        }
        if !self.is_alive(connection) {
            return None;
        }
        self.travel(&connection.last[1]).await;
        self.is_alive(connection).then_some(reply)
    }

    /// Waits until a record has arrived that is sent now.
    async fn travel(&self, last: &Mutex<Instant>) {
        let mut latency = Duration::from_millis(1 + self.world.below(20));
        match self.world.below(200) {
            0 => latency += Duration::from_millis(self.world.below(300)),
            1 if !self.world.calm.load(SeqCst) => {
                // It is lost with its connection.
                self.world.event(&format!("a connection of client {} is dropped", self.client));
                self.drop_connection();
            }
            _ => {}
        }
        let at = {
            let mut last = last.lock();
            *last = (*last + Duration::from_nanos(1)).max(Instant::now() + latency);
            *last
        };
        sleep_until(at).await;
        while self.world.is_cut_off(self.client) {
            sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Has the client answer the server's calls over a connection, until the connection ends.
async fn serve(connection: Arc<Connection>, callee: Weak<Client>) {
    loop {
        let Some(calls) = connection.local.lock().as_ref().map(LocalConnection::calls) else {
            return;
        };
        let Some(calls) = calls.await else { return };
        for call in calls {
            let Some(client) = callee.upgrade() else { return };
            client.link.travel(&connection.last[1]).await;
            if !client.link.is_alive(&connection) {
                return;
            }
            let Some(reply) = client.called(call.slice(4..)) else { return };
            client.link.travel(&connection.last[0]).await;
            let Some(replied) = connection.local.lock().as_ref().map(|local| local.call(reply))
            else {
                return;
            };
            // A reply has none.
            replied.await;
        }
    }
}
