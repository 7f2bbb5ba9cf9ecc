//! Reads of objects.

use crate::error::failed;
use crate::{file_of, not_implemented};
use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    Attributes, Error, GetOptions, GetRange, GetResult, GetResultPayload, ObjectMeta, Result,
};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use weir_client::{Export, File, Metadata};

/// Bytes of one read of a stream.
const PIECE_BYTES: u64 = 1 << 20;
/// Reads in flight of a stream, or of one request for several ranges.
const READS: usize = 4;

/// The object's attributes, by which its trait describes it.
pub(crate) fn meta_of(location: Path, metadata: &Metadata) -> ObjectMeta {
    ObjectMeta {
        location,
        last_modified: time_of(metadata.modified()),
        size: metadata.len(),
        e_tag: Some(tag_of(metadata)),
        version: None,
    }
}

/// The ETag: another one for each file, and after each change of a file.
pub(crate) fn tag_of(metadata: &Metadata) -> String {
    let attr = metadata.attr();
    format!("{:x}-{:x}-{:x}-{:x}", attr.id.ino, attr.id.generation, attr.change, attr.size)
}

/// A time that the type cannot express, which servers may report, is the epoch.
fn time_of(time: SystemTime) -> DateTime<Utc> {
    let (seconds, nanos) = match time.duration_since(UNIX_EPOCH) {
        Ok(after) => (i64::try_from(after.as_secs()).unwrap_or(0), after.subsec_nanos()),
        Err(before) => {
            let before = before.duration();
            let whole = i64::try_from(before.as_secs()).unwrap_or(0);
            match before.subsec_nanos() {
                0 => (-whole, 0),
                nanos => (-whole - 1, 1_000_000_000 - nanos),
            }
        }
    };
    DateTime::from_timestamp(seconds, nanos).unwrap_or_default()
}

/// The attributes of an object's file.
///
/// # Errors
/// No regular file has the name.
pub(crate) async fn object(export: &Export, location: &Path) -> Result<Metadata> {
    let metadata = export.metadata(file_of(location)?).await;
    let metadata = metadata.map_err(|error| failed(location, error))?;
    match metadata.is_file() {
        true => Ok(metadata),
        false => Err(failed(location, io::ErrorKind::IsADirectory.into())),
    }
}

pub(crate) async fn get(
    export: &Export,
    location: &Path,
    options: GetOptions,
) -> Result<GetResult> {
    if options.version.is_some() {
        return Err(not_implemented("versions"));
    }
    let (file, metadata) = match options.head {
        true => (None, object(export, location).await?),
        false => {
            let (file, metadata) = open(export, location).await?;
            (Some(file), metadata)
        }
    };
    let meta = meta_of(location.clone(), &metadata);
    options.check_preconditions(&meta)?;
    let range = range_in(options.range, meta.size)?;
    let payload = match file {
        Some(file) => read(Arc::new(file), location.clone(), range.clone()).boxed(),
        None => stream::empty().boxed(),
    };
    Ok(GetResult {
        payload: GetResultPayload::Stream(payload),
        meta,
        range,
        attributes: Attributes::default(),
        extensions: Default::default(),
    })
}

pub(crate) async fn get_ranges(
    export: &Export,
    location: &Path,
    ranges: &[Range<u64>],
) -> Result<Vec<Bytes>> {
    let (file, metadata) = open(export, location).await?;
    let asked: Result<Vec<Range<u64>>> = ranges
        .iter()
        .map(|range| range_in(Some(GetRange::Bounded(range.clone())), metadata.len()))
        .collect();
    let reads = asked?.into_iter().map(|range| read_range(&file, location, range));
    stream::iter(reads).buffered(READS).try_collect().await
}

async fn open(export: &Export, location: &Path) -> Result<(File, Metadata)> {
    let opened = async {
        let file = export.open(file_of(location)?).await;
        let file = file.map_err(|error| failed(location, error))?;
        let metadata = file.metadata().await.map_err(|error| failed(location, error))?;
        Ok((file, metadata))
    };
    opened.await
}

fn range_in(range: Option<GetRange>, size: u64) -> Result<Range<u64>> {
    match range {
        None => Ok(0..size),
        Some(range) => range
            .as_range(size)
            .map_err(|error| Error::Generic { store: "NFS", source: Box::new(error) }),
    }
}

/// The bytes of a range, in pieces.
fn read(
    file: Arc<File>,
    location: Path,
    range: Range<u64>,
) -> impl futures_util::Stream<Item = Result<Bytes>> + Send {
    let starts = range.clone().step_by(PIECE_BYTES as usize);
    let pieces = starts.map(move |from| from..range.end.min(from + PIECE_BYTES));
    stream::iter(pieces)
        .map(move |piece| {
            let (file, location) = (Arc::clone(&file), location.clone());
            async move { read_range(&file, &location, piece).await }
        })
        .buffered(READS)
}

/// # Errors
/// Also if another program has truncated the file meanwhile.
async fn read_range(file: &File, location: &Path, range: Range<u64>) -> Result<Bytes> {
    let asked = range.end - range.start;
    let len = usize::try_from(asked).map_err(|_| crate::refused(location, "a range too long"))?;
    let bytes = file.read_at(range.start, len).await.map_err(|error| failed(location, error))?;
    match bytes.len() as u64 == asked {
        true => Ok(bytes),
        false => Err(failed(location, io::ErrorKind::UnexpectedEof.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn times_that_cannot_be_expressed_do_not_panic() {
        assert_eq!(time_of(UNIX_EPOCH + Duration::new(3, 5)).timestamp_subsec_nanos(), 5);
        let before = time_of(UNIX_EPOCH - Duration::new(3, 5));
        assert_eq!((before.timestamp(), before.timestamp_subsec_nanos()), (-4, 999_999_995));
        for far in [1 << 45, 1 << 60, i64::MAX as u64] {
            if let Some(time) = UNIX_EPOCH.checked_add(Duration::from_secs(far)) {
                time_of(time);
            }
            if let Some(time) = UNIX_EPOCH.checked_sub(Duration::from_secs(far)) {
                time_of(time);
            }
        }
    }
}
