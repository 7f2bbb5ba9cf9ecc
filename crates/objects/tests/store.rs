//! The store over Weir's own server: the tests that `object_store` has for every store, and those of its
//! own.

#[path = "../examples/parquet.rs"]
mod example;

use futures_util::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    Error, GetOptions, MultipartUpload, ObjectStore, ObjectStoreExt, PutMode, PutOptions,
    UpdateVersion, integration,
};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use weir_client::Export;
use weir_objects::{NfsStore, TEMPORARY};
use weir_pagecache::{Cache, Config};
use weir_server::export::{Export as Served, ExportOptions, Squash};
use weir_server::{Server, ServerConfig};
use weir_stores::fault::{Call, Fault, Rule, What, When};
use weir_stores::memory::MemoryFs;
use weir_vfs::FileSystem;

/// A server of an empty store; it ends with the runtime of the test.
async fn serve() -> (SocketAddr, tempfile::TempDir) {
    serve_store(MemoryFs::new()).await
}

/// A server of a store.
async fn serve_store(store: Arc<dyn FileSystem>) -> (SocketAddr, tempfile::TempDir) {
    let state = tempfile::tempdir().unwrap();
    let cache = Cache::new(Config { budget_bytes: 64 << 20, ..Config::default() }).unwrap();
    let options = ExportOptions { squash: Squash::Nobody, ..ExportOptions::default() };
    let fs = cache.mount(store);
    let export = Served { path: "/".into(), source: "".into(), fs, options };
    let server = Server::new(ServerConfig::new(vec![export], state.path())).unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let _cache = cache;
        server.serve(listener).await
    });
    (addr, state)
}

/// An empty store over a version.
async fn store(version: &str) -> (NfsStore, tempfile::TempDir) {
    let (addr, state) = serve().await;
    let export = Export::connect(&format!("nfs://{addr}/?vers={version}")).await.unwrap();
    (NfsStore::new(export), state)
}

/// The tests of `object_store`.
async fn suite(version: &str) {
    let (store, _state) = store(version).await;
    integration::stream_get(&store).await;
    integration::list_uses_directories_correctly(&store).await;
    integration::list_with_delimiter(&store).await;
    integration::rename_and_copy(&store).await;
    integration::copy_if_not_exists(&store).await;
    integration::copy_rename_nonexistent_object(&store).await;
    integration::multipart_race_condition(&store, true).await;
    integration::multipart_out_of_order(&store).await;
    integration::get_opts(&store).await;
    integration::put_opts(&store, false).await;
    integration::list_with_offset_exclusivity(&store).await;
    let missing = integration::get_nonexistent_object(&store, None).await.unwrap_err();
    assert!(matches!(missing, Error::NotFound { .. }), "{missing}");
}

#[tokio::test]
async fn the_suite_of_object_store_over_v3() {
    suite("3").await;
}

#[tokio::test]
async fn the_suite_of_object_store_over_v4_2() {
    suite("4.2").await;
}

/// This test expects a store without a directory that is empty.
#[tokio::test]
async fn objects_are_put_read_deleted_and_listed() {
    for version in ["3", "4.2"] {
        let (store, _state) = store(version).await;
        integration::put_get_delete_list(&store).await;
    }
}

/// The names in the root.
async fn names(store: &NfsStore) -> Vec<String> {
    let entries = store.export().read_dir("/").await.unwrap();
    let names = entries.map_ok(|entry| entry.file_name().to_string_lossy().into_owned());
    names.try_collect().await.unwrap()
}

#[tokio::test]
async fn names_of_temporary_files_are_refused_and_such_files_not_listed() {
    let (store, _state) = store("4.2").await;
    let hidden = format!("{TEMPORARY}0123");
    store.export().create_dir("dir").await.unwrap();
    store.export().write(format!("dir/{hidden}"), "half").await.unwrap();
    for name in [format!("dir/{hidden}"), format!("{hidden}/x"), String::new()] {
        let path = Path::from(name);
        assert!(store.put(&path, "x".into()).await.is_err());
        assert!(store.get(&path).await.is_err());
        assert!(store.delete(&path).await.is_err());
        assert!(store.copy(&Path::from("a"), &path).await.is_err());
    }
    assert_eq!(store.list(None).try_collect::<Vec<_>>().await.unwrap(), []);
    let listed = store.list_with_delimiter(Some(&Path::from("dir"))).await.unwrap();
    assert_eq!(listed.objects, []);
}

#[tokio::test]
async fn no_name_leaves_the_export() {
    let (store, _state) = store("4.2").await;
    store.export().symlink("../outside", "link").await.unwrap();
    store.export().symlink("/etc", "etc").await.unwrap();
    for name in ["link", "link/x", "etc/passwd"] {
        let path = Path::from(name);
        assert!(store.get(&path).await.is_err(), "{name}");
    }
    assert!(store.put(&Path::from("etc/new"), "x".into()).await.is_err());
    // A name that looks like a way up is one of a file.
    let odd = Path::from("../up");
    store.put(&odd, "x".into()).await.unwrap();
    assert_eq!(store.get(&odd).await.unwrap().bytes().await.unwrap(), "x");
}

#[tokio::test]
async fn a_failed_put_leaves_no_file() {
    let (store, _state) = store("4.2").await;
    store.put(&Path::from("taken"), "x".into()).await.unwrap();
    let create = PutOptions::from(PutMode::Create);
    let error = store.put_opts(&Path::from("taken"), "y".into(), create).await.unwrap_err();
    assert!(matches!(error, Error::AlreadyExists { .. }), "{error}");
    let mut upload = store.put_multipart(&Path::from("parts")).await.unwrap();
    upload.put_part("part".into()).await.unwrap();
    // A part that is not written is not a part of zeros.
    drop(upload.put_part("lost".into()));
    assert!(upload.complete().await.is_err());
    upload.abort().await.unwrap();
    assert!(upload.complete().await.is_err());
    drop(upload);
    // The removal runs in the background.
    while names(&store).await != ["taken"] {
        tokio::task::yield_now().await;
    }
}

/// The object has its name by then.
#[tokio::test]
async fn a_put_succeeds_although_its_temporary_name_stays() {
    let fault = Fault::over(MemoryFs::new(), 1);
    let (addr, _state) = serve_store(fault.clone()).await;
    for version in ["3", "4.2"] {
        let export = Export::connect(&format!("nfs://{addr}/?vers={version}")).await.unwrap();
        let (store, path) = (NfsStore::new(export), Path::from(version));
        let what = What::Fail(weir_vfs::Error::NotPermitted);
        fault.add(Rule { call: Call::Unlink, when: When::Nth(0), what });
        let create = PutOptions::from(PutMode::Create);
        store.put_opts(&path, "x".into(), create.clone()).await.unwrap();
        assert_eq!(store.get(&path).await.unwrap().bytes().await.unwrap(), "x");
        let again = store.put_opts(&path, "y".into(), create).await.unwrap_err();
        assert!(matches!(again, Error::AlreadyExists { .. }), "{again}");
        // The removal is tried once more in the background.
        let removed = async {
            while names(&store).await.iter().any(|name| name.starts_with(TEMPORARY)) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), removed).await.unwrap();
        fault.clear();
    }
}

/// Clients give such names to files that are removed while they are open.
#[tokio::test]
async fn hidden_names_of_removed_files_are_no_objects() {
    let (store, _state) = store("4.2").await;
    let removed = ".nfs0123456789abcdef";
    for name in [removed, ".nfs-notes"] {
        store.export().write(name, "data").await.unwrap();
    }
    let listed: Vec<_> = store.list(None).try_collect().await.unwrap();
    let below_root = store.list_with_delimiter(None).await.unwrap().objects;
    for objects in [listed, below_root] {
        let names: Vec<_> = objects.iter().map(|object| object.location.as_ref()).collect();
        assert_eq!(names, [".nfs-notes"]);
    }
    assert!(store.put(&Path::from(removed), "x".into()).await.is_err());
}

#[tokio::test]
async fn a_listing_goes_on_when_a_directory_is_replaced_meanwhile() {
    for version in ["3", "4.2"] {
        let (store, _state) = store(version).await;
        let put = async |name: &str| store.put(&Path::from(name), "x".into()).await.unwrap();
        for is_replaced in [false, true] {
            for name in ["a", "dir/old", "z"] {
                put(name).await;
            }
            let mut objects = store.list(None);
            let mut listed = vec![objects.next().await.unwrap().unwrap().location.to_string()];
            assert_eq!(listed, ["a"]);
            // The names in the root have been read.
            store.export().remove_dir_all("dir").await.unwrap();
            if is_replaced {
                put("dir/new").await;
            }
            while let Some(object) = objects.next().await {
                listed.push(object.unwrap().location.to_string());
            }
            listed.sort();
            let expected = if is_replaced { &["a", "dir/new", "z"][..] } else { &["a", "z"] };
            assert_eq!(listed, expected, "{version}");
        }
    }
}

#[tokio::test]
async fn an_update_by_tag_is_refused_and_a_tag_changes_with_the_object() {
    let (store, _state) = store("4.2").await;
    let path = Path::from("object");
    let first = store.put(&path, "1".into()).await.unwrap();
    assert_eq!(store.head(&path).await.unwrap().e_tag, first.e_tag);
    let update = PutMode::Update(UpdateVersion::from(first.clone()));
    let error = store.put_opts(&path, "2".into(), update.into()).await.unwrap_err();
    assert!(matches!(error, Error::NotImplemented { .. }), "{error}");
    // Also when another program writes to the file itself.
    store.export().write("object", "2").await.unwrap();
    let old = GetOptions::new().with_if_match(first.e_tag);
    let error = store.get_opts(&path, old).await.unwrap_err();
    assert!(matches!(error, Error::Precondition { .. }), "{error}");
}

#[tokio::test]
async fn ranges_are_read_exactly_and_a_reader_keeps_its_object() {
    let (store, _state) = store("4.2").await;
    let path = Path::from("deep/er/object");
    let bytes: Vec<u8> = (0..3_000_000u32).map(|n| (n % 253) as u8).collect();
    store.put(&path, bytes.clone().into()).await.unwrap();
    let ranges = [0..10, 2_999_990..3_000_000, 5..2_500_000];
    let found = store.get_ranges(&path, &ranges).await.unwrap();
    for (range, found) in ranges.iter().zip(found) {
        assert!(found == bytes[range.start as usize..range.end as usize]);
    }
    assert!(store.get_ranges(&path, std::slice::from_ref(&(3_000_000..3_000_001))).await.is_err());
    let reader = store.get(&path).await.unwrap();
    store.put(&path, "new".into()).await.unwrap();
    assert!(reader.bytes().await.unwrap() == bytes);
    assert_eq!(store.get(&path).await.unwrap().bytes().await.unwrap(), "new");
}

#[tokio::test]
async fn parquet_is_written_and_read_without_a_mount() {
    let (addr, _state) = serve().await;
    let sum = example::sum_of_a_column(&format!("nfs://{addr}/")).await.unwrap();
    assert_eq!(sum, (0..100_000).sum::<i64>());
}
