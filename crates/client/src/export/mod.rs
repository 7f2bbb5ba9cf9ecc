//! Files of an export by path.
//!
//! 1. Every operation takes at most the time limit of its [`Export`]. One whose future is dropped
//!    earlier, by the limit or the caller, begins no further request. What the server may have executed is
//!    not undone, and a request that is under way may still reach the server when it answers again: so a write that was
//!    given up may replace a later one of the same bytes. A file that the operation opened is closed again.
//! 2. Nothing is cached here: a change is at the server, and durable there, when its future is done
//!    (buffered writes: [`File`]).

mod copy;
mod error;
mod file;
mod listing;
mod metadata;
mod names;
mod open_options;
mod remove;
mod resolve;
mod stream;

pub use error::PathError;
pub use file::File;
pub(crate) use file::PIECE_BYTES;
pub use listing::{DirEntry, ReadDir, Walk};
pub use metadata::Metadata;
pub use open_options::OpenOptions;

use crate::detail::detailed;
use crate::fs::NfsFs;
use crate::{MountOptions, NfsUrl, Result};
use futures_util::future::{Either, select};
use std::io;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

/// A connected export, whose files are named by paths.
///
/// Paths begin at the root of the export, with or without a slash, and are resolved as on a mount of
/// it by Linux; none leads out of the export (EXDEV). A clone is another handle of the same mount,
/// which ends when all of them and every open file have been dropped, or with
/// [`close`](Self::close).
///
/// ```no_run
/// # async fn example() -> std::io::Result<()> {
/// use weir_client::Export;
///
/// let export = Export::connect("nfs://filer/images?vers=4.2").await?;
/// export.create_dir_all("2026/11").await?;
/// export.write("2026/11/notes", "one\ntwo\n").await?;
/// assert_eq!(export.read("2026/11/notes").await?, "one\ntwo\n");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Export {
    nfs: Arc<NfsFs>,
    shown: Arc<str>,
    limit: Option<Duration>,
}

impl Export {
    /// Connects to the export at a URL such as `nfs://filer/images?vers=4.2`. Its requests run on
    /// threads of its own, so any executor will do.
    ///
    /// # Errors
    /// The URL is malformed, the server cannot be reached, or it refuses; the source of the error is
    /// the client's [`Error`](crate::Error).
    pub async fn connect(url: &str) -> io::Result<Self> {
        let url: NfsUrl = url.parse().map_err(connecting)?;
        Self::connect_with(&url, &MountOptions::default()).await
    }

    /// The same, with options; those of the URL take precedence.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub async fn connect_with(url: &NfsUrl, options: &MountOptions) -> io::Result<Self> {
        let nfs = NfsFs::mount(url, options).await.map_err(connecting)?;
        Ok(Self::of(nfs, url))
    }

    /// The same, with its requests on the program's own tokio runtime instead of threads of their own.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    ///
    /// # Panics
    /// The runtime has no I/O driver or no timer.
    pub async fn connect_on(
        runtime: tokio::runtime::Handle,
        url: &NfsUrl,
        options: &MountOptions,
    ) -> io::Result<Self> {
        let nfs = NfsFs::mount_on(runtime, url, options).await.map_err(connecting)?;
        Ok(Self::of(nfs, url))
    }

    /// The same, with its requests on the threads that wait for them with [`NfsFs::wait`].
    pub(crate) async fn connect_for_waiting(
        url: &NfsUrl,
        options: &MountOptions,
    ) -> io::Result<Self> {
        let nfs = NfsFs::mount_for_waiting(url, options).await.map_err(connecting)?;
        Ok(Self::of(nfs, url))
    }

    fn of(nfs: Arc<NfsFs>, url: &NfsUrl) -> Self {
        let shown = NfsUrl { query: String::new(), ends_in_slash: false, ..url.clone() };
        Self { nfs, shown: shown.to_string().into(), limit: None }
    }

    /// The same export, with a limit on the time that each operation may take: those of an open file
    /// and of a directory being listed, too, each request of them. An operation that takes longer fails
    /// with [`io::ErrorKind::TimedOut`]; the server may have executed it.
    #[must_use]
    pub fn with_time_limit(&self, limit: Duration) -> Self {
        Self { limit: Some(limit), ..self.clone() }
    }

    /// The mount, with its operations by handle, for use with a page cache for example.
    pub fn fs(&self) -> &Arc<NfsFs> {
        &self.nfs
    }

    /// The URL of the export, without options.
    pub fn url(&self) -> &str {
        &self.shown
    }

    /// Returns the state that the server holds for this mount; operations fail from then on. Dropping
    /// the export does this in the background, which a program that exits may not complete.
    pub async fn close(self) {
        self.nfs.unmount().await;
    }

    /// Runs an operation within the time limit; its error says what was `asked`.
    async fn call<T>(
        &self,
        asked: Asked<'_>,
        operation: impl Future<Output = weir_vfs::Result<T>>,
    ) -> io::Result<T> {
        self.limited(asked, detailed(operation)).await
    }

    /// The same for an operation with the client's own error.
    async fn limited<T>(
        &self,
        asked: Asked<'_>,
        operation: impl Future<Output = Result<T>>,
    ) -> io::Result<T> {
        let outcome = match self.limit {
            None => operation.await,
            Some(limit) => self.within(limit, asked.operation, operation).await,
        };
        outcome.map_err(|cause| asked.failed(Arc::clone(&self.shown), cause))
    }

    async fn within<T>(
        &self,
        limit: Duration,
        name: &'static str,
        operation: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let expired = {
            let _timers = self.nfs.runtime()?.enter();
            tokio::time::sleep(limit)
        };
        match select(pin!(operation), pin!(expired)).await {
            Either::Left((outcome, _)) => outcome,
            Either::Right(..) => {
                let server = Arc::clone(self.nfs.protocol().server());
                Err(crate::Error::TimedOut { server, operation: name })
            }
        }
    }
}

/// What an operation was asked.
#[derive(Clone, Copy)]
struct Asked<'a> {
    operation: &'static str,
    path: &'a Path,
    to: Option<&'a Path>,
}

impl<'a> Asked<'a> {
    fn new(operation: &'static str, path: &'a Path) -> Self {
        Self { operation, path, to: None }
    }

    fn failed(self, export: Arc<str>, cause: crate::Error) -> io::Error {
        let Self { operation, path, to } = self;
        let (path, to) = (path.to_path_buf(), to.map(Path::to_path_buf));
        PathError { operation, path, to, export, cause }.into()
    }
}

/// An error of connecting, which names the server itself.
pub(crate) fn connecting(error: crate::Error) -> io::Error {
    io::Error::new(io::Error::from_raw_os_error(error.to_vfs().errno()).kind(), error)
}
