//! Answering a call of one program: the checks and replies that RFC 5531 requires.

use crate::record::{finish_record, start_record};
use crate::{AcceptStatus, CallHeader, ProgramId, ReplyBody, ReplyHeader, VersionRange};
use weir_xdr::{Bytes, Decoder, Encoder, Message};

/// Answers a call of `id`, with a record of one fragment. `serve` decodes the arguments and encodes
/// the results, or rejects the call; anything it encoded then is dropped.
///
/// `None`: the message is not a call, and cannot be answered.
pub fn answer<E: Into<ReplyBody>>(
    call: Bytes,
    id: ProgramId,
    serve: impl FnOnce(&CallHeader, &mut Decoder, &mut Encoder) -> Result<(), E>,
) -> Option<Message> {
    let mut args = Decoder::new(call);
    let mut reply = start_record();
    let refusal = match CallHeader::decode(&mut args) {
        Ok(header) => {
            let ProgramId { program, version } = id;
            let refused = |status| Err(ReplyBody::from(status));
            let mark = reply.mark();
            reply.put(&ReplyHeader::accepted(header.xid, AcceptStatus::Success));
            let served = if header.program != program {
                refused(AcceptStatus::ProgUnavail)
            } else if header.version != version {
                let versions = VersionRange { low: version, high: version };
                refused(AcceptStatus::ProgMismatch(versions))
            } else {
                serve(&header, &mut args, &mut reply).map_err(Into::into)
            };
            served.err().map(|body| {
                reply.truncate(mark);
                ReplyHeader { xid: header.xid, body }
            })
        }
        Err(error) => Some(error.reply()?),
    };
    if let Some(refusal) = refusal {
        reply.put(&refusal);
    }
    Some(finish_record(reply))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{OpaqueAuth, RECORD_HEADER_BYTES};

    const ID: ProgramId = ProgramId { program: 100_021, version: 4 };

    /// Doubles a number: procedure 1.
    fn double(
        header: &CallHeader,
        d: &mut Decoder,
        e: &mut Encoder,
    ) -> std::result::Result<(), AcceptStatus> {
        e.u32(0xdead);
        let number = d.u32()?;
        match header.procedure {
            1 => e.u32(2 * number),
            _ => return Err(AcceptStatus::ProcUnavail),
        }
        Ok(())
    }

    fn status_of(program: u32, version: u32, procedure: u32, args: &[u8]) -> (AcceptStatus, Bytes) {
        let mut e = Encoder::new();
        let (cred, verf) = (OpaqueAuth::NONE, OpaqueAuth::NONE);
        e.put(&CallHeader { xid: 7, program, version, procedure, cred, verf });
        e.raw(args);
        let reply = answer(e.finish().to_bytes(), ID, double).unwrap().to_bytes();
        let mut d = Decoder::new(reply.slice(RECORD_HEADER_BYTES..));
        let header: ReplyHeader = d.get().unwrap();
        assert_eq!(header.xid, 7);
        let ReplyBody::Accepted(accepted) = header.body else { panic!("denied") };
        (accepted.status, reply.slice(RECORD_HEADER_BYTES + 24..))
    }

    #[test]
    fn accepted_replies_carry_results_or_an_error() {
        let (status, results) = status_of(100_021, 4, 1, &[0, 0, 0, 5]);
        assert_eq!(status, AcceptStatus::Success);
        assert_eq!(&results[..], [0, 0, 0xde, 0xad, 0, 0, 0, 10]);
        let refused = |program, version, procedure, args| {
            let (status, rest) = status_of(program, version, procedure, args);
            if !matches!(status, AcceptStatus::ProgMismatch(_)) {
                assert_eq!(&rest[..], b"", "nothing follows a refusal");
            }
            status
        };
        assert_eq!(refused(100_021, 4, 2, &[0; 4]), AcceptStatus::ProcUnavail);
        assert_eq!(refused(100_021, 4, 1, &[0; 3]), AcceptStatus::GarbageArgs);
        let versions = VersionRange { low: 4, high: 4 };
        assert_eq!(refused(100_021, 3, 1, &[]), AcceptStatus::ProgMismatch(versions));
        assert_eq!(refused(100_003, 4, 1, &[]), AcceptStatus::ProgUnavail);
        assert!(answer(Bytes::from_static(b"neither call nor reply"), ID, double).is_none());
    }
}
