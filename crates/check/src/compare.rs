//! Compares one READ_PLUS reply with the bytes of its file.

use weir_nfs::v4::op::read_plus::{ReadPlus, Segment};

/// Checks a reply against the rules and the file's `bytes`. Returns the offset at which the reply
/// ends, or a description of the fault.
pub(crate) fn judge(
    reply: &ReadPlus,
    bytes: &[u8],
    offset: u64,
    count: u64,
) -> Result<u64, String> {
    let (size, limit) = (bytes.len() as u64, offset.saturating_add(count));
    let mut at = offset;
    for (index, segment) in reply.segments.0.iter().enumerate() {
        let (start, len) = match segment {
            Segment::Data(data) => (data.offset, data.data.len() as u64),
            Segment::Hole(hole) => (hole.offset, hole.length),
        };
        let end = start.checked_add(len).ok_or("a segment ends past the largest offset")?;
        match segment {
            Segment::Data(data) => {
                if start != at {
                    return Err(format!("data at {start}, expected {at}"));
                }
                if end > limit {
                    return Err(format!("data to {end}, past the request"));
                }
                if len == 0 && count > 0 {
                    return Err("an empty data segment".into());
                }
                if bytes.get(start as usize..end as usize) != Some(&data.data.to_bytes()[..]) {
                    return Err(format!("wrong bytes in {start}..{end}"));
                }
            }
            Segment::Hole(_) => {
                if start != at && (index > 0 || start > at) {
                    return Err(format!("a hole at {start}, expected {at}"));
                }
                if end <= at {
                    return Err(format!("a hole that ends at {end}, before {at}"));
                }
                if end > size {
                    return Err(format!("a hole to {end}, past the end of the file at {size}"));
                }
                if bytes[at as usize..end as usize].iter().any(|b| *b != 0) {
                    return Err(format!("a hole at {at}..{end}, where data was written"));
                }
            }
        }
        at = end;
    }
    if reply.eof && at.max(offset) < size {
        return Err(format!("eof at {at}, but the file ends at {size}"));
    }
    if !reply.eof && limit >= size && at >= size {
        return Err(format!("no eof, but the file ends at {size}"));
    }
    if at == offset && !reply.eof && count > 0 {
        return Err("neither a segment nor eof".into());
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_nfs::v4::op::read_plus::{DataSegment, HoleSegment, Segments};
    use weir_xdr::Bytes;

    fn reply(eof: bool, segments: Vec<Segment>) -> ReadPlus {
        ReadPlus { eof, segments: Segments(segments) }
    }

    fn data(offset: u64, bytes: &[u8]) -> Segment {
        Segment::Data(DataSegment { offset, data: Bytes::copy_from_slice(bytes).into() })
    }

    fn hole(offset: u64, length: u64) -> Segment {
        Segment::Hole(HoleSegment { offset, length })
    }

    #[test]
    fn right_replies_pass_and_wrong_ones_are_named() {
        let file = [1, 2, 3, 4, 0, 0, 0, 0, 5, 6];
        let good = reply(true, vec![data(2, &[3, 4]), hole(4, 4), data(8, &[5, 6])]);
        assert_eq!(judge(&good, &file, 2, 100), Ok(10));
        assert_eq!(judge(&reply(false, vec![hole(4, 4)]), &file, 5, 1), Ok(8));
        let wrong: [(ReadPlus, u64, u64, &str); 8] = [
            (reply(false, vec![data(3, &[4])]), 2, 4, "expected"),
            (reply(false, vec![data(2, &[9])]), 2, 4, "wrong bytes"),
            (reply(false, vec![data(2, &[3, 4])]), 2, 1, "past the request"),
            (reply(false, vec![hole(2, 6)]), 2, 4, "where data was written"),
            (reply(false, vec![hole(4, 2), hole(5, 3)]), 4, 4, "expected"),
            (reply(true, vec![data(2, &[3])]), 2, 1, "the file ends at 10"),
            (reply(false, vec![data(8, &[5, 6])]), 8, 2, "no eof"),
            (reply(false, vec![]), 2, 4, "neither"),
        ];
        for (reply, offset, count, fault) in wrong {
            let got = judge(&reply, &file, offset, count).unwrap_err();
            assert!(got.contains(fault), "{got} for {fault}");
        }
    }
}
