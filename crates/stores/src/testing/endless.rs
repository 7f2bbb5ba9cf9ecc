//! Listings without an end.

use async_trait::async_trait;
use std::sync::Arc;
use weir_vfs::{Caller, DirPage, FileSystem, FileSystemDecorator, ReaddirRequest, Result};

/// A store whose directories begin again at their end.
pub struct Endless(pub Arc<dyn FileSystem>);

#[async_trait]
impl FileSystemDecorator for Endless {
    fn below(&self) -> &dyn FileSystem {
        &*self.0
    }

    async fn readdir(&self, caller: &Caller, request: ReaddirRequest) -> Result<DirPage> {
        let request = ReaddirRequest { max_entries: 2, ..request };
        let mut page = self.0.readdir(caller, request).await?;
        if std::mem::take(&mut page.eof) {
            page = self.0.readdir(caller, ReaddirRequest { cookie: 0, ..request }).await?;
        }
        Ok(page)
    }
}
