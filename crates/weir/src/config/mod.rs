//! What `weir serve` is to do: one type, whether it comes from the command line or from a file.
//!
//! - `file`: the configuration file, and what can be wrong with it. `bind`: where to listen.
//! - `problem`: where in the file something is wrong, and what to do.

mod bind;
mod file;
mod problem;

pub(crate) use bind::Bind;
pub(crate) use file::{LEASE_SECONDS, MAX_THREADS, load, readable};

use serde::Deserialize;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;
use weir_server::export::{CachePolicy, ClientRule, ExportOptions, Squash};
use weir_server::{AdmissionOptions, Durability, Versions};
use weir_tools::memory::budget_bytes;
use weir_tools::size::Size;

/// The most memory that the cache takes unless it is told to take more, in bytes.
const BUDGET_CAP_BYTES: u64 = 16 << 30;

/// What to serve, where and how.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settings {
    /// Where to listen; nothing: on loopback, at the usual port or the next one that is free.
    pub(crate) listen: Vec<Bind>,
    /// Memory for the page cache.
    pub(crate) budget: Option<Size>,
    /// The longest stream that stays in the cache of an `auto` export; a share is of the budget.
    pub(crate) stream_limit: Size,
    /// Threads that serve calls.
    pub(crate) threads: Option<NonZeroUsize>,
    /// How long a silent client keeps what it has.
    pub(crate) lease: Duration,
    /// Which versions of the protocol are offered.
    pub(crate) versions: Versions,
    /// Where to keep what must survive a restart.
    pub(crate) state_dir: Option<PathBuf>,
    /// Tell rpcbind where the server is.
    pub(crate) rpcbind: bool,
    /// Give delegations to clients.
    pub(crate) delegations: bool,
    /// Where counters are to be read.
    pub(crate) metrics: Option<SocketAddr>,
    /// The domain of users' and groups' names.
    pub(crate) id_domain: Option<String>,
    /// Whose calls are believed.
    pub(crate) admission: AdmissionOptions,
    /// What is served.
    pub(crate) exports: Vec<ExportSettings>,
}

/// A directory, and how clients may use it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ExportSettings {
    /// The directory, without symbolic links.
    pub(crate) dir: PathBuf,
    /// Where clients find it.
    pub(crate) name: String,
    pub(crate) read_only: bool,
    pub(crate) squash: SquashArg,
    pub(crate) anon_uid: u32,
    pub(crate) anon_gid: u32,
    pub(crate) clients: Vec<ClientRule>,
    pub(crate) cache: CacheArg,
    pub(crate) durability: DurabilityArg,
}

/// Whose identities are not taken as they come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum SquashArg {
    /// The superuser
    #[default]
    Root,
    /// Everybody
    All,
    /// Nobody
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

/// What stays in the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum CacheArg {
    /// All that is used, as far as the budget goes
    #[default]
    Cached,
    /// Nothing
    Uncached,
    /// All but long streams
    Auto,
}

/// What a reply to a change of names, attributes or sizes promises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DurabilityArg {
    /// The change survives a power failure
    #[default]
    Sync,
    /// A power failure may undo what was answered in the seconds before it
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

/// The user and the group of nobody.
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
            metrics: None,
            id_domain: None,
            admission: AdmissionOptions::default(),
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
