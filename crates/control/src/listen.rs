//! The process's side of the socket.

use crate::directory::{self, DirectoryError};
use crate::process::{Out, Process};
use crate::protocol::{MAX_REQUEST_BYTES, Reply, Request};
use crate::tree;
use rustix::net::sockopt::socket_peercred;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tracing::{debug, warn};

/// Connections that are served at a time; others wait in the kernel's queue.
const MAX_AT_ONCE: usize = 16;

/// Time that a peer has to send its request. It may take the replies as slowly as it likes: the socket is
/// its user's own.
const PATIENCE: Duration = Duration::from_secs(10);

/// The socket of this process. Dropping it removes the socket.
#[derive(Debug)]
pub struct Listener {
    path: PathBuf,
    listener: UnixListener,
}

impl Listener {
    /// Listens at `PID.sock` in `dir`, which is created if it is missing.
    ///
    /// # Errors
    /// The directory cannot be used, or is not private.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn bind(dir: &Path) -> Result<Self, DirectoryError> {
        directory::make(dir)?;
        let path = dir.join(format!("{}.sock", std::process::id()));
        // Between bind(2) and listen(2) a connection is refused, and the process that asks would
        // remove the socket as that of a killed process. So it gets its name when it listens.
        let unnamed = path.with_extension("new");
        let in_dir = |source| DirectoryError::Io { path: path.clone(), source };
        // The directory is private, so what has these names was left by a process that was killed.
        match std::fs::remove_file(&unnamed) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(in_dir(error)),
            _ => {}
        }
        let listener = UnixListener::bind(&unnamed).map_err(in_dir)?;
        std::fs::rename(&unnamed, &path).map_err(in_dir)?;
        Ok(Self { path, listener })
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Answers requests until it is dropped.
    pub async fn serve(self, process: Arc<dyn Process>) {
        let permits = Arc::new(Semaphore::new(MAX_AT_ONCE));
        loop {
            let Ok(permit) = permits.clone().acquire_owned().await else { return };
            let stream = match self.listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    warn!("cannot accept a connection to the control socket: {error}");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    continue;
                }
            };
            let process = process.clone();
            tokio::spawn(async move {
                if let Err(error) = answer(&*process, stream).await {
                    debug!("a request to the control socket ended: {error}");
                }
                drop(permit);
            });
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Another process finds it dead, and removes it.
        let _ = std::fs::remove_file(&self.path);
    }
}

async fn answer(process: &dyn Process, mut stream: UnixStream) -> io::Result<()> {
    let peer = socket_peercred(&stream)?.uid;
    if !peer.is_root() && peer != rustix::process::geteuid() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let (from, to) = stream.split();
    let mut request = Vec::new();
    let mut from = BufReader::new(from).take(MAX_REQUEST_BYTES);
    within(from.read_until(b'\n', &mut request)).await?;
    let mut out = Out::new(to);
    let reply = async {
        match serde_json::from_slice(&request) {
            Err(error) => out.reply(&Reply::Failed(format!("no such request: {error}"))).await?,
            Ok(Request::Status) => out.reply(&Reply::Status(Box::new(process.status()))).await?,
            Ok(Request::Files { most }) => tree::files(process, most, &mut out).await?,
            Ok(Request::Tree { action, path }) => {
                tree::tree(process, action, Path::new(&path), &mut out).await?;
            }
        }
        out.reply(&Reply::End).await
    };
    let mut more = Vec::new();
    tokio::select! {
        biased;
        replied = reply => replied,
        // The peer is gone, while a store may not answer.
        _ = from.read_to_end(&mut more) => Ok(()),
    }
}

async fn within<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(PATIENCE, work).await.unwrap_or(Err(io::ErrorKind::TimedOut.into()))
}
