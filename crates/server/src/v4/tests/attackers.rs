//! Peers that take what they can of the server's limits.

use super::*;
use weir_nfs::v4::Bitmap;
use weir_nfs::v4::op::readdir;
use weir_vfs::{Caller, SetAttr};

/// A READDIR of all that fits a megabyte, with long replies.
fn long_readdir() -> Op {
    use weir_nfs::v4::attr::{FILEHANDLE, FILEID, OWNER, OWNER_GROUP, SIZE};
    Op::Readdir(readdir::Args {
        cookie: 0,
        verifier: [0; 8],
        dir_count: 1 << 20,
        max_count: 1 << 20,
        attrs: Bitmap::of(&[FILEID, FILEHANDLE, OWNER, OWNER_GROUP, SIZE]),
    })
}

#[tokio::test]
async fn listings_that_are_not_read_take_a_bounded_amount_of_memory() {
    const REPLY_BYTES: usize = 3 << 20;
    let f = Fixture::with(|config| config.transport.reply_bytes = REPLY_BYTES).await;
    for i in 0..4000 {
        let name = format!("{i:0200}");
        let (own, set) = (Caller::Own, SetAttr::default());
        f.fs.create(&own, f.fs.root(), name.as_bytes(), &set, true).await.unwrap();
    }
    let mut slow = f.connect("slow", 0).await;
    for _ in 0..64 {
        slow.send("tag", 2, &[Op::Putrootfh(()), long_readdir()]).await;
    }
    let mut other = f.client("other").await;
    for _ in 0..50 {
        other.ok(vec![Op::Putrootfh(())]).await;
        let used = f.server.addresses().reply_bytes.used();
        assert!(used <= REPLY_BYTES + REPLY_BYTES / 8 + (1 << 20), "{used} bytes");
    }
    for _ in 0..64 {
        let reply = slow.record().await;
        assert!(reply.len() > 900_000, "{}", reply.len());
    }
}
