//! An upload in parts.
//!
//! 1. The parts lie one after the other in the temporary file, in the order of the calls, and may be
//!    written in any order: the place of each is known when it is given.
//! 2. The object appears only if every part was written: one that failed, or whose future was dropped,
//!    makes [`complete`](MultipartUpload::complete) fail.

use crate::error::failed;
use crate::temporary::Temporary;
use async_trait::async_trait;
use bytes::Bytes;
use object_store::path::Path;
use object_store::{Error, MultipartUpload, PutPayload, PutResult, Result, UploadPart};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use weir_client::RenameFlags;

/// An upload in progress.
pub(crate) struct NfsUpload {
    location: Path,
    /// `None` when it is completed or aborted.
    temporary: Option<Arc<Temporary>>,
    /// Where the next part begins.
    end: u64,
    /// Parts given, and those of them that are not written.
    missing: Arc<AtomicU64>,
}

impl NfsUpload {
    pub(crate) fn new(location: Path, temporary: Temporary) -> Self {
        let temporary = Some(Arc::new(temporary));
        Self { location, temporary, end: 0, missing: Arc::default() }
    }

    /// Ends the upload; fails if a part is still being written.
    fn end(&mut self) -> Result<Temporary> {
        let temporary = self.temporary.take().ok_or_else(|| generic("the upload has ended"))?;
        Arc::try_unwrap(temporary).map_err(|temporary| {
            self.temporary = Some(temporary);
            generic("parts of the upload are still being written")
        })
    }
}

#[async_trait]
impl MultipartUpload for NfsUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let Some(temporary) = self.temporary.clone() else {
            return Box::pin(std::future::ready(Err(generic("the upload has ended"))));
        };
        let at = self.end;
        self.end += data.content_length() as u64;
        let (missing, location) = (Arc::clone(&self.missing), self.location.clone());
        missing.fetch_add(1, SeqCst);
        Box::pin(async move {
            let written = temporary.file().write_at(at, Bytes::from(data)).await;
            drop(temporary);
            written.map_err(|error| failed(&location, error))?;
            missing.fetch_sub(1, SeqCst);
            Ok(())
        })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        if self.missing.load(SeqCst) > 0 {
            return Err(generic("parts of the upload were not written"));
        }
        let temporary = self.end()?;
        let published = temporary.publish(self.location.as_ref(), RenameFlags::Replace).await;
        published.map_err(|error| failed(&self.location, error))
    }

    async fn abort(&mut self) -> Result<()> {
        let temporary = self.temporary.take().ok_or_else(|| generic("the upload has ended"))?;
        temporary.discard().await.map_err(|error| failed(&self.location, error))
    }
}

fn generic(reason: &'static str) -> Error {
    Error::Generic { store: "NFS", source: reason.into() }
}

impl fmt::Debug for NfsUpload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NfsUpload").field("location", &self.location).finish_non_exhaustive()
    }
}
