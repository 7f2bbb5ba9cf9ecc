//! One load on several servers, for comparison.
//!
//! In every round each server runs the same work with the same version once, in alternating order;
//! ratios are medians of pairs from the same round.

pub(crate) mod load;

pub use load::{Amount, Work};

use crate::measure::{histogram, in_turn, median, paired};
use crate::observer::Observer;
use crate::peers::{Host, Peer, Wanted};
use crate::report::table;
use crate::scratch::Scratch;
use crate::versions::versions;
use hdrhistogram::Histogram;
use load::{Taken, Target};
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;
use weir_client::Version;
use weir_tools::failure::{Failure, Result};

/// Options of the benchmark.
#[derive(Clone, Debug)]
pub struct Options {
    /// Servers; ratios are to the first one.
    pub servers: Vec<Wanted>,
    /// Versions; all if empty.
    pub versions: Vec<Version>,
    /// Processes of the servers given by URLs, in their order, for their processor time.
    pub processes: Vec<u32>,
    /// Directory for the files of servers that the run starts.
    pub dir: PathBuf,
    /// How much work.
    pub amount: Amount,
    /// The work to measure; all if empty.
    pub only: Vec<Work>,
    /// Rounds of each figure.
    pub rounds: u32,
}

/// What a run finds.
#[derive(Serialize)]
pub struct Report {
    file_bytes: u64,
    files: u32,
    depth: usize,
    rounds: u32,
    seconds: f64,
    promises: Vec<Promise>,
    figures: Vec<Figures>,
}

/// The durability of changes of names when a server replies.
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
    /// Operations per second relative to the first server, median of pairs.
    to_first: f64,
    #[serde(skip)]
    small: bool,
}

/// Runs the same load on each server in turn.
///
/// # Errors
/// The file is too small, or a server cannot be started or mounted, or an operation fails.
pub fn run(options: &Options, observer: Arc<dyn Observer>) -> Result<Report> {
    let (amount, rounds) = (options.amount, options.rounds);
    if amount.file_bytes < 16 << 20 {
        return Err(Failure::new("measure", "the file must have 16M at least"));
    }
    let scratch = Scratch::within(&options.dir)?;
    let peers = start(options, &scratch)?;
    let wanted = |work: &Work| options.only.is_empty() || options.only.contains(work);
    let work: Vec<Work> = Work::ALL.into_iter().filter(wanted).collect();
    let mut figures = Vec::new();
    for version in versions(&options.versions) {
        figures.extend(side_by_side(&peers, version, &work, options, &observer)?);
    }
    let depth = amount.depth;
    let files = amount.files;
    let promise = |peer: &Peer| Promise { server: peer.name.clone(), promise: peer.promise };
    let promises = peers.iter().map(promise).collect();
    let file_bytes = amount.file_bytes;
    let seconds = amount.time.as_secs_f64();
    Ok(Report { file_bytes, files, depth, rounds, seconds, promises, figures })
}

fn start(options: &Options, scratch: &Scratch) -> Result<Vec<Peer>> {
    let mut processes = options.processes.iter().copied();
    let mut peers: Vec<Peer> = Vec::new();
    for (index, wanted) in options.servers.iter().enumerate() {
        let dir = |name: &str| scratch.dir(&format!("{name}-{index}"));
        let mut peer = match wanted {
            Wanted::Weir => Peer::weir(&Host::LOCAL, &dir("weir")?, &dir("state")?, None)?,
            Wanted::WeirRelaxed => Peer::weir_relaxed(&Host::LOCAL, &dir("weir")?, &dir("state")?)?,
            Wanted::Ganesha => Peer::ganesha(&Host::LOCAL, &dir("ganesha")?, &dir("state")?)?,
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
    options: &Options,
    observer: &Arc<dyn Observer>,
) -> Result<Vec<Figures>> {
    let (amount, rounds) = (options.amount, options.rounds);
    let mut targets = Vec::new();
    for peer in peers.iter().filter(|p| !p.lacks.contains(&version)) {
        targets.push((peer, Target::new(&peer.url, version, amount, observer)?));
    }
    for peer in peers.iter().filter(|p| p.lacks.contains(&version)) {
        observer.notice(&format!(
            "{} is left out of version {version}, which it does not speak",
            peer.name
        ));
    }
    // By work, then by target.
    let mut taken: Vec<Vec<Vec<Taken>>> = vec![vec![Vec::new(); targets.len()]; works.len()];
    for round in 0..rounds as usize {
        for (&work, taken) in works.iter().zip(&mut taken) {
            let count = targets.len();
            for index in in_turn(count, round) {
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
    /// The rounds of one server, with those of the first.
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
            // The bounds are equal, so adding succeeds.
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
    /// Tables for people.
    pub fn text(&self) -> String {
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
}
