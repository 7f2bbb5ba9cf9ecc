//! Lists of objects.

use crate::error::{failed, found};
use crate::get::meta_of;
use crate::{file_of, is_hidden};
use futures_util::stream::{self, BoxStream, StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ListResult, ObjectMeta, Result};
use std::io::{self, ErrorKind};
use weir_client::{DirEntry, Export, PathError, Walk};

/// How often a directory that is removed while it is listed is looked for, with those below it that are.
const MOST_LOOKS: u32 = 8;

/// Every object below a prefix, in no order.
pub(crate) fn list(export: Export, prefix: Path) -> BoxStream<'static, Result<ObjectMeta>> {
    below(export, dir_of(&prefix), prefix, 1)
}

/// Every object below a directory, if there is one. One that is replaced while it is listed may show a name twice.
fn below(
    export: Export,
    dir: String,
    prefix: Path,
    looks: u32,
) -> BoxStream<'static, Result<ObjectMeta>> {
    let begin = async move {
        if looks > 1 {
            // Only the prefix itself may be a link.
            let there =
                found(export.symlink_metadata(&dir).await).map_err(|e| failed(&prefix, e))?;
            if !there.is_some_and(|metadata| metadata.is_dir()) {
                return Ok(stream::empty().boxed());
            }
        }
        let walk = found(export.walk(dir).await).map_err(|e| failed(&prefix, e))?;
        Ok::<_, object_store::Error>(objects(export, walk, prefix, looks))
    };
    stream::once(begin).try_flatten().boxed()
}

fn objects(
    export: Export,
    walk: Option<Walk>,
    prefix: Path,
    looks: u32,
) -> BoxStream<'static, Result<ObjectMeta>> {
    let Some(walk) = walk else { return stream::empty().boxed() };
    let objects = walk.flat_map(move |entry| {
        let object = match entry {
            Ok(entry) if !entry.metadata().is_file() => None,
            Ok(entry) => location_of(&entry).map(|at| Ok(meta_of(at, entry.metadata()))),
            // A directory that was removed since it was listed has no objects.
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => match replaced_dir(&error).filter(|_| looks < MOST_LOOKS) {
                Some(dir) => {
                    return below(export.clone(), dir, prefix.clone(), looks + 1).right_stream();
                }
                None => Some(Err(failed(&prefix, error))),
            },
        };
        stream::iter(object).left_stream()
    });
    objects.boxed()
}

/// The directory whose listing failed because it was removed; another one may have its name.
fn replaced_dir(error: &io::Error) -> Option<String> {
    let path = PathError::of(error)?.path();
    is_stale(error).then(|| path.to_str().map(str::to_owned))?
}

fn is_stale(error: &io::Error) -> bool {
    error.kind() == ErrorKind::StaleNetworkFileHandle
}

/// The objects of one directory, and its directories.
pub(crate) async fn list_with_delimiter(export: &Export, prefix: Path) -> Result<ListResult> {
    let mut looks = 1;
    let listed = loop {
        match list_directory(export, &prefix).await {
            // It was removed meanwhile, and another one may have its name.
            Err(error) if is_stale(&error) && looks < MOST_LOOKS => looks += 1,
            listed => break listed,
        }
    };
    listed.map_err(|error| failed(&prefix, error))
}

async fn list_directory(export: &Export, prefix: &Path) -> io::Result<ListResult> {
    let mut result = ListResult {
        common_prefixes: Vec::new(),
        objects: Vec::new(),
        extensions: Default::default(),
    };
    let mut entries = match found(export.read_dir(dir_of(prefix)).await)? {
        Some(entries) => entries,
        None => return Ok(result),
    };
    while let Some(entry) = entries.try_next().await? {
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

/// The directory of a prefix.
fn dir_of(prefix: &Path) -> String {
    format!("/{prefix}")
}

/// The name of an entry as an object, unless it can be none: that of a temporary file, or of one that was removed while
/// it was open, or one that the trait cannot express.
fn location_of(entry: &DirEntry) -> Option<Path> {
    let name = entry.file_name().to_str()?;
    if is_hidden(name) {
        return None;
    }
    let location = Path::parse(entry.path().to_str()?).ok()?;
    // Only what can be read by its name is listed.
    let same = location.as_ref() == entry.path().to_str()?.trim_start_matches('/');
    (same && file_of(&location).is_ok()).then_some(location)
}
