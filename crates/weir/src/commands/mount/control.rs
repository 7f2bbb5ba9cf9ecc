//! The mount's answers at the control socket.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use tracing::warn;
use weir_control::{CacheStatus, Export, Listener, Operation, Process, Status, socket_dir};
use weir_fuse::{Counters, Session};
use weir_pagecache::CachedFs;

/// Answers `weir status` and the like as long as this process runs. `place` is where the mount is, and
/// the mounted directory if it is one of this machine.
pub(super) fn listen(
    session: &Session,
    fs: &CachedFs,
    shown: &str,
    (place, local): (&Path, Option<PathBuf>),
) {
    match Listener::bind(&socket_dir()) {
        Ok(listener) => {
            let mut places = vec![(place.to_owned(), fs.clone())];
            places.extend(local.filter(|path| path != place).map(|at| (at, fs.clone())));
            let (fs, what, started) = (fs.clone(), shown.to_owned(), Instant::now());
            let process = Mounted { fs, counters: session.counters(), places, what, started };
            tokio::spawn(listener.serve(Arc::new(process)));
        }
        Err(error) => warn!("`weir status` will not find this mount: {error}"),
    }
}

struct Mounted {
    fs: CachedFs,
    counters: Counters,
    /// The mount, and then the mounted directory if it is one of this machine.
    places: Vec<(PathBuf, CachedFs)>,
    what: String,
    started: Instant,
}

impl Mounted {
    /// The mount, as the directory that it serves.
    fn export(&self) -> Option<Export> {
        let (path, _) = self.places.first()?;
        let data = self.counters.data();
        Some(Export {
            name: path.to_string_lossy().into_owned(),
            path: path.into(),
            reads: data.reads,
            read_bytes: data.read_bytes,
            hole_bytes: data.hole_bytes,
            writes: data.writes,
            written_bytes: data.written_bytes,
        })
    }
}

impl Process for Mounted {
    fn status(&self) -> Status {
        let operations = self.counters.requests().into_iter().map(|counts| Operation {
            protocol: "fuse".into(),
            name: counts.name.into(),
            count: counts.count,
            failed: counts.failed,
            nanos: counts.nanos,
            received_bytes: counts.received_bytes,
            sent_bytes: counts.sent_bytes,
            by_duration: counts.by_duration,
        });
        Status {
            pid: std::process::id(),
            command: "mount".into(),
            what: self.what.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            uptime_ms: self.started.elapsed().as_millis() as u64,
            cache: CacheStatus::of(self.fs.cache()),
            exports: self.export().into_iter().collect(),
            connections: Vec::new(),
            operations: operations.collect(),
            bounds_us: Counters::bounds_us().to_vec(),
            limits: Vec::new(),
        }
    }

    fn file_systems(&self) -> Vec<(PathBuf, CachedFs)> {
        self.places.clone()
    }
}
