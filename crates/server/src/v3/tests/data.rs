//! READ, WRITE, COMMIT.

use super::*;
use weir_nfs::Data;
use weir_nfs::v3::op::write::Stability;
use weir_nfs::v3::op::{commit, read, remove, setattr, write};

impl Client {
    async fn write(&mut self, file: &FileHandle, offset: u64, bytes: &[u8]) -> write::Res {
        let (count, data) = (bytes.len() as u32, Data::from(Bytes::copy_from_slice(bytes)));
        let stable = Stability::Unstable;
        self.call(&write::Args { file: file.clone(), offset, count, stable, data }).await
    }

    async fn read(&mut self, file: &FileHandle, offset: u64, count: u32) -> (Bytes, bool) {
        let read = self.call(&read::Args { file: file.clone(), offset, count }).await.unwrap();
        assert_eq!(read.count as usize, read.data.len());
        assert!(read.attr.is_some());
        (read.data.to_bytes(), read.eof)
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i % 251 + 1) as u8).collect()
}

fn assert_zeros((read, eof): (Bytes, bool), len: usize, at_eof: bool) {
    assert_eq!((read.len(), eof), (len, at_eof));
    assert!(read.iter().all(|&b| b == 0));
}

#[tokio::test]
async fn written_data_is_read_back() {
    on_every_store(async |f| {
        let mut c = f.client().await;
        let file = c.file("file").await;
        let bytes = pattern(100_001);
        let written = c.write(&file, 0, &bytes).await.unwrap();
        assert_eq!((written.count, written.committed), (100_001, Stability::Unstable));
        let again = c.write(&file, 0, &bytes).await.unwrap();
        assert_eq!(again.verifier, written.verifier);
        assert_eq!(written.file.after.map(|a| a.size), Some(100_001));
        for (offset, count) in [(0, 4096), (1, 1), (4095, 70_000), (0, 1 << 20), (99_999, 2)] {
            let end = (offset as usize + count as usize).min(bytes.len());
            let (read, eof) = c.read(&file, offset, count).await;
            assert_eq!(read, bytes[offset as usize..end], "{count} at {offset}");
            assert_eq!(eof, end == bytes.len(), "{count} at {offset}");
        }
        for offset in [100_001, 100_002, u64::MAX] {
            assert_eq!(c.read(&file, offset, 100).await, (Bytes::new(), true), "at {offset}");
        }
        assert_eq!(c.read(&file, 5, 0).await.0, "");
        // A READ of more than the maximum is shortened.
        assert_eq!(c.read(&file, 0, u32::MAX).await, (bytes.into(), true));
    })
    .await;
}

#[tokio::test]
async fn holes_are_read_as_zeros() {
    on_every_store(async |f| {
        let mut c = f.client().await;
        let file = c.file("file").await;
        const MIB: u64 = 1 << 20;
        c.write(&file, MIB, b"middle").await.unwrap();
        let set = SetAttr { size: Some(4 * MIB), ..SetAttr::NONE };
        c.call(&setattr::Args { object: file.clone(), set, guard: None }).await.unwrap();
        assert_zeros(c.read(&file, 0, MIB as u32).await, MIB as usize, false);
        let (read, eof) = c.read(&file, MIB - 3, 12).await;
        assert_eq!((&read[..], eof), (&b"\0\0\0middle\0\0\0"[..], false));
        assert_zeros(c.read(&file, 2 * MIB, 300_000).await, 300_000, false);
        assert_zeros(c.read(&file, 4 * MIB - 5, 100).await, 5, true);
        assert_zeros(c.read(&file, 4 * MIB - 5, 5).await, 5, true);
    })
    .await;
}

#[tokio::test]
async fn stable_writes_and_commit_are_durable() {
    on_every_store(async |f| {
        let mut c = f.client().await;
        let file = c.file("file").await;
        for (at, stable) in [Stability::DataSync, Stability::FileSync].into_iter().enumerate() {
            let (offset, data) = (at as u64 * 5, Data::from("hello"));
            let args = write::Args { file: file.clone(), offset, count: 5, stable, data };
            let written = c.call(&args).await.unwrap();
            assert_eq!((written.count, written.committed), (5, stable));
        }
        let written = c.write(&file, 10, b"!").await.unwrap();
        let args = commit::Args { file: file.clone(), offset: 0, count: 0 };
        let committed = c.call(&args).await.unwrap();
        assert_eq!(committed.verifier, written.verifier);
        // In the store itself, not only in the cache.
        let root = f.fs.root();
        let attr = f.fs.store().lookup(&weir_vfs::Caller::Own, root.entry(b"file")).await.unwrap();
        assert_eq!(attr.size, 11);
    })
    .await;
}

#[tokio::test]
async fn invalid_writes_are_refused() {
    on_every_store(async |f| {
        let mut c = f.client().await;
        let root = c.root.clone();
        let file = c.file("file").await;
        let short = write::Args {
            file: file.clone(),
            offset: 0,
            count: 6,
            stable: Stability::Unstable,
            data: "short".into(),
        };
        assert_eq!(status(c.call(&short).await), Error::Inval);
        assert_eq!(status(c.write(&root, 0, b"x").await), Error::IsDir);
        assert_eq!(status(c.write(&file, u64::MAX - 2, b"xyz").await), Error::FBig);
        assert_eq!(c.write(&file, 3, b"").await.unwrap().count, 0);
        let args = read::Args { file: root, offset: 0, count: 1 };
        assert_eq!(status(c.call(&args).await), Error::IsDir);
        c.call(&remove::Args { target: c.in_root("file") }).await.unwrap();
        assert_eq!(status(c.write(&file, 0, b"x").await), Error::Stale);
        let args = read::Args { file, offset: 0, count: 1 };
        assert_eq!(status(c.call(&args).await), Error::Stale);
    })
    .await;
}
