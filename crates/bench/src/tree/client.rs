//! One piece of work by one client: this program in a process of its own, or programs of the system
//! on a mount of the kernel.

use crate::interrupt;
use crate::measure::{children_seconds, processor_times};
use crate::peers::{Host, Running};
use crate::process::{self, PathBytes};
use crate::scratch::call;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;
use weir_client::MountOptions;
use weir_tools::copy::{Copier, Options};
use weir_tools::failure::{Asked, Failure, Result};
use weir_tools::location::Location;
use weir_tools::mounts::{Links, Mounts};
use weir_tools::remove::{Event, remove};
use weir_vfs::Caller;

/// The name of the helper.
pub(crate) const NAME: &str = "tree";

/// What is done with a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Work {
    /// Copying it to the server.
    Up,
    /// Copying it from the server.
    Down,
    /// Copying it to the server again, with nothing left to do.
    Continue,
    /// Removing it at the server.
    Remove,
}

impl Work {
    /// In the order of a run.
    pub const ALL: [Self; 4] = [Self::Up, Self::Down, Self::Continue, Self::Remove];

    /// For reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
            Self::Continue => "continue",
            Self::Remove => "remove",
        }
    }
}

/// What the helper does.
#[derive(Serialize, Deserialize)]
pub(crate) struct Settings {
    work: Work,
    from: PathBytes,
    to: PathBytes,
}

/// The time that a piece of work took, and the processor time of the client.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Taken {
    pub(super) seconds: f64,
    pub(super) cpu_s: f64,
}

/// Runs the helper: answers with what the work took.
pub(crate) fn run(settings: &Settings) -> Result<()> {
    let mut threads = tokio::runtime::Builder::new_multi_thread();
    let runtime = threads.enable_all().build().asked(|| "start threads".into())?;
    let begun = Instant::now();
    let failures = runtime.block_on(work(settings))?;
    let seconds = begun.elapsed().as_secs_f64();
    let (user, system) = processor_times();
    if let Some(first) = failures.first() {
        return Err(Failure::new("copy a tree", first.clone()));
    }
    let taken = Taken { seconds, cpu_s: user + system };
    let text = serde_json::to_string(&taken).map_err(std::io::Error::from);
    process::answer(&text.asked(|| "answer".into())?)
}

/// Does the work; returns what failed.
async fn work(settings: &Settings) -> Result<Vec<String>> {
    let mut mounts = Mounts::new(None, MountOptions::default())?;
    let location = |path: &Path| {
        let parsed = Location::parse(OsString::from(path));
        parsed.map_err(|error| Failure::new("copy a tree", error.to_string()))
    };
    let to = location(&settings.to)?;
    let mut failures = Vec::new();
    if settings.work == Work::Remove {
        // A directory is removed by its name in its parent.
        let (above, name) = to
            .parent()
            .zip(to.name())
            .ok_or_else(|| Failure::new(format!("remove {to}"), "it has no name"))?;
        let above = mounts.place(&above, Links::Follow).await?;
        let id = above.existing("remove")?.id;
        let attr = above.fs.lookup(&Caller::Own, id.entry(&name)).await;
        let attr = attr.asked(|| format!("remove {to}"))?;
        let place = above.child(id, &name, Some(attr.clone()));
        let is_gone = remove(place, attr, |event| {
            if let Event::Failed(failure) = event {
                failures.push(failure.to_string());
            }
        })
        .await;
        if !is_gone && failures.is_empty() {
            failures.push("something stays".into());
        }
    } else {
        let to = mounts.place(&to, Links::Follow).await?;
        let from = mounts.place(&location(&settings.from)?, Links::Follow).await?;
        let resume_bytes = (settings.work == Work::Continue).then_some(64 << 20);
        let options =
            Options { recursive: true, preserve: true, resume_bytes, ..Options::default() };
        let copier = Arc::new(Copier::new(options, mounts.budget_bytes(), ()));
        copier.copy(vec![(from, to)]).await;
        failures = copier.summary(std::time::Duration::ZERO, 0).failures;
    }
    mounts.flush_and_unmount().await?;
    Ok(failures)
}

/// Runs `work` in a process of this program.
pub(super) fn by_weir(work: Work, from: &Path, to: &Path) -> Result<Taken> {
    let settings = Settings { work, from: from.to_path_buf().into(), to: to.to_path_buf().into() };
    let mut command = Host::LOCAL.command(process::program()?);
    let mut running = Running::start(command.args(process::arguments(NAME, &settings)?))?;
    let answer = running.answer()?;
    serde_json::from_value(answer).map_err(std::io::Error::from).asked(|| "copy a tree".into())
}

/// A program of the system that does the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tool {
    Cp,
    Rsync,
}

impl Tool {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Cp => "cp",
            Self::Rsync => "rsync",
        }
    }

    /// Those that are installed.
    pub(super) fn present() -> Vec<Self> {
        let is_there = |tool: &Self| process::is_installed(tool.name());
        [Self::Cp, Self::Rsync].into_iter().filter(is_there).collect()
    }

    /// Does the work; `None` if the program has no such work.
    pub(super) fn run(self, work: Work, from: &Path, to: &Path) -> Result<Option<Taken>> {
        interrupt::check()?;
        let mut command = match (self, work) {
            (_, Work::Remove) => Command::new("rm"),
            (Self::Cp, Work::Continue) => return Ok(None),
            (tool, _) => Command::new(tool.name()),
        };
        match (self, work) {
            (_, Work::Remove) => command.arg("-r").arg(to),
            (Self::Cp, _) => command.arg("-rp").arg(from).arg(to),
            // With its last slash, the content of the directory.
            (Self::Rsync, _) => command.arg("-a").arg(from.join("")).arg(to),
        };
        let (begun, before) = (Instant::now(), children_seconds());
        call(&mut command)?;
        let cpu_s = children_seconds() - before;
        Ok(Some(Taken { seconds: begun.elapsed().as_secs_f64(), cpu_s }))
    }
}
