//! Trees of small files: copied to a server and back, continued, and removed.
//!
//! 1. Every piece of work begins with empty caches in the client: each is a process, or a mount, of
//!    its own.
//! 2. Each client reaches the server through relays, of NFS and of MOUNT, which add the delay and count
//!    its calls: the round trips.
//! 3. In every round each client does the same work once; figures are medians of the rounds.

pub(crate) mod client;
mod files;
mod relay;

pub use client::Work;

use crate::interrupt;
use crate::kernel_mount::KernelMount;
use crate::measure::{in_turn, median};
use crate::observer::Observer;
use crate::peers::{Host, Peer, Wanted};
use crate::report::{self, Target, table};
use crate::scratch::Scratch;
use crate::targets::target;
use client::{Taken, Tool};
use relay::Relay;
use serde::Serialize;
use std::fs;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use weir_client::{NfsUrl, Version};
use weir_tools::failure::{Asked, Failure, Result};

/// Options of the benchmark.
#[derive(Clone, Debug)]
pub struct Options {
    /// The server.
    pub server: Wanted,
    /// Versions.
    pub versions: Vec<Version>,
    /// Files of the tree.
    pub files: u32,
    /// Delays of a round trip.
    pub delays: Vec<Duration>,
    /// Rounds of each figure.
    pub rounds: u32,
    /// Directory for the trees.
    pub dir: PathBuf,
}

/// What a run finds.
#[derive(Serialize)]
pub struct Report {
    server: String,
    files: u32,
    bytes: u64,
    rounds: u32,
    targets: Vec<Target>,
    figures: Vec<Figure>,
}

/// One piece of work by one client: medians of the rounds.
#[derive(Clone, Debug, Serialize)]
struct Figure {
    /// `None`: without a server.
    version: Option<String>,
    delay_us: u64,
    client: String,
    work: &'static str,
    files_per_s: f64,
    /// Calls for each file; `None` without a server.
    round_trips_per_file: Option<f64>,
    /// Processor time of the client. The kernel's threads are not in it.
    cpu_s: f64,
}

/// A client of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Client {
    Weir,
    Linux(Tool),
}

impl Client {
    fn name(self) -> String {
        match self {
            Self::Weir => "weir".into(),
            Self::Linux(tool) => format!("linux, {}", tool.name()),
        }
    }
}

/// Copies and removes a tree with every version and delay.
///
/// # Errors
/// There are no files, something that the run needs cannot be created or started, or a copy fails.
pub fn run(options: &Options, observer: &Arc<dyn Observer>) -> Result<Report> {
    if options.files == 0 {
        return Err(Failure::new("measure", "the tree must have a file at least"));
    }
    let scratch = Scratch::within(&options.dir)?;
    let (source, export) = (scratch.dir("source")?, scratch.dir("export")?);
    let tree = source.join("tree");
    let bytes = files::make(&tree, options.files)?;
    let peer = match &options.server {
        Wanted::Weir => Peer::weir(&Host::LOCAL, &export, &scratch.dir("state")?, None)?,
        Wanted::WeirRelaxed => Peer::weir_relaxed(&Host::LOCAL, &export, &scratch.dir("state")?)?,
        Wanted::Ganesha => Peer::ganesha(&Host::LOCAL, &export, &scratch.dir("state")?)?,
        Wanted::Knfsd => {
            let failure = Failure::new("start knfsd", "it needs a kernel of its own");
            return Err(failure.advice("name one that runs by its URL"));
        }
        Wanted::Url(url) => Peer::remote(url, None),
    };
    let mut clients = vec![Client::Weir];
    match KernelMount::is_possible() {
        true => clients.extend(Tool::present().into_iter().map(Client::Linux)),
        false => observer.notice("Linux's client is left out: this machine cannot mount NFS"),
    }
    let run = Run { options, scratch: &scratch, tree: &tree, peer: &peer };
    let mut versions = options.versions.clone();
    versions.retain(|version| !peer.lacks.contains(version));
    if run.mount_port().is_none() && versions.contains(&Version::V3) {
        observer.notice("version 3 is left out: add MOUNT's port to the URL, as ?mountport=PORT");
        versions.retain(|version| *version != Version::V3);
    }
    let mut figures = run.local()?;
    for &delay in &options.delays {
        for &version in &versions {
            figures.extend(run.side_by_side(&clients, version, delay, observer)?);
        }
    }
    Ok(Report {
        server: peer.name.clone(),
        files: options.files,
        bytes,
        rounds: options.rounds,
        targets: judge(&figures),
        figures,
    })
}

struct Run<'a> {
    options: &'a Options,
    scratch: &'a Scratch,
    tree: &'a Path,
    peer: &'a Peer,
}

impl Run<'_> {
    /// The system's programs without a server.
    fn local(&self) -> Result<Vec<Figure>> {
        let mut figures = Vec::new();
        for tool in Tool::present() {
            let mut taken: [Vec<(Taken, u64)>; Work::ALL.len()] = Default::default();
            for round in 0..self.options.rounds {
                let to = self.scratch.dir(&format!("local-{}-{round}", tool.name()))?.join("tree");
                for (work, taken) in Work::ALL.into_iter().zip(&mut taken) {
                    // Without a server there is one direction only.
                    if work != Work::Down {
                        taken.extend(tool.run(work, self.tree, &to)?.map(|taken| (taken, 0)));
                    }
                }
            }
            let client = format!("local, {}", tool.name());
            figures.extend(self.figures(None, Duration::ZERO, &client, &taken));
        }
        Ok(figures)
    }

    /// Every client with one version and delay.
    fn side_by_side(
        &self,
        clients: &[Client],
        version: Version,
        delay: Duration,
        observer: &Arc<dyn Observer>,
    ) -> Result<Vec<Figure>> {
        let relays = self.relays(version, delay)?;
        let mut taken: Vec<[Vec<(Taken, u64)>; Work::ALL.len()]> =
            clients.iter().map(|_| Default::default()).collect();
        for round in 0..self.options.rounds as usize {
            let count = clients.len();
            for index in in_turn(count, round) {
                let name = format!("{version}-{}-{index}-{round}", delay.as_micros());
                let down = self.scratch.dir(&name)?;
                for (work, taken) in Work::ALL.into_iter().zip(&mut taken[index]) {
                    interrupt::check()?;
                    let before = relays.calls();
                    let done = match clients[index] {
                        Client::Weir => Some(self.weir(work, version, &relays, &down)?),
                        Client::Linux(tool) => self.linux(tool, work, version, &relays, &down)?,
                    };
                    taken.extend(done.map(|done| (done, relays.calls() - before)));
                }
                fs::remove_dir_all(&down).asked(|| format!("remove {}", down.display()))?;
            }
        }
        let mut figures = Vec::new();
        for (client, taken) in clients.iter().zip(&taken) {
            figures.extend(self.figures(Some(version), delay, &client.name(), taken));
        }
        observer.progress(&rows(&figures));
        Ok(figures)
    }

    /// The port of MOUNT at the server.
    fn mount_port(&self) -> Option<u16> {
        let ports = self.peer.url.query.split('&').filter_map(|part| part.strip_prefix(MOUNT_PORT));
        ports.filter_map(|port| port.parse().ok()).next_back()
    }

    fn relays(&self, version: Version, delay: Duration) -> Result<Relays> {
        let server = address_of(&self.peer.url)?;
        let mount_port = self.mount_port().filter(|_| version == Version::V3);
        let to_mount = |port| Relay::start(SocketAddr::new(server.ip(), port), delay);
        Ok(Relays {
            nfs: Relay::start(server, delay)?,
            mount: mount_port.map(to_mount).transpose()?,
        })
    }

    fn weir(&self, work: Work, version: Version, relays: &Relays, down: &Path) -> Result<Taken> {
        let mut url = self.peer.url.clone();
        let relay = relays.nfs.address;
        (url.host, url.port) = (relay.ip().to_string(), Some(relay.port()));
        url.path.push(format!("weir-bench-{}", std::process::id()).into_bytes());
        url.ends_in_slash = false;
        let query = url.query.split('&').filter(|part| !part.starts_with(MOUNT_PORT));
        let mut query: Vec<_> = query.filter(|part| !part.is_empty()).map(str::to_owned).collect();
        query.push(format!("vers={version}"));
        query.extend(relays.mount_port().map(|port| format!("{MOUNT_PORT}{port}")));
        url.query = query.join("&");
        let (url, down) = (PathBuf::from(url.to_string()), down.join("tree"));
        match work {
            Work::Up | Work::Continue => client::by_weir(work, self.tree, &url),
            Work::Down => client::by_weir(work, &url, &down),
            Work::Remove => client::by_weir(work, Path::new(""), &url),
        }
    }

    fn linux(
        &self,
        tool: Tool,
        work: Work,
        version: Version,
        relays: &Relays,
        down: &Path,
    ) -> Result<Option<Taken>> {
        let ports = (relays.nfs.address.port(), relays.mount_port());
        let path: Vec<_> =
            self.peer.url.path.iter().map(|part| String::from_utf8_lossy(part)).collect();
        let point = down.join("mount");
        fs::create_dir_all(&point).asked(|| format!("make {}", point.display()))?;
        let export = format!("/{}", path.join("/"));
        let mount = KernelMount::make(point, &export, version, ports)?;
        let there = mount.path.join(format!("weir-bench-{}", std::process::id()));
        let down = down.join("tree");
        match work {
            Work::Down => tool.run(work, &there, &down),
            _ => tool.run(work, self.tree, &there),
        }
    }

    fn figures(
        &self,
        version: Option<Version>,
        delay: Duration,
        client: &str,
        taken: &[Vec<(Taken, u64)>; Work::ALL.len()],
    ) -> Vec<Figure> {
        let files = f64::from(self.options.files);
        let work = Work::ALL.into_iter().zip(taken).filter(|(_, taken)| !taken.is_empty());
        let figure = |(work, taken): (Work, &Vec<(Taken, u64)>)| {
            let all = |value: &dyn Fn(&(Taken, u64)) -> f64| {
                median(&taken.iter().map(value).collect::<Vec<_>>())
            };
            Figure {
                version: version.map(|version| version.to_string()),
                delay_us: delay.as_micros() as u64,
                client: client.into(),
                work: work.name(),
                files_per_s: all(&|(taken, _)| files / taken.seconds.max(1e-9)),
                round_trips_per_file: version.map(|_| all(&|(_, calls)| *calls as f64 / files)),
                cpu_s: all(&|(taken, _)| taken.cpu_s),
            }
        };
        work.map(figure).collect()
    }
}

/// The ways of the clients to the server.
struct Relays {
    nfs: Relay,
    /// With version 3.
    mount: Option<Relay>,
}

impl Relays {
    fn calls(&self) -> u64 {
        self.nfs.calls() + self.mount.as_ref().map_or(0, Relay::calls)
    }

    fn mount_port(&self) -> Option<u16> {
        self.mount.as_ref().map(|relay| relay.address.port())
    }
}

/// The round trips for a file with version 4.2, against the targets.
fn judge(figures: &[Figure]) -> Vec<Target> {
    let newest = Version::V4_2.to_string();
    let mut targets = Vec::new();
    for work in Work::ALL {
        let found = figures.iter().filter(|figure| {
            figure.client == Client::Weir.name()
                && figure.work == work.name()
                && figure.version.as_ref() == Some(&newest)
        });
        let most = found.filter_map(|figure| figure.round_trips_per_file).max_by(f64::total_cmp);
        targets.extend(most.map(|most| target("tree", work.name(), "", most)));
    }
    targets
}

fn address_of(url: &NfsUrl) -> Result<SocketAddr> {
    let asked = || format!("find {}", url.host);
    let found = (&url.host[..], url.port.unwrap_or(NFS_PORT)).to_socket_addrs();
    let address = found.asked(asked)?.next();
    address.ok_or_else(|| Failure::new(asked(), "it has no address"))
}

const NFS_PORT: u16 = 2049;
/// In a URL's query.
const MOUNT_PORT: &str = "mountport=";
const HEAD: [&str; 6] = ["client", "version", "delay", "work", "files/s", "calls/file"];

fn rows(figures: &[Figure]) -> String {
    let row = |figure: &Figure| {
        vec![
            figure.client.clone(),
            figure.version.clone().unwrap_or_else(|| "-".into()),
            format!("{} ms", figure.delay_us as f64 / 1e3),
            figure.work.into(),
            format!("{:.0}", figure.files_per_s),
            figure.round_trips_per_file.map_or("-".into(), |calls| format!("{calls:.2}")),
            format!("{:.2}", figure.cpu_s),
        ]
    };
    let rows: Vec<Vec<String>> = figures.iter().map(row).collect();
    let head: Vec<&str> = HEAD.into_iter().chain(["CPU s"]).collect();
    table(&head, &rows)
}

impl Report {
    /// The figures as a table, and the targets.
    pub fn text(&self) -> String {
        format!(
            "\n{} files, {:.1} MB, through {}; medians of {} rounds\n\n{}\n{}",
            self.files,
            self.bytes as f64 / 1e6,
            self.server,
            self.rounds,
            rows(&self.figures),
            report::targets(&self.targets),
        )
    }
}
