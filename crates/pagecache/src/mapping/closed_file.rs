//! Placeholder for the store's file in an idle mapping.

use std::sync::{Arc, LazyLock};
use weir_vfs::{Access, Attr, Error, OpenFile, ReadOp, Result, WriteOp};

/// The one that all mappings share.
pub(crate) fn shared() -> Arc<dyn OpenFile> {
    static CLOSED: LazyLock<Arc<ClosedFile>> = LazyLock::new(|| Arc::new(ClosedFile));
    CLOSED.clone()
}

/// Open for no access: opening the mapping again opens the store's file first.
struct ClosedFile;

#[async_trait::async_trait]
impl OpenFile for ClosedFile {
    fn access(&self) -> Access {
        Access::empty()
    }

    async fn getattr(&self) -> Result<Attr> {
        Err(Error::BadFile)
    }

    fn submit_read(&self, op: ReadOp) {
        op.complete(Err(Error::BadFile));
    }

    fn submit_write(&self, op: WriteOp) {
        op.complete(Err(Error::BadFile));
    }

    async fn sync(&self, _data_only: bool) -> Result<()> {
        Err(Error::BadFile)
    }

    async fn set_size(&self, _size: u64) -> Result<()> {
        Err(Error::BadFile)
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
