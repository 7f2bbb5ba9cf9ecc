//! Compounds over a separate connection, and in a separate session.

use super::callbacks::{self, Callbacks};
use crate::error::{Error, Result, Violation};
use crate::mount::protocol_config;
use crate::protocol::{auth_sys, broken};
use crate::transport::{CallbackService, Connection as Transport, Expect, Request};
use crate::{MountOptions, NfsUrl};
use std::sync::Arc;
use weir_nfs::v4::op::create_session::{self, ChannelAttrs};
use weir_nfs::v4::op::{exchange_id, reclaim_complete, sequence};
use weir_nfs::v4::types::{CallbackSec, ClientId, ClientOwner, SessionId, Status};
use weir_nfs::v4::{self, CompoundHeader, CompoundResHeader, Op, OpRes};
use weir_rpc::OpaqueAuth;
use weir_xdr::Decoder;

/// A connection to an NFSv4 server that sends compounds as they are. No mount shares it.
pub struct Connection {
    transport: Transport,
    cred: OpaqueAuth,
    minor: u32,
    callbacks: Arc<Callbacks>,
}

/// The reply to a compound.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The status of the compound: that of the last operation executed.
    pub status: Status,
    /// The result of each operation, up to and including the first that failed.
    pub results: Vec<OpRes>,
    /// Length of the reply with its RPC header, as sessions count it (RFC 8881 section 18.36.3).
    pub bytes: usize,
}

impl Connection {
    /// Connects to the server of `url` for compounds of a minor version. The URL's path is not
    /// used. The connection answers recalls with success and otherwise ignores them.
    ///
    /// # Errors
    /// [`Error::Connect`], [`Error::Option`].
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn open(url: &NfsUrl, options: &MountOptions, minor: u32) -> Result<Self> {
        let options = url.options(options)?;
        let (uid, gid, groups) = options.identity();
        let cred = auth_sys(uid, gid, &groups);
        let config = protocol_config(url, options, cred.clone()).await?;
        let callbacks = Arc::new(Callbacks::default());
        let answering = callbacks.clone();
        let service = Some(Arc::new(move |call| answering.answer(call)) as Arc<CallbackService>);
        let transport =
            Transport::open(config.peer, config.patience, config.counters, service).await?;
        Ok(Self { transport, cred, minor, callbacks })
    }

    /// What the server calls over this connection.
    pub fn callbacks(&self) -> &Callbacks {
        &self.callbacks
    }

    /// Sends one compound, and returns the reply, of any status. If the connection breaks, the
    /// compound is sent again on a new one.
    ///
    /// # Errors
    /// The server does not answer, refuses the call, or its answer cannot be decoded.
    pub async fn call(&self, ops: &[Op]) -> Result<Reply> {
        self.send(None, ops).await
    }

    /// Sends one compound with an xid of the caller's choice. The same compound with the same xid
    /// is a retransmission.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub async fn call_as(&self, xid: u32, ops: &[Op]) -> Result<Reply> {
        self.send(Some(xid), ops).await
    }

    async fn send(&self, xid: Option<u32>, ops: &[Op]) -> Result<Reply> {
        let program = (v4::PROGRAM, v4::VERSION, v4::PROC_COMPOUND);
        let expect = Expect::Results { max_bytes: MAX_RESULT_BYTES };
        let mut request = Request::new(program, &self.cred, "COMPOUND", expect);
        if let Some(xid) = xid {
            request.set_xid(xid);
        }
        let encoder = request.encoder();
        let operations = ops.len() as u32;
        encoder.put(&CompoundHeader { tag: "".into(), minor_version: self.minor, operations });
        ops.iter().for_each(|op| encoder.put(op));
        let reply = self.transport.call(request).await?;
        let bad = |error: weir_xdr::Error| self.broken(error.into());
        let bytes = REPLY_HEADER_BYTES + reply.body.len();
        let mut d = Decoder::new(reply.body);
        let header: CompoundResHeader = d.get().map_err(bad)?;
        if header.results > operations {
            return Err(self.broken(Violation::WrongOperation));
        }
        let results = (0..header.results).map(|_| OpRes::decode_next(&mut d));
        let results = results.collect::<weir_xdr::Result<_>>().map_err(bad)?;
        Ok(Reply { status: header.status, results, bytes })
    }

    /// The error for a reply without the result that the call must have.
    fn unexpected(&self, operation: &'static str, reply: &Reply) -> Error {
        match reply.status {
            Err(status) => Error::Status {
                server: Arc::clone(self.transport.server()),
                operation,
                status: status.name().to_owned(),
                error: crate::v4::attr::neutral(status),
            },
            Ok(()) => self.broken(Violation::WrongOperation),
        }
    }

    fn broken(&self, violation: Violation) -> Error {
        broken(self.transport.server(), "COMPOUND", violation)
    }
}

/// A client id and a session with one slot (RFC 8881 section 2.10). Compounds are sent one after another.
/// Unless CREATE_SESSION asks for a backchannel, a server grants it no delegations.
pub struct Session {
    connection: Connection,
    client: ClientId,
    session: SessionId,
    fore: ChannelAttrs,
    /// Number of the slot's next compound.
    sequence: tokio::sync::Mutex<u32>,
}

impl Session {
    /// What the server calls over the session's connection.
    pub fn callbacks(&self) -> &Callbacks {
        self.connection.callbacks()
    }

    /// Establishes a client that the server does not know, and creates its session.
    ///
    /// # Errors
    /// The server does not answer, or refuses one of EXCHANGE_ID, CREATE_SESSION and RECLAIM_COMPLETE.
    pub async fn begin(connection: Connection) -> Result<Self> {
        Self::begin_as(connection, new_client(), |_| {}).await
    }

    /// As [`begin`](Self::begin), for a given client and with changed CREATE_SESSION arguments.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    pub async fn begin_as(
        connection: Connection,
        client: ClientOwner,
        change: impl FnOnce(&mut create_session::Args),
    ) -> Result<Self> {
        let reply = connection.call(&[Op::ExchangeId(exchange_id(client))]).await?;
        let Some(OpRes::ExchangeId(Ok(exchanged))) = reply.results.first() else {
            return Err(connection.unexpected("EXCHANGE_ID", &reply));
        };
        let client = exchanged.client_id;
        let mut create = create_session(client, exchanged.sequence_id);
        change(&mut create);
        let reply = connection.call(&[Op::CreateSession(create)]).await?;
        let Some(OpRes::CreateSession(Ok(created))) = reply.results.first() else {
            return Err(connection.unexpected("CREATE_SESSION", &reply));
        };
        let (session, fore) = (created.session, created.fore.clone());
        let begun = Self { connection, client, session, fore, sequence: 1.into() };
        let complete = Op::ReclaimComplete(reclaim_complete::Args { one_fs: false });
        let reply = begun.call(&[complete]).await?;
        match reply.status {
            // A client that the server knows may have sent RECLAIM_COMPLETE before.
            Ok(()) | Err(v4::Error::CompleteAlready) => Ok(begun),
            Err(_) => Err(begun.connection.unexpected("RECLAIM_COMPLETE", &reply)),
        }
    }

    /// Sends one compound, preceded by SEQUENCE; the reply omits the result of SEQUENCE.
    ///
    /// # Errors
    /// Those of [`Connection::call`]; the server refuses SEQUENCE.
    pub async fn call(&self, ops: &[Op]) -> Result<Reply> {
        let mut reply = self.compound(|_| {}, ops).await?;
        match reply.results.first() {
            Some(OpRes::Sequence(Ok(_))) => {
                reply.results.remove(0);
                Ok(reply)
            }
            _ => Err(self.connection.unexpected("SEQUENCE", &reply)),
        }
    }

    /// Sends one compound with changed SEQUENCE arguments. The reply includes the result of
    /// SEQUENCE, and may have any status.
    ///
    /// # Errors
    /// As [`Connection::call`].
    pub async fn compound(
        &self,
        change: impl FnOnce(&mut sequence::Args),
        ops: &[Op],
    ) -> Result<Reply> {
        let mut next = self.sequence.lock().await;
        let mut args = sequence::Args {
            session: self.session,
            sequence_id: *next,
            slot: 0,
            highest_slot: 0,
            cache_this: false,
        };
        change(&mut args);
        let first = Op::Sequence(args);
        let ops: Vec<Op> = std::iter::once(first).chain(ops.iter().cloned()).collect();
        let reply = self.connection.call(&ops).await?;
        let is_next = (args.session, args.slot, args.sequence_id) == (self.session, 0, *next);
        if is_next && matches!(reply.results.first(), Some(OpRes::Sequence(Ok(_)))) {
            *next += 1;
        }
        Ok(reply)
    }

    /// The client ID.
    pub fn client_id(&self) -> ClientId {
        self.client
    }

    /// The session ID.
    pub fn id(&self) -> SessionId {
        self.session
    }

    /// The attributes that the server granted for the fore channel.
    pub fn fore(&self) -> &ChannelAttrs {
        &self.fore
    }

    /// The connection, for compounds outside the session.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Ends the session and the client. A server refuses the latter while the client has state.
    ///
    /// # Errors
    /// The server does not answer, or refuses.
    pub async fn end(self) -> Result<()> {
        let operations = [
            ("DESTROY_SESSION", Op::DestroySession(self.session)),
            ("DESTROY_CLIENTID", Op::DestroyClientid(self.client)),
        ];
        for (operation, op) in operations {
            let reply = self.connection.call(&[op]).await?;
            if reply.status.is_err() {
                return Err(self.connection.unexpected(operation, &reply));
            }
        }
        Ok(())
    }
}

/// A client owner that no server knows.
pub fn new_client() -> ClientOwner {
    let random = getrandom::u64().unwrap_or_else(|_| std::process::id().into());
    let owner = format!("weir raw {random:016x}").as_bytes().into();
    ClientOwner { verifier: random.to_be_bytes(), owner }
}

/// The EXCHANGE_ID arguments of `client`.
pub fn exchange_id(client: ClientOwner) -> exchange_id::Args {
    exchange_id::Args {
        client,
        flags: exchange_id::Flags::USE_NON_PNFS,
        state_protect: exchange_id::StateProtect::None,
        impl_id: Vec::new().into(),
    }
}

/// The CREATE_SESSION arguments for a session with one slot.
pub fn create_session(client_id: ClientId, sequence_id: u32) -> create_session::Args {
    let channel = ChannelAttrs {
        max_request_size: MAX_RESULT_BYTES as u32,
        max_response_size: MAX_RESULT_BYTES as u32,
        max_response_size_cached: 4096,
        max_operations: 16,
        max_requests: 1,
        ..ChannelAttrs::default()
    };
    create_session::Args {
        client_id,
        sequence_id,
        flags: create_session::Flags::empty(),
        fore: channel.clone(),
        back: channel,
        cb_program: callbacks::PROGRAM,
        sec_parms: vec![CallbackSec::None].into(),
    }
}

/// Bytes of an RPC reply header with an empty verifier.
const REPLY_HEADER_BYTES: usize = 24;
/// Maximum bytes of a reply.
const MAX_RESULT_BYTES: usize = 64 << 10;
