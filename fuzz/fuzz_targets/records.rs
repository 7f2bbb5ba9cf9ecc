#![no_main]
//! Record marking: a stream cut at arbitrary places yields the records that it yields uncut, and no
//! more is kept than the limit allows.

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use weir_rpc::RecordReader;

const MAX_BYTES: usize = 4096;

fn read(stream: &[u8], piece: usize) -> (Vec<bytes::Bytes>, bool) {
    let mut reader = RecordReader::new(MAX_BYTES);
    let (mut input, mut records) = (BytesMut::new(), Vec::new());
    for chunk in stream.chunks(piece) {
        input.extend_from_slice(chunk);
        loop {
            match reader.next_record(&mut input) {
                Ok(Some(record)) => records.push(record),
                Ok(None) => break,
                Err(_) => return (records, true),
            }
        }
    }
    (records, false)
}

fuzz_target!(|data: &[u8]| {
    let Some((piece, stream)) = data.split_first() else { return };
    let whole = read(stream, stream.len().max(1));
    assert_eq!(read(stream, usize::from(*piece).max(1)), whole);
    assert!(whole.0.iter().all(|record| record.len() <= MAX_BYTES));
});
