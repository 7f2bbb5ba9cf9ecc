//! The server: its exports, its state directory and its programs.

use crate::admission::{Addresses, Admission, AdmissionOptions, Descriptors};
use crate::export::{Export, Exports, ExportsError};
use crate::handle::Handles;
use crate::locks::host_network::{HostAccess, HostNetwork};
use crate::locks::nlm::{self, Nlm4};
use crate::locks::notify;
use crate::locks::nsm::{Confirm, Nsm1, Restart};
use crate::program::{ProgramId, Programs};
use crate::registration::{self, RegisterError};
use crate::report::{LimitsReport, Report};
use crate::services::Services;
use crate::state::{self, Grace, Ids, State};
use crate::storage::recovery::{OpenRecords, Recovery};
use crate::storage::retry_journal::RetryJournal;
use crate::transport::{LocalConnection, Transport, TransportLimits};
use crate::v3::{self, Mount3, Nfs3, NfsAcl3};
use crate::v4::{self, Nfs4};
use crate::versions::Versions;
use parking_lot::Mutex;
use socket2::SockRef;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use weir_base::{Clock, RunningClock, SystemClock};

/// The configuration of a server.
#[derive(Clone)]
pub struct ServerConfig {
    /// The exports; see [`ExportTable`](crate::export::ExportTable) for the tree that clients see.
    pub exports: Vec<Export>,
    /// The directory for the filehandle key and the state that survives a restart; created if
    /// missing.
    pub state_dir: PathBuf,
    /// Limits on connections.
    pub transport: TransportLimits,
    /// Limits on clients' state, and the lease.
    pub state: state::Limits,
    /// How long clients may reclaim their state after a restart; longer by what the lease was longer in the run before.
    pub grace: Duration,
    /// The port mapper to register the programs with; usually
    /// [`LOCAL_RPCBIND`](crate::registration::LOCAL_RPCBIND). `None` for no registration.
    pub rpcbind: Option<SocketAddr>,
    /// The port of clients' port mappers, through which the lock manager finds theirs.
    pub clients_rpcbind: u16,
    /// Calls clients' lock managers and status monitors in the place of connections to them.
    pub host_network: Option<Arc<dyn HostNetwork>>,
    /// The server accepts restart notices from ports below this only, which only the client's
    /// superuser may bind. Usually 1024.
    pub notice_ports_below: u16,
    /// The offered protocol versions.
    pub versions: Versions,
    /// Which credentials the server accepts.
    pub admission: AdmissionOptions,
    /// The domain after owner and group names in NFSv4. `None`: owners and groups are sent as
    /// numbers.
    pub id_domain: Option<String>,
    /// Whether clients that ask for it answer for the times of files that they have delegated for
    /// writing (RFC 9754 section 5). Off as usual: Linux's client then loses times before the
    /// delegation that a program sets.
    pub delegated_times: bool,
    /// Whether to keep a journal of the changes of names in `state_dir`, so that a request that a
    /// client sends again after the server was killed is not executed twice. On as usual. Has no
    /// effect with `records`.
    pub retry_journal: bool,
    /// The clock. As usual it leaves out time in which this process does not run, so that no client loses its lease
    /// by that.
    pub clock: Arc<dyn Clock>,
    /// Opens the database for client records. `None`: a file in `state_dir`.
    pub records: Option<OpenRecords>,
    /// How many file descriptors the server and its stores may use. `None`: as many as the process
    /// (RLIMIT_NOFILE).
    pub descriptors: Option<usize>,
}

impl ServerConfig {
    /// Serves `exports` with state in `state_dir` and defaults for everything else.
    pub fn new(exports: Vec<Export>, state_dir: impl Into<PathBuf>) -> Self {
        let state = state::Limits::default();
        Self {
            exports,
            state_dir: state_dir.into(),
            transport: TransportLimits::default(),
            grace: state.lease,
            state,
            rpcbind: None,
            clients_rpcbind: weir_rpc::rpcbind::PORT,
            host_network: None,
            notice_ports_below: 1024,
            versions: Versions::ALL,
            admission: AdmissionOptions::default(),
            id_domain: None,
            delegated_times: false,
            retry_journal: true,
            clock: Arc::new(RunningClock::<SystemClock>::default()),
            records: None,
            descriptors: None,
        }
    }
}

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The exports cannot be served together.
    #[error(transparent)]
    Exports(#[from] ExportsError),
    /// The state directory cannot be used.
    #[error("cannot use the state directory {}: {source}", path.display())]
    StateDir {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The state database cannot be used.
    #[error("cannot use the state database in {}: {source}; does another server run on it?", path.display())]
    Database {
        /// Where.
        path: PathBuf,
        /// Why.
        source: Box<redb::Error>,
    },
}

/// The lease cannot be shortened, because clients know a longer one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("clients know a longer lease")]
pub struct ShorterLease;

/// An NFS server.
#[derive(Clone)]
pub struct Server {
    pub(crate) services: Arc<Services>,
    /// `None` if no minor version of NFSv4 is offered.
    nfs4: Option<Arc<Nfs4>>,
    run: u32,
    transport: Arc<Transport>,
    admission: Arc<Admission>,
    locks: Arc<Nlm4>,
    callbacks: Arc<nlm::HostCalls>,
    pub(crate) monitor: Arc<Nsm1>,
    /// The restart notices for hosts that held locks in the previous run.
    restart: Arc<Restart>,
    programs: Vec<ProgramId>,
    /// The port mapper, and the programs registered with it.
    rpcbind: Option<SocketAddr>,
    registered: Arc<Mutex<Vec<ProgramId>>>,
    stop: CancellationToken,
}

impl Server {
    /// Opens the state directory and prepares to serve.
    ///
    /// # Errors
    /// The configuration or the state directory cannot be used.
    pub fn new(config: ServerConfig) -> Result<Self, ServerError> {
        let ServerConfig { exports, state_dir: path, grace, clock, .. } = config;
        let ServerConfig { mut transport, mut state, records, .. } = config;
        let ServerConfig { rpcbind, clients_rpcbind, versions, admission, .. } = config;
        let ServerConfig { id_domain, delegated_times, .. } = config;
        let notice_ports_below = config.notice_ports_below;
        let in_dir = |source| ServerError::StateDir { path: path.clone(), source };
        std::fs::create_dir_all(&path).map_err(in_dir)?;
        let handles = Handles::open(&path).map_err(in_dir)?;
        let identity = handles.identity();
        let (journals, lease) = (config.retry_journal && records.is_none(), state.lease);
        let (recovery, recovered) = records
            .map_or_else(|| Recovery::open(&path, lease), |it| Recovery::open_with(it, lease))
            .map_err(|e| ServerError::Database { path: path.clone(), source: Box::new(e) })?;
        // The database is locked, so no other server uses the directory.
        let journal = if journals { RetryJournal::open } else { RetryJournal::off };
        let retries = journal(&path);
        // Clients come back when they renew, which those of an earlier run with a longer lease do later.
        let grace = grace + recovered.lease.saturating_sub(lease);
        let returning = recovered.clients.len() + recovered.hosts.len();
        if returning > 0 {
            info!("{returning} clients may reclaim their state for {grace:?}");
        }
        let hosts = recovered.hosts.iter().map(|h| h.host);
        let grace = Grace::new(clock.monotonic() + grace, recovered.clients)
            .with_hosts(hosts.clone())
            .with_longer_lease(recovered.lease > lease);
        let exports = Arc::new(Exports::open(exports, handles, &path)?);
        let descriptors = config.descriptors.map_or_else(Descriptors::of_process, Descriptors::of);
        transport.connections = transport.connections.min(descriptors.connections);
        state.opens = state.opens.min(descriptors.opens);
        state.delegations = state.delegations.min(descriptors.delegations);
        state.store_locks = state.store_locks.min(descriptors.store_locks);
        let max_owners = state.opens + state.locks;
        let max_clients = state.clients;
        let owner_bytes = usize::try_from(state.owner_bytes).unwrap_or(usize::MAX);
        let ids = Ids::random(recovered.run).map_err(in_dir)?;
        let state = State::new(ids, state, grace);
        let (run, stop) = (recovered.run, CancellationToken::new());
        let services =
            Services::new(exports.clone(), state, recovery, retries, run, clock.clone(), &stop);
        let services = Arc::new(services);
        hosts.for_each(|host| services.state.lock().nlm_remembered(host, clock.monotonic()));
        let hosts = HostAccess { mapper_port: clients_rpcbind, network: config.host_network };
        let callbacks = nlm::HostCalls::new(hosts.clone(), stop.clone());
        let confirm = Confirm {
            state: services.state.clone(),
            hosts: hosts.clone(),
            ports_below: notice_ports_below,
            stop: stop.child_token(),
        };
        let monitor = Arc::new(Nsm1::new(recovered.run, clock.clone(), confirm));
        let locks = Arc::new(Nlm4::new(services.clone(), callbacks.clone(), monitor.clone()));
        let restart = Arc::new(Restart::new(recovered.run, recovered.hosts, hosts));
        let mut programs = Programs::default();
        let mut nfs4 = None;
        if versions.intersects(Versions::V4) {
            let record_bytes = transport.record_bytes;
            let options = v4::Options {
                versions,
                record_bytes,
                identity,
                id_domain,
                delegated_times,
                max_owners,
                owner_bytes,
            };
            let nfs = Arc::new(Nfs4::new(services.clone(), options, stop.child_token()));
            programs.add(nfs.clone());
            nfs4 = Some(nfs);
        }
        if versions.contains(Versions::V3) {
            let Services { committer, retries, recalls, metrics, .. } = &*services;
            let (committer, retries) = (committer.clone(), retries.clone());
            let (recalls, metrics) = (recalls.clone(), metrics.clone());
            let files = v3::OpenFiles::new(descriptors.v3_files);
            let nfs3 =
                Nfs3::new(exports.clone(), committer, retries, clock, recalls, metrics, files);
            let nfs3 = Arc::new(nfs3);
            programs.add(nfs3.clone());
            programs.add(Arc::new(NfsAcl3::new(nfs3)));
            programs.add(Arc::new(Mount3::new(exports)));
            programs.add(locks.clone());
            programs.add(monitor.clone());
        }
        let ids = programs.ids();
        let own_uid = rustix::process::geteuid().as_raw();
        let admission = Arc::new(Admission::new(admission, own_uid));
        let transport = Arc::new(Transport::new(
            transport,
            max_clients,
            programs,
            admission.clone(),
            stop.clone(),
        ));
        Ok(Self {
            services,
            nfs4,
            run: recovered.run,
            transport,
            admission,
            locks,
            callbacks,
            monitor,
            restart,
            programs: ids,
            rpcbind,
            registered: Arc::default(),
            stop,
        })
    }

    /// Registers the server's programs at `port` with the configured port mapper, if any.
    /// [`serve`](Self::serve) removes the registration when it ends.
    ///
    /// # Errors
    /// The registration failed.
    pub async fn register(&self, port: u16) -> Result<(), RegisterError> {
        if let Some(mapper) = self.rpcbind {
            let registered = registration::register(mapper, &self.programs, port).await?;
            *self.registered.lock() = registered;
        }
        Ok(())
    }

    /// As [`serve_all`](Self::serve_all), for one listener.
    ///
    /// # Errors
    /// Dirty data could not be written, or there is no thread for the clock.
    pub async fn serve(&self, listener: TcpListener) -> io::Result<()> {
        self.serve_all(vec![listener]).await
    }

    /// Serves connections to the listeners until [`stop`](Self::stop), then completes the calls in
    /// progress and writes back dirty data.
    ///
    /// # Errors
    /// Dirty data could not be written, or there is no thread for the clock.
    pub async fn serve_all(&self, listeners: Vec<TcpListener>) -> io::Result<()> {
        let _ticks = tick(self.services.clock.clone())?;
        self.services.retries.resolve(&self.services.exports.table()).await;
        let server = self.clone();
        let sweeper = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(Duration::from_secs(1));
            loop {
                ticks.tick().await;
                server.sweep().await;
            }
        });
        let mut beside = JoinSet::new();
        beside.spawn(self.locks.clone().run());
        beside.spawn(notify::run(
            self.services.state.clone(),
            self.services.exports.clone(),
            self.services.callbacks.clone(),
        ));
        beside.spawn(self.restart.clone().tell());
        for listener in listeners.iter().filter(|_| self.offers_v3()) {
            match listener.local_addr() {
                Ok(address) => {
                    let only_v6 = address.is_ipv6() && SockRef::from(listener).only_v6()?;
                    beside.spawn(self.monitor.clone().listen(address, only_v6));
                }
                Err(error) => warn!("cannot receive restart notices of clients by UDP: {error}"),
            }
        }
        self.transport.clone().serve(listeners).await;
        sweeper.abort();
        beside.shutdown().await;
        self.services.retries.flush();
        // Records that the sweeper or an aborted call had not written yet.
        self.services.write_records().await;
        self.callbacks.stopped().await;
        let registered = std::mem::take(&mut *self.registered.lock());
        if let Some(mapper) = self.rpcbind
            && let Err(error) = registration::withdraw(mapper, &registered).await
        {
            warn!("{error}");
        }
        for export in self.services.exports.table().all() {
            export.fs().cache().flush().await?;
        }
        Ok(())
    }

    /// Serves these exports from the next request on. An export that exists already, with the same
    /// path and source directory, keeps its filehandles. The filehandles of a removed export become
    /// stale, and files that clients had open in it are closed.
    ///
    /// # Errors
    /// The exports cannot be served together. The previous exports are then still served.
    pub fn set_exports(&self, exports: Vec<Export>) -> Result<(), ServerError> {
        for gone in self.services.exports.replace(exports)? {
            self.services.state.lock().drop_export(gone);
        }
        Ok(())
    }

    /// Sets the lease time.
    ///
    /// # Errors
    /// The lease is shorter than the current one, by which clients renew.
    pub fn set_lease(&self, lease: Duration) -> Result<(), ShorterLease> {
        self.services.state.lock().extend_lease(lease).then_some(()).ok_or(ShorterLease)
    }

    /// Sets the admission options from the next call on.
    pub fn set_admission(&self, options: AdmissionOptions) {
        self.admission.set(options);
    }

    /// A live view of the server's counters.
    pub fn report(&self) -> Report {
        let Services { metrics, exports, state, .. } = &*self.services;
        let (addresses, state) = (self.addresses().clone(), state.clone());
        let nfs4 = self.nfs4.clone();
        let limits = move || {
            let owners: Vec<_> = nfs4.iter().map(|nfs4| nfs4.owners.limit_use()).collect();
            let state = state.lock();
            LimitsReport {
                uses: [addresses.uses(), state.limit_uses(), owners].concat(),
                refusals: [addresses.refusals(), state.refusals()].concat(),
            }
        };
        let connections = self.transport.open_connections().clone();
        Report::new(metrics.clone(), exports.clone(), Arc::new(limits), connections)
    }

    /// What each address holds of the transport's limits.
    pub(crate) fn addresses(&self) -> &Arc<Addresses> {
        self.transport.addresses()
    }

    /// Runs every second and expires what has reached its time limit. It waits for no store,
    /// because a store that hangs would delay the expiry of every lease.
    pub(crate) async fn sweep(&self) {
        let Services { state, recalls, .. } = &*self.services;
        let now = self.services.now();
        state.lock().sweep(now);
        self.addresses().sweep();
        recalls.look_again();
        recalls.look_at_files();
        if let Some(nfs4) = &self.nfs4 {
            nfs4.sweep();
        }
        self.services.write_records().await;
    }

    fn offers_v3(&self) -> bool {
        self.programs.iter().any(|id| id.program == weir_nfs::nlm::PROGRAM)
    }

    /// Opens a connection without a socket, from a client at `from` to the server at `to`. The
    /// server must run [`serve_all`](Self::serve_all), which needs no listener for this.
    pub fn connect(&self, from: SocketAddr, to: SocketAddr) -> LocalConnection {
        LocalConnection::new(self.transport.clone(), [from, to])
    }

    /// Tells [`serve`](Self::serve) to end.
    pub fn stop(&self) {
        self.stop.cancel();
    }
}

/// Has a clock that needs it tick until the result is dropped: in a thread of its own, since all that run tasks may be
/// held up.
fn tick(clock: Arc<dyn Clock>) -> io::Result<Option<mpsc::Sender<()>>> {
    if clock.tick().is_none() {
        return Ok(None);
    }
    let (ticks, ended) = mpsc::channel::<()>();
    let run = move || {
        while let Some(pause) = clock.tick()
            && ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout)
        {}
    };
    std::thread::Builder::new().name("clock".into()).spawn(run)?;
    Ok(Some(ticks))
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("run", &self.run).finish_non_exhaustive()
    }
}
