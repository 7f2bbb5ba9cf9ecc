//! What an idle mapping has in place of its store's file.

use weir_vfs::{Access, Attr, Error, OpenFile, ReadOp, Result, WriteOp};

/// Open for nothing; whoever opens the mapping again opens the store's file first.
pub(crate) struct ClosedFile;

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
