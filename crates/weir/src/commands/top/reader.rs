//! Reads the counters of the processes that are watched.

use super::figures::{Figures, Sample};
use std::ffi::OsString;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use weir_control::{Asked, Reply, Request, Status, ask_within, processes, socket_dir};

/// Time that a process has for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Which processes are watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// Those of this user.
    All,
    /// The one with this process ID.
    Pid(u32),
    /// The one that listens at a socket.
    Socket(PathBuf),
    /// Those that serve an export or directory of this name, and those whose description contains it.
    Name(OsString),
}

impl Target {
    /// What an argument means.
    pub(super) fn of(argument: Option<OsString>) -> Self {
        let Some(argument) = argument else { return Self::All };
        if let Some(pid) = argument.to_str().and_then(|text| text.parse().ok()) {
            return Self::Pid(pid);
        }
        let is_socket = |path: &Path| path.metadata().is_ok_and(|m| m.file_type().is_socket());
        match Path::new(&argument) {
            path if is_socket(path) || path.extension().is_some_and(|end| end == "sock") => {
                Self::Socket(path.into())
            }
            _ => Self::Name(argument),
        }
    }

    /// The sockets to ask.
    fn sockets(&self) -> Result<Vec<Asked>, String> {
        if let Self::Socket(socket) = self {
            return Ok(vec![Asked { pid: 0, socket: socket.clone() }]);
        }
        let mut found = processes(&socket_dir()).map_err(|error| error.to_string())?;
        if let Self::Pid(pid) = self {
            found.retain(|process| process.pid == *pid);
        }
        Ok(found)
    }

    fn includes(&self, status: &Status) -> bool {
        let Self::Name(name) = self else { return true };
        let path = Path::new(name).canonicalize().unwrap_or_else(|_| name.into());
        let serves = |export: &weir_control::Export| {
            Path::new(&export.path) == path || *name == *export.name
        };
        status.exports.iter().any(serves)
            || name
                .to_str()
                .is_some_and(|name| status.what.contains(name) || status.command == name)
    }

    /// What is said if there is no such process.
    fn missing(&self) -> String {
        match self {
            Self::All => "no weir process of this user is running".into(),
            Self::Pid(pid) => format!("no weir process of this user has the process ID {pid}"),
            Self::Socket(path) => format!("nothing listens at {}", path.display()),
            Self::Name(name) => {
                format!("no weir process of this user serves {}", name.to_string_lossy())
            }
        }
    }
}

/// What the watched processes said at one time.
#[derive(Clone, Debug, Default)]
pub(super) struct Readings {
    pub(super) samples: Vec<Sample>,
    /// Why others said nothing.
    pub(super) failures: Vec<String>,
}

impl Readings {
    /// Asks the processes, each also for the `most` files with the most bytes in its cache.
    pub(super) fn take(target: &Target, most: usize) -> Self {
        let mut readings = Self::default();
        let sockets = match target.sockets() {
            Ok(sockets) => sockets,
            Err(failure) => {
                readings.failures.push(failure);
                Vec::new()
            }
        };
        for process in sockets {
            match status(&process) {
                Ok(status) if !target.includes(&status) => {}
                Ok(status) => {
                    let files = files(&process, most);
                    let failed = |error| {
                        readings.failures.push(unreachable(&process, &error));
                        Vec::new()
                    };
                    let files = files.unwrap_or_else(failed);
                    readings.samples.push(Sample { status, files });
                }
                Err(error) => readings.failures.push(unreachable(&process, &error)),
            }
        }
        if readings.samples.is_empty() && readings.failures.is_empty() {
            readings.failures.push(target.missing());
        }
        readings
    }

    /// The figures of each process since the earlier readings.
    pub(super) fn figures_since(&self, before: Option<&Self>) -> Vec<Figures> {
        let earlier = |now: &Sample| {
            let mut samples = before?.samples.iter();
            samples.find(|sample| sample.status.pid == now.status.pid)
        };
        self.samples.iter().map(|now| Figures::between(earlier(now), now)).collect()
    }
}

fn unreachable(process: &Asked, error: &io::Error) -> String {
    format!("the process at {} does not answer: {error}", process.socket.display())
}

fn status(process: &Asked) -> io::Result<Status> {
    for reply in ask_within(PATIENCE, process, &Request::Status)? {
        if let Reply::Status(status) = reply? {
            return Ok(*status);
        }
    }
    Err(io::ErrorKind::InvalidData.into())
}

fn files(process: &Asked, most: usize) -> io::Result<Vec<weir_control::FileStatus>> {
    let mut files = Vec::new();
    for reply in ask_within(PATIENCE, process, &Request::Files { most })? {
        if let Reply::File(file) = reply? {
            files.push(file);
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_control::Export;

    #[test]
    fn an_argument_is_a_process_a_socket_or_a_name() {
        let of = |text: &str| Target::of(Some(text.into()));
        assert_eq!(Target::of(None), Target::All);
        assert_eq!(of("4711"), Target::Pid(4711));
        assert_eq!(of("/run/weir/1.sock"), Target::Socket("/run/weir/1.sock".into()));
        assert_eq!(of("/srv/images"), Target::Name("/srv/images".into()));
    }

    #[test]
    fn a_name_is_that_of_an_export_a_directory_or_a_command() {
        let export = Export {
            name: "/images".into(),
            path: "/srv/none/images".into(),
            reads: 0,
            read_bytes: 0,
            hole_bytes: 0,
            writes: 0,
            written_bytes: 0,
        };
        let status = Status {
            command: "serve".into(),
            what: "serving /srv/none/images on 127.0.0.1:2049".into(),
            exports: vec![export],
            ..Status::default()
        };
        let includes = |name: &str| Target::Name(name.into()).includes(&status);
        for name in ["/images", "/srv/none/images", "serve", "127.0.0.1:2049"] {
            assert!(includes(name), "{name}");
        }
        assert!(!includes("/other") && !includes("mount"));
        assert!(Target::All.includes(&status));
    }
}
