//! Calls that servers make: callbacks of NFSv4, and those about locks of NFSv3.

use weir_rpc::{CallHeader, finish_record, start_record};
use weir_xdr::{Bytes, Decoder, Encoder, Message};

/// Answers a call: `reply` puts header and results, reading the arguments. `None`: not a call; there
/// is nothing to say.
pub(crate) fn answer(
    call: Bytes,
    reply: impl FnOnce(&CallHeader, &mut Decoder, &mut Encoder),
) -> Option<Message> {
    let mut d = Decoder::new(call);
    let mut e = start_record();
    match CallHeader::decode(&mut d) {
        Ok(header) => reply(&header, &mut d, &mut e),
        Err(error) => e.put(&error.reply()?),
    }
    Some(finish_record(e))
}
