//! What caches hold of files, for `status`, `warm` and `evict`: the caches of running `weir` processes,
//! and the kernel's.

use crate::ended::Ended;
use crate::output::{complain, print, print_json, text_and_hex};
use serde::Serialize;
use std::fmt::Write;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use weir_control::{Action, Asked, FileStatus, Reply, Request, has_ended, processes, socket_dir};
use weir_tools::failure::{Asked as _, Failure, Result};
use weir_tools::kernel_cache;
use weir_tools::local_files::{local_files, open};
use weir_tools::text::{shown, size_text};

/// What a cache holds of a file or tree.
#[derive(Serialize)]
pub(crate) struct Held {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
    /// `kernel` or `weir`.
    cache: &'static str,
    /// The process whose cache it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    /// Regular files.
    files: u64,
    size_bytes: u64,
    resident_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    dirty_bytes: Option<u64>,
    /// What `warm` read, whole pages without holes.
    #[serde(skip)]
    read_bytes: u64,
}

/// How paths are looked at.
pub(crate) struct Look {
    /// What to do with each file.
    pub(crate) action: Action,
    /// The kernel's cache even of files that a process serves.
    pub(crate) kernel: bool,
    /// Show each file that is in memory, not only the sums.
    pub(crate) all: bool,
}

/// The files with the most bytes in the cache of each process, at most `most` of each.
///
/// # Errors
/// A process does not answer.
pub(crate) fn largest(most: usize) -> Result<Vec<Held>> {
    let mut held = Vec::new();
    for process in running()? {
        let before = held.len();
        for reply in replies(&process, &Request::Files { most }) {
            match reply? {
                Reply::File(file) => held.push(Held::of_file(&file, "weir", Some(process.pid))),
                Reply::Failed(why) => return Err(Failure::new(asking(process.pid), why)),
                Reply::Elsewhere => held.truncate(before),
                Reply::Status(_) | Reply::End => {}
            }
        }
    }
    Ok(held)
}

/// What failures of a request say was asked for.
pub(crate) fn asking(pid: u32) -> String {
    format!("ask the weir process {pid}")
}

/// What a process replies to a request; [`Reply::Elsewhere`] at last if it has ended since it was found.
pub(crate) fn replies(
    process: &Asked,
    request: &Request,
) -> impl Iterator<Item = Result<Reply>> + use<> {
    let process = process.clone();
    let (replies, failed) = match weir_control::ask(&process, request) {
        Ok(replies) => (Some(replies), None),
        Err(error) => (None, Some(Err(error))),
    };
    replies.into_iter().flatten().chain(failed).map(move |reply| match reply {
        Err(error) if has_ended(&process, &error) => Ok(Reply::Elsewhere),
        reply => reply.asked(|| asking(process.pid)),
    })
}

/// The running processes of this user.
pub(crate) fn running() -> Result<Vec<Asked>> {
    let dir = socket_dir();
    processes(&dir).map_err(|error| Failure::new("find running weir processes", error.to_string()))
}

/// Applies an action to files and trees.
pub(crate) struct Caches {
    look: Look,
    processes: Vec<Asked>,
    held: Vec<Held>,
    failed: bool,
}

impl Caches {
    /// Looks at these files and trees, and does what is asked with each file.
    pub(crate) fn of(paths: &[PathBuf], look: Look) -> Result<Self> {
        let processes = running()?;
        let mut caches = Self { look, processes, held: Vec::new(), failed: false };
        for path in paths {
            if let Err(failure) = caches.path(path) {
                caches.fail(&failure);
            }
        }
        Ok(caches)
    }

    /// Prints what was found.
    pub(crate) fn end(self, json: bool) -> Result<Ended> {
        match json {
            true => print_json(&self.held)?,
            false => print(table(&self.held).as_bytes())?,
        };
        Ok(if self.failed { Ended::Failed } else { Ended::Done })
    }

    fn fail(&mut self, failure: &Failure) {
        complain(failure);
        self.failed = true;
    }

    fn path(&mut self, path: &Path) -> Result<()> {
        let found = path.canonicalize().asked(|| format!("find {}", path.display()))?;
        let mut served = false;
        for at in 0..self.processes.len() {
            match self.process(at, path, &found) {
                Ok(serves) => served |= serves,
                // It may be the one that serves the path, so no other cache is warmed or evicted in its place.
                Err(failure) => {
                    self.fail(&failure);
                    served = true;
                }
            }
        }
        if self.look.kernel || !served || self.look.action == Action::Show {
            self.kernel(path, &found)?;
        }
        Ok(())
    }

    /// Asks a process; returns whether it serves the path.
    fn process(&mut self, at: usize, shown: &Path, path: &Path) -> Result<bool> {
        if self.look.kernel && self.look.action != Action::Show {
            return Ok(false);
        }
        let process = &self.processes[at];
        let pid = process.pid;
        let action = self.look.action;
        let request = Request::Tree { action, path: path.into() };
        let mut sum = Held::new(shown, "weir", Some(pid));
        let (before, mut serves) = (self.held.len(), false);
        for reply in replies(process, &request) {
            let reply = reply?;
            match reply {
                Reply::Elsewhere if serves && action != Action::Show => {
                    return Err(Failure::new(asking(pid), "it has ended"));
                }
                Reply::Elsewhere => {
                    self.held.truncate(before);
                    return Ok(false);
                }
                Reply::Failed(why) => {
                    self.fail(&Failure::new(format!("{} files", verb(action)), why));
                }
                Reply::File(file) => self.add(&mut sum, file),
                Reply::Status(_) | Reply::End => {}
            }
            serves = true;
        }
        self.held.push(sum);
        Ok(true)
    }

    fn kernel(&mut self, shown: &Path, path: &Path) -> Result<()> {
        let mut sum = Held::new(shown, "kernel", None);
        for file in local_files(path) {
            let outcome = file.and_then(|path| {
                let asked = || format!("{} {}", verb(self.look.action), path.display());
                kernel_file(&path, self.look.action).asked(asked)
            });
            match outcome {
                Ok(Some(file)) => self.add(&mut sum, file),
                Ok(None) => {
                    let failure =
                        Failure::new("look into the kernel's cache", "cachestat(2) is missing");
                    return Err(failure.advice("it needs Linux 6.5, and a sandbox that allows it"));
                }
                Err(failure) => self.fail(&failure),
            }
        }
        self.held.push(sum);
        Ok(())
    }

    fn add(&mut self, sum: &mut Held, file: FileStatus) {
        sum.files += 1;
        sum.size_bytes = sum.size_bytes.saturating_add(file.size_bytes);
        sum.resident_bytes += file.resident_bytes;
        sum.read_bytes += file.read_bytes;
        if sum.pid.is_some() {
            *sum.dirty_bytes.get_or_insert(0) += file.dirty_bytes;
        }
        let path = Path::new(&file.path);
        if file.resident_bytes < file.read_bytes {
            let (in_memory, read) = (size_text(file.resident_bytes), size_text(file.read_bytes));
            self.fail(&Failure::new(
                format!("warm {}", path.display()),
                format!("{in_memory} of {read} are in memory: it does not suffice for all"),
            ));
        }
        if self.look.all && file.resident_bytes > 0 {
            self.held.push(Held::of_file(&file, sum.cache, sum.pid));
        }
    }
}

impl Held {
    fn of_file(file: &FileStatus, cache: &'static str, pid: Option<u32>) -> Self {
        Self {
            files: 1,
            size_bytes: file.size_bytes,
            resident_bytes: file.resident_bytes,
            dirty_bytes: pid.map(|_| file.dirty_bytes),
            ..Self::new(Path::new(&file.path), cache, pid)
        }
    }

    fn new(path: &Path, cache: &'static str, pid: Option<u32>) -> Self {
        let (path, path_hex) = text_and_hex(path.as_os_str().as_bytes());
        let dirty_bytes = pid.map(|_| 0);
        let (files, size_bytes, resident_bytes, read_bytes) = (0, 0, 0, 0);
        Self {
            path,
            path_hex,
            cache,
            pid,
            files,
            size_bytes,
            resident_bytes,
            dirty_bytes,
            read_bytes,
        }
    }
}

fn verb(action: Action) -> &'static str {
    match action {
        Action::Show => "look at",
        Action::Warm => "warm",
        Action::Evict => "evict",
    }
}

/// Returns what the kernel then holds of a file; `None` if it does not tell.
fn kernel_file(path: &Path, action: Action) -> io::Result<Option<FileStatus>> {
    let file: File = open(path)?;
    let read_bytes = match action {
        Action::Show => 0,
        Action::Warm => kernel_cache::warm(&file)?,
        Action::Evict => {
            kernel_cache::evict(&file)?;
            0
        }
    };
    let size_bytes = file.metadata()?.len();
    Ok(kernel_cache::resident_bytes(&file, size_bytes).map(|resident_bytes| FileStatus {
        path: path.into(),
        size_bytes,
        resident_bytes,
        dirty_bytes: 0,
        read_bytes,
    }))
}

/// What caches hold, as a table.
pub(crate) fn table(held: &[Held]) -> String {
    let titles = ("Size", "In memory", "Dirty", "Files", "Cache");
    let (size, resident, dirty, files, cache) = titles;
    let mut out =
        format!("{size:>12} {resident:>12} {dirty:>12} {files:>8}  {cache:<12} Location\n");
    for one in held {
        let cache = match one.pid {
            Some(pid) => format!("weir {pid}"),
            None => one.cache.to_owned(),
        };
        // Writing to a string does not fail.
        let _ = writeln!(
            out,
            "{:>12} {:>12} {:>12} {:>8}  {cache:<12} {}",
            size_text(one.size_bytes),
            size_text(one.resident_bytes),
            one.dirty_bytes.map(size_text).unwrap_or_default(),
            one.files,
            shown(one.path.as_bytes())
        );
    }
    out
}
