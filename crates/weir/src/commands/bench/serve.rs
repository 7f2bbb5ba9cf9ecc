//! `weir bench serve`: one load on servers side by side.
//!
//! In every round each server gets its turn at the same work with the same version, the first one
//! last as often as first; ratios are medians of pairs from the same round.

use super::interrupt::with_interrupts;
use super::load::{Amount, Taken, Target, Work, histogram};
use super::measure::{median, paired};
use super::peers::{Peer, Place, Wanted};
use super::report::table;
use super::scratch::Scratch;
use crate::ended::Ended;
use crate::output::{print, print_json, say};
use hdrhistogram::Histogram;
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;
use weir_client::Version;
use weir_tools::failure::{Failure, Result};
use weir_tools::size::Size;

/// Reads, writes and metadata over NFS, of one server or of several side by side
#[derive(clap::Args)]
#[command(after_long_help = "\
A SERVER is a URL, nfs://HOST[:PORT]/PATH[?OPTIONS]; or `weir`, `weir-relaxed` (with
--durability relaxed) or `ganesha`, which are started for the run on a directory made in --dir and ended
after it (ganesha needs root, and rpcbind if version 3 is wanted). What each one's replies to changes
of names promise is told with the figures: compare those that promise the same. The load makes a directory of its own on each server, with a file that is in the
server's cache when it is read, and removes it in the end.

CPU time is that of this process as the client, and of the server where it is started here or its
process is named by --server-pid: per gigabyte of large transfers, per operation of small ones.

Examples:
  weir bench serve --quick
  weir bench serve weir weir-relaxed --only create --only deep-create --vers 4.2
  weir bench serve weir ganesha --vers 3 --vers 4.2
  weir bench serve --only single-reads --only reads --vers 4.2
  weir bench serve nfs://filer/scratch --server-pid 4711 --json")]
pub(super) struct Args {
    /// Servers; ratios are to the first one
    #[arg(value_name = "SERVER", default_value = "weir")]
    servers: Vec<Wanted>,
    /// Versions: 3, 4.0, 4.1, 4.2 [default: all of them]
    #[arg(long = "vers", value_name = "VERSION", value_parser = version)]
    versions: Vec<Version>,
    /// The process of a server that a URL names, in the order of the URLs, for its CPU time
    #[arg(long = "server-pid", value_name = "PID")]
    processes: Vec<u32>,
    /// Where to make the directory of servers that are started here
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Size of the file [default: 256M, quick: 64M]
    #[arg(long, value_name = "SIZE")]
    size: Option<Size>,
    /// Small files [default: 10000, quick: 500]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    files: Option<u32>,
    /// Small reads in flight
    #[arg(long, value_name = "N", default_value = "32", value_parser = clap::value_parser!(u16).range(1..=1024))]
    depth: u16,
    /// This work only; may be given several times [default: all of it]
    #[arg(long, value_name = "WORK")]
    only: Vec<Work>,
    /// Rounds of each figure [default: 3, quick: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// Seconds of each read and write in a round [default: 2, quick: 0.3]
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<f64>,
    /// One short round
    #[arg(long)]
    quick: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// A version as mount options have it.
pub(super) fn version(text: &str) -> Result<Version, String> {
    let found = Version::NEWEST_FIRST.into_iter().find(|v| v.to_string() == text);
    found.ok_or_else(|| "the versions are 3, 4.0, 4.1 and 4.2".into())
}

/// The versions asked for, or all, oldest first.
pub(super) fn versions(asked: &[Version]) -> Vec<Version> {
    let all = Version::NEWEST_FIRST.into_iter().rev();
    all.filter(|v| asked.is_empty() || asked.contains(v)).collect()
}

/// What a run finds.
#[derive(Serialize)]
struct Report {
    file_bytes: u64,
    files: u32,
    depth: usize,
    rounds: u32,
    seconds: f64,
    promises: Vec<Promise>,
    figures: Vec<Figures>,
}

/// What a server's replies to changes of names promise.
#[derive(Serialize)]
struct Promise {
    server: String,
    promise: &'static str,
}

/// One kind of work at one server with one version: medians of rounds; latencies of all rounds.
#[derive(Serialize)]
struct Figures {
    version: String,
    work: String,
    server: String,
    operations_per_s: f64,
    mb_per_s: f64,
    p50_us: f64,
    p99_us: f64,
    p99_9_us: f64,
    client_cpu_us_per_operation: f64,
    client_cpu_s_per_gb: Option<f64>,
    server_cpu_us_per_operation: Option<f64>,
    server_cpu_s_per_gb: Option<f64>,
    /// Operations per second to those of the first server, median of pairs.
    to_first: f64,
    #[serde(skip)]
    small: bool,
}

pub(super) fn run(args: &Args) -> Result<Ended> {
    with_interrupts(|| bench(args))
}

fn bench(args: &Args) -> Result<Ended> {
    let rounds = args.rounds.unwrap_or(if args.quick { 1 } else { 3 });
    let seconds = args.seconds.unwrap_or(if args.quick { 0.3 } else { 2.0 });
    if !(seconds > 0.0 && seconds <= 3600.0) {
        return Err(Failure::new("measure", "--seconds must be more than 0, and at most 3600"));
    }
    let amount = Amount {
        file_bytes: args.size.map_or(if args.quick { 64 << 20 } else { 256 << 20 }, |s| s.of(0)),
        time: Duration::from_secs_f64(seconds),
        depth: args.depth.into(),
        files: args.files.unwrap_or(if args.quick { 500 } else { 10_000 }),
    };
    if amount.file_bytes < 16 << 20 {
        return Err(Failure::new("measure", "the file must have 16M at least"));
    }
    let scratch = Scratch::within(&args.dir)?;
    let peers = start(args, &scratch)?;
    let wanted = |work: &Work| args.only.is_empty() || args.only.contains(work);
    let work: Vec<Work> = Work::ALL.into_iter().filter(wanted).collect();
    let mut figures = Vec::new();
    for version in versions(&args.versions) {
        figures.extend(side_by_side(&peers, version, &work, amount, rounds)?);
    }
    let depth = amount.depth;
    let files = amount.files;
    let promise = |peer: &Peer| Promise { server: peer.name.clone(), promise: peer.promise };
    let promises = peers.iter().map(promise).collect();
    let file_bytes = amount.file_bytes;
    let report = Report { file_bytes, files, depth, rounds, seconds, promises, figures };
    if args.json { print_json(&report) } else { print(report.text().as_bytes()) }
}

fn start(args: &Args, scratch: &Scratch) -> Result<Vec<Peer>> {
    let mut processes = args.processes.iter().copied();
    let mut peers: Vec<Peer> = Vec::new();
    for (index, wanted) in args.servers.iter().enumerate() {
        let dir = |name: &str| scratch.dir(&format!("{name}-{index}"));
        let mut peer = match wanted {
            Wanted::Weir => Peer::weir(&Place::LOCAL, &dir("weir")?, &dir("state")?, None)?,
            Wanted::WeirRelaxed => {
                Peer::weir_relaxed(&Place::LOCAL, &dir("weir")?, &dir("state")?)?
            }
            Wanted::Ganesha => Peer::ganesha(&Place::LOCAL, &dir("ganesha")?, &dir("state")?)?,
            Wanted::Knfsd => {
                let failure = Failure::new("start knfsd", "it needs a kernel of its own");
                return Err(failure.advice("name one that runs by its URL"));
            }
            Wanted::Url(url) => Peer::remote(url, processes.next()),
        };
        if peers.iter().any(|p| p.name == peer.name) {
            peer.name = format!("{} ({})", peer.name, index + 1);
        }
        peers.push(peer);
    }
    if processes.next().is_some() {
        let failure = Failure::new("measure", "there are more --server-pid than URLs");
        return Err(failure.advice("servers that are started here need none"));
    }
    Ok(peers)
}

/// Some work with one version.
fn side_by_side(
    peers: &[Peer],
    version: Version,
    works: &[Work],
    amount: Amount,
    rounds: u32,
) -> Result<Vec<Figures>> {
    let mut targets = Vec::new();
    for peer in peers.iter().filter(|p| !p.lacks.contains(&version)) {
        targets.push((peer, Target::new(&peer.url, version, amount)?));
    }
    for peer in peers.iter().filter(|p| p.lacks.contains(&version)) {
        say(format_args!(
            "weir: {} is left out of version {version}, which it does not speak",
            peer.name
        ));
    }
    // By work, then by target.
    let mut taken: Vec<Vec<Vec<Taken>>> = vec![vec![Vec::new(); targets.len()]; works.len()];
    for round in 0..rounds as usize {
        for (&work, taken) in works.iter().zip(&mut taken) {
            let count = targets.len();
            for index in (0..count).map(|i| if round % 2 == 0 { i } else { count - 1 - i }) {
                let (peer, target) = &mut targets[index];
                taken[index].push(target.run(work, amount, peer)?);
            }
        }
    }
    let mut figures = Vec::new();
    for (&work, taken) in works.iter().zip(&taken) {
        for ((peer, _), runs) in targets.iter().zip(taken) {
            let (name, version) = (work.name(amount.depth), version.to_string());
            let mut found = Figures::of(runs, &taken[0], work.is_small());
            (found.version, found.work, found.server) = (version, name, peer.name.clone());
            figures.push(found);
        }
    }
    Ok(figures)
}

impl Figures {
    /// Of the rounds of one server, beside those of the first.
    fn of(runs: &[Taken], first: &[Taken], small: bool) -> Self {
        let all =
            |value: &dyn Fn(&Taken) -> f64| median(&runs.iter().map(value).collect::<Vec<_>>());
        let rates = |runs: &[Taken]| {
            runs.iter().map(|t| t.operations as f64 / t.seconds).collect::<Vec<_>>()
        };
        let moved = runs.iter().all(|t| t.bytes > 0);
        let per_gb = |s: f64, t: &Taken| s * 1e9 / t.bytes as f64;
        let per_operation = |s: f64, t: &Taken| s * 1e6 / t.operations.max(1) as f64;
        let known = runs.iter().all(|t| t.server_s.is_some());
        let server = |t: &Taken| t.server_s.unwrap_or_default();
        let mut latency: Histogram<u64> = histogram();
        for run in runs {
            // Same bounds, so it can be added.
            let _ = latency.add(&run.latency);
        }
        let us = |quantile| latency.value_at_quantile(quantile) as f64 / 1e3;
        Self {
            version: String::new(),
            work: String::new(),
            server: String::new(),
            operations_per_s: median(&rates(runs)),
            mb_per_s: all(&|t| t.bytes as f64 / 1e6 / t.seconds),
            p50_us: us(0.5),
            p99_us: us(0.99),
            p99_9_us: us(0.999),
            client_cpu_us_per_operation: all(&|t| per_operation(t.client_s, t)),
            client_cpu_s_per_gb: moved.then(|| all(&|t| per_gb(t.client_s, t))),
            server_cpu_us_per_operation: known.then(|| all(&|t| per_operation(server(t), t))),
            server_cpu_s_per_gb: (known && moved).then(|| all(&|t| per_gb(server(t), t))),
            to_first: paired(&rates(runs), &rates(first)),
            small,
        }
    }

    fn row(&self) -> Vec<String> {
        let cpu = |per_operation: Option<f64>, per_gb: Option<f64>| match (
            self.small,
            per_operation,
            per_gb,
        ) {
            (true, Some(us), _) => format!("{us:.1} us"),
            (false, _, Some(s)) => format!("{s:.3} s/GB"),
            _ => "-".into(),
        };
        vec![
            self.work.clone(),
            self.server.clone(),
            format!("{:.0}", self.operations_per_s),
            if self.mb_per_s > 0.0 { format!("{:.0}", self.mb_per_s) } else { "-".into() },
            format!("{:.0}", self.p50_us),
            format!("{:.0}", self.p99_us),
            format!("{:.0}", self.p99_9_us),
            cpu(Some(self.client_cpu_us_per_operation), self.client_cpu_s_per_gb),
            cpu(self.server_cpu_us_per_operation, self.server_cpu_s_per_gb),
            format!("{:.2}", self.to_first),
        ]
    }
}

impl Report {
    fn text(&self) -> String {
        const HEAD: [&str; 10] = [
            "",
            "server",
            "op/s",
            "MB/s",
            "p50 us",
            "p99 us",
            "p99.9 us",
            "client CPU",
            "server CPU",
            "to first",
        ];
        let mut text = String::new();
        for Promise { server, promise } in &self.promises {
            text.push_str(&format!("{server}: {promise}\n"));
        }
        text.push('\n');
        for group in self.figures.chunk_by(|a, b| a.version == b.version) {
            let rows: Vec<Vec<String>> = group.iter().map(Figures::row).collect();
            let version = &group[0].version;
            text.push_str(&format!("NFS version {version}\n{}\n", table(&HEAD, &rows)));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(operations: u64, bytes: u64, seconds: f64, server_s: Option<f64>) -> Taken {
        let mut latency = histogram();
        latency.saturating_record(5000);
        Taken { operations, bytes, seconds, latency, client_s: 0.5, server_s }
    }

    #[test]
    fn figures_are_medians_and_ratios_are_of_pairs() {
        let first = [taken(100, 0, 1.0, None), taken(400, 0, 1.0, None)];
        let second = [taken(200, 0, 1.0, None), taken(800, 0, 1.0, None)];
        let figures = Figures::of(&second, &first, true);
        assert_eq!((figures.operations_per_s, figures.to_first), (500.0, 2.0));
        assert_eq!(
            (figures.server_cpu_us_per_operation, figures.client_cpu_s_per_gb),
            (None, None)
        );
        let runs = [taken(1000, 2_000_000_000, 1.0, Some(1.0))];
        let figures = Figures::of(&runs, &runs, false);
        assert_eq!((figures.mb_per_s, figures.server_cpu_s_per_gb), (2000.0, Some(0.5)));
        assert_eq!(figures.client_cpu_us_per_operation, 500.0);
        let row = figures.row();
        assert_eq!(&row[7..], ["0.250 s/GB", "0.500 s/GB", "1.00"]);
    }

    #[test]
    fn versions_are_named_as_mount_names_them() {
        assert_eq!(version("4.2"), Ok(Version::V4_2));
        assert!(version("4").is_err() && version("2").is_err());
        assert_eq!(versions(&[Version::V4_1, Version::V3]), [Version::V3, Version::V4_1]);
        assert_eq!(versions(&[]).len(), 4);
    }
}
