//! Requests and replies. A process that asks keeps its end open, also for writing, until it has the reply.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsString;
use weir_pagecache::Cache;

/// What a process is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Its counters: one [`Reply::Status`].
    Status,
    /// The files with the most bytes in its cache: a [`Reply::File`] for each.
    Files {
        /// At most so many.
        most: usize,
    },
    /// A file or tree: a [`Reply::File`] for each regular file, or one [`Reply::Elsewhere`].
    Tree {
        /// What to do with each file.
        action: Action,
        /// An absolute path without symbolic links.
        path: OsString,
    },
}

/// What to do with the files of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Show what the cache holds of them.
    Show,
    /// Read them into the cache.
    Warm,
    /// Write their dirty pages to the store, and drop their pages.
    Evict,
}

/// A part of an answer. [`Reply::End`] is the last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// The counters.
    Status(Box<Status>),
    /// A file.
    File(FileStatus),
    /// A file or directory that could not be handled, with the reason.
    Failed(String),
    /// The path is not below a directory whose files this process has.
    Elsewhere,
    /// The answer is complete.
    End,
}

/// What the cache holds of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileStatus {
    /// Its path; if the process cannot tell, its inode number.
    pub path: OsString,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Bytes of its pages in the cache, whole pages.
    pub resident_bytes: u64,
    /// Those of them that are not written to the store yet.
    pub dirty_bytes: u64,
    /// Bytes that [`Action::Warm`] read, whole pages without holes; 0 for other actions. If it is more
    /// than `resident_bytes`, memory did not suffice.
    pub read_bytes: u64,
}

/// Counters of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Its process ID.
    pub pid: u32,
    /// The command, like `serve`.
    pub command: String,
    /// What it serves and where, for people.
    pub what: String,
    /// Its version.
    pub version: String,
    /// How long it has been running, in milliseconds.
    pub uptime_ms: u64,
    /// Its page cache.
    pub cache: CacheStatus,
    /// The directories that it serves.
    pub exports: Vec<Export>,
    /// The connections of its clients that have carried the most bytes.
    #[serde(default)]
    pub connections: Vec<Connection>,
    /// The operations that it has executed.
    pub operations: Vec<Operation>,
    /// The upper bounds of [`Operation::by_duration`], in microseconds.
    pub bounds_us: Vec<u64>,
    /// The limits that its clients share.
    pub limits: Vec<Limit>,
}

/// A page cache.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheStatus {
    /// Memory that it may use.
    pub budget_bytes: u64,
    /// Memory that it uses.
    pub used_bytes: u64,
    /// Data that is not written to the stores yet.
    pub dirty_bytes: u64,
    /// Its counters by name, since the process started.
    pub counters: BTreeMap<String, u64>,
}

impl CacheStatus {
    /// The counters of a cache.
    pub fn of(cache: &Cache) -> Self {
        let counters = cache.stats();
        Self {
            budget_bytes: cache.budget_bytes(),
            used_bytes: cache.used_bytes(),
            dirty_bytes: cache.dirty_bytes(),
            counters: counters.iter().map(|(name, value)| (name.into(), value)).collect(),
        }
    }
}

/// A directory that is served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Export {
    /// Its name for clients.
    pub name: String,
    /// Its path.
    pub path: OsString,
    /// Reads by clients.
    pub reads: u64,
    /// Bytes that they returned.
    pub read_bytes: u64,
    /// Bytes of holes that they described instead of sending zeros (READ_PLUS).
    #[serde(default)]
    pub hole_bytes: u64,
    /// Writes by clients.
    pub writes: u64,
    /// Bytes that they carried.
    pub written_bytes: u64,
}

/// An operation that a process has executed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// The protocol.
    pub protocol: String,
    /// Its name.
    pub name: String,
    /// How often.
    pub count: u64,
    /// How often it failed.
    pub failed: u64,
    /// How long all executions took together.
    pub nanos: u64,
    /// Bytes of all arguments.
    #[serde(default)]
    pub received_bytes: u64,
    /// Bytes of all results.
    #[serde(default)]
    pub sent_bytes: u64,
    /// Executions by duration; the last element counts those slower than the last bound.
    pub by_duration: Vec<u64>,
}

/// A connection of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// A number that no other connection of the process has.
    pub id: u64,
    /// The client's address and port.
    pub address: String,
    /// Calls of the client.
    pub calls: u64,
    /// Bytes that it sent.
    pub received_bytes: u64,
    /// Bytes that it was sent.
    pub sent_bytes: u64,
}

/// A limit that clients share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// Its name.
    pub name: String,
    /// The limit.
    pub limit: u64,
    /// What all clients together hold.
    pub used: u64,
    /// How often a client had to wait or was refused.
    pub refused: u64,
}

/// Most bytes of a request.
pub(crate) const MAX_REQUEST_BYTES: u64 = 64 << 10;

/// Most bytes of a reply.
pub(crate) const MAX_REPLY_BYTES: u64 = 4 << 20;

/// A message as a line.
pub(crate) fn line(message: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}
