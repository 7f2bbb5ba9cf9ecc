//! The client against a real server: the suite that every store passes.
//!
//! `WEIR_PEER=nfs://host/empty/dir?vers=4.2 cargo test -p weir-client --test peer -- --ignored`
//! runs it against any server; the directory has to be empty and the caller its owner.

use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_client::{MountOptions, NfsFs, NfsUrl};
use weir_stores::testing::{new_file, write};
use weir_vfs::{Access, Caller, Capabilities, FileSystem};

#[tokio::test]
#[ignore = "needs a server: set WEIR_PEER to a URL"]
async fn the_suite_over_a_peer() {
    log();
    let url: NfsUrl = std::env::var("WEIR_PEER").expect("WEIR_PEER is a URL").parse().unwrap();
    let nfs = NfsFs::mount(&url, &MountOptions::default()).await.unwrap();
    println!("NFSv{}", nfs.version());
    let fs: Arc<dyn FileSystem> = nfs.clone();
    // What a server lacks is its own choice.
    let lacking = Capabilities::all() - fs.capabilities();
    weir_stores::testing::suite(&fs, lacking).await;
    println!("{:?}", nfs.wire_stats());
    nfs.unmount().await;
}

/// A server that delegates files is not asked when one is reopened, until another client changes
/// the file at the server: the test asks for that with a script at `WEIR_PEER_DO`, which is run in
/// the directory, and reports its result in `did` next to it.
#[tokio::test]
#[ignore = "needs a server: set WEIR_PEER to a URL, and WEIR_PEER_DO to a path"]
async fn a_peers_delegation_is_used_until_it_is_recalled() {
    log();
    let url: NfsUrl = std::env::var("WEIR_PEER").expect("WEIR_PEER is a URL").parse().unwrap();
    let nfs = NfsFs::mount(&url, &MountOptions::default()).await.unwrap();
    let fs: Arc<dyn FileSystem> = nfs.clone();
    let name = format!("delegated by {}", nfs.version());
    let file = new_file(&fs, fs.root(), &name).await;
    write(&*file, 0, &[1; 10]).await.unwrap();
    let id = file.getattr().await.unwrap().id;
    drop(file);
    let look = async || {
        let before = nfs.wire_stats().sent_bytes;
        let file = nfs.open(&Caller::Own, id, Access::READ).await.unwrap();
        let size = file.getattr().await.unwrap().size;
        assert_eq!(nfs.getattr(id).await.unwrap().size, size);
        drop(file);
        // The last close is sent in the background.
        tokio::time::sleep(Duration::from_millis(200)).await;
        (size, nfs.wire_stats().sent_bytes - before)
    };
    // The server delegates nothing before all clients have had the time to reclaim.
    let begun = Instant::now();
    while look().await != (10, 0) {
        assert!(begun.elapsed() < Duration::from_secs(60), "nothing is delegated");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    println!("delegated by NFSv{} within {:.0?}", nfs.version(), begun.elapsed());
    let said = at_the_server(&format!("printf more >>'{name}'; stat -c %s '{name}'")).await;
    assert_eq!(said, "14\n");
    let (size, bytes) = look().await;
    assert_eq!(size, 14, "what was written at the server is seen at once");
    assert_ne!(bytes, 0);
    // The client's own removal of a file delegated to it needs no recall.
    fs.unlink(&Caller::Own, fs.root().entry(name.as_bytes())).await.unwrap();
    nfs.unmount().await;
    println!("recalled by NFSv{}", nfs.version());
}

async fn at_the_server(script: &str) -> String {
    let ask = std::env::var("WEIR_PEER_DO").expect("WEIR_PEER_DO is a path");
    let said = std::path::Path::new(&ask).with_file_name("did");
    // There is none before the first.
    let _ = std::fs::remove_file(&said);
    // All of it or nothing.
    let new = format!("{ask}.new");
    std::fs::write(&new, script).unwrap();
    std::fs::rename(new, &ask).unwrap();
    let begun = Instant::now();
    loop {
        match std::fs::read_to_string(&said) {
            Ok(said) => return said,
            Err(_) => assert!(begun.elapsed() < Duration::from_secs(60), "it was not done in time"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn log() {
    // The first test of several initialises it.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .try_init();
}
