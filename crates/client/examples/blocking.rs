//! Writes a sparse image to an export and reads back where its data is, without an executor.
//!
//! ```console
//! $ cargo run -p weir-client --example blocking -- nfs://filer/images
//! ```

use std::io::{self, Seek, SeekFrom, Write};
use std::ops::Range;
use weir_client::PathError;
use weir_client::blocking::Export;

/// Makes an image of 1 GiB with two blocks of data, and returns where these are.
pub(crate) fn make_image(url: &str) -> io::Result<Vec<Range<u64>>> {
    let export = Export::connect(url)?;
    export.create_dir_all("images/new")?;

    let mut image = export.create("images/new/disk")?;
    image.write_all(&[1; 4096])?;
    image.seek(SeekFrom::Start(512 << 20))?;
    image.write_all(&[2; 4096])?;
    image.sync_all()?;
    image.set_len(1 << 30)?;

    let mut data = Vec::new();
    let mut at = 0;
    while let Some(range) = image.next_data(at)? {
        at = range.end;
        data.push(range);
    }

    // Shared or copied by the server itself, where it can.
    export.copy("images/new/disk", "images/disk")?;
    export.remove_dir_all("images/new")?;

    // An error says what was asked, and what the server answered.
    if let Err(error) = export.open("images/new/disk")
        && let Some(failure) = PathError::of(&error)
    {
        eprintln!("{} {:?}: {}", failure.operation(), failure.path(), failure.cause());
    }
    export.close();
    Ok(data)
}

#[allow(dead_code, reason = "a test runs the rest")]
fn main() -> io::Result<()> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "nfs://127.0.0.1/".into());
    for range in make_image(&url)? {
        println!("{range:?}");
    }
    Ok(())
}
