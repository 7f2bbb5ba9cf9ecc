//! Calls that clients send again after the server was killed.

use super::*;
use weir_nfs::v3::op::{link, mknod, remove, rename, rmdir, symlink};
use weir_vfs::{Caller, ReaddirRequest};

/// Sends a call in one run, and again in the next two, from other ports.
async fn executed_once<C: v3::Call>(f: &mut Fixture, args: &C) -> Vec<C::Res> {
    const XID: u32 = 0x7e57;
    let which = (v3::PROGRAM, v3::VERSION, C::PROCEDURE as u32);
    let mut results = Vec::new();
    for _ in 0..3 {
        let mut client = f.connect(f.uid).await;
        client.send(XID, which, args).await;
        let (header, body) = client.reply().await;
        assert_eq!(header, ReplyHeader::accepted(XID, AcceptStatus::Success));
        results.push(Decoder::new(body).get().unwrap());
        *f = f.next_run(ExportOptions { squash: Squash::Nobody, ..Default::default() }).await;
    }
    results
}

#[tokio::test]
async fn a_change_of_names_is_made_once_over_restarts() {
    on_every_store(async |mut f| {
        let root = f.client().await.root.clone();
        let at = |name: &str| DirOp::new(root.clone(), name.as_bytes().to_vec());
        macro_rules! once {
            ($args:expr) => {{
                let args = $args;
                executed_once(&mut f, &args).await.into_iter().map(Result::unwrap).collect()
            }};
        }
        fn same_file(created: &[v3::types::Created]) -> FileHandle {
            let handles: Vec<_> = created.iter().map(|c| c.handle.clone().unwrap()).collect();
            assert!(handles.iter().all(|handle| *handle == handles[0]), "{handles:?}");
            handles[0].clone()
        }
        let set = || SetAttr { mode: Some(0o700), ..SetAttr::NONE };
        let created: Vec<_> = once!(create::Args { target: at("file"), how: How::Guarded(set()) });
        let file = same_file(&created);
        let created: Vec<_> = once!(mkdir::Args { target: at("dir"), set: set() });
        same_file(&created);
        let path = "target".into();
        let created: Vec<_> = once!(symlink::Args { target: at("symlink"), set: set(), path });
        same_file(&created);
        let created: Vec<_> =
            once!(mknod::Args { target: at("fifo"), what: mknod::What::Fifo(set()) });
        same_file(&created);
        let linked: Vec<_> = once!(link::Args { file, link: at("link") });
        assert!(linked.iter().all(|linked| linked.file.as_ref().unwrap().nlink == 2));
        let _: Vec<_> = once!(rename::Args { from: at("file"), to: at("fifo") });
        let _: Vec<_> = once!(remove::Args { target: at("link") });
        let _: Vec<_> = once!(rmdir::Args { target: at("dir") });
        let request =
            ReaddirRequest { dir: f.fs.root(), cookie: 0, max_entries: 9, with_attr: false };
        let names = f.fs.readdir(&Caller::Own, request).await.unwrap().entries;
        let mut names: Vec<_> = names.into_iter().map(|entry| entry.name).collect();
        names.sort();
        assert_eq!(names, [&b"fifo"[..], b"symlink"]);
    })
    .await;
}

#[tokio::test]
async fn another_call_and_a_failed_one_are_executed_after_a_restart() {
    on_every_store(async |mut f| {
        let client = f.client().await;
        let target = client.in_root("dir");
        // It fails: the name does not exist.
        let failed = executed_once(&mut f, &rmdir::Args { target: target.clone() }).await;
        assert!(failed.into_iter().all(|failed| status(failed) == Error::NoEnt));
        let mut client = f.client().await;
        client.dir("dir").await;
        f = f.next_run(ExportOptions { squash: Squash::Nobody, ..Default::default() }).await;
        let mut client = f.client().await;
        client.call(&rmdir::Args { target: target.clone() }).await.unwrap();
        f = f.next_run(ExportOptions { squash: Squash::Nobody, ..Default::default() }).await;
        // The same arguments in another call (the first ones of a client have the same XIDs).
        let mut client = f.client().await;
        client.xid += 1000;
        let again = client.call(&rmdir::Args { target }).await;
        assert_eq!(status(again), Error::NoEnt);
    })
    .await;
}
