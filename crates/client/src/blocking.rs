//! Files of an export by path, for programs without an executor: each call waits on its thread.
//!
//! Must not be called on an executor's thread, which would wait instead of running other tasks.
//!
//! A call that finds no other in progress sends its requests and receives the replies on the caller's thread, and those
//! of calls that other threads begin meanwhile. Between calls, and for `read_at` and `write_at` of more than 1 MiB,
//! and with `nconnect` more than 1, threads of the export do that. Renewals, and answers to calls of the
//! server, may be late by a tenth of a second while calls come that need no request. After fork(2), only the parent may
//! use the export.
//!
//! ```no_run
//! use std::io::Write;
//! use weir_client::blocking::Export;
//!
//! let export = Export::connect("nfs://filer/images")?;
//! let mut file = export.create("log")?;
//! writeln!(file, "started")?;
//! file.flush()?;
//! for entry in export.read_dir("/")? {
//!     println!("{}", entry?.path().display());
//! }
//! # Ok::<_, std::io::Error>(())
//! ```

use crate::export::{self, DirEntry, Metadata, OpenOptions, PIECE_BYTES};
use crate::mount::Exported;
use crate::{MountOptions, NfsFs, NfsUrl, block_on};
use bytes::Bytes;
use futures_util::stream::{Stream, StreamExt};
use std::ffi::OsString;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};
use weir_vfs::{Extent, FsStat, LockRange, RenameFlags, SetAttr};

/// A connected export: [`weir_client::Export`](crate::Export) for programs without an executor.
#[derive(Clone)]
pub struct Export(export::Export);

/// An open file: [`weir_client::File`](crate::File) for programs without an executor. As a stream it is
/// `Read`, `Write` and `Seek` of the standard library.
pub struct File(export::File);

/// Defines methods that wait for the one of the same name.
macro_rules! waiting {
    ($of:literal: $($name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {$(
        #[doc = concat!(
            "Waits for [`", $of, "::", stringify!($name), "`](crate::", $of, "::", stringify!($name), ")."
        )]
        pub fn $name(&self, $($arg: $type),*) -> io::Result<$result> {
            self.0.fs().wait(self.0.$name($($arg),*))
        }
    )*};
}

impl Export {
    /// Connects to the export at a URL such as `nfs://filer/images?vers=4.2`.
    pub fn connect(url: &str) -> io::Result<Self> {
        let url: NfsUrl = url.parse().map_err(export::connecting)?;
        Self::connect_with(&url, &MountOptions::default())
    }

    /// The same, with options; those of the URL take precedence.
    pub fn connect_with(url: &NfsUrl, options: &MountOptions) -> io::Result<Self> {
        block_on(export::Export::connect_for_waiting(url, options)).map(Self)
    }

    /// The same export, with a limit on the time that each operation may take:
    /// [`Export::with_time_limit`](crate::Export::with_time_limit).
    #[must_use]
    pub fn with_time_limit(&self, limit: Duration) -> Self {
        Self(self.0.with_time_limit(limit))
    }

    /// The export for futures. While other threads make blocking calls, a future may be late by some milliseconds.
    pub fn as_async(&self) -> &export::Export {
        &self.0
    }

    /// Returns the state that the server holds for this mount; operations fail from then on.
    pub fn close(self) {
        let nfs = Arc::clone(self.0.fs());
        nfs.wait(self.0.close());
    }

    /// Opens a file to read it.
    pub fn open(&self, path: impl AsRef<Path>) -> io::Result<File> {
        self.0.fs().wait(self.0.open(path)).map(File)
    }

    /// Opens a file to read and write; creates it if it does not exist, and truncates it if it does.
    pub fn create(&self, path: impl AsRef<Path>) -> io::Result<File> {
        self.0.fs().wait(self.0.create(path)).map(File)
    }

    /// Opens a file in the way that `options` describe.
    pub fn open_with(&self, path: impl AsRef<Path>, options: &OpenOptions) -> io::Result<File> {
        self.0.fs().wait(self.0.open_with(path, options)).map(File)
    }

    /// The entries of a directory: [`Export::read_dir`](crate::Export::read_dir).
    pub fn read_dir(&self, path: impl AsRef<Path>) -> io::Result<Entries> {
        let entries = self.0.fs().wait(self.0.read_dir(path))?;
        Ok(Entries { nfs: Arc::clone(self.0.fs()), entries: Box::new(entries) })
    }

    /// Everything below a directory: [`Export::walk`](crate::Export::walk).
    pub fn walk(&self, path: impl AsRef<Path>) -> io::Result<Entries> {
        let entries = self.0.fs().wait(self.0.walk(path))?;
        Ok(Entries { nfs: Arc::clone(self.0.fs()), entries: Box::new(entries) })
    }

    waiting! { "Export":
        read(path: impl AsRef<Path>) -> Bytes;
        write(path: impl AsRef<Path>, data: impl Into<Bytes>) -> ();
        rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> ();
        rename_with(from: impl AsRef<Path>, to: impl AsRef<Path>, flags: RenameFlags) -> ();
        copy(from: impl AsRef<Path>, to: impl AsRef<Path>) -> u64;
        remove_file(path: impl AsRef<Path>) -> ();
        create_dir(path: impl AsRef<Path>) -> ();
        create_dir_all(path: impl AsRef<Path>) -> ();
        remove_dir(path: impl AsRef<Path>) -> ();
        remove_dir_all(path: impl AsRef<Path>) -> ();
        metadata(path: impl AsRef<Path>) -> Metadata;
        symlink_metadata(path: impl AsRef<Path>) -> Metadata;
        try_exists(path: impl AsRef<Path>) -> bool;
        set_permissions(path: impl AsRef<Path>, mode: u32) -> ();
        set_attributes(path: impl AsRef<Path>, set: &SetAttr) -> Metadata;
        hard_link(original: impl AsRef<Path>, link: impl AsRef<Path>) -> ();
        symlink(target: impl AsRef<Path>, link: impl AsRef<Path>) -> ();
        read_link(path: impl AsRef<Path>) -> PathBuf;
        canonicalize(path: impl AsRef<Path>) -> PathBuf;
        statfs() -> FsStat;
        xattr(path: impl AsRef<Path>, name: impl AsRef<[u8]>) -> Bytes;
        xattrs(path: impl AsRef<Path>) -> Vec<OsString>;
        set_xattr(path: impl AsRef<Path>, name: impl AsRef<[u8]>, value: Option<&[u8]>) -> ();
    }
}

impl File {
    /// Waits for [`File::sync_all`](crate::File::sync_all).
    pub fn sync_all(&mut self) -> io::Result<()> {
        let nfs = Arc::clone(self.0.fs());
        nfs.wait(self.0.sync_all())
    }

    /// Waits for [`File::read_at`](crate::File::read_at).
    pub fn read_at(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        let read = self.0.read_at(offset, len);
        match len {
            ..=PIECE_BYTES => self.0.fs().wait(read),
            _ => self.0.fs().wait_beside(read),
        }
    }

    /// Waits for [`File::write_at`](crate::File::write_at).
    pub fn write_at(&self, offset: u64, data: impl Into<Bytes>) -> io::Result<()> {
        let data = data.into();
        let len = data.len();
        let write = self.0.write_at(offset, data);
        match len {
            ..=PIECE_BYTES => self.0.fs().wait(write),
            _ => self.0.fs().wait_beside(write),
        }
    }

    waiting! { "File":
        metadata() -> Metadata;
        set_permissions(mode: u32) -> ();
        set_len(size: u64) -> ();
        punch_hole(offset: u64, len: u64) -> ();
        allocate(offset: u64, len: u64) -> ();
        extent_at(offset: u64) -> Option<Extent>;
        next_data(offset: u64) -> Option<std::ops::Range<u64>>;
        lock(range: LockRange, exclusive: bool) -> ();
        try_lock(range: LockRange, exclusive: bool) -> bool;
        unlock(range: LockRange) -> ();
    }
}

impl Read for File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let nfs = Arc::clone(self.0.fs());
        nfs.wait(self.0.read(buf))
    }
}

impl Write for File {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let nfs = Arc::clone(self.0.fs());
        nfs.wait(self.0.write(buf))
    }

    fn flush(&mut self) -> io::Result<()> {
        let nfs = Arc::clone(self.0.fs());
        nfs.wait(self.0.flush())
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let nfs = Arc::clone(self.0.fs());
        nfs.wait(self.0.seek(to))
    }
}

/// Entries of directories.
pub struct Entries {
    nfs: Arc<NfsFs>,
    entries: Box<dyn Stream<Item = io::Result<DirEntry>> + Send + Unpin>,
}

impl Iterator for Entries {
    type Item = io::Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        self.nfs.wait(self.entries.next())
    }
}

/// Lists what a server exports: [`weir_client::exports`](crate::exports()).
///
/// # Errors
/// The server cannot be reached, or has no MOUNT service.
pub fn exports(url: &NfsUrl, options: &MountOptions) -> crate::Result<Vec<Exported>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| crate::Error::Local(error.into()))?;
    runtime.block_on(crate::mount::exports(url, options))
}
