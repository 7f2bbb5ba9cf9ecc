//! The settings of `weir serve`: one type for the command line and the configuration file.
//!
//! - `file`: the configuration file and its errors. `limits`: its limits. `bind`: addresses to listen
//!   on.
//! - `problem`: an error in the file, with its place and the remedy.

mod bind;
mod file;
mod limits;
mod problem;

pub(crate) use bind::Bind;
pub(crate) use file::{LEASE_SECONDS, MAX_THREADS, load, readable};
pub(crate) use limits::LimitSettings;

use serde::Deserialize;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;
use weir_server::export::{CachePolicy, ClientRule, ExportOptions, Squash};
use weir_server::{AdmissionOptions, Durability, Versions};
use weir_tools::memory::budget_bytes;
use weir_tools::size::Size;

/// The largest default budget, in bytes.
const BUDGET_CAP_BYTES: u64 = 16 << 30;

/// Exports and options of a server.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settings {
    /// Addresses to listen on; if empty, loopback at the default port or the next free one.
    pub(crate) listen: Vec<Bind>,
    /// Memory for the page cache.
    pub(crate) budget: Option<Size>,
    /// The longest stream that an `auto` export caches; a percentage is of the budget.
    pub(crate) stream_limit: Size,
    /// Number of threads that serve calls.
    pub(crate) threads: Option<NonZeroUsize>,
    /// Time that a silent client keeps its state.
    pub(crate) lease: Duration,
    /// Versions of the protocol to offer.
    pub(crate) versions: Versions,
    /// Directory for state that survives a restart.
    pub(crate) state_dir: Option<PathBuf>,
    /// Register with rpcbind.
    pub(crate) rpcbind: bool,
    /// Grant delegations.
    pub(crate) delegations: bool,
    /// Clients may keep the times of files that they have delegated for writing.
    pub(crate) delegated_times: bool,
    /// Keep a journal of changes of names for requests that clients send again after a restart.
    pub(crate) retry_journal: bool,
    /// Address of the metrics server.
    pub(crate) metrics: Option<SocketAddr>,
    /// Domain of the names of users and groups.
    pub(crate) id_domain: Option<String>,
    /// Which callers to trust.
    pub(crate) admission: AdmissionOptions,
    /// What peers may make the server hold.
    pub(crate) limits: LimitSettings,
    /// The exports.
    pub(crate) exports: Vec<ExportSettings>,
}

/// A directory, and how clients may use it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ExportSettings {
    /// The directory, without symbolic links.
    pub(crate) dir: PathBuf,
    /// The path that clients mount.
    pub(crate) name: String,
    pub(crate) read_only: bool,
    pub(crate) squash: SquashArg,
    pub(crate) anon_uid: u32,
    pub(crate) anon_gid: u32,
    pub(crate) clients: Vec<ClientRule>,
    pub(crate) cache: CacheArg,
    pub(crate) durability: DurabilityArg,
}

/// Users of clients that become the anonymous user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum SquashArg {
    /// The superuser
    #[default]
    Root,
    /// Every user
    All,
    /// No user
    None,
}

impl From<SquashArg> for Squash {
    fn from(arg: SquashArg) -> Self {
        match arg {
            SquashArg::Root => Self::Root,
            SquashArg::All => Self::All,
            SquashArg::None => Self::Nobody,
        }
    }
}

/// Data that the page cache keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum CacheArg {
    /// All data, within the budget
    #[default]
    Cached,
    /// No data
    Uncached,
    /// All data except long streams
    Auto,
}

/// Durability of a change of names, attributes or sizes when the server replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DurabilityArg {
    /// The change survives a power failure
    #[default]
    Sync,
    /// A power failure may undo changes of the last seconds
    Relaxed,
}

impl From<DurabilityArg> for Durability {
    fn from(arg: DurabilityArg) -> Self {
        match arg {
            DurabilityArg::Sync => Self::Sync,
            DurabilityArg::Relaxed => Self::Relaxed,
        }
    }
}

/// The anonymous user and group by default.
pub(crate) const NOBODY: u32 = 65534;

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: Vec::new(),
            budget: None,
            stream_limit: Size::Percent(25.0),
            threads: None,
            lease: Duration::from_secs(90),
            versions: Versions::ALL,
            state_dir: None,
            rpcbind: false,
            delegations: true,
            delegated_times: false,
            retry_journal: true,
            metrics: None,
            id_domain: None,
            admission: AdmissionOptions::default(),
            limits: LimitSettings::default(),
            exports: Vec::new(),
        }
    }
}

impl Settings {
    /// Memory for the page cache, in bytes.
    pub(crate) fn budget_bytes(&self) -> u64 {
        budget_bytes(self.budget, BUDGET_CAP_BYTES)
    }

    /// How clients may use an export.
    pub(crate) fn options(&self, export: &ExportSettings) -> ExportOptions {
        ExportOptions {
            read_only: export.read_only,
            squash: export.squash.into(),
            anon_uid: export.anon_uid,
            anon_gid: export.anon_gid,
            clients: export.clients.clone(),
            cache: match export.cache {
                CacheArg::Cached => CachePolicy::Cached,
                CacheArg::Uncached => CachePolicy::Uncached,
                CacheArg::Auto => {
                    let stream_bytes = self.stream_limit.of(self.budget_bytes());
                    CachePolicy::Auto { stream_bytes }
                }
            },
            durability: export.durability.into(),
        }
    }
}
