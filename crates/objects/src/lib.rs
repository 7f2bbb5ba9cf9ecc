//! Objects in the files of an NFS server: the trait [`ObjectStore`] for what reads and writes through it
//! (Parquet, DataFusion, Polars, Delta, Lance), without a mount.
//!
//! ```
//! use object_store::path::Path;
//! use object_store::{ObjectStore, ObjectStoreExt, PutMode};
//! use weir_client::Export;
//! use weir_objects::NfsStore;
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let state = tempfile::tempdir()?;
//! # let served = weir_pagecache::Cache::new(weir_pagecache::Config { budget_bytes: 16 << 20, ..Default::default() })?
//! #     .mount(weir_stores::memory::MemoryFs::new());
//! # let options = weir_server::export::ExportOptions {
//! #     squash: weir_server::export::Squash::Nobody,
//! #     ..Default::default()
//! # };
//! # let export =
//! #     weir_server::export::Export { path: "/".into(), source: "".into(), fs: served, options };
//! # let server =
//! #     weir_server::Server::new(weir_server::ServerConfig::new(vec![export], state.path()))?;
//! # let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//! # let url = format!("nfs://{}/", listener.local_addr()?);
//! # let server = tokio::spawn(async move { server.serve(listener).await });
//! let store = NfsStore::new(Export::connect(&url).await?);
//! let name = Path::from("2026/11/table.parquet");
//! store.put(&name, "columns".into()).await?;
//! assert_eq!(store.get_range(&name, 0..3).await?, "col");
//!
//! // Of several writers, one creates an object.
//! let again = store.put_opts(&name, "other".into(), PutMode::Create.into()).await;
//! assert!(matches!(again, Err(object_store::Error::AlreadyExists { .. })));
//! # server.abort();
//! # Ok(())
//! # }
//! ```
//!
//! 1. An object is a regular file, and its name the path from the export's root, byte for byte. Other
//!    files are not objects; symbolic links in the export are followed by reads, but are not listed.
//! 2. A put is atomic and durable: the data is written to a temporary file beside the object
//!    ([`TEMPORARY`]), made durable by the server, and renamed. Readers see the old object or the new
//!    one, whole; a reader that has begun continues to read the old one (over versions 3 and 4.0 it may
//!    fail instead, as the server keeps no removed file for it).
//! 3. Conditional creation is a hard link to the temporary file, which the server makes only if the name
//!    does not exist.
//! 4. An ETag stands for a file and its change attribute.
//! 5. Temporary files of a program that was killed stay, and are not listed. Nor are names of `.nfs` and at least 16
//!    hexadecimal digits, which clients give files that are removed while they are open. No object may have such a
//!    name.
//!
//! Not supported, with the errors that the trait provides for that: [`PutMode::Update`] (NFS cannot
//! compare and replace in one step), attributes, and versions. Tags are ignored. A directory that has
//! become empty stays, and [`list_with_delimiter`](ObjectStore::list_with_delimiter) shows it.

#![forbid(unsafe_code)]

mod error;
mod get;
mod list;
mod temporary;
mod upload;

use crate::error::{failed, refused};
use crate::temporary::Temporary;
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{BoxStream, StreamExt};
use object_store::path::Path;
use object_store::{
    CopyMode, CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions,
    RenameTargetMode, Result,
};
use std::fmt;
use std::ops::Range;
use weir_client::{Export, RenameFlags};

/// How the names of temporary files begin. No object may have a component that does.
pub const TEMPORARY: &str = ".weir-object-";

/// Objects in an export.
#[derive(Clone)]
pub struct NfsStore {
    export: Export,
}

impl NfsStore {
    /// The objects of an export. For those below a directory, connect to that, or use
    /// `object_store::prefix::PrefixStore`.
    pub fn new(export: Export) -> Self {
        Self { export }
    }

    /// The export.
    pub fn export(&self) -> &Export {
        &self.export
    }

    /// A new file beside the object that it will be.
    async fn temporary(&self, location: &Path) -> Result<Temporary> {
        let created = Temporary::create(&self.export, file_of(location)?).await;
        created.map_err(|error| failed(location, error))
    }
}

/// The path of an object's file.
///
/// # Errors
/// The name is empty, or could be that of a temporary or removed file.
fn file_of(location: &Path) -> Result<&str> {
    match location.as_ref() {
        "" => Err(refused(location, "an object needs a name")),
        path if path.split('/').any(is_hidden) => {
            Err(refused(location, "the name is one of temporary or removed files"))
        }
        path => Ok(path),
    }
}

/// Whether a name is that of a temporary file, or one that clients give a file that is removed while it is open
/// (`.nfs` and at least 16 hexadecimal digits).
fn is_hidden(name: &str) -> bool {
    let is_number = |rest: &str| rest.len() >= 16 && rest.bytes().all(|b| b.is_ascii_hexdigit());
    name.starts_with(TEMPORARY) || name.strip_prefix(".nfs").is_some_and(is_number)
}

fn not_implemented(operation: &str) -> Error {
    Error::NotImplemented { operation: operation.into(), implementer: "NfsStore".into() }
}

#[async_trait]
impl ObjectStore for NfsStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        if !options.attributes.is_empty() {
            return Err(not_implemented("attributes"));
        }
        let flags = match options.mode {
            PutMode::Overwrite => RenameFlags::Replace,
            PutMode::Create => RenameFlags::NoReplace,
            PutMode::Update(_) => return Err(not_implemented("put with PutMode::Update")),
        };
        let temporary = self.temporary(location).await?;
        let put = async {
            temporary.file().write_at(0, Bytes::from(payload)).await?;
            temporary.publish(location.as_ref(), flags).await
        };
        put.await.map_err(|error| failed(location, error))
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        if !options.attributes.is_empty() {
            return Err(not_implemented("attributes"));
        }
        let temporary = self.temporary(location).await?;
        Ok(Box::new(upload::NfsUpload::new(location.clone(), temporary)))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        get::get(&self.export, location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        get::get_ranges(&self.export, location, ranges).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let export = self.export.clone();
        let deletes = locations.map(move |location| {
            let export = export.clone();
            async move {
                let location = location?;
                let removed = export.remove_file(file_of(&location)?).await;
                removed.map_err(|error| failed(&location, error))?;
                Ok(location)
            }
        });
        deletes.buffered(DELETES).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        list::list(self.export.clone(), prefix.cloned().unwrap_or_default())
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        list::list_with_delimiter(&self.export, prefix.cloned().unwrap_or_default()).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let flags = match options.mode {
            CopyMode::Overwrite => RenameFlags::Replace,
            CopyMode::Create => RenameFlags::NoReplace,
        };
        let source = file_of(from)?;
        // Look first: a source that is no object leaves no directories behind.
        get::object(&self.export, from).await?;
        let temporary = self.temporary(to).await?;
        let copied = self.export.copy(source, temporary.path()).await;
        copied.map_err(|error| failed(from, error))?;
        let published = temporary.publish(to.as_ref(), flags).await;
        published.map(drop).map_err(|error| failed(to, error))
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        let flags = match options.target_mode {
            RenameTargetMode::Overwrite => RenameFlags::Replace,
            RenameTargetMode::Create => RenameFlags::NoReplace,
        };
        let (source, target) = (file_of(from)?, file_of(to)?);
        // A directory is no object.
        get::object(&self.export, from).await?;
        let renamed = async {
            temporary::make_parent(&self.export, target).await?;
            self.export.rename_with(source, target, flags).await
        };
        renamed.await.map_err(|error| failed(to, error))
    }
}

/// Removals in flight.
const DELETES: usize = 16;

impl fmt::Display for NfsStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NfsStore({})", self.export.url())
    }
}

impl fmt::Debug for NfsStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
