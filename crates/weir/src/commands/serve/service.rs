//! The running server: start, reload and stop.
//!
//! 1. A reload changes nothing until the whole new configuration is validated.
//! 2. The log names changed settings that need a restart; all others take effect.
//! 3. The service manager is notified when the server serves, reloads and stops. A reload has ended once the data of
//!    exports that it removed is written out, and that of earlier reloads, or [`WRITE_OUT`] after it began.

use super::stores::{Stores, refused, warn_of_key};
use super::{First, announce, control, listen, privileges, state_dir};
use crate::by_signal::end_at_signals;
use crate::commands::runtime_with;
use crate::commands::service_manager::notify;
use crate::config::{ExportSettings, Settings, load};
use crate::ended::Ended;
use parking_lot::Mutex;
use sd_notify::NotifyState;
use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;
use tracing::{error, info, warn};
use weir_pagecache::CachedFs;
use weir_server::export::Export;
use weir_server::registration::LOCAL_RPCBIND;
use weir_server::report::Report;
use weir_server::{Server, ServerConfig};
use weir_tools::failure::{Asked, Failure, Result};
use weir_tools::text::size_text;

/// How long a reload may take to write out removed exports before it counts as ended. An export may be removed because
/// its disk does not answer.
const WRITE_OUT: Duration = Duration::from_secs(30);
/// How long stores may take to close at the end: each syncs its log of names. It ends as soon as all are closed.
const LAST_CLOSES: Duration = Duration::from_secs(30);

/// The arguments of a server's start.
pub(super) struct Start {
    pub(super) settings: Settings,
    /// The file of the settings, read again on reload.
    pub(super) config: Option<PathBuf>,
    /// Options that override the file.
    pub(super) first: First,
    /// Print the exports as JSON.
    pub(super) json: bool,
}

/// Serves until a signal stops the server.
pub(super) fn run(start: Start) -> Result<Ended> {
    let signals = Signals::new()?;
    let settings = &start.settings;
    let below = match (&start.config, &settings.exports[..]) {
        (None, [only]) => Some(state_dir::name_of(&only.dir)),
        _ => None,
    };
    let state_dir = state_dir::make(settings.state_dir.as_deref(), below.as_deref())?;
    warn_of_key(settings, &state_dir);
    let listeners = listen::listeners(&settings.listen)?;
    // Before the first thread starts, because each thread has its own privileges.
    privileges::give_up();
    let runtime = runtime_with(settings.threads)?;
    let ended = runtime.block_on(serve(start, signals, &state_dir, listeners));
    // From now on no task follows these signals: they end the process.
    end_at_signals();
    // A call of a store that does not answer may never end.
    runtime.shutdown_timeout(LAST_CLOSES);
    ended
}

async fn serve(
    start: Start,
    signals: Signals,
    state_dir: &Path,
    listeners: Vec<TcpListener>,
) -> Result<Ended> {
    let Start { settings, config, first, json } = start;
    let addresses: Vec<SocketAddr> = listeners
        .iter()
        .map(TcpListener::local_addr)
        .collect::<io::Result<_>>()
        .asked(|| "listen".into())?;
    let mut stores = Stores::new(settings.budget_bytes(), state_dir)?;
    let mut server = ServerConfig::new(stores.exports(&settings)?, state_dir);
    settings.limits.apply(&mut server);
    server.state.lease = settings.lease;
    server.grace = settings.lease;
    if !settings.delegations {
        server.state.delegations = 0;
    }
    server.delegated_times = settings.delegated_times;
    server.retry_journal = settings.retry_journal;
    server.versions = settings.versions;
    server.id_domain = settings.id_domain.clone();
    server.admission = settings.admission;
    server.rpcbind = settings.rpcbind.then_some(LOCAL_RPCBIND);
    let server = Server::new(server).map_err(|error| refused(&error))?;
    let listeners: Vec<_> = listeners
        .into_iter()
        .map(async_listener)
        .collect::<io::Result<_>>()
        .asked(|| "listen".into())?;
    count(server.report(), settings.metrics).await?;
    if let Some(first) = addresses.first() {
        let registered = server.register(first.port()).await;
        registered.map_err(|error| Failure::new("serve", error.to_string()))?;
    }
    announce::started(&settings, state_dir, &addresses, json)?;
    let status = status(&settings, &addresses);
    notify(&[NotifyState::Ready, NotifyState::Status(&status)]);
    control::listen(server.report(), stores.cache().clone(), status);
    let reloads = Reloads {
        server: server.clone(),
        stores,
        settings,
        addresses,
        state_dir: state_dir.to_owned(),
        config,
        first,
        latest: Arc::default(),
        writing: None,
    };
    tokio::spawn(signals.follow(reloads));
    server.serve_all(listeners).await.asked(|| "write dirty data to disk".into())?;
    Ok(Ended::Done)
}

/// Serves the metrics at an address, and logs them on SIGUSR1.
async fn count(report: Report, address: Option<SocketAddr>) -> Result<()> {
    if let Some(address) = address {
        let listener = tokio::net::TcpListener::bind(address).await;
        let listener = listener.asked(|| format!("listen at {address} for metrics"))?;
        info!("metrics are at http://{}/metrics", listener.local_addr().unwrap_or(address));
        tokio::spawn(weir_server::report::serve(report.clone(), listener));
    }
    let mut asked =
        signal(SignalKind::user_defined1()).asked(|| "listen for SIGUSR1".to_owned())?;
    tokio::spawn(async move {
        while asked.recv().await.is_some() {
            info!("statistics:\n{}", report.summary());
        }
    });
    Ok(())
}

fn async_listener(listener: TcpListener) -> io::Result<tokio::net::TcpListener> {
    listener.set_nonblocking(true)?;
    tokio::net::TcpListener::from_std(listener)
}

fn status(settings: &Settings, addresses: &[SocketAddr]) -> String {
    let at: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let exports: Vec<&str> = settings.exports.iter().map(|export| &*export.name).collect();
    format!("serving {} at {}", exports.join(" "), at.join(" "))
}

/// Signals that control the server.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl Signals {
    /// Installs the handlers: a signal during start takes effect once the server has started. The
    /// temporary runtime has no threads; handlers belong to the process and outlive it.
    fn new() -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        let runtime = runtime.asked(|| "listen to signals".into())?;
        let _within = runtime.enter();
        let listen = |kind| signal(kind).asked(|| "listen to signals".into());
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hang_up: listen(SignalKind::hangup())?,
        })
    }

    /// Follows the signals. A second one to stop ends the process at once.
    async fn follow(mut self, reloads: Reloads) {
        let (server, latest) = (reloads.server.clone(), reloads.latest.clone());
        // `None` while a thread reloads: a directory that does not answer may hold it up.
        let mut idle = Some(reloads);
        let mut reloading: Option<JoinHandle<Reloads>> = None;
        loop {
            tokio::select! {
                () = stop(&mut self.interrupt, &mut self.terminate) => break,
                _ = self.hang_up.recv(), if idle.is_some() => {
                    let number = {
                        let mut latest = latest.lock();
                        *latest += 1;
                        *latest
                    };
                    reloading = idle.take().map(|mut reloads: Reloads| {
                        spawn_blocking(move || {
                            reloads.reload(number);
                            reloads
                        })
                    });
                }
                // A reload does not panic.
                reloaded = async { reloading.as_mut()?.await.ok() }, if reloading.is_some() => {
                    (idle, reloading) = (reloaded, None);
                }
            }
        }
        // No reload ends any more.
        *latest.lock() += 1;
        notify(&[NotifyState::Stopping]);
        server.stop();
        drop(idle);
        stop(&mut self.interrupt, &mut self.terminate).await;
        error!("second signal to stop: ending without writing out dirty data");
        std::process::exit(1);
    }
}

async fn stop(interrupt: &mut Signal, terminate: &mut Signal) {
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

/// The state that a reload changes.
struct Reloads {
    server: Server,
    stores: Stores,
    settings: Settings,
    addresses: Vec<SocketAddr>,
    state_dir: PathBuf,
    config: Option<PathBuf>,
    first: First,
    /// The number of the latest reload; locked while the end of one is told.
    latest: Arc<Mutex<u64>>,
    /// Writes out removed exports.
    writing: Option<JoinHandle<()>>,
}

impl Reloads {
    /// Reads the configuration again and applies it. A configuration with an error changes nothing.
    fn reload(&mut self, number: u64) {
        let Some(config) = self.config.clone() else {
            info!("ignoring SIGHUP: the server has no configuration file (--config)");
            return;
        };
        {
            let latest = self.latest.lock();
            if *latest != number {
                // The server is to stop.
                return;
            }
            if let Ok(state) = NotifyState::monotonic_usec_now() {
                notify(&[NotifyState::Reloading, state]);
            }
        }
        let applied = match load(&config) {
            Ok(settings) => self.apply(settings),
            Err(failure) => Err(failure),
        };
        match applied {
            Ok(removed) => {
                self.end(number, removed);
                // Last: this asks the exports' disks, and one that does not answer holds up nothing else.
                warn_of_key(&self.settings, &self.state_dir);
                announce::warn(&self.settings, &self.addresses);
            }
            Err(failure) => {
                error!("{failure}; keeping the previous configuration");
                self.end(number, Vec::new());
            }
        }
    }

    /// Writes out the stores of removed exports, and then tells the service manager that the reload has ended. Does so
    /// in the background: a disk that does not answer may hold this up, and signals must be followed. Each store can be
    /// exported again until its data is written, and is closed then, also if another one hangs.
    fn end(&mut self, own: u64, removed: Vec<CachedFs>) {
        let write_out = |store: CachedFs| async move {
            if let Err(error) = store.flush().await {
                error!("cannot write out dirty data of a removed export: {error}");
            }
            // Closing it may block.
            _ = spawn_blocking(move || drop(store)).await;
        };
        let written: Vec<_> =
            removed.into_iter().map(|store| tokio::spawn(write_out(store))).collect();
        let (latest, before) = (self.latest.clone(), self.writing.take());
        let tell = move || {
            let latest = latest.lock();
            if *latest == own {
                notify(&[NotifyState::Ready]);
            }
        };
        let write = async move {
            if let Some(before) = before {
                // It does not panic, and nothing aborts it.
                _ = before.await;
            }
            for store in written {
                _ = store.await;
            }
        };
        self.writing = Some(tokio::spawn(async move {
            let mut write = pin!(write);
            let written = timeout(WRITE_OUT, &mut write).await;
            if written.is_err() {
                warn!("dirty data of a removed export is still being written out");
            }
            tell();
            if written.is_err() {
                write.await;
            }
        }));
    }

    /// Applies a configuration. Returns the stores of directories that are no longer exported.
    fn apply(&mut self, mut settings: Settings) -> Result<Vec<CachedFs>> {
        self.first.apply(&mut settings);
        let mut removed = self.stores.mounted();
        let exports = self.stores.exports(&settings)?;
        let is_store =
            |export: &Export, store: &CachedFs| Arc::ptr_eq(export.fs.store(), store.store());
        removed.retain(|store| !exports.iter().any(|export| is_store(export, store)));
        self.server.set_exports(exports).map_err(|error| refused(&error))?;
        self.keep_fixed(&mut settings);
        if settings.budget_bytes() != self.settings.budget_bytes() {
            match self.stores.cache().set_budget(settings.budget_bytes()) {
                Ok(()) => info!("budget changed to {}", size_text(settings.budget_bytes())),
                Err(error) => {
                    let budget = size_text(self.settings.budget_bytes());
                    warn!("`budget` stays {budget} until the server restarts: {error}");
                    settings.budget = self.settings.budget;
                }
            }
        }
        if settings.lease != self.settings.lease {
            match self.server.set_lease(settings.lease) {
                Ok(()) => info!("lease changed to {:?}", settings.lease),
                Err(_) => {
                    warn!(
                        "`lease` stays {:?} until the server restarts: clients know it, and would renew \
                         a shorter one too late",
                        self.settings.lease
                    );
                    settings.lease = self.settings.lease;
                }
            }
        }
        if settings.admission != self.settings.admission {
            self.server.set_admission(settings.admission);
            info!("admission rules changed: {:?}", settings.admission);
        }
        let earlier = std::mem::replace(&mut self.settings, settings);
        log_exports(&earlier.exports, &self.settings.exports);
        Ok(removed)
    }

    /// Restores settings that need a restart, and logs them.
    fn keep_fixed(&self, new: &mut Settings) {
        macro_rules! keep {
            ($($field:ident)*) => {
                $(if new.$field != self.settings.$field {
                    warn!("`{}` changes when the server restarts", stringify!($field));
                    new.$field = self.settings.$field.clone();
                })*
            };
        }
        keep!(listen threads versions state_dir rpcbind delegations delegated_times retry_journal metrics id_domain limits);
    }
}

/// Logs added, changed and removed exports.
fn log_exports(before: &[ExportSettings], after: &[ExportSettings]) {
    let by_name: HashMap<&str, &ExportSettings> =
        before.iter().map(|export| (&*export.name, export)).collect();
    for export in after {
        match by_name.get(&*export.name) {
            None => info!("{}: export added", export.name),
            Some(was) if *was != export => info!("{}: export options changed", export.name),
            Some(_) => {}
        }
    }
    for export in before.iter().filter(|was| after.iter().all(|now| now.name != was.name)) {
        info!("{}: export removed", export.name);
    }
}
