//! The client against a real server: the suite that every store passes.
//!
//! `WEIR_PEER=nfs://host/empty/dir?vers=4.2 cargo test -p weir-client --test peer -- --ignored`
//! runs it against any server; the directory has to be empty and the caller its owner. `WEIR_PEER_LACKS` names what the
//! server pretends to have (`HOLES`: its READ_PLUS reports holes as data), `WEIR_PEER_BREAKS` rules that it breaks.

use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_client::{MountOptions, NfsFs, NfsUrl};
use weir_stores::testing::{Rule, new_file, suite_with, write};
use weir_vfs::{Access, Caller, Capabilities, FileSystem, FileSystemDecorator};

#[tokio::test]
#[ignore = "needs a server: set WEIR_PEER to a URL"]
async fn the_suite_over_a_peer() {
    log();
    let url: NfsUrl = std::env::var("WEIR_PEER").expect("WEIR_PEER is a URL").parse().unwrap();
    let nfs = NfsFs::mount(&url, &MountOptions::default()).await.unwrap();
    println!("NFSv{}", nfs.version());
    let name = std::env::var("WEIR_PEER_LACKS").unwrap_or_default();
    let pretended = Capabilities::from_name(&name).unwrap_or_default();
    assert_eq!(pretended.is_empty(), name.is_empty(), "WEIR_PEER_LACKS names a capability");
    let fs: Arc<dyn FileSystem> = Arc::new(Without { below: nfs.clone(), pretended });
    // What a server lacks is its own choice.
    let lacking = Capabilities::all() - fs.capabilities();
    let breaks: Vec<Rule> = std::env::var("WEIR_PEER_BREAKS")
        .unwrap_or_default()
        .split_whitespace()
        .map(|rule| match rule {
            "each-change" => Rule::EachChange,
            "empty-allocation" => Rule::EmptyAllocation,
            other => panic!("WEIR_PEER_BREAKS: no rule is called {other}"),
        })
        .collect();
    suite_with(&fs, lacking, &breaks).await;
    println!("{:?}", nfs.wire_stats());
    nfs.unmount().await;
}

/// A store without capabilities that the one below claims.
struct Without {
    below: Arc<NfsFs>,
    pretended: Capabilities,
}

impl FileSystemDecorator for Without {
    fn below(&self) -> &dyn FileSystem {
        &*self.below
    }

    fn capabilities(&self) -> Capabilities {
        self.below.capabilities() - self.pretended
    }
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
