//! Lists of objects.

use crate::error::{failed, found};
use crate::get::meta_of;
use crate::{TEMPORARY, file_of};
use futures_util::stream::{self, BoxStream, StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ListResult, ObjectMeta, Result};
use std::io;
use weir_client::{DirEntry, Export, ReadDir, Walk};

/// Every object below a prefix, in no order.
pub(crate) fn list(export: Export, prefix: Path) -> BoxStream<'static, Result<ObjectMeta>> {
    let begin = async move {
        let walk = found(export.walk(dir_of(&prefix)).await).map_err(|e| failed(&prefix, e))?;
        Ok::<_, object_store::Error>(below(walk, prefix))
    };
    stream::once(begin).try_flatten().boxed()
}

fn below(walk: Option<Walk>, prefix: Path) -> BoxStream<'static, Result<ObjectMeta>> {
    let Some(walk) = walk else { return stream::empty().boxed() };
    let objects = walk.filter_map(move |entry| {
        let object = match entry {
            Ok(entry) if !entry.metadata().is_file() => None,
            Ok(entry) => location_of(&entry).map(|at| Ok(meta_of(at, entry.metadata()))),
            // A directory that was removed since it was listed has no objects.
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => Some(Err(failed(&prefix, error))),
        };
        std::future::ready(object)
    });
    objects.boxed()
}

/// The objects of one directory, and its directories.
pub(crate) async fn list_with_delimiter(export: &Export, prefix: Path) -> Result<ListResult> {
    let dir = found(export.read_dir(dir_of(&prefix)).await).map_err(|e| failed(&prefix, e))?;
    let mut result = ListResult {
        common_prefixes: Vec::new(),
        objects: Vec::new(),
        extensions: Default::default(),
    };
    let mut entries = match dir {
        Some(entries) => entries,
        None => return Ok(result),
    };
    while let Some(entry) = next(&mut entries, &prefix).await? {
        match location_of(&entry) {
            Some(location) if entry.metadata().is_dir() => result.common_prefixes.push(location),
            Some(location) if entry.metadata().is_file() => {
                result.objects.push(meta_of(location, entry.metadata()));
            }
            _ => {}
        }
    }
    result.common_prefixes.sort();
    Ok(result)
}

async fn next(entries: &mut ReadDir, prefix: &Path) -> Result<Option<DirEntry>> {
    entries.try_next().await.map_err(|error| failed(prefix, error))
}

/// The directory of a prefix.
fn dir_of(prefix: &Path) -> String {
    format!("/{prefix}")
}

/// The name of an entry as an object, unless it can be none: a temporary file's, or one that the trait
/// cannot express.
fn location_of(entry: &DirEntry) -> Option<Path> {
    let name = entry.file_name().to_str()?;
    if name.starts_with(TEMPORARY) {
        return None;
    }
    let location = Path::parse(entry.path().to_str()?).ok()?;
    // Only what can be read by its name is listed.
    let same = location.as_ref() == entry.path().to_str()?.trim_start_matches('/');
    (same && file_of(&location).is_ok()).then_some(location)
}
