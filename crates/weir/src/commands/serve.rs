//! `weir serve`: resolves what is exported, where and how; the server is `weir-server`.

use super::runtime;
use crate::cli::Ended;
use crate::failure::{Asked, Failure, Result};
use crate::memory::{budget_bytes, most_bytes};
use crate::output::{print, print_json, size_text};
use crate::size::Size;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sd_notify::NotifyState;
use serde_json::json;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use weir_pagecache::{Cache, Config};
use weir_server::export::{Export, ExportOptions, Squash};
use weir_server::registration::LOCAL_RPCBIND;
use weir_server::{Server, ServerConfig};
use weir_stores::local::{LocalFs, LocalOptions};

/// Largest read-ahead window.
const READAHEAD_BYTES: u64 = 8 << 20;
/// The port of NFS.
const NFS_PORT: u16 = 2049;
/// Ports tried after it, when it may not be had and none was asked for.
const OTHER_PORTS: std::ops::Range<u16> = 2050..2150;

/// Serve a directory over NFS
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  weir serve /srv/images                          for this machine, on port 2049 or the next free
  weir serve --bind 0.0.0.0 /srv/images           for all
  weir serve --bind 192.0.2.1:3049 --read-only --squash all /srv/images
  weir serve --budget 50% --log debug /srv/images

The directory is mounted as `/`; what to type is printed at start. NFSv3, 4.1 and 4.2 and the MOUNT
protocol share one port, and nothing else is needed: no rpcbind (though --rpcbind uses it), no root.

Run as root, files are used as the user that a client names, after --squash; run as anybody else,
all is done as that user. SIGTERM and SIGINT write out what is dirty and end the server.")]
pub(crate) struct Args {
    /// The directory
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Address, port or both to listen on [default: 127.0.0.1:2049, or its next free port]
    #[arg(long, value_name = "ADDR:PORT")]
    bind: Option<Bind>,
    /// Memory for the page cache: 512M, 2GiB, or 50% of memory [default: a quarter of memory, at
    /// most 16G]
    #[arg(long, value_name = "SIZE")]
    budget: Option<Size>,
    /// Clients may change nothing
    #[arg(long)]
    read_only: bool,
    /// Which clients' users become the anonymous one
    #[arg(long, value_enum, value_name = "WHO", default_value = "root")]
    squash: SquashArg,
    /// The anonymous user
    #[arg(long, value_name = "UID", default_value = "65534")]
    anon_uid: u32,
    /// The anonymous group
    #[arg(long, value_name = "GID", default_value = "65534")]
    anon_gid: u32,
    /// How long a silent client keeps its opens and locks, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "90", value_parser = clap::value_parser!(u32).range(5..=3600))]
    lease: u32,
    /// Where to keep what must survive a restart [default: a directory for each export below
    /// /var/lib/weir for root, else below $XDG_STATE_HOME/weir or ~/.local/state/weir]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Tell this machine's rpcbind where the server is, for `showmount` and for clients that are
    /// not told a port
    #[arg(long)]
    rpcbind: bool,
    /// What to log: error, warn, info, debug, trace, or by module as in weir_server=debug,info
    #[arg(long, value_name = "FILTER", default_value = "info")]
    log: String,
    /// Say what is served as JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    /// What to log.
    pub(crate) fn log(&self) -> &str {
        &self.log
    }
}

/// Whose identities are not taken as they come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum SquashArg {
    /// The superuser
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

/// Where to listen: what was given of address and port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Bind {
    address: Option<IpAddr>,
    port: Option<u16>,
}

impl FromStr for Bind {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Ok(both) = text.parse::<SocketAddr>() {
            return Ok(Self { address: Some(both.ip()), port: Some(both.port()) });
        }
        let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
        if let Ok(address) = bare.parse() {
            return Ok(Self { address: Some(address), port: None });
        }
        match text.strip_prefix(':').unwrap_or(text).parse() {
            Ok(port) => Ok(Self { address: None, port: Some(port) }),
            Err(_) => Err("write it like 0.0.0.0:2049, [::1]:2049, 192.0.2.1 or 2049"),
        }
    }
}

impl Bind {
    fn ip(self) -> IpAddr {
        self.address.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
    }

    /// Listens at the port asked for, or at the usual one, or at the next one that is free.
    fn listen(self) -> Result<TcpListener> {
        let listen = |port| TcpListener::bind(SocketAddr::new(self.ip(), port));
        let asked = |port| move || format!("listen on {}", SocketAddr::new(self.ip(), port));
        if let Some(port) = self.port {
            return listen(port).map_err(|error| refused(asked(port)(), &error));
        }
        match listen(NFS_PORT) {
            Err(error) if port_is_taken(&error) => {}
            result => return result.asked(asked(NFS_PORT)),
        }
        OTHER_PORTS.map(listen).find_map(Result::ok).ok_or_else(|| {
            let failed = format!("neither that port nor {OTHER_PORTS:?} can be had");
            Failure::new(asked(NFS_PORT)(), failed).advice("choose a port with --bind")
        })
    }
}

fn port_is_taken(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied)
}

fn refused(asked: String, error: &io::Error) -> Failure {
    let failure = Failure::new(asked, error.to_string());
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            failure.advice("another server has that port; stop it, or choose another with --bind")
        }
        io::ErrorKind::PermissionDenied => {
            failure.advice("ports below 1024 are root's; choose another with --bind")
        }
        io::ErrorKind::AddrNotAvailable => {
            failure.advice("this machine has no such address; 0.0.0.0 stands for all it has")
        }
        _ => failure,
    }
}

/// What the arguments come to.
struct Settings {
    dir: PathBuf,
    listener: TcpListener,
    budget_bytes: u64,
    state_dir: PathBuf,
    lease: Duration,
}

pub(crate) fn run(args: Args) -> Result<Ended> {
    let settings = resolve(&args)?;
    runtime()?.block_on(serve(&args, settings))
}

fn resolve(args: &Args) -> Result<Settings> {
    let shown = args.dir.display();
    let dir = args.dir.canonicalize().asked(|| format!("serve {shown}"))?;
    if !dir.is_dir() {
        let failure = Failure::new(format!("serve {shown}"), "it is not a directory");
        return Err(failure.advice("name the directory that it is in"));
    }
    let state_dir = match &args.state_dir {
        Some(state_dir) => state_dir.clone(),
        None => default_state_dir(
            rustix::process::geteuid().is_root(),
            std::env::var_os("XDG_STATE_HOME").map(PathBuf::from),
            std::env::home_dir(),
        )
        .ok_or_else(|| {
            Failure::new("choose a directory for the server's state", "there is no home directory")
                .advice("name one with --state-dir")
        })?
        .join(state_name(&dir)),
    };
    std::fs::create_dir_all(&state_dir)
        .asked(|| format!("make the state directory {}", state_dir.display()))?;
    let state_dir = state_dir
        .canonicalize()
        .asked(|| format!("find the state directory {}", state_dir.display()))?;
    let listener = match handed_over()? {
        Some(listener) => listener,
        None => args.bind.unwrap_or_default().listen()?,
    };
    raise_descriptor_limit();
    Ok(Settings {
        dir,
        listener,
        budget_bytes: budget_bytes(args.budget, 16 << 30),
        state_dir,
        lease: Duration::from_secs(args.lease.into()),
    })
}

/// The socket that systemd listens on for this process, if it does (sd_listen_fds(3)).
fn handed_over() -> Result<Option<TcpListener>> {
    let mut handed = listenfd::ListenFd::from_env();
    if handed.len() == 0 {
        return Ok(None);
    }
    handed.take_tcp_listener(0).asked(|| "use the socket that was handed over".into())
}

/// Every connection and every open file is a descriptor, and shells allow 1,024 by default.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!("cannot have more than {:?} descriptors: {error}", limit.current);
    }
}

fn default_state_dir(root: bool, xdg: Option<PathBuf>, home: Option<PathBuf>) -> Option<PathBuf> {
    if root {
        return Some("/var/lib/weir".into());
    }
    // The base directory specification has relative paths ignored.
    let base = xdg.filter(|p| p.is_absolute()).or_else(|| Some(home?.join(".local/state")))?;
    Some(base.join("weir"))
}

/// A name for an export's state: of the directory's own name, and a hash of its whole path, so
/// that no two are alike.
fn state_name(dir: &Path) -> String {
    let hash = dir.as_os_str().as_bytes().iter().fold(0xCBF2_9CE4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    });
    let name = dir.file_name().map_or_else(|| "root".into(), |n| n.to_string_lossy());
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    let name: String = name.chars().take(64).map(plain).collect();
    format!("{name}-{hash:016x}")
}

async fn serve(args: &Args, settings: Settings) -> Result<Ended> {
    let address = settings.listener.local_addr().asked(|| "listen".into())?;
    let cache = Cache::new(Config {
        budget_bytes: settings.budget_bytes,
        max_budget_bytes: most_bytes(),
        readahead_bytes: READAHEAD_BYTES,
        ..Config::default()
    });
    let cache =
        cache.asked(|| format!("set up a page cache of {}", size_text(settings.budget_bytes)))?;
    let options = LocalOptions {
        state_dir: Some(settings.state_dir.join("files")),
        ..LocalOptions::default()
    };
    let store = LocalFs::open(&settings.dir, options)
        .asked(|| format!("serve {}", settings.dir.display()))?;
    let export = Export {
        path: "/".into(),
        source: settings.dir.clone(),
        fs: cache.mount(store),
        options: ExportOptions {
            read_only: args.read_only,
            squash: args.squash.into(),
            anon_uid: args.anon_uid,
            anon_gid: args.anon_gid,
            ..ExportOptions::default()
        },
    };
    let mut config = ServerConfig::new(vec![export], &settings.state_dir);
    config.state.lease = settings.lease;
    config.grace = settings.lease;
    config.rpcbind = args.rpcbind.then_some(LOCAL_RPCBIND);
    let server = Server::new(config).map_err(|error| {
        Failure::new(format!("serve {}", settings.dir.display()), error.to_string())
    })?;
    let listener = listen_async(&settings.listener).asked(|| format!("listen on {address}"))?;
    let stopper = server.clone();
    let stop = stop_signal()?;
    tokio::spawn(async move {
        stop.await;
        notify(&[NotifyState::Stopping]);
        stopper.stop();
    });
    server.register(address.port()).await.map_err(|error| {
        Failure::new(format!("serve {}", settings.dir.display()), error.to_string())
    })?;
    announce(args, &settings, address)?;
    notify(&[NotifyState::Ready, NotifyState::Status(&format!("serving at {address}"))]);
    server.serve(listener).await.asked(|| "write out what was dirty".into())?;
    Ok(Ended::Done)
}

fn listen_async(listener: &TcpListener) -> io::Result<tokio::net::TcpListener> {
    let listener = listener.try_clone()?;
    listener.set_nonblocking(true)?;
    tokio::net::TcpListener::from_std(listener)
}

/// Tells systemd, if it started this (sd_notify(3)).
fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!("systemd was not told: {error}");
    }
}

/// Says what is served, how to mount it, and what to beware of.
fn announce(args: &Args, settings: &Settings, address: SocketAddr) -> Result<()> {
    let beyond = !address.ip().is_loopback();
    if beyond {
        tracing::warn!(
            "listening beyond this machine: whoever reaches {address} may claim to be any user; \
             keep it behind a firewall, or use --squash all and --read-only"
        );
    }
    if settings.state_dir.starts_with(&settings.dir) {
        tracing::warn!(
            "the state directory {} is inside of what is served, and the key to all filehandles \
             is in it; choose another one with --state-dir",
            settings.state_dir.display()
        );
    }
    let asked = args.bind.unwrap_or_default();
    if asked.port.is_none() && address.port() != NFS_PORT {
        tracing::warn!("port {NFS_PORT} may not be had, using {}", address.port());
    }
    let host = reachable_host(address.ip());
    let port = address.port();
    let mounts = [
        format!("mount -t nfs -o vers=4.2,proto=tcp,port={port} {host}:/ /mnt"),
        format!(
            "mount -t nfs -o vers=3,proto=tcp,port={port},mountport={port},mountproto=tcp,nolock \
             {host}:/ /mnt"
        ),
    ];
    if args.json {
        print_json(&json!({
            "directory": settings.dir.to_string_lossy(),
            "address": address.ip(),
            "port": port,
            "url": format!("nfs://{host}:{port}/"),
            "read_only": args.read_only,
            "budget_bytes": settings.budget_bytes,
            "state_dir": settings.state_dir.to_string_lossy(),
            "mount": mounts,
        }))?;
        return Ok(());
    }
    let text = format!(
        "Serving {dir} at {address}, {mode}, with {budget} of page cache.\n\
         Mount it with one of\n  {}\n  {}\nor use it as nfs://{host}:{port}/, for example\n  \
         weir ls -l nfs://{host}:{port}/\n",
        mounts[0],
        mounts[1],
        dir = settings.dir.display(),
        mode = if args.read_only { "read-only" } else { "for reading and writing" },
        budget = size_text(settings.budget_bytes),
    );
    print(text.as_bytes())?;
    Ok(())
}

/// What a client may call this machine: its name, where it listens on all addresses.
fn reachable_host(ip: IpAddr) -> String {
    match ip {
        ip if ip.is_unspecified() => {
            rustix::system::uname().nodename().to_string_lossy().into_owned()
        }
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    }
}

/// What waits to be told to stop. Told again, the process ends at once.
fn stop_signal() -> Result<impl Future<Output = ()>> {
    let listen = |kind| signal(kind).asked(|| "listen to signals".into());
    let (mut int, mut term) = (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
    let mut told = async move || {
        tokio::select! {
            _ = int.recv() => {}
            _ = term.recv() => {}
        }
    };
    Ok(async move {
        told().await;
        tokio::spawn(async move {
            told().await;
            tracing::error!("told to stop twice: ending without writing out what is dirty");
            std::process::exit(1);
        });
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_to_listen() {
        let bind = |text: &str| text.parse::<Bind>().map(|b| (b.address, b.port));
        let ip = |text: &str| text.parse().ok();
        assert_eq!(bind("0.0.0.0:99"), Ok((ip("0.0.0.0"), Some(99))));
        assert_eq!(bind("[::1]:99"), Ok((ip("::1"), Some(99))));
        assert_eq!(bind("::"), Ok((ip("::"), None)));
        assert_eq!(bind("[::1]"), Ok((ip("::1"), None)));
        assert_eq!(bind("2050"), Ok((None, Some(2050))));
        assert_eq!(bind(":0"), Ok((None, Some(0))));
        assert!(bind("here").is_err() && bind("1.2.3.4:99999").is_err());
    }

    #[test]
    fn state_is_kept_where_the_system_wants_it() {
        let home = || Some("/home/me".into());
        let dir =
            |root, xdg: Option<&str>, home| default_state_dir(root, xdg.map(PathBuf::from), home);
        assert_eq!(dir(true, None, home()), Some("/var/lib/weir".into()));
        assert_eq!(dir(false, Some("/x"), home()), Some("/x/weir".into()));
        assert_eq!(dir(false, Some("x"), home()), Some("/home/me/.local/state/weir".into()));
        assert_eq!(dir(false, None, None), None);
    }

    #[test]
    fn every_export_has_a_state_directory_of_its_own() {
        let name = |dir: &str| state_name(Path::new(dir));
        assert_ne!(name("/a/b"), name("/c/b"));
        assert!(name("/srv/my files").starts_with("my_files-"));
        assert!(name("/").starts_with("root-"));
    }
}
