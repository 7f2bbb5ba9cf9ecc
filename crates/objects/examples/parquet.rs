//! Writes a table to an NFS server as Parquet, and reads a column of it back, without a mount.
//!
//! ```console
//! $ cargo run -p weir-objects --example parquet -- nfs://filer/tables
//! ```

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use bytes::Bytes;
use futures_util::TryStreamExt;
use futures_util::future::{BoxFuture, FutureExt};
use object_store::buffered::BufWriter;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use parquet::arrow::arrow_reader::ArrowReaderOptions;
use parquet::arrow::async_reader::{AsyncFileReader, ParquetRecordBatchStreamBuilder};
use parquet::arrow::{AsyncArrowWriter, ProjectionMask};
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};
use std::error::Error;
use std::ops::Range;
use std::sync::Arc;
use weir_client::Export;
use weir_objects::NfsStore;

/// Rows of the table.
const ROWS: i64 = 100_000;

/// Writes the table, and returns the sum of its column of numbers.
pub(crate) async fn sum_of_a_column(url: &str) -> Result<i64, Box<dyn Error>> {
    let store: Arc<dyn ObjectStore> = Arc::new(NfsStore::new(Export::connect(url).await?));
    let table = Path::from("tables/rows.parquet");

    // Uploaded in parts; the object appears when it is complete.
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..ROWS));
    let names: ArrayRef =
        Arc::new(StringArray::from_iter_values((0..ROWS).map(|n| format!("row {n}"))));
    let batch = RecordBatch::try_from_iter([("number", numbers), ("name", names)])?;
    let upload = BufWriter::new(Arc::clone(&store), table.clone());
    let mut writer = AsyncArrowWriter::try_new(upload, batch.schema(), None)?;
    writer.write(&batch).await?;
    writer.close().await?;

    // Only the footer and the column's pages are read.
    let reader = Table { store, path: table };
    let builder = ParquetRecordBatchStreamBuilder::new(reader).await?;
    let column = ProjectionMask::columns(builder.parquet_schema(), ["number"]);
    let batches: Vec<RecordBatch> = builder.with_projection(column).build()?.try_collect().await?;
    let sums = batches.iter().map(|batch| {
        let numbers = batch.column(0).as_primitive::<Int64Type>();
        numbers.iter().flatten().sum::<i64>()
    });
    Ok(sums.sum())
}

/// A Parquet file among the objects.
struct Table {
    store: Arc<dyn ObjectStore>,
    path: Path,
}

impl AsyncFileReader for Table {
    fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, ParquetResult<Bytes>> {
        let read = async move { self.store.get_range(&self.path, range).await };
        read.map(|read| read.map_err(failed)).boxed()
    }

    fn get_byte_ranges(
        &mut self,
        ranges: Vec<Range<u64>>,
    ) -> BoxFuture<'_, ParquetResult<Vec<Bytes>>> {
        let read = async move { self.store.get_ranges(&self.path, &ranges).await };
        read.map(|read| read.map_err(failed)).boxed()
    }

    fn get_metadata<'a>(
        &'a mut self,
        options: Option<&'a ArrowReaderOptions>,
    ) -> BoxFuture<'a, ParquetResult<Arc<ParquetMetaData>>> {
        let read = async move {
            let size = self.store.head(&self.path).await.map_err(failed)?.size;
            let reader = ParquetMetaDataReader::new().with_arrow_reader_options(options);
            reader.load_and_finish(self, size).await.map(Arc::new)
        };
        read.boxed()
    }
}

fn failed(error: object_store::Error) -> ParquetError {
    ParquetError::External(Box::new(error))
}

#[allow(dead_code, reason = "a test runs the rest")]
#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "nfs://127.0.0.1/".into());
    println!("{}", sum_of_a_column(&url).await?);
    Ok(())
}
