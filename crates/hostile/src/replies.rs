//! Decodes every reply as its caller must be able to, and learns from it.

use crate::known::Known;
use weir_nfs::v4::op::open::Delegation;
use weir_nfs::v4::{CompoundResHeader, Error, OpRes};
use weir_nfs::{mount, nfsacl, nlm, nsm, v3, v4};
use weir_rpc::{AcceptStatus, CallHeader, ReplyBody, ReplyHeader};
use weir_xdr::{Bytes, Decode, Decoder};

/// Decodes the reply to `call` and notes what it says.
///
/// # Errors
/// The reply is not one to this call, or is malformed.
pub(crate) fn read(known: &mut Known, call: &CallHeader, reply: Bytes) -> Result<(), String> {
    let mut d = Decoder::new(reply);
    let header: ReplyHeader = d.get().map_err(|error| format!("no header of a reply: {error}"))?;
    if header.xid != call.xid {
        return Err(format!("the reply has xid {:#x}, not {:#x}", header.xid, call.xid));
    }
    let success = ReplyHeader::accepted(call.xid, AcceptStatus::Success);
    if header != success {
        if matches!(header.body, ReplyBody::Accepted(ref accepted)
            if accepted.status == AcceptStatus::SystemErr)
        {
            return Err("the server answers SYSTEM_ERR".into());
        }
        return d.finish().map_err(|error| format!("bytes after a refusal: {error}"));
    }
    let result = match (call.program, call.procedure) {
        (_, 0) => Ok(()),
        (v4::PROGRAM, 1) if call.version == v4::VERSION => compound(known, &mut d),
        (v3::PROGRAM, number) => match v3::Procedure::from_number(number) {
            Some(procedure) => v3_result(known, procedure, &mut d),
            None => return Err(format!("procedure {number} of version 3 succeeds")),
        },
        (nlm::PROGRAM, number) => match nlm::Procedure::from_number(number) {
            Some(procedure) => nlm_result(procedure, &mut d),
            None => return Err(format!("procedure {number} of the lock manager succeeds")),
        },
        (mount::PROGRAM, 1) => d.get::<mount::MntRes>().map(|mounted| {
            mounted.into_iter().for_each(|mounted| known.handle(&mounted.handle.0));
        }),
        (mount::PROGRAM, 2..=5) => return Ok(()),
        (nfsacl::PROGRAM, 1) => d.get::<nfsacl::GetaclRes>().map(drop),
        (nfsacl::PROGRAM, 2) => d.get::<nfsacl::SetaclRes>().map(drop),
        (nsm::PROGRAM, 1..=6) => return Ok(()),
        (program, procedure) => {
            return Err(format!("procedure {procedure} of program {program} succeeds"));
        }
    };
    let of = format!("program {} procedure {}", call.program, call.procedure);
    result.map_err(|error| format!("the reply of {of} cannot be decoded: {error}"))?;
    d.finish().map_err(|error| format!("bytes after the reply of {of}: {error}"))
}

fn compound(known: &mut Known, d: &mut Decoder) -> weir_xdr::Result<()> {
    let header: CompoundResHeader = d.get()?;
    for number in 0..header.results {
        let result = OpRes::decode_next(d)?;
        // All but the last have succeeded, and the last has the status of all.
        let expected = if number + 1 == header.results { header.status } else { Ok(()) };
        if result.status() != expected {
            return Err(weir_xdr::Error::BadValue);
        }
        known.note(result_name(&result), result.status().is_ok());
        learn(known, result);
    }
    Ok(())
}

fn result_name(result: &OpRes) -> &'static str {
    macro_rules! names {
        ($($(#[$meta:meta])* $name:ident = $number:literal, $op:ident, $minors:expr, $place:ident,
            $handles:ident, $stateid:ident, $kind:ident, $bound:ident $bytes:literal;)*) => {
            match result {
                $(OpRes::$name(_) => stringify!($op),)*
                OpRes::Failed(..) | OpRes::Illegal => "refused",
            }
        };
    }
    weir_nfs::v4_operations!(names)
}

fn learn(known: &mut Known, result: OpRes) {
    match result {
        OpRes::Getfh(Ok(handle)) => known.handle(&handle.0),
        OpRes::Open(Ok(opened)) => {
            known.stateid(opened.stateid);
            match opened.delegation {
                Delegation::Read(given) | Delegation::ReadAttrs(given) => {
                    known.stateid(given.stateid);
                }
                Delegation::Write(given) | Delegation::WriteAttrs(given) => {
                    known.stateid(given.stateid);
                }
                Delegation::None | Delegation::NoneExt(_) => {}
            }
        }
        OpRes::Lock(Ok(stateid))
        | OpRes::Locku(Ok(stateid))
        | OpRes::OpenConfirm(Ok(stateid))
        | OpRes::OpenDowngrade(Ok(stateid)) => known.stateid(stateid),
        OpRes::ExchangeId(Ok(exchanged)) => {
            known.client(exchanged.client_id);
            known.set_sequence(exchanged.sequence_id.wrapping_sub(1));
        }
        OpRes::CreateSession(Ok(created)) => known.session(created.session),
        OpRes::Setclientid(Ok(introduced)) => {
            known.client(introduced.client_id);
            known.verifier(introduced.confirm);
        }
        OpRes::Sequence(Ok(sequenced)) => {
            let of = known.sessions.iter_mut().find(|session| session.id == sequenced.session);
            let next = of.and_then(|session| session.next.get_mut(sequenced.slot as usize));
            if let Some(next) = next {
                *next = sequenced.sequence_id.wrapping_add(1);
            }
        }
        // The client begins again with what it does not have any more.
        OpRes::Sequence(Err(Error::BadSession)) => drop(known.sessions.pop()),
        OpRes::Open(Err(Error::StaleClientId)) => known.verifiers.clear(),
        OpRes::Readdir(Ok(names)) => {
            known.verifier(names.verifier);
            names.entries.0.iter().for_each(|entry| known.cookie(entry.cookie));
        }
        _ => {}
    }
}

macro_rules! v3_results {
    ($($(#[$meta:meta])* $name:ident = $number:literal, $op:ident, $kind:ident, $max:literal;)*) => {
        fn v3_result(known: &mut Known, procedure: v3::Procedure, d: &mut Decoder)
            -> weir_xdr::Result<()>
        {
            match procedure {
                $(v3::Procedure::$name => {
                    let result: v3::op::$op::Res = d.get()?;
                    learn3(known, &result);
                })*
            }
            Ok(())
        }
    };
}
weir_nfs::v3_procedures!(v3_results);

/// Notes the handle that a result of LOOKUP, CREATE and the like has.
fn learn3(known: &mut Known, result: &dyn std::any::Any) {
    if let Some(Ok(found)) = result.downcast_ref::<v3::op::lookup::Res>() {
        known.handle(&found.object.0);
    }
    if let Some(Ok(created)) = result.downcast_ref::<v3::op::create::Res>()
        && let Some(handle) = &created.handle
    {
        known.handle(&handle.0);
    }
}

macro_rules! nlm_results {
    ($($(#[$meta:meta])* $name:ident = $number:literal, $label:ident, $args:ty, $res:ty;)*) => {
        fn nlm_result(procedure: nlm::Procedure, d: &mut Decoder) -> weir_xdr::Result<()> {
            match procedure {
                $(nlm::Procedure::$name => decoded::<<nlm::call::$name as nlm::Call>::Res>(d),)*
            }
        }
    };
}
weir_nfs::nlm_procedures!(nlm_results);

fn decoded<T: Decode>(d: &mut Decoder) -> weir_xdr::Result<()> {
    d.get::<T>().map(drop)
}
