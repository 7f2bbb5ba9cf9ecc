//! The conformance suite, with the stores of this crate.

use std::sync::Arc;
use weir_stores::local::{IoEngine, LocalFs, LocalOptions};
use weir_stores::memory::MemoryFs;
use weir_stores::testing;
use weir_vfs::{Capabilities, FileSystem};

#[tokio::test]
async fn memory() {
    let fs: Arc<dyn FileSystem> = MemoryFs::new();
    testing::suite(&fs, Capabilities::WRITE_TIMES).await;
}

async fn local(options: LocalOptions) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let fs: Arc<dyn FileSystem> = LocalFs::open(dir.path(), options).unwrap();
    testing::suite(&fs, Capabilities::WRITE_TIMES).await;
}

#[tokio::test]
async fn local_through_io_uring() {
    match LocalFs::open(
        env!("CARGO_TARGET_TMPDIR"),
        LocalOptions { io: IoEngine::Uring, ..LocalOptions::default() },
    ) {
        Ok(_) => local(LocalOptions { io: IoEngine::Uring, ..LocalOptions::default() }).await,
        Err(error) => weir_skip::skip(format!("io_uring is refused here: {error}")),
    }
}

#[tokio::test]
async fn local_through_threads() {
    local(LocalOptions { io: IoEngine::Threads, ..LocalOptions::default() }).await;
}

#[tokio::test]
async fn local_through_the_kernels_cache() {
    local(LocalOptions { direct: false, ..LocalOptions::default() }).await;
}

#[tokio::test]
async fn local_with_a_state_directory_and_few_descriptors() {
    let state = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let state_dir = Some(state.path().to_path_buf());
    local(LocalOptions { state_dir, dir_fds: Some(1), ..LocalOptions::default() }).await;
}
