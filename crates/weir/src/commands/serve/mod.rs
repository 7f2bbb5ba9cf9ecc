//! `weir serve`: turns the command line or a configuration file into settings, and runs `service`.
//!
//! - `listen`, `state_dir`, `stores`, `privileges`: sockets, directories and rights of the server.
//! - `announce`: the output at start. `service`: the running server and its signals. `control`: its answers to
//!   `weir status` and the like.

mod announce;
mod control;
mod listen;
mod privileges;
mod service;
mod state_dir;
mod stores;

use crate::arguments::JsonArgs;
use crate::config::{
    Bind, CacheArg, DurabilityArg, ExportSettings, LEASE_SECONDS, MAX_THREADS, NOBODY, Settings,
    SquashArg, load, readable,
};
use crate::ended::Ended;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;
use weir_server::export::{ClientAccess, ClientRule, Network};
use weir_server::{AdmissionOptions, Versions};
use weir_tools::failure::{Asked, Failure, Result};
use weir_tools::memory::check_budget;
use weir_tools::size::Size;

/// Serve directories over NFS
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  weir serve /srv/images                          to this machine, on port 2049 or the next free one
  weir serve --bind 0.0.0.0 --clients 192.0.2.0/24 /srv/images
  weir serve --bind 192.0.2.1:3049 --read-only --squash all /srv/images
  weir serve --budget 50% --cache auto --log debug /srv/images
  weir serve --config /etc/weir.toml              several directories
  weir serve --config /etc/weir.toml --check      print the settings without serving

Clients mount a directory given here as `/`; weir serve prints the mount command. In a \
configuration file, each directory has a name: NFSv4 clients see all directories below `/`, and \
NFSv3 clients mount each by its name. An example:

  [server]
  listen = \"0.0.0.0:2049\"

  [[export]]
  path = \"/srv/images\"
  name = \"/images\"
  read_only = true
  clients = [\"192.0.2.0/24\", { network = \"192.0.2.9\", access = \"none\" }]
  cache = \"auto\"

  [[export]]
  path = \"/srv/projects\"

`dist/weir.toml` explains every key. Errors in the file are reported with line and column. On \
SIGHUP the server reads the file again: exports and their options change at once, clients keep \
their open files, and the log names settings that need a restart. A file with an error changes \
nothing.

NFSv3, 4.0, 4.1, 4.2 and the MOUNT protocol share one port. The server needs neither root nor \
rpcbind (--rpcbind registers it there). Run as root, it accesses files as the user that a client \
sends, after --squash, and drops all privileges that this does not need. Run as another user, it \
accesses all files as that user. SIGTERM and SIGINT write out dirty data and end the server; \
SIGUSR1 logs statistics by operation.")]
pub(crate) struct Args {
    /// The directory to serve
    #[arg(value_name = "DIR", required_unless_present = "config", conflicts_with = "config")]
    dir: Option<PathBuf>,
    /// Take DIR and the options on exports and server from this file instead
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the settings or the errors in them, and exit
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    export: ExportArgs,
    /// Serve metrics in Prometheus's format at /metrics: an address and port, or a port of the
    /// loopback address
    #[arg(long, value_name = "ADDR:PORT")]
    metrics: Option<Bind>,
    /// Send NFSv4 clients owners and groups as name@DOMAIN [default: as numbers]
    #[arg(long, value_name = "DOMAIN")]
    id_domain: Option<String>,
    /// Log level: error, warn, info, debug or trace; by module, as in weir_server=debug,info
    #[arg(long, value_name = "FILTER", default_value = "info")]
    log: String,
    #[command(flatten)]
    json: JsonArgs,
}

#[derive(clap::Args)]
struct ServerArgs {
    /// Address, port or both to listen on; may be repeated [default: 127.0.0.1:2049, or
    /// the next free port]
    #[arg(long, value_name = "ADDR:PORT", conflicts_with = "config")]
    bind: Vec<Bind>,
    /// Memory for the page cache: 512M, 2GiB, or 50% of memory [default: a quarter of memory, at
    /// most 16G]
    #[arg(long, value_name = "SIZE", conflicts_with = "config")]
    budget: Option<Size>,
    /// With --cache auto, the longest stream that is cached: 1G, or 25% of the budget
    /// [default: 25%]
    #[arg(long, value_name = "SIZE", conflicts_with = "config")]
    stream_limit: Option<Size>,
    /// Number of threads that serve calls [default: one for each processor, at least 4]
    #[arg(long, value_name = "N", conflicts_with = "config", value_parser = threads)]
    threads: Option<NonZeroUsize>,
    /// Lease: time that a silent client keeps its opens and locks, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "90", conflicts_with = "config")]
    #[arg(value_parser = clap::value_parser!(u32).range(
        i64::from(*LEASE_SECONDS.start())..=i64::from(*LEASE_SECONDS.end())
    ))]
    lease: u32,
    /// Versions of NFS to offer: 3, 4.0, 4.1, 4.2, or 4 for 4.0 to 4.2 [default: all]
    #[arg(long, value_name = "VERSION", value_delimiter = ',', conflicts_with = "config")]
    versions: Vec<Versions>,
    /// Directory for state that survives a restart [default: one for each DIR, below
    /// /var/lib/weir for root, else below $XDG_STATE_HOME/weir or ~/.local/state/weir]
    #[arg(long, value_name = "DIR", conflicts_with = "config")]
    state_dir: Option<PathBuf>,
    /// Register with this machine's rpcbind, for `showmount` and for clients without port options
    #[arg(long, conflicts_with = "config")]
    rpcbind: bool,
    /// Grant no delegations: clients send every open to the server
    #[arg(long, conflicts_with = "config")]
    no_delegations: bool,
    /// Let clients that ask for it keep the times of files that they have delegated for writing, and
    /// send them when they return the delegation. Linux clients then lose times that a program sets
    /// back, as `touch -d` and `cp -p` do
    #[arg(long, conflicts_with = "config")]
    delegated_times: bool,
    /// Keep no journal of changes of names in the state directory. A request that a client sends again
    /// after the server was killed may then be executed twice: a completed rename reports that the
    /// file does not exist
    #[arg(long, conflicts_with = "config")]
    no_retry_journal: bool,
    /// Let any client act as any user, also from ports of 1024 and above, and on this machine from
    /// programs of other users
    #[arg(long, conflicts_with = "config")]
    insecure: bool,
    /// Refuse calls without a credential (AUTH_NONE) instead of making them as the anonymous user
    #[arg(long, conflicts_with = "config")]
    refuse_auth_none: bool,
    /// Look up users' groups on this machine, for users in more than the 16 groups that NFS sends
    #[arg(long, conflicts_with = "config")]
    manage_gids: bool,
}

#[derive(clap::Args)]
struct ExportArgs {
    /// Refuse all changes by clients
    #[arg(long, conflicts_with = "config")]
    read_only: bool,
    /// Users of clients to treat as the anonymous user
    #[arg(long, value_enum, value_name = "WHO", default_value = "root", conflicts_with = "config")]
    squash: SquashArg,
    /// The anonymous user
    #[arg(long, value_name = "UID", default_value_t = NOBODY, conflicts_with = "config")]
    anon_uid: u32,
    /// The anonymous group
    #[arg(long, value_name = "GID", default_value_t = NOBODY, conflicts_with = "config")]
    anon_gid: u32,
    /// Networks of clients to admit, like 192.0.2.0/24,2001:db8::/32 [default: all]
    #[arg(long, value_name = "NETWORK", value_delimiter = ',', conflicts_with = "config")]
    clients: Vec<Network>,
    /// Data to keep in the page cache
    #[arg(long, value_enum, value_name = "WHAT", default_value = "cached")]
    #[arg(conflicts_with = "config")]
    cache: CacheArg,
    /// Durability of a change of names, attributes or sizes when the server replies
    #[arg(long, value_enum, value_name = "WHAT", default_value = "sync")]
    #[arg(conflicts_with = "config")]
    durability: DurabilityArg,
}

impl Args {
    /// The log filter.
    pub(crate) fn log(&self) -> &str {
        &self.log
    }

    /// Whether it only prints the settings.
    pub(crate) fn checks(&self) -> bool {
        self.check
    }
}

pub(crate) fn run(args: Args) -> Result<Ended> {
    let (check, json) = (args.check, args.json.wanted());
    let config = args.config.clone();
    let metrics = args.metrics.map(metrics_address).transpose()?;
    let first = First { metrics, id_domain: args.id_domain.clone() };
    let mut settings = match &config {
        Some(config) => load(config)?,
        None => settings(args)?,
    };
    first.apply(&mut settings);
    if check {
        announce::checked(&settings, json)?;
        return Ok(Ended::Done);
    }
    service::run(service::Start { settings, config, first, json })
}

/// Options that override keys of the configuration file.
pub(super) struct First {
    metrics: Option<SocketAddr>,
    id_domain: Option<String>,
}

impl First {
    fn apply(&self, settings: &mut Settings) {
        settings.metrics = self.metrics.or(settings.metrics);
        if let Some(domain) = &self.id_domain {
            settings.id_domain = Some(domain.clone());
        }
    }
}

/// The address of the metrics server: loopback, unless an address is given.
fn metrics_address(bind: Bind) -> Result<SocketAddr> {
    bind.with_port().ok_or_else(|| {
        Failure::new("serve --metrics", "no port is given")
            .advice("write it like 127.0.0.1:9100 or 9100")
    })
}

/// Parses a number of threads.
fn threads(text: &str) -> Result<NonZeroUsize, String> {
    let count = text.parse().ok().and_then(NonZeroUsize::new).filter(|n| n.get() <= MAX_THREADS);
    count.ok_or_else(|| format!("take 1 to {MAX_THREADS}, or leave it out"))
}

/// The settings on the command line.
fn settings(args: Args) -> Result<Settings> {
    let Args { dir, server, export, .. } = args;
    check_budget(server.budget)?;
    let dir = find(dir.as_deref().unwrap_or(Path::new(".")))?;
    let default = Settings::default();
    let versions = server.versions.into_iter().reduce(|all, version| all | version);
    let rule = |network| ClientRule { network, access: ClientAccess::ReadWrite, squash: None };
    Ok(Settings {
        listen: server.bind,
        budget: server.budget,
        stream_limit: server.stream_limit.unwrap_or(default.stream_limit),
        threads: server.threads,
        lease: Duration::from_secs(server.lease.into()),
        versions: versions.unwrap_or(default.versions),
        state_dir: server.state_dir,
        rpcbind: server.rpcbind,
        delegations: !server.no_delegations,
        delegated_times: server.delegated_times,
        retry_journal: !server.no_retry_journal,
        metrics: None,
        id_domain: None,
        admission: AdmissionOptions {
            secure: !server.insecure,
            auth_none: !server.refuse_auth_none,
            manage_gids: server.manage_gids,
        },
        limits: default.limits,
        exports: vec![ExportSettings {
            dir,
            name: "/".into(),
            read_only: export.read_only,
            squash: export.squash,
            anon_uid: export.anon_uid,
            anon_gid: export.anon_gid,
            clients: export.clients.into_iter().map(rule).collect(),
            cache: export.cache,
            durability: export.durability,
        }],
    })
}

fn find(dir: &Path) -> Result<PathBuf> {
    let shown = dir.display();
    let dir = dir.canonicalize().asked(|| format!("serve {shown}"))?;
    if !dir.is_dir() {
        let failure = Failure::new(format!("serve {shown}"), "it is not a directory");
        return Err(failure.advice("name the directory that contains it"));
    }
    readable(&dir).asked(|| format!("serve {shown}"))?;
    Ok(dir)
}
