//! Results of the READ_PLUS benchmark, and its targets.

use crate::measure::median;
use crate::report::Target;
use crate::targets::target;
use serde::Serialize;
use weir_client::Version;
use weir_tools::failure::Result;

/// What a run finds.
#[derive(Serialize)]
pub struct Report {
    pub(crate) server: String,
    pub(crate) client: String,
    pub(crate) link: String,
    pub(crate) file_bytes: u64,
    pub(crate) rounds: u32,
    pub(crate) file_systems: Vec<FileSystem>,
    pub(crate) targets: Vec<Target>,
}

/// The files on one file system.
#[derive(Serialize)]
pub(crate) struct FileSystem {
    pub(crate) name: String,
    pub(crate) files: Vec<File>,
}

/// One row of the table.
#[derive(Serialize)]
pub(crate) struct File {
    pub(crate) name: String,
    pub(crate) data_bytes: u64,
    pub(crate) cells: Vec<Cell>,
}

/// A file with one version; no figure for a state that the server's cache cannot be brought into.
#[derive(Serialize)]
pub(crate) struct Cell {
    #[serde(serialize_with = "version_text")]
    pub(crate) version: Version,
    pub(crate) uncached: Option<Reading>,
    pub(crate) cached: Option<Reading>,
}

fn version_text<S: serde::Serializer>(version: &Version, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(version)
}

/// The cost of reading a file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Reading {
    pub(crate) seconds: f64,
    pub(crate) received_bytes: u64,
    pub(crate) client_cpu_s: Option<f64>,
    pub(crate) server_cpu_s: Option<f64>,
}

/// Medians of the reads.
pub(crate) fn middle(readings: &[Reading]) -> Option<Reading> {
    let of =
        |value: &dyn Fn(&Reading) -> f64| median(&readings.iter().map(value).collect::<Vec<_>>());
    let known = |value: &dyn Fn(&Reading) -> Option<f64>| {
        readings.iter().all(|r| value(r).is_some()).then(|| of(&|r| value(r).unwrap_or_default()))
    };
    (!readings.is_empty()).then(|| Reading {
        seconds: of(&|r| r.seconds),
        received_bytes: of(&|r| r.received_bytes as f64) as u64,
        client_cpu_s: known(&|r| r.client_cpu_s),
        server_cpu_s: known(&|r| r.server_cpu_s),
    })
}

impl File {
    /// The speedup of a version over `than` for this file, uncached and cached.
    fn speedup(&self, version: Version, than: Version) -> [Option<f64>; 2] {
        let cell = |version| self.cells.iter().find(|cell| cell.version == version);
        let ratio = |state: fn(&Cell) -> Option<&Reading>| {
            Some(state(cell(than)?)?.seconds / state(cell(version)?)?.seconds)
        };
        [ratio(|cell| cell.uncached.as_ref()), ratio(|cell| cell.cached.as_ref())]
    }
}

/// The targets of version 4.2.
pub(crate) fn judge(file_systems: &[FileSystem], limited: bool) -> Vec<Target> {
    let files =
        || file_systems.iter().flat_map(|f| f.files.iter().map(move |file| (&f.name, file)));
    // The smallest speedup of some files in some states, and where it occurred.
    let least = |which: &dyn Fn(&File) -> bool, than, states: &[usize]| {
        let found = files().filter(|(_, file)| which(file)).flat_map(|(name, file)| {
            let speedup = file.speedup(Version::V4_2, than);
            states.iter().filter_map(move |&state| {
                let state_name = ["uncached", "cached"][state];
                Some((speedup[state]?, format!("{name} {}, {state_name}", file.name)))
            })
        });
        found.min_by(|a, b| a.0.total_cmp(&b.0))
    };
    let every = if limited { "every-file-limited" } else { "every-file" };
    let mut wanted = vec![(every, least(&|_| true, Version::V4_1, &[0, 1]))];
    if limited {
        wanted.push(("hole", least(&|f| f.name == "hole", Version::V3, &[0, 1])));
        let mixed = least(&|f| f.name.starts_with("mixed"), Version::V4_1, &[1]);
        wanted.push(("mixed-cached", mixed));
        wanted.push(("data", least(&|f| f.name == "data", Version::V4_1, &[0, 1])));
    }
    let judged = |(name, found): (_, Option<(f64, String)>)| {
        found.map(|(got, at)| target("readplus", name, &at, got))
    };
    wanted.into_iter().filter_map(judged).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Figures of the text.
    pub(crate) fn example() -> FileSystem {
        let reading = |seconds| {
            let received_bytes = if seconds > 1.0 { 2 << 30 } else { 4096 };
            Some(Reading { seconds, received_bytes, client_cpu_s: None, server_cpu_s: Some(0.5) })
        };
        let cell = |version, uncached, cached| Cell {
            version,
            uncached: reading(uncached),
            cached: reading(cached),
        };
        let file = |name: &str, cells| File { name: name.into(), data_bytes: 0, cells };
        let mut mixed = vec![
            cell(Version::V3, 28.261, 18.253),
            cell(Version::V4_1, 28.341, 18.252),
            cell(Version::V4_2, 24.508, 9.150),
        ];
        mixed[2].uncached = None;
        let hole = vec![
            cell(Version::V3, 18.256, 18.253),
            cell(Version::V4_1, 18.256, 18.253),
            cell(Version::V4_2, 0.708, 0.709),
        ];
        FileSystem { name: "ext4".into(), files: vec![file("hole", hole), file("mixed-4d", mixed)] }
    }

    pub(crate) fn report() -> Report {
        let file_systems = vec![example()];
        Report {
            server: "weir".into(),
            client: "weir".into(),
            link: "1000 Mbit/s".into(),
            file_bytes: 2 << 30,
            rounds: 1,
            targets: judge(&file_systems, true),
            file_systems,
        }
    }

    #[test]
    fn the_least_cell_decides() {
        let targets = serde_json::to_value(judge(&[example()], true)).unwrap();
        let target = |what: &str| {
            let all = targets.as_array().unwrap();
            all.iter().find(|t| t["what"].as_str().unwrap().starts_with(what)).unwrap().clone()
        };
        let hole = target("hole");
        assert!(hole["what"].as_str().unwrap().contains("ext4 hole, cached"), "{hole}");
        assert_eq!((&hole["reached"], hole["got"].as_f64().unwrap() as u32), (&false.into(), 25));
        assert_eq!(target("mixed")["reached"], true);
        assert_eq!(target("every")["reached"], true);
    }

    #[test]
    fn medians_leave_out_what_is_unknown() {
        let reading = |seconds, client_cpu_s| Reading {
            seconds,
            received_bytes: 7,
            client_cpu_s,
            server_cpu_s: None,
        };
        let found =
            middle(&[reading(1.0, Some(1.0)), reading(9.0, Some(3.0)), reading(2.0, Some(2.0))]);
        assert_eq!(found, Some(reading(2.0, Some(2.0))));
        assert_eq!(
            middle(&[reading(1.0, Some(1.0)), reading(1.0, None)]),
            Some(reading(1.0, None))
        );
        assert_eq!(middle(&[]), None);
    }
}
