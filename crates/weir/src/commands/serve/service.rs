//! The running server: started, told to reload, told to stop.
//!
//! 1. A reload changes nothing until all of the new configuration is known to be good.
//! 2. What takes a restart to change is named in the log; the rest is changed.
//! 3. Who started the server is told when it serves, when it reloads and when it stops.

use super::stores::{Stores, refused, warn_of_key};
use super::{First, announce, listen, privileges, state_dir};
use crate::commands::runtime_with;
use crate::config::{ExportSettings, Settings, load};
use crate::ended::Ended;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sd_notify::NotifyState;
use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{debug, error, info, warn};
use weir_server::report::Report;
use weir_server::registration::LOCAL_RPCBIND;
use weir_server::{Server, ServerConfig};
use weir_tools::failure::{Asked, Failure, Result};
use weir_tools::text::size_text;

/// How a server is started.
pub(super) struct Start {
    pub(super) settings: Settings,
    /// Where the settings are from, and are read again.
    pub(super) config: Option<PathBuf>,
    /// What comes before them.
    pub(super) first: First,
    /// Say what is served as JSON.
    pub(super) json: bool,
}

/// Serves until told to stop.
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
    raise_descriptor_limit();
    // Before the first thread is started, as privileges are a thread's own.
    privileges::give_up();
    runtime_with(settings.threads)?.block_on(serve(start, signals, &state_dir, listeners))
}

/// Every connection and every open file is a descriptor, and shells allow 1,024 by default.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        warn!("cannot have more than {:?} descriptors: {error}", limit.current);
    }
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
    server.state.lease = settings.lease;
    server.grace = settings.lease;
    if !settings.delegations {
        server.state.delegations = 0;
    }
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
    let reloads = Reloads { server: server.clone(), stores, settings, config, first };
    tokio::spawn(signals.follow(reloads));
    server.serve_all(listeners).await.asked(|| "write out what was dirty".into())?;
    Ok(Ended::Done)
}

/// Makes the counters readable at an address, and logs them on SIGUSR1.
async fn count(report: Report, address: Option<SocketAddr>) -> Result<()> {
    if let Some(address) = address {
        let listener = tokio::net::TcpListener::bind(address).await;
        let listener = listener.asked(|| format!("listen at {address} for metrics"))?;
        info!("counters are at http://{}/metrics", listener.local_addr().unwrap_or(address));
        tokio::spawn(weir_server::report::serve(report.clone(), listener));
    }
    let mut asked =
        signal(SignalKind::user_defined1()).asked(|| "listen for SIGUSR1".to_owned())?;
    tokio::spawn(async move {
        while asked.recv().await.is_some() {
            info!("so far:\n{}", report.summary());
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

/// Tells systemd, if it started this (sd_notify(3)).
fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        debug!("systemd was not told: {error}");
    }
}

/// What the server is told from outside.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl Signals {
    /// From here on, whoever tells the server to stop is heard, if only once it has started. The
    /// runtime that this takes has no threads and does not last: signals are the process's.
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

    /// Does as told. Told to stop twice, the process ends at once.
    async fn follow(mut self, mut reloads: Reloads) {
        loop {
            tokio::select! {
                () = stop(&mut self.interrupt, &mut self.terminate) => break,
                _ = self.hang_up.recv() => reloads.reload().await,
            }
        }
        notify(&[NotifyState::Stopping]);
        reloads.server.stop();
        drop(reloads);
        stop(&mut self.interrupt, &mut self.terminate).await;
        error!("told to stop twice: ending without writing out what is dirty");
        std::process::exit(1);
    }
}

async fn stop(interrupt: &mut Signal, terminate: &mut Signal) {
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

/// What a reload changes.
struct Reloads {
    server: Server,
    stores: Stores,
    settings: Settings,
    config: Option<PathBuf>,
    first: First,
}

impl Reloads {
    /// Reads the configuration again and applies it; if it is bad, all stays as it is.
    async fn reload(&mut self) {
        let Some(config) = self.config.clone() else {
            info!("told to reload, but started without a configuration file (--config)");
            return;
        };
        if let Ok(state) = NotifyState::monotonic_usec_now() {
            notify(&[NotifyState::Reloading, state]);
        }
        let applied = match load(&config) {
            Ok(settings) => self.apply(settings).await,
            Err(failure) => Err(failure),
        };
        if let Err(failure) = applied {
            error!("{failure}; what was configured before goes on");
        }
        notify(&[NotifyState::Ready]);
    }

    async fn apply(&mut self, mut settings: Settings) -> Result<()> {
        self.first.apply(&mut settings);
        let exports = self.stores.exports(&settings)?;
        self.server.set_exports(exports).map_err(|error| refused(&error))?;
        self.keep_fixed(&mut settings);
        if settings.budget_bytes() != self.settings.budget_bytes() {
            match self.stores.cache().set_budget(settings.budget_bytes()) {
                Ok(()) => info!("the budget is {}", size_text(settings.budget_bytes())),
                Err(error) => {
                    let budget = size_text(self.settings.budget_bytes());
                    warn!("`budget` stays {budget} until the server is started again: {error}");
                    settings.budget = self.settings.budget;
                }
            }
        }
        if settings.lease != self.settings.lease {
            match self.server.set_lease(settings.lease) {
                Ok(()) => info!("the lease is {:?}", settings.lease),
                Err(_) => {
                    warn!(
                        "`lease` stays {:?} until the server is started again: clients know it, \
                         and would be late by a shorter one",
                        self.settings.lease
                    );
                    settings.lease = self.settings.lease;
                }
            }
        }
        if settings.admission != self.settings.admission {
            self.server.set_admission(settings.admission);
            info!("clients are believed by new rules: {:?}", settings.admission);
        }
        let before = std::mem::replace(&mut self.settings, settings);
        if log_exports(&before.exports, &self.settings.exports)
            && let Err(error) = self.stores.cache().flush().await
        {
            error!("what is dirty of an export that is gone cannot be written out: {error}");
        }
        Ok(())
    }

    /// Puts back what takes a restart to change, and says so.
    fn keep_fixed(&self, new: &mut Settings) {
        macro_rules! keep {
            ($($field:ident)*) => {
                $(if new.$field != self.settings.$field {
                    warn!("`{}` changes when the server is started again", stringify!($field));
                    new.$field = self.settings.$field.clone();
                })*
            };
        }
        keep!(listen threads versions state_dir rpcbind delegations metrics id_domain);
    }
}

/// Says what is exported now and was not before, and so on; whether some directory is let go of.
fn log_exports(before: &[ExportSettings], after: &[ExportSettings]) -> bool {
    let by_name: HashMap<&str, &ExportSettings> =
        before.iter().map(|export| (&*export.name, export)).collect();
    for export in after {
        match by_name.get(&*export.name) {
            None => info!("{} is exported now", export.name),
            Some(was) if *was != export => info!("{} is exported otherwise", export.name),
            Some(_) => {}
        }
    }
    for export in before.iter().filter(|was| after.iter().all(|now| now.name != was.name)) {
        info!("{} is not exported any more", export.name);
    }
    before.iter().any(|was| after.iter().all(|now| now.dir != was.dir))
}
