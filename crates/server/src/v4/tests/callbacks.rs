//! The clients' side of callbacks: in a session's backchannel, or at their own port.

use super::*;
use crate::state::{BackCall, BackOutcome, ClientId};
use std::time::Duration;
use weir_nfs::v4::cb::notify_lock;
use weir_nfs::v4::cb::sequence::Sequenced;
use weir_nfs::v4::op::bind_conn_to_session::{Args as Bind, DirFromClient};
use weir_nfs::v4::{CbCompoundHeader, CbOp, CbOpRes};
use weir_rpc::{MessageType, message_type};

/// The program number of a test client's callback service.
pub(super) const PROGRAM: u32 = 0x4000_0000;

/// How a test client answers callbacks.
#[derive(Default)]
pub(super) struct Service {
    /// Whether the client has a callback service.
    pub(super) is_there: bool,
    /// Whether the client leaves calls unanswered.
    pub(super) is_silent: bool,
    /// The change attribute and size that it reports of a file.
    pub(super) attrs: Attrs,
    /// Operations that the server called, without CB_SEQUENCE.
    pub(super) called: Vec<CbOp>,
    /// The slots and sequence numbers of all calls.
    pub(super) turns: Vec<(u32, u32)>,
    /// For how many operations it answers that it has executed a call of this number before, and
    /// has kept no reply.
    uncached: usize,
    /// Its only session, if it does not know others any more.
    knows: Option<SessionId>,
    /// For how many calls of CB_SEQUENCE alone it answers that it cannot execute them yet.
    delays: usize,
}

impl Service {
    pub(super) fn flags(&self) -> create_session::Flags {
        if self.is_there {
            create_session::Flags::CONN_BACK_CHAN
        } else {
            create_session::Flags::empty()
        }
    }

    /// Serves a call. Returns the reply, unless the client is silent.
    fn serve(&mut self, record: Bytes) -> Option<Bytes> {
        let mut d = Decoder::new(record);
        let header = CallHeader::decode(&mut d).unwrap();
        assert_eq!((header.program, header.version), (PROGRAM, weir_nfs::v4::CB_VERSION));
        let mut e = start_record();
        e.put(&ReplyHeader::accepted(header.xid, AcceptStatus::Success));
        if header.procedure == weir_nfs::v4::PROC_CB_COMPOUND {
            let compound: CbCompoundHeader = d.get().unwrap();
            let tag = compound.tag.clone();
            let ops: Vec<_> =
                (0..compound.operations).map(|_| CbOp::decode_next(&mut d).unwrap()).collect();
            if let Some(CbOp::Sequence(args)) = ops.first()
                && self.knows.is_some_and(|session| session != args.session)
            {
                e.put(&CompoundResHeader { status: Err(Error::BadSession), tag, results: 1 });
                e.put(&CbOpRes::Sequence(Err(Error::BadSession)));
                return Some(finish_record(e).to_bytes());
            }
            e.put(&CompoundResHeader { status: Ok(()), tag, results: compound.operations });
            for op in ops {
                if compound.operations == 1 && self.delays > 0 {
                    self.delays -= 1;
                    e.put(&CbOpRes::Sequence(Err(Error::Delay)));
                    break;
                }
                let is_retry = self.uncached > 0 && !matches!(op, CbOp::Sequence(_));
                self.uncached -= usize::from(is_retry);
                e.put(&match is_retry {
                    true => CbOpRes::Failed(op.code(), Error::RetryUncachedRep),
                    false => self.result(&op),
                });
                match op {
                    CbOp::Sequence(turn) => self.turns.push((turn.slot, turn.sequence_id)),
                    op => self.called.push(op),
                }
            }
        }
        (!self.is_silent).then(|| finish_record(e).to_bytes())
    }

    fn result(&self, op: &CbOp) -> CbOpRes {
        match op {
            CbOp::Sequence(args) => CbOpRes::Sequence(Ok(Sequenced {
                session: args.session,
                sequence_id: args.sequence_id,
                slot: args.slot,
                highest_slot: 3,
                target_highest_slot: 3,
            })),
            CbOp::Recall(_) => CbOpRes::Recall(Ok(())),
            CbOp::Getattr(_) => CbOpRes::Getattr(Ok(self.attrs.clone())),
            CbOp::NotifyLock(_) => CbOpRes::NotifyLock(Ok(())),
            CbOp::Offload(_) => CbOpRes::Offload(Ok(())),
            other => panic!("{other:?}"),
        }
    }
}

impl Client {
    /// The next reply. Serves calls that arrive before it.
    pub(super) async fn reply(&mut self) -> Bytes {
        loop {
            let record = self.record().await;
            match message_type(&record).unwrap() {
                (_, MessageType::Reply) => return record,
                (_, MessageType::Call) => self.serve(record).await,
            }
        }
    }

    async fn serve(&mut self, record: Bytes) {
        if let Some(reply) = self.service.serve(record) {
            self.stream.write_all(&reply).await.unwrap();
        }
    }

    /// Waits for the next operation that the server calls, and serves it.
    pub(super) async fn called(&mut self) -> CbOp {
        let waiting = async {
            while self.service.called.is_empty() {
                let record = self.record().await;
                assert_eq!(message_type(&record).unwrap().1, MessageType::Call);
                self.serve(record).await;
            }
            self.service.called.remove(0)
        };
        tokio::time::timeout(Duration::from_secs(120), waiting).await.unwrap()
    }

    /// Serves calls for a while.
    pub(super) async fn serve_for(&mut self, time: Duration) {
        let serving = async {
            loop {
                let record = self.record().await;
                self.serve(record).await;
            }
        };
        let _: Result<(), _> = tokio::time::timeout(time, serving).await;
    }
}

fn notice(id: ClientId) -> CbOp {
    let owner = StateOwner { client_id: id.0, owner: "owner".into() };
    CbOp::NotifyLock(notify_lock::Args { file: FileHandle::default(), lock_owner: owner })
}

#[tokio::test]
async fn a_callback_under_a_used_number_is_sent_again_under_the_next() {
    let f = Fixture::new().await;
    let mut c = f.callable("a").await;
    let id = f.server.services.state.lock().clients.iter().next().unwrap().id;
    c.service.uncached = 1;
    let callbacks = &f.server.services.callbacks;
    let serving = async {
        c.called().await;
        c.called().await;
    };
    let (answered, ()) = tokio::join!(callbacks.call(id, notice(id), None), serving);
    assert_eq!(answered, Some(CbOpRes::NotifyLock(Ok(()))));
    assert_eq!(c.service.turns, [(0, 1), (0, 2)]);
}

#[tokio::test]
async fn the_number_of_a_lost_callback_is_used_for_no_other() {
    let f = Fixture::new().await;
    let mut c = f.callable("a").await;
    let id = f.server.services.state.lock().clients.iter().next().unwrap().id;
    let callbacks = f.server.services.callbacks.clone();
    let call = || {
        let callbacks = callbacks.clone();
        tokio::spawn(async move { callbacks.call(id, notice(id), None).await })
    };
    let lost = call();
    c.service.is_silent = true;
    c.called().await;
    c.stream = TcpStream::connect(f.addr).await.unwrap();
    assert_eq!(lost.await.unwrap(), None);

    c.service.is_silent = false;
    let bind = Bind { session: c.session, dir: DirFromClient::BackOrBoth, use_rdma: false };
    assert_eq!(c.raw(vec![Op::BindConnToSession(bind)]).await.status, Ok(()));
    f.test_backchannel(&mut c).await;
    // The client's other slots are in use.
    for _ in 1..4 {
        f.server.services.state.lock().sessions.begin_call(id).unwrap();
    }
    let answered = call();
    c.called().await;
    assert_eq!(answered.await.unwrap(), Some(CbOpRes::NotifyLock(Ok(()))));
    // CB_SEQUENCE alone between the two.
    assert_eq!(c.service.turns, [(0, 1), (0, 1), (0, 2)]);
}

#[tokio::test]
async fn settling_the_numbers_of_lost_callbacks_takes_none_of_a_callbacks_attempts() {
    let f = Fixture::new().await;
    let mut c = f.callable("a").await;
    let id = f.server.services.state.lock().clients.iter().next().unwrap().id;
    {
        // The answers to calls in all slots were lost with an earlier connection.
        let mut state = f.server.services.state.lock();
        let sessions = &mut state.sessions;
        let lost: Vec<_> = (0..4).map(|_| sessions.begin_call(id).unwrap()).collect();
        for call in &lost {
            sessions.end_call(call, BackOutcome::Lost);
        }
        let BackCall { session, connection, .. } = lost[0];
        sessions.bind_back(session, connection).unwrap();
        sessions.answered(connection);
    }
    // More often than a callback is sent.
    c.service.delays = 5;
    let callbacks = &f.server.services.callbacks;
    let (answered, _) = tokio::join!(callbacks.call(id, notice(id), None), c.called());
    assert_eq!(answered, Some(CbOpRes::NotifyLock(Ok(()))));
    assert_eq!(c.service.turns, [(0, 1), (0, 2)], "settled, and used");
}

#[tokio::test]
async fn a_callback_in_a_replaced_session_is_sent_again_in_the_new_one() {
    let f = Fixture::new().await;
    let mut c = f.callable("a").await;
    let id = f.server.services.state.lock().clients.iter().next().unwrap().id;
    let replaced = crate::state::SessionId(c.session);
    c.begin_session(1 << 20).await;
    f.test_backchannel(&mut c).await;
    c.service.knows = Some(c.session);
    let callbacks = &f.server.services.callbacks;
    for turn in 1..=2 {
        let (answered, _) = tokio::join!(callbacks.call(id, notice(id), None), c.called());
        assert_eq!(answered, Some(CbOpRes::NotifyLock(Ok(()))));
        assert_eq!(c.service.turns, [(0, 1), (0, 2)][..turn], "only in the new session");
        let state = f.server.services.state.lock();
        assert!(state.sessions.get(replaced).unwrap().lost_backchannel());
        let new = state.sessions.get(crate::state::SessionId(c.session)).unwrap();
        assert!(new.can_call() && !new.lost_backchannel());
    }
    c.ok(vec![]).await;
    assert!(c.status_flags.is_empty(), "{:?}", c.status_flags);
}

/// A callback service for clients of minor version 0: its address, and the operations called.
pub(super) async fn listen()
-> (SocketAddr, tokio::sync::mpsc::UnboundedReceiver<CbOp>, tokio::task::AbortHandle) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (tell, told) = tokio::sync::mpsc::unbounded_channel();
    let listening = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut service = Service::default();
            while let Ok(len) = stream.read_u32().await {
                let mut record = vec![0; (len & 0x7fff_ffff) as usize];
                stream.read_exact(&mut record).await.unwrap();
                let reply = service.serve(record.into()).unwrap();
                stream.write_all(&reply).await.unwrap();
                service.called.drain(..).for_each(|op| tell.send(op).unwrap());
            }
        }
    });
    (addr, told, listening.abort_handle())
}
