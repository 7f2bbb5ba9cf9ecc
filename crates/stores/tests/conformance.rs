//! The conformance suite over the stores of this crate.

use std::sync::Arc;
use weir_stores::memory::MemoryFs;
use weir_stores::testing;
use weir_vfs::FileSystem;

#[tokio::test]
async fn memory() {
    let fs: Arc<dyn FileSystem> = MemoryFs::new();
    testing::suite(&fs).await;
}
