//! The file that becomes an object.
//!
//! 1. It is created exclusively, beside its object, under a name that no other program makes.
//! 2. It is removed when it is dropped before it was published, where a tokio runtime is there to do that.
//! 3. Once the object has its name, nothing that fails makes [`publish`](Temporary::publish) fail.

use crate::TEMPORARY;
use crate::get::tag_of;
use object_store::PutResult;
use std::fmt::Write as _;
use std::io::{self, ErrorKind};
use weir_client::{Export, File, OpenOptions, RenameFlags};

/// A temporary file.
pub(crate) struct Temporary {
    export: Export,
    path: String,
    file: File,
    /// Whether the name is its own.
    is_there: bool,
}

impl Temporary {
    /// Creates it, and the directories above the object that do not exist.
    pub(crate) async fn create(export: &Export, object: &str) -> io::Result<Self> {
        let path = beside(object)?;
        let options = OpenOptions::new().read(true).write(true).create_new(true);
        let file = match export.open_with(&path, &options).await {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                make_parent(export, object).await?;
                export.open_with(&path, &options).await?
            }
            opened => opened?,
        };
        Ok(Self { export: export.clone(), path, file, is_there: true })
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Gives the file its final name. All of its data has to be written.
    pub(crate) async fn publish(
        mut self,
        object: &str,
        flags: RenameFlags,
    ) -> io::Result<PutResult> {
        if flags == RenameFlags::NoReplace {
            self.export.hard_link(&self.path, object).await?;
            // The object is there. Before the look, because this changes the tag; if it fails, it is tried once more
            // in the background.
            self.is_there = self.discard().await.is_err();
        } else {
            self.export.rename_with(&self.path, object, flags).await?;
            self.is_there = false;
        }
        // By its handle: another writer may have replaced it already. Without a tag the object is there, too.
        let e_tag = self.file.metadata().await.ok().map(|metadata| tag_of(&metadata));
        Ok(PutResult { e_tag, version: None, extensions: Default::default() })
    }

    /// Removes it.
    pub(crate) async fn discard(&self) -> io::Result<()> {
        self.export.remove_file(&self.path).await
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if self.is_there
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let (export, path) = (self.export.clone(), std::mem::take(&mut self.path));
            runtime.spawn(async move {
                // It may be gone: discarded, or renamed by a request whose reply did not come.
                let _ = export.remove_file(path).await;
            });
        }
    }
}

/// Creates the directories above an object.
pub(crate) async fn make_parent(export: &Export, object: &str) -> io::Result<()> {
    match object.rsplit_once('/') {
        Some((parent, _)) => export.create_dir_all(parent).await,
        None => Ok(()),
    }
}

/// A new name beside an object.
fn beside(object: &str) -> io::Result<String> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(|error| io::Error::other(error.to_string()))?;
    let mut path =
        object.rsplit_once('/').map_or(String::new(), |(parent, _)| format!("{parent}/"));
    path.push_str(TEMPORARY);
    for byte in random {
        // A string takes any text.
        let _ = write!(path, "{byte:02x}");
    }
    Ok(path)
}
