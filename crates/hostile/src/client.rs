//! One input against a live client: a mount of a server whose replies an input's bytes change.
//!
//! 1. The client is connected through a proxy. Most replies pass as they are; others have changed
//!    words, a false length, come twice, late, or never, or the connection ends with them.
//! 2. Every operation of the mount ends, with a result or an error, and so does the unmount. Nothing
//!    in the process panics.
//! 3. Time is real: the client has threads of its own. So many inputs run at a time.

use crate::known::mutate;
use crate::source::Source;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};
use weir_client::{MountOptions, NfsFs, NfsUrl};
use weir_pagecache::{Cache, Config};
use weir_server::{Export, ExportOptions, Server, ServerConfig, Squash};
use weir_stores::memory::{MemoryFs, MemoryOptions};
use weir_stores::testing::{read, write};
use weir_vfs::{
    Access, Caller, CreateMode, Error, FileSystem, Lock, LockOwner, LockRange, OpenFile,
    ReaddirRequest, RenameFlags, SetAttr, XattrName,
};

/// How long an operation of a soft mount may take. Its own patience is 20 s for each call.
const LONGEST: Duration = Duration::from_secs(120);
/// Most operations of an input.
const OPERATIONS: usize = 12;
/// Longest record that the proxy passes.
const RECORD_BYTES: usize = 4 << 20;

/// The server behind the proxies.
#[derive(Debug)]
pub struct Honest {
    address: SocketAddr,
    inputs: AtomicU64,
    _state: TempDir,
}

impl Honest {
    /// Starts a server on the caller's runtime.
    ///
    /// # Panics
    /// This machine has no memory, sockets or files left.
    pub async fn start() -> Arc<Self> {
        // In memory, so that no file of the server waits for a busy disk.
        let state = TempDir::new_in("/dev/shm").or_else(|_| TempDir::new()).expect("a directory");
        let cache = Cache::new(Config { budget_bytes: 16 << 20, ..Config::default() });
        let store =
            MemoryFs::with_options(MemoryOptions { capacity_bytes: 256 << 20, max_files: 100_000 });
        let fs = cache.expect("memory for a page cache").mount(store);
        let options = ExportOptions { squash: Squash::Nobody, ..ExportOptions::default() };
        let export = Export { path: "/".into(), source: "".into(), fs, options };
        let mut config = ServerConfig::new(vec![export], state.path());
        config.grace = Duration::ZERO;
        config.state.lease = Duration::from_secs(5);
        config.state.courtesy = Duration::from_secs(1);
        config.state.clients = 1 << 20;
        config.state.sessions = 1 << 20;
        config.admission.secure = false;
        let server = Server::new(config).expect("a server");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("a port");
        tokio::spawn(async move { server.serve(listener).await });
        Arc::new(Self { address, inputs: AtomicU64::new(0), _state: state })
    }

    /// Runs one input. Returns how many operations succeeded and failed.
    ///
    /// # Errors
    /// What the client did that it must not do.
    ///
    /// # Panics
    /// This machine has no sockets left.
    pub async fn run(self: &Arc<Self>, input: &[u8]) -> Result<(u64, u64), String> {
        let (operations, replies) = input.split_at(input.len() / 4);
        let mut source = Source::new(operations);
        let number = self.inputs.fetch_add(1, SeqCst);
        let replies = Replies { input: replies.to_vec(), at: 0 };
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(|error| error.to_string())?;
        let address = listener.local_addr().map_err(|error| error.to_string())?;
        let proxy = tokio::spawn(accept(listener, self.address, Arc::new(Mutex::new(replies))));
        let result = operate(&mut source, address, number).await;
        proxy.abort();
        result
    }
}

/// What is done to the replies, in the order in which they come.
struct Replies {
    input: Vec<u8>,
    at: usize,
}

impl Replies {
    /// The bytes to send for a reply, and whether the connection goes on.
    fn changed(&mut self, mut record: Vec<u8>) -> (Vec<u8>, Option<Duration>, bool) {
        let rest = self.input.get(self.at..).unwrap_or_default();
        let mut source = Source::new(rest);
        let mark = |len: usize| (len as u32 | 1 << 31).to_be_bytes();
        // For most inputs the first ones pass, as nothing comes after a mount that fails.
        let passes = self.at < 20 && self.input.first().is_some_and(|byte| byte % 4 != 0);
        let kind = if passes { 0 } else { source.below(48) };
        let mut delay = None;
        let sent = match kind {
            0..=39 => [&mark(record.len())[..], &record].concat(),
            40..=44 => {
                // The transaction mostly stays.
                let keeps = !source.one_in(16);
                let xid = record.get(..4).map(<[u8]>::to_vec);
                mutate(&mut source, &mut record);
                if let (true, Some(xid), Some(to)) = (keeps, xid, record.get_mut(..4)) {
                    to.copy_from_slice(&xid);
                }
                [&mark(record.len())[..], &record].concat()
            }
            45 => {
                let false_len = source.word();
                [&false_len.to_be_bytes()[..], &record].concat()
            }
            46 => {
                let whole = [&mark(record.len())[..], &record].concat();
                [&whole[..], &whole].concat()
            }
            _ => {
                delay = Some(Duration::from_millis(10 * u64::from(source.byte())));
                [&mark(record.len())[..], &record].concat()
            }
        };
        let goes_on = kind < 40 || !source.one_in(32);
        let used = rest.len() - source.len();
        self.at += used.max(1);
        (sent, delay, goes_on)
    }
}

async fn accept(listener: TcpListener, server: SocketAddr, replies: Arc<Mutex<Replies>>) {
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        if let Ok(server) = TcpStream::connect(server).await {
            connections.spawn(pass(client, server, replies.clone()));
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn pass(client: TcpStream, server: TcpStream, replies: Arc<Mutex<Replies>>) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let forth = async {
        // The end of either direction ends both.
        let _ = tokio::io::copy(&mut from_client, &mut to_server).await;
    };
    let back = async {
        while let Some(record) = record(&mut from_server).await {
            let (bytes, delay, goes_on) = replies.lock().await.changed(record);
            if let Some(delay) = delay {
                sleep(delay).await;
            }
            if !send(&mut to_client, &bytes).await || !goes_on {
                return;
            }
        }
    };
    tokio::select! { () = forth => {}, () = back => {} }
}

async fn record(from: &mut OwnedReadHalf) -> Option<Vec<u8>> {
    let len = (from.read_u32().await.ok()? & !(1 << 31)) as usize;
    let mut record = vec![0; len.min(RECORD_BYTES)];
    from.read_exact(&mut record).await.ok()?;
    Some(record)
}

async fn send(to: &mut OwnedWriteHalf, bytes: &[u8]) -> bool {
    matches!(timeout(LONGEST, to.write_all(bytes)).await, Ok(Ok(())))
}

async fn operate(
    source: &mut Source<'_>,
    address: SocketAddr,
    number: u64,
) -> Result<(u64, u64), String> {
    let version = source.pick(&["4.2", "4.1", "4.0", "3"]).copied().unwrap_or("4.2");
    let port = address.port();
    let url = format!(
        "nfs://{address}/?vers={version},soft,timeo=2,retrans=1,noresvport,mountport={port}"
    );
    let url: NfsUrl = url.parse().map_err(|error| format!("{url}: {error}"))?;
    let mounted = timeout(LONGEST, NfsFs::mount(&url, &MountOptions::default())).await;
    let Ok(nfs) = mounted.map_err(|_| format!("the mount of {url} does not end"))? else {
        return Ok((0, 1));
    };
    let (mut succeeded, mut failed) = (0, 0);
    let mut mount = Mounted { fs: nfs.clone(), file: None, other: None, number };
    for _ in 0..OPERATIONS {
        let which = source.below(20);
        match timeout(LONGEST, mount.operation(which, source)).await {
            Ok(Ok(())) => succeeded += 1,
            Ok(Err(_)) => failed += 1,
            Err(_) => return Err(format!("operation {which} of {url} does not end")),
        }
    }
    drop(mount);
    let unmounted = timeout(LONGEST, nfs.unmount()).await;
    unmounted.map_err(|_| format!("the unmount of {url} does not end"))?;
    Ok((succeeded, failed))
}

/// A mount, with an open file or two.
struct Mounted {
    fs: Arc<dyn FileSystem>,
    file: Option<Arc<dyn OpenFile>>,
    other: Option<Arc<dyn OpenFile>>,
    number: u64,
}

impl Mounted {
    async fn operation(&mut self, which: usize, source: &mut Source<'_>) -> Result<(), Error> {
        let (fs, caller) = (self.fs.clone(), Caller::Own);
        let name = format!("{}-{}", self.number, source.below(2));
        let (root, name) = (fs.root(), name.as_bytes());
        let Some(file) = self.file.clone() else {
            self.file = Some(opened(&fs, name).await?);
            return Ok(());
        };
        let len = 1 << source.below(19);
        let offset = [0, 1, 4096, 100_000][source.below(4)];
        let lock = Lock { range: LockRange { start: offset, end: offset + len }, exclusive: true };
        let id = file.getattr().await?.id;
        match which {
            0 | 1 => write(&*file, offset, &vec![7; len as usize]).await,
            2 => file.sync(false).await,
            3 | 4 => read(&*file, offset, len as usize).await.map(drop),
            5 => {
                let mut request = ReaddirRequest {
                    dir: root,
                    cookie: 0,
                    max_entries: 100,
                    with_attr: source.one_in(2),
                };
                // A server that lies may never say that the directory ends.
                for _ in 0..4 {
                    let page = fs.readdir(&caller, request).await?;
                    let Some(last) = page.entries.last() else { break };
                    request.cookie = last.cookie;
                }
                Ok(())
            }
            6 => {
                fs.rename(&caller, root.entry(name), root.entry(b"renamed"), RenameFlags::Replace)
                    .await
            }
            7 => fs.link(&caller, id, root.entry(name)).await.map(drop),
            8 => fs
                .setattr(&caller, id, &SetAttr { size: Some(len), ..SetAttr::default() })
                .await
                .map(drop),
            9 => file.lock(LockOwner(1), lock, false).await,
            10 => file.unlock(LockOwner(1), lock.range).await,
            11 => file.test_lock(LockOwner(2), lock).await.map(drop),
            12 => {
                let other = opened(&fs, format!("{}-other", self.number).as_bytes()).await?;
                let copied = other.copy_range(&*file, 0, len, 0).await;
                self.other = Some(other);
                copied.map(drop)
            }
            13 => {
                let xattr = XattrName { id, name: b"user.x" };
                fs.get_xattr(&caller, xattr).await.map(drop)?;
                fs.list_xattrs(&caller, id).await.map(drop)
            }
            14 => {
                let link = fs
                    .symlink(&caller, root.entry(name).with(&SetAttr::default()), b"target")
                    .await?;
                fs.readlink(&caller, link.id).await.map(drop)
            }
            15 => fs.statfs().await.map(drop),
            16 => fs.unlink(&caller, root.entry(name)).await,
            17 => fs.lookup(&caller, root.entry(name)).await.map(drop),
            18 => file.extent_at(offset).await.map(drop),
            _ => {
                (self.file, self.other) = (None, None);
                Ok(())
            }
        }
    }
}

/// A file of the root, which is made if it is missing.
async fn opened(fs: &Arc<dyn FileSystem>, name: &[u8]) -> Result<Arc<dyn OpenFile>, Error> {
    let set = SetAttr::default();
    let new = fs.root().entry(name).with(&set);
    let made = fs.create(&Caller::Own, new, CreateMode::MayExist).await?;
    fs.open(&Caller::Own, made.attr.id, Access::READ | Access::WRITE).await
}
