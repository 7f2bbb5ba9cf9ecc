//! The examples, against Weir's own server.

mod common;

#[path = "../examples/blocking.rs"]
mod blocking;
#[path = "../examples/usage.rs"]
mod usage;

use common::Served;
use weir_client::Export;

#[tokio::test]
async fn the_async_example_sums_up_directories() {
    let served = Served::start();
    let url = format!("nfs://{}/", served.addr);
    let export = Export::connect(&url).await.unwrap();
    export.create_dir_all("a/b").await.unwrap();
    export.write("a/b/file", vec![0; 1000]).await.unwrap();
    export.write("a/file", vec![0; 234]).await.unwrap();
    let lines = usage::summarise(&url).await.unwrap();
    assert_eq!(lines, [format!("{:>15} a", 1234)]);
}

#[test]
fn the_blocking_example_finds_the_data_of_an_image() {
    let served = Served::start();
    let data = blocking::make_image(&format!("nfs://{}/", served.addr)).unwrap();
    assert_eq!(data, [0..4096, 512 << 20..(512 << 20) + 4096]);
}
