//! Measures the benefit of READ_PLUS, by file system, file and version, with the file in the
//! server's cache and without.
//!
//! 1. Before each read, the run brings the server's cache into the state of the column, and
//!    verifies that: a figure is never under the wrong heading.
//! 2. Each read uses a client without cached data.
//! 3. Everything created (images, mounts, namespaces, servers, guests) is removed when the run
//!    ends, even if it is interrupted.

mod files;
mod guest;
mod network;
mod options;
mod original;
mod page;
pub(crate) mod reader;
mod report;
mod side;
mod table;

pub use files::Kind;
pub use network::Rate;
pub use options::{ClientKind, FileSystemKind, Options};
pub use report::Report;

use crate::observer::Observer;
use crate::peers::Wanted;
use crate::scratch::{Image, Scratch};
use crate::versions::versions;
use report::{Cell, File, FileSystem, Reading, judge, middle};
use side::{Sides, State};
use std::path::Path;
use std::sync::Arc;
use weir_client::Version;
use weir_tools::failure::{Failure, Result};

impl Report {
    /// Tables as text, in the layout of the posting that proposed READ_PLUS.
    pub fn text(&self) -> String {
        table::text(self)
    }

    /// A page for a browser, which fetches no other resource.
    pub fn page(&self) -> String {
        page::page(self)
    }
}

/// Measures every file on every file system with every version, uncached and cached at the server.
///
/// # Errors
/// The size is invalid, something that the run needs cannot be created or started, or a read fails.
pub fn run(options: &Options, observer: Arc<dyn Observer>) -> Result<Report> {
    let size = options.file_bytes;
    if size == 0 || !size.is_multiple_of(64 << 10) {
        return Err(Failure::new("measure", "the size must be a multiple of 64K"));
    }
    let root = rustix::process::geteuid().is_root();
    let rate = options.link.unwrap_or(match (&options.server, root) {
        (Wanted::Url(_), _) | (_, false) => Rate::Unlimited,
        _ => Rate::Limited(1_000_000_000),
    });
    let kinds = if options.files.is_empty() { Kind::all() } else { options.files.clone() };
    let run = Run { options, rate, kinds, observer };
    let mut file_systems = Vec::new();
    for kind in wanted_file_systems(options, root, &*run.observer)? {
        file_systems.push(run.file_system(kind)?);
    }
    let limited = rate != Rate::Unlimited;
    Ok(Report {
        server: side::name_of(&options.server),
        client: options.client.name().into(),
        link: rate.to_string(),
        file_bytes: size,
        rounds: options.rounds,
        targets: judge(&file_systems, limited),
        file_systems,
    })
}

fn wanted_file_systems(
    options: &Options,
    root: bool,
    observer: &dyn Observer,
) -> Result<Vec<FileSystemKind>> {
    let url = matches!(options.server, Wanted::Url(_));
    if !options.file_systems.is_empty() {
        if url && options.file_systems != [FileSystemKind::Own] {
            let failure = Failure::new("make a file system", "the server is named by a URL");
            return Err(failure.advice("use --fs own, and --dir for what it exports"));
        }
        return Ok(options.file_systems.clone());
    }
    if url || !root {
        return Ok(vec![FileSystemKind::Own]);
    }
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let (made, left): (Vec<_>, Vec<_>) = FileSystemKind::MADE.into_iter().partition(|kind| {
        let mkfs = ["/usr/sbin", "/sbin", "/usr/bin"]
            .map(|d| Path::new(d).join(format!("mkfs.{}", kind.name())));
        mkfs.iter().any(|p| p.exists()) && known.lines().any(|l| l.trim() == kind.name())
    });
    for kind in left {
        observer.notice(&format!("{} is left out: it cannot be made or mounted here", kind.name()));
    }
    Ok(made)
}

/// State shared by all file systems.
struct Run<'a> {
    options: &'a Options,
    rate: Rate,
    kinds: Vec<Kind>,
    observer: Arc<dyn Observer>,
}

impl Run<'_> {
    /// All rows for one file system.
    fn file_system(&self, kind: FileSystemKind) -> Result<FileSystem> {
        // In drop order: servers and clients before what they depend on.
        let mut image = None;
        let (scratch, name) = match kind {
            FileSystemKind::Own => {
                let scratch = Scratch::within(&self.options.dir)?;
                (scratch, side::file_system_name(&self.options.dir))
            }
            _ => {
                // Data, eight times half of it, and room for the file system itself.
                let bytes = 6 * self.options.file_bytes + (1 << 30);
                let made = Image::make(&self.options.dir, bytes, kind.name(), &self.observer)?;
                made.read_directly();
                let scratch = Scratch::within(made.mount_point())?;
                image = Some(made);
                (scratch, kind.name().into())
            }
        };
        let dir = scratch.dir("files")?;
        for kind in &self.kinds {
            kind.make(&dir.join(kind.name()), self.options.file_bytes)?;
        }
        let mut sides = Sides::start(self.options, self.rate, &dir, &mut image)?;
        let mut files = Vec::new();
        for kind in &self.kinds {
            let mut cells = Vec::new();
            for version in versions(&self.options.versions) {
                cells.push(self.cell(&mut sides, *kind, version)?);
            }
            let data_bytes = kind.data_bytes(self.options.file_bytes);
            // Room for the next one.
            sides.bring_into(State::Uncached, &kind.name(), data_bytes)?;
            files.push(File { name: kind.name(), data_bytes, cells });
        }
        drop(sides);
        drop(scratch);
        drop(image);
        Ok(FileSystem { name, files })
    }

    fn cell(&self, sides: &mut Sides, kind: Kind, version: Version) -> Result<Cell> {
        let mut readings: [Vec<Reading>; 2] = Default::default();
        if sides.speaks(version) {
            for _ in 0..self.options.rounds {
                for (state, readings) in
                    [State::Uncached, State::Cached].into_iter().zip(&mut readings)
                {
                    sides.bring_into(
                        state,
                        &kind.name(),
                        kind.data_bytes(self.options.file_bytes),
                    )?;
                    readings.push(sides.read(&kind.name(), version, self.options.file_bytes)?);
                }
            }
        }
        let [uncached, cached] = readings.map(|readings| middle(&readings));
        Ok(Cell { version, uncached, cached })
    }
}
