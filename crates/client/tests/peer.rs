//! The client against a real server: the suite that every store passes.
//!
//! `WEIR_PEER=nfs://host/empty/dir?vers=4.2 cargo test -p weir-client --test peer -- --ignored`
//! runs it against any server; the directory has to be empty and the caller its owner.

use std::sync::Arc;
use weir_client::{MountOptions, NfsFs, NfsUrl};
use weir_vfs::FileSystem;

#[tokio::test]
#[ignore = "needs a server: set WEIR_PEER to a URL"]
async fn the_suite_over_a_peer() {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .init();
    let url: NfsUrl = std::env::var("WEIR_PEER").expect("WEIR_PEER is a URL").parse().unwrap();
    let nfs = NfsFs::mount(&url, &MountOptions::default()).await.unwrap();
    println!("NFSv{}", nfs.version());
    let fs: Arc<dyn FileSystem> = nfs.clone();
    weir_stores::testing::suite(&fs).await;
    println!("{:?}", nfs.wire_stats());
    nfs.unmount().await;
}
