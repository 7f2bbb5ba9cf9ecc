//! A mount in one minor version: the state shared by its requests, and lease renewal.

use crate::backoff::Backoff;
use crate::error::{Error, Result};
use crate::protocol::Limits;
use crate::protocol::ProtocolConfig;
use crate::protocol::cookie_verifiers::Verifiers;
use crate::transport::{CallbackService, Connection, Counters};
use crate::v4::attr::{LEASE, Owners, SHORTEST_LEASE, ServerLimits, lease_of};
use crate::v4::open_names::Names;
use crate::v4::requests::{getattr, take};
use crate::v4::session::LastTimeout;
use crate::v4::session::state::{Client, Session};
use crate::v4::state::delegation::table::{Delegations, since_boot};
use crate::v4::state::open_state::Opens;
use crate::v4::whole::WholeFiles;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use weir_base::sync::Mutex;
use weir_nfs::v4::{Error as Nfs4Error, Op, OpRes};
use weir_rpc::OpaqueAuth;

/// A mount over one minor version of NFSv4.
pub(crate) struct V4 {
    /// Itself, for tasks that run as long as the mount exists.
    pub(in crate::v4) me: Weak<Self>,
    pub(in crate::v4) minor: u32,
    pub(in crate::v4) server: Arc<str>,
    pub(in crate::v4) connections: Vec<Connection>,
    pub(in crate::v4) next_connection: AtomicUsize,
    /// The mount's own credential: for the client id and the session.
    pub(in crate::v4) own: OpaqueAuth,
    pub(in crate::v4) hard: bool,
    pub(in crate::v4) client: Client,
    pub(in crate::v4) session: Mutex<Arc<Session>>,
    /// The server compares attributes (VERIFY, NVERIFY).
    pub(in crate::v4) verifies: AtomicBool,
    /// What the server has refused of small files that are written whole.
    pub(in crate::v4) whole: WholeFiles,
    /// The client still has to tell the server that it reclaims nothing.
    pub(in crate::v4) complete_due: AtomicBool,
    /// Held while a session is replaced, or the client introduced.
    pub(in crate::v4) recovering: tokio::sync::Mutex<LastTimeout>,
    /// How long a call of a soft mount waits for its reply.
    pub(in crate::v4) limit: Duration,
    pub(in crate::v4) opens: Opens,
    pub(in crate::v4) delegations: Arc<Delegations>,
    /// Whether to ask for delegations of files opened for reading.
    pub(in crate::v4) wants_delegations: bool,
    pub(in crate::v4) counters: Arc<Counters>,
    pub(in crate::v4) names: Names,
    pub(in crate::v4) readplus: AtomicBool,
    /// Whether to advise the server that data of opens will not be used again.
    pub(in crate::v4) noreuse: AtomicBool,
    /// Largest transfers by the mount's options.
    pub(in crate::v4) asked: Limits,
    pub(in crate::v4) about: OnceLock<ServerLimits>,
    /// How long the server keeps state without renewal, in seconds; 0 until that is known.
    pub(in crate::v4) lease_seconds: AtomicU64,
    /// The server is to be asked for it.
    pub(in crate::v4) lease_due: AtomicBool,
    pub(in crate::v4) owners: Owners,
    pub(in crate::v4) verifiers: Verifiers,
    /// Lease renewal is suspended (see [`fall_silent`](Self::fall_silent)).
    pub(in crate::v4) silent: AtomicBool,
    /// The mount ends: it creates no more sessions, and no client ids.
    pub(in crate::v4) ended: AtomicBool,
}

impl V4 {
    /// Connects and creates a session; `None` if the server does not offer the version.
    pub(crate) async fn begin(config: &ProtocolConfig, minor: u32) -> Result<Option<Arc<Self>>> {
        let delegations: Arc<Delegations> = Arc::default();
        let mut connections = Vec::new();
        for _ in 0..config.options.nconnect {
            let counters: Arc<Counters> = Arc::clone(&config.counters);
            let service = Arc::clone(&delegations);
            let service: Arc<CallbackService> = Arc::new(move |call| service.answer(call));
            let (peer, service) = (config.peer.clone(), (minor > 0).then_some(service));
            connections.push(Connection::open(peer, config.patience, counters, service).await?);
        }
        let v4 = Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            minor,
            server: Arc::clone(&config.peer.name),
            connections,
            next_connection: AtomicUsize::new(0),
            own: config.own.clone(),
            hard: config.options.hard,
            client: Client::new(),
            session: Mutex::new(Session::none()),
            verifies: AtomicBool::new(true),
            whole: WholeFiles::default(),
            complete_due: AtomicBool::new(false),
            recovering: tokio::sync::Mutex::default(),
            limit: config.patience.limit(),
            opens: Opens::default(),
            delegations,
            wants_delegations: config.options.delegations && minor > 0,
            counters: Arc::clone(&config.counters),
            names: Names::default(),
            readplus: AtomicBool::new(config.options.readplus && minor >= 2),
            noreuse: AtomicBool::new(config.options.uncached && minor >= 2),
            asked: Limits {
                read: config.options.rsize as usize,
                write: config.options.wsize as usize,
            },
            about: OnceLock::new(),
            lease_seconds: AtomicU64::new(0),
            lease_due: AtomicBool::new(false),
            owners: Owners::of_this_machine(),
            verifiers: Verifiers::default(),
            silent: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        });
        v4.give_back_what_is_due();
        let begun = match minor {
            0 => v4.null().await,
            _ => v4.establish().await,
        };
        match begun {
            Ok(()) => Ok(Some(v4)),
            Err(Error::Refused { refusal, .. }) if refusal.is_other_version() => Ok(None),
            Err(Error::Status { status, .. }) if status == Nfs4Error::MinorVersMismatch.name() => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// The connection for the next call, in rotation.
    pub(in crate::v4) fn connection(&self) -> &Connection {
        let turn = self.next_connection.fetch_add(1, Relaxed);
        &self.connections[turn % self.connections.len()]
    }

    /// How long the server keeps state without renewal, once that is known.
    pub(in crate::v4) fn lease(&self) -> Option<Duration> {
        let seconds = self.lease_seconds.load(Relaxed);
        (seconds > 0).then(|| Duration::from_secs(seconds))
    }

    /// The pauses between one request's attempts.
    pub(in crate::v4) fn backoff(&self) -> Backoff {
        Backoff::new(self.hard, self.limit)
    }

    pub(in crate::v4) fn set_lease(&self, lease: Duration) {
        self.lease_seconds.store(lease.as_secs(), Relaxed);
    }

    /// The server may have restarted: until it has been asked, the shortest lease holds.
    pub(in crate::v4) fn lease_may_differ(&self) {
        self.set_lease(SHORTEST_LEASE);
        self.lease_due.store(true, Relaxed);
    }

    async fn ask_lease(&self) -> Result<()> {
        // First: a recovery meanwhile asks again.
        self.lease_due.store(false, Relaxed);
        let ops = [Op::Putrootfh(()), getattr(LEASE)];
        let asked = async {
            let answer = self.call(&self.own, "GETATTR", &ops).await?;
            Ok(take!(self, answer, Getattr)?)
        };
        match asked.await {
            Ok(attrs) if !self.lease_due.load(Relaxed) => self.set_lease(lease_of(&attrs)),
            Ok(_) => {}
            Err(error) => {
                self.lease_due.store(true, Relaxed);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Number of reconnects so far.
    pub(in crate::v4) fn reconnects(&self) -> u64 {
        self.counters.reconnects.load(Relaxed)
    }

    pub(in crate::v4) fn has_sessions(&self) -> bool {
        self.minor >= 1
    }

    /// Renews the lease as long as the mount exists, three times in each (one of five seconds: every two). It looks at
    /// the time every second, because the lease may change, and runs on while the machine is suspended.
    pub(in crate::v4) fn keep_alive(self: &Arc<Self>) {
        let mount: Weak<Self> = Arc::downgrade(self);
        tokio::spawn(async move {
            let mut renewed = since_boot();
            loop {
                tokio::time::sleep(Duration::from_secs(1)).await;
                let Some(v4) = mount.upgrade() else { return };
                if v4.connections.iter().any(Connection::has_ended) {
                    return;
                }
                if v4.silent.load(Relaxed) {
                    continue;
                }
                let now = since_boot();
                if v4.lease().is_some_and(|lease| now.saturating_sub(renewed) >= lease / 3) {
                    renewed = now;
                    if let Err(error) = v4.renew().await {
                        tracing::warn!("{error}");
                    }
                }
                // After that: a server may delay its answer.
                if v4.lease_due.load(Relaxed)
                    && let Err(error) = v4.ask_lease().await
                {
                    tracing::debug!("{error}");
                }
            }
        });
    }

    pub(in crate::v4) async fn renew(&self) -> Result<()> {
        if self.has_sessions() {
            return self.call(&self.own, "SEQUENCE", &[]).await.map(drop);
        }
        let id = self.introduce(None).await?;
        match self.call_alone("RENEW", Op::Renew(id)).await? {
            OpRes::Renew(Err(Nfs4Error::StaleClientId | Nfs4Error::Expired)) => {
                self.introduce(Some(id)).await.map(drop)
            }
            // The lease is renewed nevertheless. In this version the mount holds no delegations.
            OpRes::Renew(Ok(()) | Err(Nfs4Error::CbPathDown)) => Ok(()),
            other => Err(self.failure_of("RENEW", &other)),
        }
    }
}
