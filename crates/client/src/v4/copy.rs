//! COPY within a server (RFC 7862 section 15.2).
//!
//! 1. A copy is synchronous, so that it needs neither a callback nor state at the server; each call
//!    copies at most [`CALL_BYTES`], so that it occupies its slot for a short time only. A server may
//!    copy less than that, and one that only copies in the background refuses
//!    (NFS4ERR_OFFLOAD_NO_REQS).
//! 2. What a call has copied counts once it is durable: the COMMIT in the same compound has to return
//!    the verifier of the COPY. Otherwise the server restarted in between, and copies again.

use super::client::V4;
use super::ops::span_of;
use super::requests::{getattr, putfh, take};
use crate::error::Result;
use crate::protocol::{ChangeSpan, OpenContext};
use weir_nfs::v4::op;
use weir_nfs::v4::types::{StableHow, StateId};
use weir_nfs::v4::{Op, OpRes};
use weir_xdr::List;

/// Bytes of a call.
const CALL_BYTES: u64 = 64 << 20;
/// Most copies of a range by a server whose verifiers do not match.
const MOST_COPIES: usize = 4;

impl V4 {
    /// Copies at most `len` bytes from an offset of one file to an offset of another, and makes them
    /// durable. Returns how many.
    pub(super) async fn copy(
        &self,
        from: &OpenContext,
        to: &OpenContext,
        (offset, len, to_offset): (u64, u64, u64),
    ) -> Result<(u64, ChangeSpan)> {
        if self.minor < 2 {
            return Err(weir_vfs::Error::NotSupported.into());
        }
        let len = len.min(CALL_BYTES);
        if len == 0 {
            return Ok((0, ChangeSpan::default()));
        }
        let ops = |[source, destination]: [StateId; 2]| {
            vec![
                putfh(&from.handle),
                Op::Savefh(()),
                putfh(&to.handle),
                getattr(super::attr::CHANGES),
                Op::Copy(op::copy::Args {
                    source,
                    destination,
                    source_offset: offset,
                    destination_offset: to_offset,
                    count: len,
                    consecutive: true,
                    synchronous: true,
                    source_servers: List::default(),
                }),
                Op::Commit(op::commit::Args { offset: 0, count: 0 }),
                getattr(super::attr::CHANGES),
            ]
        };
        for _ in 0..MOST_COPIES {
            let answer = self.exchange_opens([from, to], "COPY", ops, None).await?;
            self.checked("COPY", answer.status)?;
            let span = span_of(&answer.results);
            let mut committed = None;
            for result in &answer.results {
                if let OpRes::Commit(Ok(verifier)) = result {
                    committed = Some(*verifier);
                }
            }
            let copied = take!(self, answer.results, Copy)?.response;
            // In the background all the same, or more than asked for.
            if !copied.callback_id.is_empty() || copied.count > len {
                return Err(self.unexpected("COPY"));
            }
            if copied.committed != StableHow::Unstable || committed == Some(copied.verifier) {
                return Ok((copied.count, span));
            }
        }
        Err(weir_vfs::Error::Io.into())
    }
}
