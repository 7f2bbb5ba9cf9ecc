//! The server's answers at the control socket.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use tracing::warn;
use weir_control::{CacheStatus, Export, Limit, Listener, Operation, Process, Status, socket_dir};
use weir_pagecache::{Cache, CachedFs};
use weir_server::report::{Report, bounds_us};

/// Answers at the control socket as long as the server runs. Without it the server runs all the same.
pub(super) fn listen(report: Report, cache: Cache, what: String) {
    match Listener::bind(&socket_dir()) {
        Ok(listener) => {
            let process = Arc::new(Serving { report, cache, what, started: Instant::now() });
            tokio::spawn(listener.serve(process));
        }
        Err(error) => warn!("`weir status` will not find this server: {error}"),
    }
}

struct Serving {
    report: Report,
    cache: Cache,
    what: String,
    started: Instant,
}

impl Process for Serving {
    fn status(&self) -> Status {
        let exports = self.report.exports().into_iter().map(|export| Export {
            name: export.path,
            path: export.source.into(),
            reads: export.reads,
            read_bytes: export.read_bytes,
            writes: export.writes,
            written_bytes: export.written_bytes,
        });
        let operations = self.report.operations().into_iter().map(|counts| Operation {
            protocol: counts.protocol.into(),
            name: counts.operation.into(),
            count: counts.count,
            failed: counts.failed,
            nanos: counts.nanos,
            by_duration: counts.by_duration,
        });
        let limits = self.report.limits().into_iter().map(|counts| Limit {
            name: counts.name.into(),
            limit: counts.limit,
            used: counts.used,
            refused: counts.refused,
        });
        let counters = self.cache.stats();
        Status {
            pid: std::process::id(),
            command: "serve".into(),
            what: self.what.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            uptime_ms: self.started.elapsed().as_millis() as u64,
            cache: CacheStatus {
                budget_bytes: self.cache.budget_bytes(),
                used_bytes: self.cache.used_bytes(),
                dirty_bytes: self.cache.dirty_bytes(),
                counters: counters.iter().map(|(name, value)| (name.into(), value)).collect(),
            },
            exports: exports.collect(),
            operations: operations.collect(),
            bounds_us: bounds_us().to_vec(),
            limits: limits.collect(),
        }
    }

    fn file_systems(&self) -> Vec<(PathBuf, CachedFs)> {
        self.report.file_systems()
    }
}
