//! `weir serve`: what is asked for on the command line or in a file, and then `service`.
//!
//! - `listen`, `state_dir`, `stores`, `privileges`: what a server needs. `announce`: what it says.
//! - `service`: the running server, and what signals do to it.

mod announce;
mod listen;
mod privileges;
mod service;
mod state_dir;
mod stores;

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
  weir serve /srv/images                          for this machine, on port 2049 or the next free
  weir serve --bind 0.0.0.0 --clients 192.0.2.0/24 /srv/images
  weir serve --bind 192.0.2.1:3049 --read-only --squash all /srv/images
  weir serve --budget 50% --cache auto --log debug /srv/images
  weir serve --config /etc/weir.toml              several directories
  weir serve --config /etc/weir.toml --check      what it says, without serving

A directory given here is mounted as `/`; what to type is printed at start. With a configuration
file, each directory has a name of its own: NFSv4 clients find all of them below `/`, NFSv3 clients
mount each by its name. A small one:

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

`dist/weir.toml` explains every key. What is wrong in a file is said with line and column. SIGHUP has
the server read its file again, without disturbing clients: exports and their options change at
once, what needs a restart is named in the log, and a file with something wrong in it changes
nothing.

NFSv3, 4.0, 4.1, 4.2 and the MOUNT protocol share one port, and nothing else is needed: no rpcbind
(though --rpcbind uses it), no root. Run as root, files are used as the user that a client names,
after --squash, and all privileges that this does not take are given up; run as anybody else, all is
done as that user. SIGTERM and SIGINT write out what is dirty and end the server; SIGUSR1 logs what was
done so far, by operation.")]
pub(crate) struct Args {
    /// The directory
    #[arg(value_name = "DIR", required_unless_present = "config", conflicts_with = "config")]
    dir: Option<PathBuf>,
    /// Serve what this file says; DIR and the options on what to serve and how are in there, then
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Say what would be served, or what is wrong with it, and end
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    export: ExportArgs,
    /// Where counters are read in Prometheus's format, at /metrics: an address and port, or a port
    /// of this machine alone
    #[arg(long, value_name = "ADDR:PORT")]
    metrics: Option<Bind>,
    /// Tell NFSv4 clients the names of owners and groups, as name@DOMAIN [default: their numbers]
    #[arg(long, value_name = "DOMAIN")]
    id_domain: Option<String>,
    /// What to log: error, warn, info, debug, trace, or by module as in weir_server=debug,info
    #[arg(long, value_name = "FILTER", default_value = "info")]
    log: String,
    /// Say what is served as JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct ServerArgs {
    /// Address, port or both to listen on; may be given several times [default: 127.0.0.1:2049, or
    /// its next free port]
    #[arg(long, value_name = "ADDR:PORT", conflicts_with = "config")]
    bind: Vec<Bind>,
    /// Memory for the page cache: 512M, 2GiB, or 50% of memory [default: a quarter of memory, at
    /// most 16G]
    #[arg(long, value_name = "SIZE", conflicts_with = "config")]
    budget: Option<Size>,
    /// With --cache auto, the longest stream that stays in the cache: 1G, or 25% of the budget
    /// [default: 25%]
    #[arg(long, value_name = "SIZE", conflicts_with = "config")]
    stream_limit: Option<Size>,
    /// Threads that serve calls [default: one for each processor, at least 4]
    #[arg(long, value_name = "N", conflicts_with = "config", value_parser = threads)]
    threads: Option<NonZeroUsize>,
    /// How long a silent client keeps its opens and locks, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "90", conflicts_with = "config")]
    #[arg(value_parser = clap::value_parser!(u32).range(
        i64::from(*LEASE_SECONDS.start())..=i64::from(*LEASE_SECONDS.end())
    ))]
    lease: u32,
    /// Versions of NFS that are offered: 3, 4.0, 4.1, 4.2, or 4 for all of 4 [default: all]
    #[arg(long, value_name = "VERSION", value_delimiter = ',', conflicts_with = "config")]
    versions: Vec<Versions>,
    /// Where to keep what must survive a restart [default: a directory for each DIR below
    /// /var/lib/weir for root, else below $XDG_STATE_HOME/weir or ~/.local/state/weir]
    #[arg(long, value_name = "DIR", conflicts_with = "config")]
    state_dir: Option<PathBuf>,
    /// Tell this machine's rpcbind where the server is, for `showmount` and for clients that are
    /// not told a port
    #[arg(long, conflicts_with = "config")]
    rpcbind: bool,
    /// Give clients no delegations: every open of theirs asks the server
    #[arg(long, conflicts_with = "config")]
    no_delegations: bool,
    /// Believe any client to be any user: also from ports of 1024 and above, and on this machine
    /// programs of other users
    #[arg(long, conflicts_with = "config")]
    insecure: bool,
    /// Refuse calls without a credential (AUTH_NONE) rather than take them as the anonymous user's
    #[arg(long, conflicts_with = "config")]
    refuse_auth_none: bool,
    /// Look up the groups of users on this machine, for users with more than the 16 that NFS carries
    #[arg(long, conflicts_with = "config")]
    manage_gids: bool,
}

#[derive(clap::Args)]
struct ExportArgs {
    /// Clients may change nothing
    #[arg(long, conflicts_with = "config")]
    read_only: bool,
    /// Which clients' users become the anonymous one
    #[arg(long, value_enum, value_name = "WHO", default_value = "root", conflicts_with = "config")]
    squash: SquashArg,
    /// The anonymous user
    #[arg(long, value_name = "UID", default_value_t = NOBODY, conflicts_with = "config")]
    anon_uid: u32,
    /// The anonymous group
    #[arg(long, value_name = "GID", default_value_t = NOBODY, conflicts_with = "config")]
    anon_gid: u32,
    /// Networks whose clients may use it, like 192.0.2.0/24,2001:db8::/32 [default: all]
    #[arg(long, value_name = "NETWORK", value_delimiter = ',', conflicts_with = "config")]
    clients: Vec<Network>,
    /// What stays in the page cache
    #[arg(long, value_enum, value_name = "WHAT", default_value = "cached")]
    #[arg(conflicts_with = "config")]
    cache: CacheArg,
    /// What a reply to a change of names, attributes or sizes promises
    #[arg(long, value_enum, value_name = "WHAT", default_value = "sync")]
    #[arg(conflicts_with = "config")]
    durability: DurabilityArg,
}

impl Args {
    /// What to log.
    pub(crate) fn log(&self) -> &str {
        &self.log
    }
}

pub(crate) fn run(args: Args) -> Result<Ended> {
    let (check, json) = (args.check, args.json);
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

/// What the command line says of keys that a configuration file has, too: it comes first.
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

/// Where counters are to be read; only from this machine, unless an address is given.
fn metrics_address(bind: Bind) -> Result<SocketAddr> {
    bind.with_port().ok_or_else(|| {
        Failure::new("serve --metrics", "no port is given")
            .advice("write it like 127.0.0.1:9100 or 9100")
    })
}

/// A number of threads as people write it.
fn threads(text: &str) -> Result<NonZeroUsize, String> {
    let count = text.parse().ok().and_then(NonZeroUsize::new).filter(|n| n.get() <= MAX_THREADS);
    count.ok_or_else(|| format!("take 1 to {MAX_THREADS}, or leave it out"))
}

/// What the command line says.
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
        metrics: None,
        id_domain: None,
        admission: AdmissionOptions {
            secure: !server.insecure,
            auth_none: !server.refuse_auth_none,
            manage_gids: server.manage_gids,
        },
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
        return Err(failure.advice("name the directory that it is in"));
    }
    readable(&dir).asked(|| format!("serve {shown}"))?;
    Ok(dir)
}
