//! The server's answers at the control socket.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use tracing::warn;
use weir_control::{
    CacheStatus, Connection, Export, Limit, Listener, Operation, Process, Status, socket_dir,
};
use weir_pagecache::{Cache, CachedFs};
use weir_server::report::{Report, bounds_us};

/// Most connections that a status tells of, so that it stays small.
const MOST_CONNECTIONS: usize = 1000;

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
            hole_bytes: export.hole_bytes,
            writes: export.writes,
            written_bytes: export.written_bytes,
        });
        let operations = self.report.operations().into_iter().map(|counts| Operation {
            protocol: counts.protocol.into(),
            name: counts.operation.into(),
            count: counts.count,
            failed: counts.failed,
            nanos: counts.nanos,
            received_bytes: counts.received_bytes,
            sent_bytes: counts.sent_bytes,
            by_duration: counts.by_duration,
        });
        let limits = self.report.limits().into_iter().map(|counts| Limit {
            name: counts.name.into(),
            limit: counts.limit,
            used: counts.used,
            refused: counts.refused,
        });
        let connections = self.report.connections(MOST_CONNECTIONS).into_iter().map(|counts| {
            let (id, address) = (counts.id, counts.addr.to_string());
            let (received_bytes, sent_bytes) = (counts.received_bytes, counts.sent_bytes);
            Connection { id, address, calls: counts.calls, received_bytes, sent_bytes }
        });
        Status {
            pid: std::process::id(),
            command: "serve".into(),
            what: self.what.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            uptime_ms: self.started.elapsed().as_millis() as u64,
            cache: CacheStatus::of(&self.cache),
            exports: exports.collect(),
            connections: connections.collect(),
            operations: operations.collect(),
            bounds_us: bounds_us().to_vec(),
            limits: limits.collect(),
        }
    }

    fn file_systems(&self) -> Vec<(PathBuf, CachedFs)> {
        self.report.file_systems()
    }
}
